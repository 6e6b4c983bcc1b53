"""What a family of encoders must offer; position embeddings and CLIP tokens, which several share."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from histobench.core.errors import HistobenchError, needing
from histobench.roi.encoders.encoder_spec import EncoderSpec

State = dict[str, Tensor]


#: Blocks in each stage of EfficientNet-Lite0; `efficientnet_pytorch` numbers them through.
_STAGES = (1, 2, 2, 3, 3, 4, 1)
_STEM = {
    "_conv_stem": "conv_stem", "_bn0": "bn1", "_conv_head": "conv_head", "_bn1": "bn2", "_fc": "classifier",
}  # fmt: skip
_EXPANDED = {
    "_expand_conv": "conv_pw", "_bn0": "bn1", "_depthwise_conv": "conv_dw", "_bn1": "bn2",
    "_project_conv": "conv_pwl", "_bn2": "bn3",
}  # fmt: skip
#: The first block has no expansion.
_FIRST = {"_depthwise_conv": "conv_dw", "_bn1": "bn1", "_project_conv": "conv_pw", "_bn2": "bn2"}


def efficientnet_pytorch(state: State) -> State:
    """The names of EfficientNet-Lite0 in the `efficientnet_pytorch` package to timm's."""
    places = [f"{stage}.{block}" for stage, count in enumerate(_STAGES) for block in range(count)]
    renamed: State = {}
    for name, tensor in state.items():
        first, *rest = name.split(".")
        if first == "_blocks":
            number, part, kind = rest
            table = _EXPANDED if number != "0" else _FIRST
            renamed[f"blocks.{places[int(number)]}.{table[part]}.{kind}"] = tensor
        else:
            renamed[".".join([_STEM[first], *rest])] = tensor
    return renamed


def dinov2(state: State) -> State:
    """Names of the `dinov2` training code, which cuts blocks into chunks (`blocks.1.13.`), to timm's."""
    renamed: State = {}
    for name, tensor in state.items():
        name = re.sub(r"blocks\.\d+\.(\d+)\.", r"blocks.\1.", name)
        name = name.replace(".mlp.w12.", ".mlp.fc1.").replace(".mlp.w3.", ".mlp.fc2.")
        if name.rsplit(".", 1)[-1] == "mask_token":
            continue
        renamed[name.replace("register_tokens", "reg_token")] = tensor
    for name in [name for name in renamed if name.endswith("reg_token")]:
        _fold_class_position(renamed, name.removesuffix("reg_token"))
    return renamed


def transformers_vit(state: State) -> State:
    """Names of the `transformers` library's ViT and DINOv2 networks, of any version, to timm's."""
    if not any("embeddings.patch_embeddings." in name for name in state):
        return dinov2(state)
    renamed: State = {}
    # A model around the network (`vit.`, `dinov2.`, a fine-tuned encoder's own) puts its name in front.
    wrapper = next((n.removesuffix(_CLASS) for n in state if n.endswith(_CLASS)), "")
    for name, tensor in state.items():
        name = name.removeprefix(wrapper)
        block = re.match(r"(?:encoder\.layer|layers|layer)\.(\d+)\.(.+)\.(\w+)$", name)
        if block:
            inner = _BLOCK_NAMES.get(block[2], block[2])
            renamed[f"blocks.{block[1]}.{inner}.{block[3].replace('lambda1', 'gamma')}"] = tensor
        elif not name.startswith("pooler.") and not name.endswith("mask_token"):
            stem, _, kind = name.rpartition(".")
            renamed[_STEM_NAMES.get(name) or f"{_STEM_NAMES.get(stem, stem)}.{kind}"] = tensor
    _join(renamed, "attn.qkv", ("query", "key", "value"))
    _join(renamed, "mlp.fc1", ("gate", "up"))
    _fold_class_position(renamed, "")
    return renamed


_CLASS = "embeddings.cls_token"
_STEM_NAMES = {
    "embeddings.cls_token": "cls_token",
    "embeddings.position_embeddings": "pos_embed",
    "embeddings.register_tokens": "reg_token",
    "embeddings.patch_embeddings.projection": "patch_embed.proj",
    "layernorm": "norm",
}
_BLOCK_NAMES = {
    "layernorm_before": "norm1",
    "layernorm_after": "norm2",
    "attention.attention.query": "query",
    "attention.attention.key": "key",
    "attention.attention.value": "value",
    "attention.q_proj": "query",
    "attention.k_proj": "key",
    "attention.v_proj": "value",
    "attention.output.dense": "attn.proj",
    "attention.o_proj": "attn.proj",
    "intermediate.dense": "mlp.fc1",
    "output.dense": "mlp.fc2",
    "layer_scale1": "ls1",
    "layer_scale2": "ls2",
    "mlp.weights_in": "mlp.fc1",
    "mlp.weights_out": "mlp.fc2",
    "mlp.gate_proj": "gate",
    "mlp.up_proj": "up",
    "mlp.down_proj": "mlp.fc2",
}


def _join(state: State, target: str, parts: tuple[str, ...]) -> None:
    for name in [name for name in state if f".{parts[0]}." in name]:
        names = [name.replace(f".{parts[0]}.", f".{part}.") for part in parts]
        if all(part in state for part in names):
            joined = torch.cat([state.pop(part) for part in names])
            state[name.replace(f".{parts[0]}.", f".{target}.")] = joined


def _fold_class_position(state: State, prefix: str) -> None:
    """With registers timm keeps no position of the class token: it is part of the token."""
    position = state.get(f"{prefix}pos_embed")
    if f"{prefix}reg_token" not in state or position is None:
        return
    patches = position.shape[1]
    if int(patches**0.5) ** 2 != patches and round((patches - 1) ** 0.5) ** 2 == patches - 1:
        state[f"{prefix}cls_token"] = state[f"{prefix}cls_token"] + position[:, :1]
        state[f"{prefix}pos_embed"] = position[:, 1:]


def pathoduet(state: State) -> State:
    """PathoDuet's names to timm's: its pretext token is a register."""
    renamed = {name.replace("pretext_token", "reg_token"): tensor for name, tensor in state.items()}
    renamed.pop("bridge_token", None)
    if "pos_embed" in renamed:
        table = renamed["pos_embed"]
        renamed["pos_embed"] = torch.cat([table[:, 1:2], table[:, :1], table[:, 2:]], dim=1)
    return renamed


LAYOUTS: dict[str, Callable[[State], State]] = {
    "dinov2": dinov2,
    "efficientnet_pytorch": efficientnet_pytorch,
    "pathoduet": pathoduet,
    "transformers_vit": transformers_vit,
}

Tokenizer = Callable[[Sequence[str]], Tensor | dict[str, Tensor]]


class Family:
    """Builds the networks of one family from an `EncoderSpec` and runs them."""

    def build(self, spec: EncoderSpec, *, depth: int | None = None) -> nn.Module:
        """The network with its initial weights; `depth` shortens it for tests."""
        raise NotImplementedError

    def encode_image(self, spec: EncoderSpec, network: nn.Module, images: Tensor) -> Tensor:
        """The documented features [b, dim] of a batch."""
        raise NotImplementedError

    def from_upstream(
        self, spec: EncoderSpec, network: nn.Module, state: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        """The published tensors under the network's names."""
        return LAYOUTS[spec.source.layout](state) if spec.source.layout else state

    def project_image(self, spec: EncoderSpec, network: nn.Module, features: Tensor) -> Tensor:
        """Stored features in the space shared with text, L2-normalised."""
        return nn.functional.normalize(features, dim=-1)

    def encode_text(self, spec: EncoderSpec, network: nn.Module, tokens: Any) -> Tensor:
        """Texts in the space shared with images, L2-normalised."""
        raise NotImplementedError

    def load_tokenizer(self, spec: EncoderSpec, files: Mapping[str, Path]) -> Tokenizer:
        """From texts to the network's tokens."""
        raise NotImplementedError

    def logit_scale(self, network: nn.Module) -> Tensor:
        """The factor between cosine similarity and logit."""
        scale: Tensor = network.logit_scale  # type: ignore[assignment]
        return scale.detach().float().exp()


def family_of(spec: EncoderSpec) -> Family:
    """The driver of the encoder's family; only its own libraries are imported."""
    return importlib.import_module(f"histobench.roi.encoders.families.{spec.family}").FAMILY


def pool_tokens(tokens: Tensor, pooling: str, *, prefix: int) -> Tensor:
    """One vector per image from tokens [b, prefix + patches, d]; registers never enter the mean."""
    if tokens.ndim != 3 or ("cls" in pooling and not prefix):
        lacking = "class token" if "cls" in pooling else f"tokens (its output: {tuple(tokens.shape)})"
        raise HistobenchError(f"this network has no {lacking}: leave out @{pooling}")
    if pooling == "cls":
        return tokens[:, 0]
    patches = tokens[:, prefix:].mean(dim=1)
    return patches if pooling == "mean" else torch.cat([tokens[:, 0], patches], dim=-1)


DINO_OFFSET = 0.1


def method_of_origin(names: Iterable[str]) -> str:
    """How the code that wrote a file resamples positions, seen from the names of its tensors."""
    names = list(names)
    if any("embeddings." in name for name in names):
        return "plain"
    return "dino" if any(name.endswith("mask_token") for name in names) else "timm"


def resample_positions(table: Tensor, patches: int, method: str) -> Tensor:
    """A table [1, prefix + g*g, d] as [1, prefix + patches, d]; the prefix (class token) is kept as it is."""
    prefix = table.shape[1] - int((table.shape[1]) ** 0.5) ** 2
    old, new = int((table.shape[1] - prefix) ** 0.5), int(patches**0.5)
    if old == new:
        return table
    grid = table[:, prefix:].float().reshape(1, old, old, -1).permute(0, 3, 1, 2)
    if method == "dino":
        factor = (new + DINO_OFFSET) / old
        grid = interpolate(grid, scale_factor=(factor, factor), mode="bicubic")
    else:
        antialias = method == "timm"
        grid = interpolate(grid, size=(new, new), mode="bicubic", align_corners=False, antialias=antialias)
    flat = grid.permute(0, 2, 3, 1).reshape(1, new * new, -1).to(table.dtype)
    return torch.cat([table[:, :prefix], flat], dim=1)


def clip_tokenizer(spec: EncoderSpec) -> Callable[[Sequence[str]], Tensor]:
    """OpenAI's byte-pair tokenizer, whose vocabulary comes with open_clip: token ids [n, context]."""
    with needing(f"zero-shot with {spec.name} needs open_clip_torch; run: pip install 'histobench[text]'"):
        from open_clip.tokenizer import SimpleTokenizer
    tokenizer = SimpleTokenizer(context_length=spec.text.context if spec.text else 77)
    return lambda texts: tokenizer(list(texts))


def bert_tokenizer(file: Path, context: int) -> Any:
    """A BERT tokenizer from its `tokenizer.json` or `vocab.txt`, which pads to `context` ids with 0."""
    from tokenizers import BertWordPieceTokenizer, Tokenizer

    if file.suffix == ".txt":
        tokenizer = BertWordPieceTokenizer(str(file), lowercase=True)
    else:
        tokenizer = Tokenizer.from_file(str(file))
    tokenizer.enable_truncation(context)
    tokenizer.enable_padding(length=context, pad_id=0)
    return tokenizer


def wordpiece_tokenizer(file: Path, context: int) -> Callable[[Sequence[str]], Tensor]:
    """Texts to the token ids [n, context] of BERT."""
    tokenizer = bert_tokenizer(file, context)

    def tokenize(texts: Sequence[str]) -> Tensor:
        # open_clip joins runs of white space before it tokenizes.
        encoded = tokenizer.encode_batch([" ".join(text.split()) for text in texts])
        return torch.tensor([entry.ids for entry in encoded])

    return tokenize
