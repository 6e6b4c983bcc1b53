"""LoRA adapters in the attention of an encoder, by peft, which only functions import: that takes seconds."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

from histobench.core.errors import HistobenchError, needing
from histobench.core.files import read_plain_text
from histobench.core.plain_data import parse_json
from histobench.roi.encoders.base import BasePatchEncoder
from histobench.roi.encoders.file_hash import sha256_now

#: The attention projections of each family: how the name of a module ends, as a regular expression. A fused
#: projection holds query, key and value; where they are separate, query and value are adapted.
TARGETS = {
    "timm": r"attn\.qkv",
    "transformers": r"(q_proj|v_proj|query|value)(\.linear)?",
    "open_clip": r"attn\.qkv|resblocks\.\d+\.attn",
    "own": r"attn\.qkv|(q_proj|v_proj)\.A",
}
#: For a class of the user that does not define `lora_targets`.
ANY = "|".join([*TARGETS.values(), r"qkv"])
_ADAPTER, _BASE, _LOADER = "adapter_model.safetensors", "base_encoder.json", "encoder.py"
_LOADER_TEXT = '''"""The fine-tuned encoder of this folder: --encoders NAME=THIS_FILE:adapted."""

from pathlib import Path

from histobench.roi.encoders.lora import load_adapted


def adapted():
    return load_adapted(Path(__file__).parent)
'''


class NotAdaptableError(HistobenchError):
    """The network has no attention that LoRA could adapt."""


@dataclass(frozen=True)
class Lora:
    """The adapter of an encoder: peft's model, the modules that were adapted, and the trainable weights."""

    model: Any
    modules: tuple[str, ...]
    weights: Mapping[str, nn.Parameter]

    @property
    def count(self) -> int:
        return sum(weight.numel() for weight in self.weights.values())

    def reset(self, seed: int) -> None:
        """Make the adapter new: the network computes what it did before, and training starts from `seed`."""
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for name, weight in self.weights.items():
                if ".lora_B." in name:
                    weight.zero_()
                else:  # as peft does, and the same on every device
                    bound = 1 / math.sqrt(weight.shape[1])
                    weight.copy_(torch.empty(weight.shape).uniform_(-bound, bound, generator=generator))

    def save(self, folder: Path, recipe: Mapping[str, Any]) -> None:
        """Write the adapter in peft's format, with `recipe`, the arguments of `create_encoder`, beside it."""
        from peft import get_peft_model_state_dict
        from safetensors.torch import save_file

        folder.mkdir(parents=True, exist_ok=True)
        state = get_peft_model_state_dict(self.model, adapter_name="default")
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}
        save_file(tensors, folder / _ADAPTER)
        self.model.peft_config["default"].save_pretrained(str(folder))
        (folder / _BASE).write_text(json.dumps(dict(recipe), indent=2) + "\n", encoding="utf-8")
        (folder / _LOADER).write_text(_LOADER_TEXT, encoding="utf-8")


def add_lora(
    encoder: BasePatchEncoder, *, rank: int, alpha: float, forward: Callable[[Tensor], Tensor] | None = None
) -> Lora:
    """Put a LoRA adapter into the attention that `forward` passes; freeze all other weights."""
    peft = _peft(encoder.name)
    encoder.eval().requires_grad_(False)
    targets = target_modules(encoder, forward)
    config = peft.LoraConfig(r=rank, lora_alpha=alpha, target_modules=targets)
    model = peft.LoraModel(encoder, config, "default")
    weights = {name: weight for name, weight in model.model.named_parameters() if weight.requires_grad}
    return Lora(model, tuple(targets), weights)


def _peft(name: str) -> Any:
    with needing(f"fine-tuning {name} needs the package peft; run: pip install 'histobench[adapt]'"):
        import peft
    return peft


def target_modules(encoder: BasePatchEncoder, forward: Callable[[Tensor], Tensor] | None = None) -> list[str]:
    """Return the attention projections that an image passes, not those of a text tower; none is an error."""
    pattern = encoder.lora_targets or TARGETS.get(str(encoder.identity.get("family")), ANY)
    try:
        ends = re.compile(rf"(.*\.)?({pattern})")
    except re.error as error:
        raise HistobenchError(f"`lora_targets` {pattern!r} is not a regular expression: {error}") from error
    named = [
        name
        for name, module in encoder.named_modules()
        if ends.fullmatch(name) and isinstance(module, nn.Linear | nn.MultiheadAttention)
    ]
    if called := _called(encoder, forward or encoder, named):
        return called
    name = encoder.name or type(encoder).__name__
    linear = [name for name, module in encoder.named_modules() if isinstance(module, nn.Linear)]
    if not named and sum(isinstance(module, nn.Conv2d) for module in encoder.modules()) > len(linear):
        raise NotAdaptableError(f"{name} is a convolutional network: LoRA adapts attention, and it has none")
    shown = dict.fromkeys(re.sub(r"\.\d+(?=\.|$)", ".N", name) for name in linear)
    reason = f"no module that it calls has a name that ends in {pattern}"
    if named:
        reason = f"its forward pass does not call {named[0]} ({len(named)} modules have such names)"
    raise HistobenchError(
        f"{name} cannot be fine-tuned: {reason}. Its linear modules: {', '.join([*shown][:12]) or 'none'}. "
        "For your own class, set `lora_targets` to a regular expression of module names."
    )


def _called(encoder: BasePatchEncoder, forward: Callable[[Tensor], Tensor], names: list[str]) -> list[str]:
    image, seen = torch.as_tensor(encoder.eval_transforms(Image.new("RGB", (256, 256)))), set[str]()
    device = next((weight.device for weight in encoder.parameters()), torch.device("cpu"))
    with torch.no_grad(), ExitStack() as hooks:
        for name in names:
            module = encoder.get_submodule(name)
            hooks.enter_context(module.register_forward_pre_hook(lambda *_, name=name: seen.add(name)))
        forward(image[None].to(device))
    return [name for name in names if name in seen]


def load_adapted(folder: str | Path) -> BasePatchEncoder:
    """Make the frozen encoder of a folder that `--save-adapters` wrote; it needs peft to load, not to run."""
    folder = Path(folder)
    peft = _peft(str(folder))
    from safetensors.torch import load_file

    from histobench.roi.encoders.registry import create_encoder

    try:
        recipe = parse_json(read_plain_text(folder / _BASE))
    except OSError as error:
        raise HistobenchError(f"{folder} does not hold a saved adapter: {error}") from error
    encoder = create_encoder(recipe.pop("name"), **recipe)
    model = peft.LoraModel(encoder, peft.LoraConfig.from_pretrained(str(folder)), "default")
    found = peft.set_peft_model_state_dict(model, load_file(folder / _ADAPTER), adapter_name="default")
    if found.unexpected_keys:
        raise HistobenchError(f"{folder}: the adapter is of another network: {found.unexpected_keys[0]}")
    encoder, digest = model.merge_and_unload(), sha256_now(folder / _ADAPTER)
    encoder.identity = {"base": encoder.identity, "adapter": f"sha256:{digest}", "unchecked": True}
    return encoder.eval().requires_grad_(False)
