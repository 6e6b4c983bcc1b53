"""Patch tokens of every family: the right ones, in the right place, without prefix tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import timm
import torch
from measure_zoo import build_network
from torch import Tensor, nn

from histobench.core.errors import HistobenchError
from histobench.roi.encoders.base import BasePatchEncoder
from histobench.roi.encoders.construct import fill_with_seed
from histobench.roi.encoders.patch_tokens import as_grid, network_tokens
from histobench.roi.encoders.registry import get_spec
from histobench.roi.encoders.tiny_vl.tiny_vl_encoder import TinyVL


def _timm(name: str, **options: Any) -> Callable[[], nn.Module]:
    return lambda: timm.create_model(name, pretrained=False, num_classes=0, **options)


def _zoo(name: str) -> Callable[[], nn.Module]:
    return lambda: build_network(get_spec(name), "cpu", depth=1)


def _clip() -> nn.Module:
    from open_clip import CLIP

    text = {"context_length": 4, "vocab_size": 4, "width": 8, "heads": 1, "layers": 1}
    vision = {"image_size": 64, "layers": 2, "width": 64, "head_width": 16, "patch_size": 16}
    return CLIP(8, vision, text)


def _dinov2() -> nn.Module:
    from transformers import Dinov2WithRegistersConfig, Dinov2WithRegistersModel

    return Dinov2WithRegistersModel(
        Dinov2WithRegistersConfig(
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            image_size=56,
            patch_size=14,
            num_register_tokens=4,
        )
    )


SMALL = {"embed_dim": 48, "depth": 2, "num_heads": 3}
#: Network, size of its images, stride of its tokens.
NETWORKS: dict[str, tuple[Callable[[], nn.Module], int, int]] = {
    "CLS, patch 16": (_timm("vit_small_patch16_224", img_size=64, **SMALL), 64, 16),
    "registers, patch 14": (_timm("vit_small_patch14_reg4_dinov2", img_size=56, **SMALL), 56, 14),
    "Swin": (
        _timm(
            "swin_tiny_patch4_window7_224",
            img_size=224,
            embed_dim=12,
            depths=(1, 1, 1, 1),
            num_heads=(1, 1, 1, 1),
        ),
        224,
        32,
    ),
    "convolutions": (_timm("resnet18"), 128, 32),
    "text and image (open_clip)": (_clip, 64, 16),
    "registers (transformers)": (_dinov2, 56, 14),
    "conch": (_zoo("conch_v1"), 64, 16),
    "tiny-vl": (TinyVL, 112, 16),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_a_change_of_one_patch_changes_the_token_at_its_place_most(name: str) -> None:
    build, size, stride = NETWORKS[name]
    network = build().eval()
    fill_with_seed(network, 0)
    side = size // stride
    images = torch.randn(1, 3, size, size, generator=torch.Generator().manual_seed(0)) * 0.1
    with torch.no_grad():
        before = network_tokens(network, images)
        assert before.shape[2:] == (side, side)
        for row, column in ((0, side - 1), (side - 2, 1)):
            changed = images.clone()
            changed[..., row * stride : (row + 1) * stride, column * stride : (column + 1) * stride] += 3.0
            moved = (network_tokens(network, changed) - before).norm(dim=1)[0]
            found = divmod(int(moved.argmax()), side)
            # Padded convolutions look up to half a token to the side.
            near = 1 if name in ("convolutions", "tiny-vl") else 0
            assert max(abs(found[0] - row), abs(found[1] - column)) <= near


@pytest.mark.parametrize("name", ["CLS, patch 16", "registers, patch 14"])
def test_tokens_of_timm_against_slow_code(name: str) -> None:
    build, size, stride = NETWORKS[name]
    network: Any = build().eval()
    images = torch.randn(2, 3, size, size)
    with torch.no_grad():
        x = network._pos_embed(network.patch_embed(images))
        for block in network.blocks:
            x = block(network.norm_pre(x))
        x = network.norm(x)
        found = network_tokens(network, images)
    prefix = 1 + (4 if "reg" in name else 0)
    side = size // stride
    for row in range(side):
        for column in range(side):
            assert torch.equal(found[:, :, row, column], x[:, prefix + row * side + column])


def test_prefix_tokens_that_are_kept_are_an_error() -> None:
    images = torch.zeros(1, 3, 64, 64)
    assert as_grid(torch.zeros(1, 17, 8), images, prefix=1, patch=16).shape == (1, 8, 4, 4)
    for prefix in (0, 5):
        with pytest.raises(HistobenchError, match="17 tokens for 64 x 64"):
            as_grid(torch.zeros(1, 17, 8), images, prefix=prefix, patch=16)


def test_an_own_class_may_define_them_and_else_says_how() -> None:
    class Own(BasePatchEncoder):
        def patch_tokens(self, images: Tensor) -> Tensor:
            return images[..., ::8, ::8]

    assert Own().patch_tokens(torch.zeros(1, 3, 16, 16)).shape == (1, 3, 2, 2)
    with pytest.raises(HistobenchError, match=r"define patch_tokens\(images\)"):
        BasePatchEncoder().patch_tokens(torch.zeros(1, 3, 16, 16))
