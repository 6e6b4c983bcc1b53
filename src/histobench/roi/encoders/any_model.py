"""Models outside the zoo in one line: `timm:NAME`, `hf:OWNER/NAME[@revision]`, or a Python object."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import io
import json
import logging
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from histobench.core.errors import HistobenchError, did_you_mean
from histobench.core.files import read_note
from histobench.roi.encoders.base import BasePatchEncoder
from histobench.roi.encoders.checkpoint import checkpoint_sha256, load_strictly, read_checkpoint
from histobench.roi.encoders.construct import RESAMPLING, SEED, SkipRandomInit, StandIn, fill_with_seed
from histobench.roi.encoders.encoder_spec import NORMS, Cost, EncoderSpec, WeightsSource
from histobench.roi.encoders.families.family import pool_tokens
from histobench.roi.encoders.own_name import TIMM, UNCHECKED, split_alias, split_model
from histobench.roi.encoders.patch_tokens import prefix_of
from histobench.roi.encoders.transform import INTERPOLATIONS, TransformSpec
from histobench.roi.encoders.weights import HUB_FILES, check_packages, find_weights, resolve_weights
from histobench.roi.encoders.weights_download import fetch_from_hub, is_offline

log = logging.getLogger(__name__)

#: The standard preprocessing of torchvision, for Python objects that say nothing about theirs.
PLAIN = TransformSpec()
_said: set[str] = set()


@dataclass(frozen=True)
class AnyModel:
    """A model outside the zoo: its description, its network without weights, and how to run it."""

    spec: EncoderSpec
    build: Callable[[], nn.Module]
    run: Callable[[Any, Tensor], Tensor]
    load: Callable[[Any, dict[str, Tensor], str], None]


def create_any_model(
    name: str, *, resize_size: int | None = None, weights: str | None = None, allow_random: bool = False
) -> BasePatchEncoder:
    """The frozen encoder of `timm:NAME` or `hf:OWNER/NAME`, with a warning that no one checked it."""
    model = find_model(split_alias(name)[1])
    spec = model.spec.with_size(resize_size)
    checkpoint = find_weights(spec, weights) if allow_random else resolve_weights(spec, weights)
    with SkipRandomInit():
        network = model.build()
    if checkpoint is None:
        fill_with_seed(network, SEED)
        identity = f"random:{SEED}"
    else:
        model.load(network, read_checkpoint(checkpoint), f"{spec.name}: {checkpoint}")
        identity = f"sha256:{checkpoint_sha256(checkpoint)}"
    return _frozen(UncheckedEncoder(network, model.run, spec.transform, spec.dim), name, spec, identity)


def model_stand_in(name: str, spec: EncoderSpec, weights: str | None) -> BasePatchEncoder:
    """Return what `create_any_model` would return, without a network."""
    return _frozen(StandIn(spec), name, spec, f"sha256:{checkpoint_sha256(resolve_weights(spec, weights))}")


def _frozen(encoder: BasePatchEncoder, name: str, spec: EncoderSpec, weights: str) -> BasePatchEncoder:
    encoder.name = name
    encoder.identity = {
        "encoder": spec.name,
        "family": spec.family,
        "arch": spec.arch,
        "kwargs": dict(spec.kwargs),
        "pooling": spec.pooling,
        "dim": spec.dim,
        "weights": weights,
        "unchecked": True,
    }
    warn_unchecked(name, spec.transform, f"{spec.pooling}, {spec.dim} numbers")
    return encoder.eval().requires_grad_(False)


class UncheckedEncoder(BasePatchEncoder):
    """A network, or any callable, with a transform."""

    def __init__(
        self, network: Any, run: Callable[[Any, Tensor], Tensor], transform: Any, dim: int | None = None
    ) -> None:
        super().__init__()
        self.network = network
        self.eval_transforms = transform
        self._run = run
        self.embed_dim = dim or 0

    def forward(self, images: Tensor) -> Tensor:
        return self._run(self.network, images)


def warn_unchecked(name: str, transform: Any, output: str) -> None:
    """Say once what is done with a model that no one checked."""
    words = "your own"
    if isinstance(transform, TransformSpec):
        side = "both sides" if transform.squash else "short side"
        crop = "" if transform.squash and transform.crop == transform.resize else transform.crop
        mean, std = (", ".join(f"{value:.4g}" for value in part) for part in (transform.mean, transform.std))
        words = f"{side} to {transform.resize} ({transform.interpolation})"
        words += f"{f', center crop {crop}' if crop else ''}, mean {mean}, std {std}"
    text = f"{name}: {UNCHECKED}. Transform: {words}. Output: {output}."
    if text not in _said:
        _said.add(text)
        log.warning("%s", text)


@lru_cache(maxsize=64)
def find_model(name: str) -> AnyModel:
    """What `timm:NAME` or `hf:OWNER/NAME` means; a small configuration file is fetched where it is needed."""
    kind, place, revision, pooling = split_model(name)
    if kind == TIMM:
        return _timm(name, place, {}, pooling, None)
    return _hugging_face(name, place, revision, pooling)


def _timm(
    name: str, arch: str, config: Mapping[str, Any], pooling: str, source: WeightsSource | None
) -> AnyModel:
    """`config` is the content of a hub repository's config.json; empty for a name of timm."""
    import timm
    from timm.data import resolve_data_config

    from histobench.roi.encoders.families.timm import TimmFamily

    if not timm.is_model(arch):
        raise HistobenchError(
            f"{name}: timm {timm.__version__} has no model {arch!r}; "
            f"{did_you_mean(arch.partition('.')[0], timm.list_models())}"
        )
    arguments: dict[str, Any] = {**(config.get("model_args") or {}), "num_classes": 0}
    if config.get("global_pool"):
        arguments.setdefault("global_pool", config["global_pool"])

    family = TimmFamily()
    spec = _spec(name, "timm", arch, WeightsSource(), kwargs=arguments, pooling=pooling or "pooled")
    build, run = partial(family.build, spec), partial(family.encode_image, spec)
    network = _skeleton(build)
    stated: dict[str, Any] = {**network.pretrained_cfg, **(config.get("pretrained_cfg") or {})}
    data = resolve_data_config({}, pretrained_cfg=stated, model=network)
    channels, height, width = data["input_size"]
    if channels != 3 or height != width or data["crop_mode"] not in ("center", "squash"):
        raise HistobenchError(
            f"{name}: its preprocessing ({channels} x {height} x {width}, {data['crop_mode']}) is not a "
            "square RGB crop; write an encoder of your own (my_file.py:MyEncoder)"
        )
    classifiers = stated.get("classifier") or ()
    classifiers = [classifiers] if isinstance(classifiers, str) else classifiers
    heads = tuple(f"{head}.*" for head in classifiers if head)
    if source is None:
        hub, url = str(stated.get("hf_hub_id") or ""), str(stated.get("url") or "")
        file = str(stated.get("hf_hub_filename") or HUB_FILES[0])
        source = (
            WeightsSource(repo=hub, file=file, ignore=heads) if hub else WeightsSource(kind="url", url=url)
        )
    spec = replace(
        spec,
        source=source,
        transform=_timm_transform(name, data),
        license=str(stated.get("license") or "not stated"),
        sizes="fixed" if stated.get("fixed_input_size") else "any",
    )

    def load(network: Any, state: dict[str, Tensor], where: str) -> None:
        # timm's own modules know how other projects call the same tensors.
        convert = getattr(sys.modules[type(network).__module__], "checkpoint_filter_fn", None)
        if convert is not None and not set(network.state_dict()) <= set(state):
            state = dict(convert(dict(state), network))
        load_strictly(network, state, where=where, ignore=heads)

    return AnyModel(_measured(spec, network, run), build, run, load)


def _timm_transform(name: str, data: Mapping[str, Any]) -> TransformSpec:
    side = data["input_size"][-1]
    return TransformSpec(
        resize=int(side / data["crop_pct"]),
        crop=side,
        interpolation=_interpolation(name, data["interpolation"]),
        mean=_three(data["mean"]),
        std=_three(data["std"]),
        squash=data["crop_mode"] == "squash",
    )


def _hugging_face(name: str, place: str, revision: str, pooling: str) -> AnyModel:
    folder = Path(place).expanduser()
    if folder.is_dir():
        found = next((file for file in HUB_FILES if (folder / file).is_file()), HUB_FILES[0])
        source = WeightsSource(kind="project", file=str(folder / found))
        page = str(folder)
    elif re.fullmatch(r"[\w.-]+/[\w.-]+", place) and not place.startswith("."):
        source = WeightsSource(repo=place, revision=revision, file=HUB_FILES[0])
        page = place
    else:
        if place.startswith(("/", ".", "~")) or place.count("/") > 1:
            raise HistobenchError(f"{name}: the folder {folder} does not exist")
        raise HistobenchError(f"{name}: expected hf:OWNER/NAME, hf:OWNER/NAME@revision or hf:FOLDER")
    read = partial(_config, name, source)
    config, clip = read("config.json"), None
    if config is None or ("architecture" not in config and "model_type" not in config):
        clip = read("open_clip_config.json")
    if clip is None and config is None:
        raise HistobenchError(f"{name}: {page} has no config.json or open_clip_config.json")
    if source.kind == "hub":
        source = replace(source, file=_hub_file(name, source, clip is not None))
    try:
        if clip is not None:
            return _open_clip(name, clip, pooling, source)
        assert config is not None
        if "architecture" in config:
            return _timm(name, str(config["architecture"]), config, pooling, source)
        if "model_type" in config:
            return _transformers(name, config, read("preprocessor_config.json"), pooling, source)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise HistobenchError(
            f"{name}: {page} has a configuration that cannot be used ({type(error).__name__}: {error})"
        ) from error
    raise HistobenchError(f"{name}: {page} is not a model of timm, transformers or open_clip")


def _config(name: str, source: WeightsSource, file: str) -> dict[str, Any] | None:
    if source.kind == "project":
        return read_note(Path(source.file).with_name(file))
    try:
        return read_note(fetch_from_hub(_spec(name, "timm", "", source), file))
    except HistobenchError as error:
        if is_offline() or "has no" not in str(error):
            raise
        return None


def _hub_file(name: str, source: WeightsSource, clip: bool) -> str:
    from huggingface_hub import try_to_load_from_cache

    usual = [file for file in HUB_FILES if file.startswith("open_clip") == clip]
    for file in usual:
        if isinstance(try_to_load_from_cache(source.repo, file, revision=source.revision or None), str):
            return file
    if is_offline():
        return usual[0]
    from huggingface_hub import file_exists

    with contextlib.suppress(Exception):  # the download says what is wrong
        for file in usual:
            if file_exists(source.repo, file, revision=source.revision or None):
                return file
    return usual[0]


def _transformers(
    name: str,
    config: Mapping[str, Any],
    processor: Mapping[str, Any] | None,
    pooling: str,
    source: WeightsSource,
) -> AnyModel:
    kind = str(config["model_type"])
    if processor is None:
        raise HistobenchError(f"{name} has no preprocessor_config.json, so its transform is not known")
    spec = _spec(name, "transformers", kind, source, transform=_processor_transform(name, processor))
    check_packages(spec)
    import transformers

    if kind not in transformers.CONFIG_MAPPING:
        raise HistobenchError(
            f"{name}: transformers {transformers.__version__} has no model type {kind!r} "
            "(code from the hub is not run)"
        )
    settings = transformers.CONFIG_MAPPING[kind].from_dict(dict(config))
    # Activations, numbers of heads and the like decide about features as the weights do.
    unrelated = ("_name_or_path", "transformers_version")
    stated = json.dumps({key: config[key] for key in config if key not in unrelated}, sort_keys=True)

    def build() -> nn.Module:
        return transformers.AutoModel.from_config(settings)

    network = _skeleton(build)
    pooling = pooling or ("pooled" if _has_pooled(network) else "mean")
    run = partial(_transformers_output, pooling=pooling)
    kwargs = {"model_type": kind, "config": hashlib.sha256(stated.encode()).hexdigest()}
    spec = _measured(replace(spec, pooling=pooling, kwargs=kwargs), network, run)

    def load(network: Any, state: dict[str, Tensor], where: str) -> None:
        # The library knows under which names its models were saved in the past.
        level = transformers.logging.get_verbosity()
        transformers.logging.set_verbosity(logging.CRITICAL)
        transformers.logging.disable_progress_bar()
        try:
            loaded, info = type(network).from_pretrained(
                None, config=settings, state_dict=state, output_loading_info=True
            )
        except RuntimeError as error:
            raise HistobenchError(f"{where}: these are not this encoder's weights ({error})") from error
        finally:
            transformers.logging.set_verbosity(level)
            transformers.logging.enable_progress_bar()
        # A pooler that was never trained is not in the file.
        poolers = [key for key in info["missing_keys"] if key.split(".")[0] == "pooler"]
        if poolers and pooling == "pooled":
            raise HistobenchError(f"{where}: its pooler was not trained; give @cls or @mean")
        lacking = [*(set(info["missing_keys"]) - set(poolers)), *map(str, info["mismatched_keys"])]
        if lacking:
            raise HistobenchError(
                f"{where}: these are not this encoder's weights: {len(lacking)} tensors are missing or have "
                f"another shape ({sorted(lacking)[0]}, ...)"
            )
        network.load_state_dict(loaded.state_dict())

    return AnyModel(spec, build, run, load)


def _has_pooled(network: Any) -> bool:
    """Whether the network gives one vector per image by itself."""
    parts = ("get_image_features", "pooler", "avgpool")
    is_pooled = any(kind in network.config.model_type for kind in ("convnext", "dino"))
    return is_pooled or any(getattr(network, part, None) is not None for part in parts)


def _transformers_output(network: Any, images: Tensor, *, pooling: str) -> Tensor:
    if pooling == "pooled":
        output = getattr(network, "get_image_features", network)(pixel_values=images)
        vector = output if isinstance(output, Tensor) else output.pooler_output
        if vector is None:
            raise HistobenchError("this network has no pooled output: give @cls or @mean")
        return vector.flatten(1)
    tower = getattr(network, "vision_model", network)
    return pool_tokens(tower(pixel_values=images).last_hidden_state, pooling, prefix=prefix_of(tower))


def _processor_transform(name: str, config: Mapping[str, Any]) -> TransformSpec:
    size, crop = config.get("size"), config.get("crop_size")
    resize = _side(size)
    if resize is None:
        raise HistobenchError(f"{name}: preprocessor_config.json gives no square size (size: {size!r})")
    squash = not (isinstance(size, Mapping) and "shortest_edge" in size)
    side = _side(crop) if config.get("do_center_crop") else None
    if "crop_pct" in config and not squash and side is None:  # as ConvNeXt's processor has it
        side, squash = resize, resize >= 384
        resize = resize if squash else int(resize / float(config["crop_pct"] or 0.875))
    normalized = config.get("do_normalize", True)
    return TransformSpec(
        resize=resize,
        crop=side or resize,
        interpolation=_interpolation(name, RESAMPLING.get(config.get("resample", 3), "unknown")),
        mean=_three(config["image_mean"]) if normalized else (0.0, 0.0, 0.0),
        std=_three(config["image_std"]) if normalized else (1.0, 1.0, 1.0),
        squash=squash,
    )


def _side(size: Any) -> int | None:
    if isinstance(size, Mapping):
        square = size.get("height") if size.get("height") == size.get("width") else None
        size = size.get("shortest_edge") or square
    return int(size) if size and isinstance(size, int | float) else None


def _open_clip(name: str, config: Mapping[str, Any], pooling: str, source: WeightsSource) -> AnyModel:
    if pooling not in ("", "pooled"):
        raise HistobenchError(f"{name}: models of open_clip have one output; leave out @{pooling}")
    model, preprocess = config["model_cfg"], config.get("preprocess_cfg") or {}
    size = model["vision_cfg"].get("image_size", 224)
    mean, std = NORMS["clip"]
    transform = TransformSpec(
        resize=int(size),
        crop=int(size),
        interpolation=_interpolation(name, str(preprocess.get("interpolation") or "bicubic")),
        mean=_three(preprocess.get("mean") or mean),
        std=_three(preprocess.get("std") or std),
        squash=preprocess.get("resize_mode") == "squash",
    )
    vision = {**model["vision_cfg"], "timm_model_pretrained": False}
    quick = bool(model.get("quick_gelu", False))
    kwargs = {**vision, "quick_gelu": quick}
    spec = _spec(name, "open_clip", "visual", source, transform=transform, kwargs=kwargs)
    check_packages(spec)
    from open_clip import CLIP

    def build() -> nn.Module:
        # The text tower is not needed; a small one takes its place.
        text = {"context_length": 4, "vocab_size": 4, "width": 8, "heads": 1, "layers": 1}
        return CLIP(model["embed_dim"], vision, text, quick_gelu=quick).visual

    def load(network: Any, state: dict[str, Tensor], where: str) -> None:
        visual = {key[7:]: value for key, value in state.items() if key.startswith("visual.")}
        load_strictly(network, visual or state, where=where)

    return AnyModel(_measured(spec, _skeleton(build), nn.Module.__call__), build, nn.Module.__call__, load)


def _spec(name: str, family: str, arch: str, source: WeightsSource, **more: Any) -> EncoderSpec:
    unknown = {"dim": 1, "pooling": "pooled", "transform": PLAIN, "license": "not stated"}
    return EncoderSpec(
        name=name,
        title=arch or name,
        family=family,
        arch=arch,
        source=source,
        citation="",
        reference="",
        pathology=False,
        unconfirmed=UNCHECKED,
        **{**unknown, **more},
    )


def _skeleton(build: Callable[[], nn.Module]) -> Any:
    """The network without memory for its weights, where its code allows that."""
    try:
        with torch.device("meta"):
            return build().eval()
    except (RuntimeError, HistobenchError):  # older versions of timm compute with the weights they make
        with SkipRandomInit():
            return build().eval()


def _measured(spec: EncoderSpec, network: Any, run: Callable[[Any, Tensor], Tensor]) -> EncoderSpec:
    """Add the number of parameters, and the length of the features by a forward pass without numbers."""
    device, side = next(network.parameters()).device, spec.transform.crop
    try:
        with torch.inference_mode():
            shape = tuple(run(network, torch.zeros(1, 3, side, side, device=device)).shape)
    except Exception as error:  # a foreign network may fail in any way
        raise HistobenchError(f"{spec.name} cannot compute features: {error}") from error
    if len(shape) != 2:
        raise HistobenchError(
            f"{spec.name}: its output ({spec.pooling}) has shape {shape}, not one vector per image; "
            f"name a pooling: @cls, @mean, @cls+mean"
        )
    params = sum(parameter.numel() for parameter in network.parameters())
    return replace(spec, dim=int(shape[1]), cost=Cost(params=params))  # the work per image is not counted


def _interpolation(name: str, value: str) -> str:
    if value not in INTERPOLATIONS:
        raise HistobenchError(
            f"{name}: interpolation {value!r} is not known; {did_you_mean(value, INTERPOLATIONS)}"
        )
    return value


def _three(values: Any) -> tuple[float, float, float]:
    first, second, third = map(float, values)
    return first, second, third


def wrap_object(model: Any, *, name: str | None, transform: Any, size: int | None) -> BasePatchEncoder:
    """An encoder from a module, or a callable from images [b, 3, h, w] to features [b, d]."""
    called = name or getattr(model, "__name__", None) or type(model).__name__
    if isinstance(model, BasePatchEncoder):
        model.name = name or model.name or called
        return model.eval().requires_grad_(False)
    stated = getattr(model, "pretrained_cfg", None)
    if transform is None and isinstance(stated, Mapping) and stated.get("mean"):
        from timm.data import resolve_data_config

        transform = _timm_transform(called, resolve_data_config({}, model=model))
    transform = transform if transform is not None else PLAIN
    if size is not None and isinstance(transform, TransformSpec):
        transform = transform.with_size(size)
    encoder = UncheckedEncoder(model, partial(_call, called), transform)
    encoder.name = called
    encoder.eval().requires_grad_(False)
    from PIL import Image

    side = transform.crop if isinstance(transform, TransformSpec) else 224
    picture = torch.as_tensor(transform(Image.new("RGB", (side, side), "white")))
    device = next((parameter.device for parameter in encoder.parameters()), torch.device("cpu"))
    with torch.inference_mode():
        encoder.embed_dim = int(encoder(picture[None].to(device)).shape[1])
    encoder.identity = {**identity_of_object(model), "unchecked": True}
    warn_unchecked(called, transform, f"{encoder.embed_dim} numbers")
    return encoder


def _call(name: str, model: Any, images: Tensor) -> Tensor:
    output = model(images)
    if not isinstance(output, Tensor) and getattr(output, "pooler_output", None) is not None:
        output = output.pooler_output
    try:
        output = torch.as_tensor(output)
    except (TypeError, ValueError, RuntimeError):
        kind = type(output).__name__
        raise HistobenchError(
            f"{name} gives a {kind} that is not numbers; expected [images, dimension]"
        ) from None
    if output.ndim != 2 or len(output) != len(images):
        raise HistobenchError(
            f"{name} gives {tuple(output.shape)} for {len(images)} images; expected [images, dimension]: "
            "wrap it in a function that returns one vector per image"
        )
    return output


def identity_of_object(model: Any) -> dict[str, Any]:
    """Give the class or text of an object, its weights and version; the rest is found by the recheck."""
    owner = getattr(model, "__self__", None)
    module = next((each for each in (model, owner) if isinstance(each, nn.Module)), None)
    texts = type(module).__mro__ if module is not None else (model, type(model))
    kind = type(model)
    return {
        "class": f"{kind.__module__}.{kind.__qualname__}",
        "weights": f"sha256:{state_sha256(module)}" if module is not None else "not known",
        "source": _text_sha256(texts),
        **version_of(module if module is not None else model),
    }


def version_of(network: object) -> dict[str, Any]:
    """Give the attribute `version` as a part of the identity: the user's word that the features changed."""
    version = getattr(network, "version", None)
    return {"version": str(version)} if isinstance(version, str | int | float) else {}


def _text_sha256(parts: Iterable[Any]) -> str:
    """Hash the text of the user's classes and functions."""
    digest = hashlib.sha256()
    for part in parts:
        if getattr(part, "__module__", "").partition(".")[0] not in ("torch", "histobench", "builtins"):
            with contextlib.suppress(OSError, TypeError):  # defined at a prompt
                digest.update(inspect.getsource(part).encode())
    return digest.hexdigest()


def state_sha256(network: nn.Module) -> str:
    digest = hashlib.sha256()
    for name, tensor in network.state_dict().items():
        if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided:  # of quantized layers
            torch.save(tensor, stored := io.BytesIO())
            digest.update(f"{name}|".encode() + stored.getvalue())
            continue
        digest.update(f"{name}|{tuple(tensor.shape)}|{tensor.dtype}|".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
