"""Make an encoder from a zoo entry: network, weights or random weights, checks."""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from histobench.core.errors import HistobenchError
from histobench.core.files import read_plain_text
from histobench.core.plain_data import parse_json
from histobench.roi.encoders.base import BasePatchEncoder, PromptEncoder, Prompts
from histobench.roi.encoders.checkpoint import (
    checkpoint_sha256,
    load_strictly,
    read_checkpoint,
    strip_shared_prefixes,
)
from histobench.roi.encoders.encoder_spec import EncoderSpec
from histobench.roi.encoders.families.family import Tokenizer, family_of
from histobench.roi.encoders.file_hash import sha256_of
from histobench.roi.encoders.tiny_vl import WEIGHTS
from histobench.roi.encoders.weights import (
    check_owner,
    check_packages,
    find_weights,
    resolve_companion,
    resolve_weights,
)
from histobench.roi.encoders.weights_download import other_revision
from histobench.roi.encoders.zoo import load_zoo

# Random weights that are the same on every machine.


def fill_with_seed(network: nn.Module, seed: int) -> None:
    """Fill every weight from NumPy generators: one per tensor, seeded by `seed` and the tensor's name.

    Matrices and kernels get standard deviation fan_in ** -0.5, tokens and positions 0.02, biases 0;
    other vectors (norm and layer scales) stay as they were constructed.
    """
    with torch.no_grad():
        for name, tensor in network.named_parameters():
            is_table = any(word in name.rsplit(".", 1)[-1] for word in ("token", "embed"))
            if tensor.ndim >= 2 or is_table:
                scale = 0.02 if is_table else (tensor.numel() / tensor.shape[0]) ** -0.5
                generator = np.random.default_rng([seed, zlib.crc32(name.encode())])
                values = generator.standard_normal(tuple(tensor.shape), dtype=np.float32) * np.float32(scale)
                tensor.copy_(torch.from_numpy(values))
            elif name.endswith("bias"):
                tensor.zero_()


class SkipRandomInit(TorchFunctionMode):
    """Fills new layers with zeros instead of random numbers: their weights are about to be replaced anyway.

    A network of a billion weights takes a minute to initialise and a second without. Only parameters are
    skipped: rejection samplers draw again into plain tensors until they are content, and must really draw.
    """

    FILLS = frozenset(
        {"normal_", "uniform_", "erfinv_", "kaiming_uniform_", "kaiming_normal_", "xavier_uniform_"}
    )

    def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") in self.FILLS:
            # `torch.nn.init` passes its tensor by name, tensor methods by position.
            tensor = args[0] if args else kwargs.get("tensor")
            if isinstance(tensor, nn.Parameter):
                with torch.no_grad():
                    return tensor.zero_()
        return func(*args, **kwargs)


# Checks that the configuration files beside a checkpoint agree with the zoo's entry.

#: Pillow's numbers for interpolation, as image processors store them.
RESAMPLING = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}
CONFIG_FILES = ("config.json", "preprocessor_config.json", "open_clip_config.json")
TOLERANCE = 6e-4  # published statistics are rounded to three digits in places
#: Facts that are only warned of: libraries write their default there, whatever the authors used.
DEFAULTS = ("fit", "resize per crop")
#: Facts by the names that configurations have for them.
PREPROCESSING = ("mean", "std", "interpolation")
TIMM_ARGUMENTS = ("reg_tokens", "embed_dim", "depth", "num_heads", "patch_size", "act_layer")
TOWER = ("hidden_size", "num_hidden_layers", "num_attention_heads", "patch_size", "num_register_tokens")
#: What changes the features of a transformers network without changing the shape of a tensor.
SILENT = ("num_attention_heads", "hidden_act", "hidden_activation", "layer_norm_eps", "rms_norm_eps")
CLIP_TOWER = ("image_size", "patch_size", "width", "layers", "pool_type", "timm_model_name", "timm_pool")
#: timm's names for the vector that an entry calls by its pooling.
TIMM_POOLS = {"cls": "token", "mean": "avg"}


def check_config(spec: EncoderSpec, checkpoint: Path, network: nn.Module) -> None:
    """Raise when a configuration beside `checkpoint` contradicts the entry (except in its `traps`).

    `network` is the one that was built: its norm layers, heads and activation are compared too. Another
    crop is only warned of.
    """
    for name in CONFIG_FILES:
        path = checkpoint.parent / name
        if not path.is_file():
            continue
        differences = _differences(spec, path, network)
        notes = [differences.pop(key) for key in DEFAULTS if key in differences]
        if notes:
            warnings.warn(f"{path}: {'; '.join(notes)}; the zoo's is used", stacklevel=2)
        if differences:
            stated = "; ".join(differences.values())
            raise HistobenchError(
                f"{path} does not describe {spec.name} as the zoo does: {stated}; "
                "is this another model's folder?"
            )


def _differences(spec: EncoderSpec, path: Path, network: nn.Module) -> dict[str, str]:
    """What a configuration file states otherwise than the entry; its values may be of any type."""
    try:
        config = parse_json(read_plain_text(path))
        return dict(disagreements(spec, config, network))
    except (OSError, RecursionError, TypeError, ValueError, LookupError, AttributeError) as error:
        raise HistobenchError(
            f"{path} is not a model's configuration ({type(error).__name__}: {error}); download it again, or "
            "delete it if it does not belong to the checkpoint next to it"
        ) from error


def disagreements(
    spec: EncoderSpec, config: Mapping[str, Any], network: nn.Module
) -> Iterator[tuple[str, str]]:
    """Every fact that the configuration states otherwise than the entry, except the entry's known traps."""
    stated = _timm_facts(config) | _transformers_facts(config, spec.family)
    stated |= _processor_facts(config) | _clip_facts(config)
    ours = _our_facts(spec) | _network_facts(spec, network)
    for key, value in stated.items():
        if key in ours and key not in spec.traps and not _same(value, ours[key]):
            yield key, f"{key} is {value}, the zoo says {ours[key]}"


def _our_facts(spec: EncoderSpec) -> dict[str, Any]:
    transform = spec.transform
    own = load_zoo().get(spec.name, spec)  # the user may have asked for another size or output
    facts: dict[str, Any] = {
        "mean": list(transform.mean),
        "std": list(transform.std),
        "interpolation": transform.interpolation,
        "image_size": own.size,
        "fit": "squash" if transform.squash else "crop",
        "resize per crop": round(transform.resize / transform.crop, 3),
    }
    facts |= _picked(spec.kwargs.get("vision_config", spec.kwargs), TOWER)
    if spec.family == "open_clip":
        facts["quick_gelu"] = bool(spec.kwargs.get("quick_gelu", False))
        named = {"timm_model_name": spec.kwargs["vision"], "timm_pool": ""} if "vision" in spec.kwargs else {}
        tower = {"pool_type": "tok", **spec.kwargs.get("vision_cfg", {}), **named}
        facts |= _picked(tower, CLIP_TOWER)
    if spec.family == "timm":
        facts |= {"architecture": spec.arch, **_picked(spec.kwargs, TIMM_ARGUMENTS)}
        pool = TIMM_POOLS.get(own.pooling, spec.kwargs.get("global_pool"))
        facts |= {"global_pool": pool} if pool else {}
    return facts


def _network_facts(spec: EncoderSpec, network: Any) -> dict[str, Any]:
    """What the built network is, in the words of the transformers library's configurations."""
    if spec.family == "transformers":
        config = network.config.to_dict()
        return _picked(config.get("vision_config") or config, SILENT)
    epsilons = {module.eps for module in network.modules() if isinstance(module, nn.LayerNorm)}
    facts: dict[str, Any] = {"layer_norm_eps": epsilons.pop()} if len(epsilons) == 1 else {}
    block: Any = network.blocks[0] if spec.family == "timm" and hasattr(network, "blocks") else None
    if hasattr(block, "attn"):
        facts["num_attention_heads"] = block.attn.num_heads
        if type(block.mlp.act).__name__ == "GELU":
            facts["hidden_act"] = "gelu"
    return facts


def _picked(values: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: values[name] for name in names if name in values}


def _timm_facts(config: Mapping[str, Any]) -> dict[str, Any]:
    if "architecture" not in config:
        return {}
    pretrained = {**config, **(config.get("pretrained_cfg") or {})}
    facts = {
        "architecture": str(config["architecture"]).partition(".")[0],
        **_picked(pretrained, PREPROCESSING),
        **_picked(config.get("model_args") or {}, TIMM_ARGUMENTS),
    }
    if pretrained.get("input_size"):
        facts["image_size"] = pretrained["input_size"][-1]
    if config.get("global_pool") in TIMM_POOLS.values():  # an empty one leaves the pooling to the caller
        facts["global_pool"] = config["global_pool"]
    return facts


def _transformers_facts(config: Mapping[str, Any], family: str) -> dict[str, Any]:
    if "model_type" not in config:
        return {}
    vision = config.get("vision_config")
    # In another family the size is that of the position table, which is resampled when it is loaded.
    size = ("image_size",) if family == "transformers" else ()
    return _picked(vision if isinstance(vision, Mapping) else config, (*TOWER, *SILENT, *size))


def _processor_facts(config: Mapping[str, Any]) -> dict[str, Any]:
    if "image_mean" not in config:
        return {}
    facts = {"mean": config["image_mean"], "std": config.get("image_std")}
    if config.get("resample") in RESAMPLING:
        facts["interpolation"] = RESAMPLING[config["resample"]]
    return {key: value for key, value in (facts | _geometry(config)).items() if value is not None}


def _geometry(config: Mapping[str, Any]) -> dict[str, Any]:
    """How a processor cuts images; old ones state one number for both sides."""
    size, crop = config.get("size"), config.get("crop_size")
    if not config.get("do_center_crop"):
        if not isinstance(size, Mapping):
            return {"image_size": size} if size else {}
        return {"fit": "squash", "image_size": size["height"]} if size.get("height") else {}
    pixels = crop.get("height") if isinstance(crop, Mapping) else crop
    edge = size.get("shortest_edge") if isinstance(size, Mapping) else size
    facts = {"fit": "crop", "image_size": pixels} if pixels else {}
    return facts | ({"resize per crop": round(edge / pixels, 3)} if edge and pixels else {})


def _clip_facts(config: Mapping[str, Any]) -> dict[str, Any]:
    preprocess = config.get("preprocess_cfg")
    if not isinstance(preprocess, Mapping):
        return {}
    model = config.get("model_cfg") or {}
    facts = {"quick_gelu": bool(model.get("quick_gelu", False))}
    return facts | _picked(model.get("vision_cfg") or {}, CLIP_TOWER) | _picked(preprocess, PREPROCESSING)


def _same(stated: Any, ours: Any) -> bool:
    if isinstance(ours, list):
        return (
            isinstance(stated, list)
            and len(stated) == len(ours)
            and all(abs(a - b) <= TOLERANCE for a, b in zip(stated, ours, strict=True))
        )
    if isinstance(ours, str):
        return str(stated).lower() == ours.lower()
    return bool(stated == ours)


# An encoder of the zoo: a spec, its family's driver and a network.

PRECISIONS = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


class ZooEncoder(BasePatchEncoder):
    """Runs the network of an `EncoderSpec` and gives the documented features."""

    def __init__(self, spec: EncoderSpec, network: nn.Module) -> None:
        super().__init__()
        self.spec = spec
        self.name = spec.full_name
        self.embed_dim = spec.dim
        self.precision = PRECISIONS[spec.precision]
        self.eval_transforms = spec.transform
        self.network = network
        self._family = family_of(spec)

    def forward(self, images: Tensor) -> Tensor:
        """Features [b, embed_dim] of preprocessed images [b, 3, h, w]."""
        features = self._family.encode_image(self.spec, self.network, images)
        return nn.functional.normalize(features, dim=-1) if self.spec.normalised else features


class ImageTextEncoder(ZooEncoder):
    """An encoder whose images can be compared with texts."""

    def __init__(
        self, spec: EncoderSpec, network: nn.Module, find_files: Callable[[], Mapping[str, Path]]
    ) -> None:
        super().__init__(spec, network)
        self._find_files = find_files
        self._tokenizer: Tokenizer | None = None
        self._prompts = PromptEncoder(self._encode_texts)

    @property
    def supports_zero_shot(self) -> bool:
        """Whether this output lies in, or can be projected into, the space shared with text."""
        return self.spec.supports_zero_shot

    def project_image(self, features: Tensor) -> Tensor:
        """Stored features in the space shared with text, L2-normalised."""
        return self._family.project_image(self.spec, self.network, features)

    def encode_prompts(self, prompts: Prompts, device: str) -> Tensor:
        """One L2-normalised text vector per class; a class may have one prompt or an ensemble of them."""
        if not self.spec.supports_zero_shot:
            raise HistobenchError(
                f"the output {self.name} cannot be compared with text; use {self.spec.name}"
            )
        return self._prompts(prompts, device)

    @torch.inference_mode()
    def run_zero_shot(self, texts: Prompts, image_features: Tensor, device: str) -> Tensor:
        """Class probabilities [n, classes] of stored features [n, d] against the prompts of each class."""
        self.to(device)
        text = self.encode_prompts(texts, device)
        dtype = next(self.network.parameters()).dtype
        images = self.project_image(image_features.to(device=device, dtype=dtype)).float()
        scale = self._family.logit_scale(self.network).to(device)
        return (scale * images @ text.T).softmax(dim=-1)

    def _encode_texts(self, texts: Sequence[str], device: str) -> Tensor:
        if self._tokenizer is None:
            self._tokenizer = self._family.load_tokenizer(self.spec, self._find_files())
        tokens = self._tokenizer(texts)
        if isinstance(tokens, Tensor):
            moved: Tensor | dict[str, Tensor] = tokens.to(device)
        else:
            moved = {key: value.to(device) for key, value in tokens.items()}
        return self._family.encode_text(self.spec, self.network, moved).float()


SEED = 0


def construct(
    spec: EncoderSpec,
    *,
    weights: str | None = None,
    allow_random: bool = False,
    allow_revision: bool = False,
    depth: int | None = None,
) -> BasePatchEncoder:
    """The encoder of `spec`, frozen, in eval mode, with what identifies its features in `.identity`."""
    if spec.source.kind == "project":
        encoder = family_of(spec).build(spec)
        if not isinstance(encoder, BasePatchEncoder):
            raise HistobenchError(f"zoo: {spec.name}: its family does not give a whole encoder")
        return _freeze(encoder, spec, {})
    if spec.source.kind == "seed":
        checkpoint = None
    elif allow_random:
        checkpoint = find_weights(spec, weights)
    else:
        checkpoint = resolve_weights(spec, weights, allow_revision=allow_revision)
    if checkpoint is not None:
        check_owner(spec, checkpoint, load_zoo().values())
    check_packages(spec)
    with SkipRandomInit():
        network = family_of(spec).build(spec, depth=depth)
    if checkpoint is None:
        fill_with_seed(network, SEED)
    else:
        check_config(spec, checkpoint, network)
        load_weights(spec, network, checkpoint)
    identity = _weights_identity(spec, checkpoint, allow_revision)
    if spec.text is None:
        return _freeze(ZooEncoder(spec, network), spec, identity)
    files = spec.text.files

    def find_files() -> dict[str, Path]:
        return {path.name: path for path in (resolve_companion(spec, checkpoint, file) for file in files)}

    return _freeze(ImageTextEncoder(spec, network, find_files), spec, identity)


class StandIn(BasePatchEncoder):
    """An encoder of the zoo without its network: all that names its features, to find them in the cache."""

    def __init__(self, spec: EncoderSpec) -> None:
        super().__init__()
        self.embed_dim = spec.dim
        self.precision = PRECISIONS[spec.precision]
        self.eval_transforms = spec.transform


def stand_in(
    spec: EncoderSpec, *, weights: str | None = None, allow_revision: bool = False
) -> BasePatchEncoder:
    """Return what `construct` would return, without a network; weights are hashed only if they changed."""
    if spec.source.kind == "project":
        identity = {"weights": f"sha256:{sha256_of(WEIGHTS)}"}
    else:
        is_seeded = spec.source.kind == "seed"
        checkpoint = None if is_seeded else resolve_weights(spec, weights, allow_revision=allow_revision)
        identity = _weights_identity(spec, checkpoint, allow_revision)
    return _freeze(StandIn(spec), spec, identity)


def _weights_identity(spec: EncoderSpec, checkpoint: Path | None, allow_revision: bool) -> dict[str, Any]:
    if checkpoint is None:
        return {"weights": f"random:{SEED}"}
    identity = {"weights": f"sha256:{checkpoint_sha256(checkpoint, only=spec.source.only)}"}
    revision = other_revision(spec, checkpoint) if allow_revision else ""
    return identity | ({"revision": revision} if revision else {})


def load_weights(spec: EncoderSpec, network: Any, checkpoint: Path) -> None:
    """Read a published checkpoint into the network, all of it."""
    state = read_checkpoint(checkpoint, container=spec.source.container, only=spec.source.only)
    # A wrapper's prefix on every name would hide the published names from the renaming.
    state = family_of(spec).from_upstream(spec, network, strip_shared_prefixes(state))
    load_strictly(network, state, where=f"{spec.name}: {checkpoint}", ignore=spec.source.ignore)


def _freeze(encoder: BasePatchEncoder, spec: EncoderSpec, identity: dict[str, Any]) -> BasePatchEncoder:
    encoder.name = spec.full_name
    encoder.identity = {
        "encoder": spec.full_name,
        "family": spec.family,
        "arch": spec.arch,
        "kwargs": {key: spec.kwargs[key] for key in sorted(spec.kwargs)},
        "pooling": spec.pooling,
        "variant": spec.output or "default",
        "dim": spec.dim,
        "normalised": spec.normalised,
        **encoder.identity,
        **identity,
    }
    return encoder.eval().requires_grad_(False)
