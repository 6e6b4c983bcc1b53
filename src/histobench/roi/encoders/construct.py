"""Make an encoder from a zoo entry: network, weights or random weights, checks."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from histobench.core.errors import HistobenchError
from histobench.core.files import read_plain_text
from histobench.core.plain_data import parse_json
from histobench.roi.encoders.base import PRECISIONS, BasePatchEncoder, PromptEncoder, Prompts
from histobench.roi.encoders.checkpoint import (
    checkpoint_sha256,
    load_strictly,
    read_checkpoint,
    strip_shared_prefixes,
)
from histobench.roi.encoders.encoder_spec import EncoderSpec
from histobench.roi.encoders.families.family import Tokenizer, family_of
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
    """Fills new layers with zeros, not random numbers, which takes a minute for a billion weights.

    Only parameters: rejection samplers draw again into plain tensors until they are content."""

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


#: Pillow's numbers for interpolation, as image processors store them.
RESAMPLING = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}
CONFIG_FILES = ("config.json", "preprocessor_config.json", "open_clip_config.json")
TOLERANCE = 6e-4  # published statistics are rounded to three digits in places
#: What changes features in the words of timm, transformers and open_clip.
SHAPES = {"num_heads", "num_attention_heads", "hidden_size", "num_hidden_layers", "patch_size", "hidden_act"}
SHAPES |= {"reg_tokens", "num_register_tokens", "layer_norm_eps", "embed_dim", "depth", "width", "layers"}


def check_config(spec: EncoderSpec, checkpoint: Path) -> None:
    """Raise when a file beside a checkpoint states another architecture or normalization."""
    for name in CONFIG_FILES:
        path = checkpoint.parent / name
        if not path.is_file():
            continue
        try:
            differences = "; ".join(disagreements(spec, parse_json(read_plain_text(path))))
        except (OSError, RecursionError, TypeError, ValueError, AttributeError) as error:
            raise HistobenchError(f"{path} is not a model's configuration: {error}") from error
        if differences:
            raise HistobenchError(
                f"{path} does not describe {spec.name} as the zoo does: {differences}; "
                "is this another model's folder?"
            )


def disagreements(spec: EncoderSpec, config: Mapping[str, Any]) -> Iterator[str]:
    """Every fact that a configuration of timm, transformers or open_clip states otherwise than the entry."""
    clip, model = config.get("preprocess_cfg") or {}, config.get("model_cfg") or {}
    stated = {**config, **(config.get("pretrained_cfg") or {}), **clip}
    transform = spec.transform
    for key, ours in (("mean", transform.mean), ("std", transform.std)):
        value = stated.get(key) or stated.get(f"image_{key}")
        if value and key not in spec.traps and not np.allclose(value, ours, rtol=0, atol=TOLERANCE):
            yield f"{key} is {value}, the zoo says {list(ours)}"
    resampling = RESAMPLING.get(config["resample"]) if "resample" in config else stated.get("interpolation")
    facts: dict[str, tuple[Any, Any]] = {"interpolation": (resampling, transform.interpolation)}
    own = spec.kwargs.get("vision_config") or spec.kwargs.get("vision_cfg") or spec.kwargs
    theirs = config.get("vision_config") or config.get("model_args") or model.get("vision_cfg") or config
    facts |= {key: (theirs.get(key), own[key]) for key in sorted(SHAPES & own.keys())}
    if spec.family == "timm" and "architecture" in config:
        facts["architecture"] = (config["architecture"].partition(".")[0], spec.arch)
    if spec.family == "open_clip" and model:
        facts["quick_gelu"] = (model.get("quick_gelu", False), spec.kwargs.get("quick_gelu", False))
    for key, (other, ours) in facts.items():
        if other is not None and key not in spec.traps and other != ours:
            yield f"{key} is {other}, the zoo says {ours}"


class ZooEncoder(BasePatchEncoder):
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
        self.to(device)
        text = self.encode_prompts(texts, device)
        dtype = next(self.network.parameters()).dtype
        images = self.project_image(image_features.to(device=device, dtype=dtype)).float()
        return (self._family.logit_scale(self.network).to(device) * images @ text.T).softmax(dim=-1)

    def _encode_texts(self, texts: Sequence[str], device: str) -> Tensor:
        if self._tokenizer is None:
            self._tokenizer = self._family.load_tokenizer(self.spec, self._find_files())
        tokens = self._tokenizer(texts)
        parts = tokens if isinstance(tokens, dict) else {"": tokens}
        moved = {key: value.to(device) for key, value in parts.items()}
        return self._family.encode_text(self.spec, self.network, moved.get("", moved)).float()


SEED = 0
#: Weights that need no download: random numbers, and those of tiny-vl.
OF_THE_PACKAGE: dict[str, Path | None] = {"seed": None, "project": WEIGHTS}


def construct(
    spec: EncoderSpec,
    *,
    weights: str | None = None,
    allow_random: bool = False,
    allow_revision: bool = False,
    depth: int | None = None,
) -> BasePatchEncoder:
    """The encoder of `spec`, frozen, in eval mode, with what identifies its features in `.identity`."""
    is_optional = allow_random and spec.source.kind not in OF_THE_PACKAGE
    checkpoint = find_weights(spec, weights) if is_optional else _checkpoint(spec, weights, allow_revision)
    if checkpoint is not None:
        check_owner(spec, checkpoint, load_zoo().values())
    check_packages(spec)
    with SkipRandomInit():
        network = family_of(spec).build(spec, depth=depth)
    if checkpoint is None:
        fill_with_seed(network, SEED)
    else:
        check_config(spec, checkpoint)
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
    checkpoint = _checkpoint(spec, weights, allow_revision)
    return _freeze(StandIn(spec), spec, _weights_identity(spec, checkpoint, allow_revision))


def _checkpoint(spec: EncoderSpec, weights: str | None, allow_revision: bool) -> Path | None:
    if spec.source.kind in OF_THE_PACKAGE:
        return OF_THE_PACKAGE[spec.source.kind]
    return resolve_weights(spec, weights, allow_revision=allow_revision)


def _weights_identity(spec: EncoderSpec, checkpoint: Path | None, allow_revision: bool) -> dict[str, Any]:
    if checkpoint is None:
        return {"weights": f"random:{SEED}"}
    identity = {"weights": f"sha256:{checkpoint_sha256(checkpoint, only=spec.source.only)}"}
    revision = other_revision(spec, checkpoint) if allow_revision else ""
    return identity | ({"revision": revision} if revision else {})


def load_weights(spec: EncoderSpec, network: Any, checkpoint: Path) -> None:
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
        **identity,
    }
    return encoder.eval().requires_grad_(False)
