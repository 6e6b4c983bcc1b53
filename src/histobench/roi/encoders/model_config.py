"""Checks that the configuration files beside a checkpoint agree with the zoo's entry."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from histobench.core.errors import HistobenchError
from histobench.core.plain_data import parse_json
from histobench.core.plain_file import HAND_WRITTEN, read_plain_text
from histobench.roi.encoders.spec import EncoderSpec

#: Pillow's numbers for interpolation, as image processors store them.
RESAMPLING = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}
CONFIG_FILES = ("config.json", "preprocessor_config.json", "open_clip_config.json")
TOLERANCE = 6e-4  # published statistics are rounded to three digits in places
#: Facts that are only warned of: libraries write their default there, whatever the authors used.
DEFAULTS = ("interpolation", "fit", "resize per crop")
#: What a transformers network uses when its configuration does not say.
ACTIVATIONS = {"CLIP": "quick_gelu", "DINOv3ViT": "gelu"}


def check_config(spec: EncoderSpec, checkpoint: Path) -> None:
    """Raise when a configuration beside `checkpoint` contradicts the entry (except in its `traps`).

    Another way of resizing is only warned of.
    """
    for name in CONFIG_FILES:
        path = checkpoint.parent / name
        if not path.is_file():
            continue
        differences = _differences(spec, path)
        notes = [differences.pop(key) for key in DEFAULTS if key in differences]
        if notes:
            warnings.warn(f"{path}: {'; '.join(notes)}; the zoo's is used", stacklevel=2)
        if differences:
            stated = "; ".join(differences.values())
            raise HistobenchError(
                f"{path} does not describe {spec.name} as the zoo does: {stated}; "
                "is this another model's folder?"
            )


def _differences(spec: EncoderSpec, path: Path) -> dict[str, str]:
    """What a configuration file states otherwise than the entry; a file that is none is an error."""
    advice = "fetch it again, or take it away if it does not belong to the checkpoint beside it"
    try:
        config = parse_json(read_plain_text(path, limit=HAND_WRITTEN))
    except (OSError, ValueError, RecursionError) as error:
        raise HistobenchError(f"{path} is not valid JSON; {advice}") from error
    if not isinstance(config, dict):
        raise HistobenchError(f"{path} is a {type(config).__name__}, not a model's configuration; {advice}")
    try:
        return dict(disagreements(spec, config))
    except (TypeError, ValueError, KeyError, AttributeError, ArithmeticError) as error:
        # The values of a foreign file may be of any type.
        raise HistobenchError(
            f"{path} is a malformed configuration ({type(error).__name__}: {error}); {advice}"
        ) from error


def disagreements(spec: EncoderSpec, config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Every fact that the configuration states otherwise than the entry, except the entry's known traps."""
    stated = {
        **_timm_facts(config),
        **_transformers_facts(config),
        **_processor_facts(config),
        **_clip_facts(config),
    }
    ours = _our_facts(spec)
    for key, value in stated.items():
        if key in ours and key not in spec.traps and not _same(value, ours[key]):
            yield key, f"{key} is {value}, the zoo says {ours[key]}"


def _our_facts(spec: EncoderSpec) -> dict[str, Any]:
    transform = spec.transform
    facts: dict[str, Any] = {
        "mean": list(transform.mean),
        "std": list(transform.std),
        "interpolation": transform.interpolation,
        "fit": "squash" if transform.squash else "crop",
        "resize per crop": round(transform.resize / transform.crop, 3),
    }
    names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "patch_size", "num_register_tokens")
    tower = spec.kwargs.get("vision_config", spec.kwargs)
    facts.update({name: tower[name] for name in names if name in tower})
    if spec.family == "transformers":
        facts["hidden_act"] = tower.get("hidden_act", ACTIVATIONS.get(spec.arch, "gelu"))
    if spec.family == "open_clip":
        facts["quick_gelu"] = bool(spec.kwargs.get("quick_gelu", False))
    if spec.family == "timm":
        facts["architecture"] = spec.arch
        facts.update(
            {name: spec.kwargs[name] for name in ("reg_tokens", "embed_dim", "depth") if name in spec.kwargs}
        )
    return facts


def _timm_facts(config: Mapping[str, Any]) -> dict[str, Any]:
    if "architecture" not in config:
        return {}
    pretrained = {**config, **(config.get("pretrained_cfg") or {})}
    arguments = config.get("model_args") or {}
    facts = {name: pretrained[name] for name in ("mean", "std", "interpolation") if name in pretrained}
    facts.update(
        {name: arguments[name] for name in ("reg_tokens", "embed_dim", "depth") if name in arguments}
    )
    return {"architecture": str(config["architecture"]).partition(".")[0], **facts}


def _transformers_facts(config: Mapping[str, Any]) -> dict[str, Any]:
    if "model_type" not in config:
        return {}
    tower = config.get("vision_config") if isinstance(config.get("vision_config"), Mapping) else config
    names = (
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "patch_size",
        "num_register_tokens",
        "hidden_act",
    )
    return {name: tower[name] for name in names if tower is not None and name in tower}


def _processor_facts(config: Mapping[str, Any]) -> dict[str, Any]:
    if "image_mean" not in config:
        return {}
    facts = {"mean": config["image_mean"], "std": config.get("image_std")}
    if config.get("resample") in RESAMPLING:
        facts["interpolation"] = RESAMPLING[config["resample"]]
    return {key: value for key, value in (facts | _geometry(config)).items() if value is not None}


def _geometry(config: Mapping[str, Any]) -> dict[str, Any]:
    size, crop = config.get("size"), config.get("crop_size")
    if not isinstance(size, Mapping):
        return {}
    if not config.get("do_center_crop"):
        return {"fit": "squash"} if "height" in size else {}
    if "shortest_edge" not in size or not isinstance(crop, Mapping) or not crop.get("height"):
        return {}
    return {"fit": "crop", "resize per crop": round(size["shortest_edge"] / crop["height"], 3)}


def _clip_facts(config: Mapping[str, Any]) -> dict[str, Any]:
    preprocess = config.get("preprocess_cfg")
    if not isinstance(preprocess, Mapping):
        return {}
    facts = {name: preprocess[name] for name in ("mean", "std", "interpolation") if name in preprocess}
    return {"quick_gelu": bool((config.get("model_cfg") or {}).get("quick_gelu", False)), **facts}


def _same(stated: Any, ours: Any) -> bool:
    if isinstance(ours, list):
        return (
            isinstance(stated, list)
            and len(stated) == len(ours)
            and all(abs(a - b) <= TOLERANCE for a, b in zip(stated, ours, strict=True))
        )
    return bool(stated == ours)
