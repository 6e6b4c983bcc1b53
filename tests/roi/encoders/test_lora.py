"""LoRA adapters: which modules of which family, nothing silently frozen, saved and loaded again."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from measure_zoo import build_network
from torch import Tensor, nn

from builders import TINY_VIT
from histobench.core.errors import HistobenchError
from histobench.roi.encoders.base import BasePatchEncoder
from histobench.roi.encoders.construct import ZooEncoder
from histobench.roi.encoders.lora import NotAdaptableError, add_lora, load_adapted, target_modules
from histobench.roi.encoders.registry import create_encoder, get_spec
from histobench.roi.encoders.transform import TransformSpec

pytestmark = pytest.mark.slow  # the oldest libraries cannot build networks without memory

R = 4


def _on_meta(name: str) -> ZooEncoder:
    """Two blocks of an encoder of the zoo, without weights: nothing is computed."""
    encoder = ZooEncoder(get_spec(name), build_network(get_spec(name), "meta", depth=2))
    encoder.identity = {"family": encoder.spec.family}
    return encoder


#: Of two blocks: the adapted modules and their weights by hand, from the widths that were published.
COUNTS = {
    "uni_v1": (2, 2 * R * (1024 + 3 * 1024)),  # timm, query, key and value in one
    "hibou-b": (2, 2 * R * (768 + 3 * 768)),
    "plip": (4, 4 * R * (768 + 768)),  # transformers, query and value of the image tower alone
    "dinov3-s": (4, 4 * R * (384 + 384)),
    "quiltnet-b32": (2, 2 * R * (768 + 3 * 768 + 768 + 768)),  # open_clip, with the output projection
    "biomedclip": (2, 2 * R * (768 + 3 * 768)),  # a timm tower in open_clip
    "musk": (4, 4 * R * (1024 + 1024)),  # of the image's experts alone
    "conch_v15": (2, 2 * R * (1024 + 3 * 1024)),
}


@pytest.mark.parametrize("name", COUNTS)
def test_the_attention_of_the_image_tower_is_adapted_in_every_family(name: str) -> None:
    lora = add_lora(_on_meta(name), rank=R, alpha=R)
    assert (len(lora.modules), lora.count) == COUNTS[name]
    assert not any("text" in module for module in lora.modules)


def test_a_convolutional_network_is_refused() -> None:
    with pytest.raises(NotAdaptableError, match="lunit-bt is a convolutional network"):
        add_lora(_on_meta("lunit-bt"), rank=R, alpha=R)


class _Own(BasePatchEncoder):
    """Attention whose projections have names of their own; with `fused`, weights used without a call."""

    def __init__(self, *, fused: bool = False) -> None:
        super().__init__()
        self.name, self.embed_dim, self.fused = "mine", 6, fused
        self.eval_transforms = TransformSpec(resize=8, crop=8)
        self.mixing, self.qkv = nn.Linear(3, 6), nn.Linear(3, 6)

    def forward(self, images: Tensor) -> Tensor:
        means = images.mean(dim=(2, 3))
        if self.fused:
            return self.mixing(means) + nn.functional.linear(means, self.qkv.weight)
        return self.mixing(means)


def test_nothing_to_adapt_is_an_error_that_names_the_modules() -> None:
    with pytest.raises(HistobenchError, match=r"mine cannot be fine-tuned: .*not call qkv.*mixing, qkv"):
        add_lora(_Own(fused=True), rank=R, alpha=R)
    encoder = _Own()
    del encoder.qkv
    with pytest.raises(
        HistobenchError, match=r"mine cannot be fine-tuned: no module.*: mixing\. .*lora_targets"
    ):
        target_modules(encoder)
    encoder.lora_targets = "(("
    with pytest.raises(HistobenchError, match=r"`lora_targets` '\(\(' is not a regular expression"):
        target_modules(encoder)
    encoder.lora_targets = "mixing"
    assert target_modules(encoder) == ["mixing"]


def test_a_new_adapter_changes_nothing_and_a_trained_one_is_loaded_as_an_encoder(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(TINY_VIT)
    name = f"{tmp_path}/own.py:Tiny"
    images = torch.randn(3, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    encoder = create_encoder(name)
    before = encoder(images)
    frozen = {key: tensor.clone() for key, tensor in encoder.state_dict().items()}
    lora = add_lora(encoder, rank=R, alpha=2 * R)
    assert all(encoder.get_submodule(name).scaling["default"] == 2 for name in lora.modules)  # alpha / rank
    lora.reset(1)
    first = [weight.clone() for weight in lora.weights.values()]
    assert torch.equal(encoder(images), before)
    lora.reset(2)
    assert not all(torch.equal(*pair) for pair in zip(first, lora.weights.values(), strict=True))
    optimizer = torch.optim.SGD(lora.weights.values(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        encoder(images).pow(3).sum().backward()
        optimizer.step()
    adapted = encoder(images).detach()
    assert (adapted - before).abs().max() > 1e-3
    now = {key.replace(".base_layer", ""): value for key, value in encoder.state_dict().items()}
    assert all(torch.equal(now[key], tensor) for key, tensor in frozen.items())

    lora.save(tmp_path / "adapter", {"name": name})
    again = load_adapted(tmp_path / "adapter")
    torch.testing.assert_close(again(images), adapted, atol=1e-5, rtol=1e-5)
    # As a user names it, without a line of code.
    own = create_encoder(f"tuned={tmp_path}/adapter/encoder.py:adapted")
    torch.testing.assert_close(own(images), adapted, atol=1e-5, rtol=1e-5)
    assert own.identity["adapter"].startswith("sha256:")
    assert own.identity["weights"] != create_encoder(name).identity["weights"]
    with pytest.raises(HistobenchError, match="does not hold a saved adapter"):
        load_adapted(tmp_path)
