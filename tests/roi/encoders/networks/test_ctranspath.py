"""CTransPath block by block, against the formulas."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from histobench.roi.encoders.construct import SkipRandomInit
from histobench.roi.encoders.networks import ctranspath

pytestmark = pytest.mark.nightly


def test_stem_is_two_strided_convolutions_and_a_pointwise_one(slow: Any, scramble: Any) -> None:
    stem = scramble(ctranspath.ConvStem(in_chans=3, embed_dim=16, norm_layer=nn.LayerNorm))
    for norm in (stem.proj[1], stem.proj[4]):
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2)
    image = torch.randn(1, 3, 8, 8)
    x = slow.array(image[0])
    for convolution, norm in ((stem.proj[0], stem.proj[1]), (stem.proj[3], stem.proj[4])):
        x = slow_convolution(x, slow.array(convolution.weight))
        mean, var = slow.array(norm.running_mean), slow.array(norm.running_var)
        scaled = (x - mean[:, None, None]) / np.sqrt(var + 1e-5)[:, None, None]
        x = scaled * slow.array(norm.weight)[:, None, None] + slow.array(norm.bias)[:, None, None]
        x = np.maximum(x, 0)
    last = stem.proj[6]
    x = np.einsum("chw,dc->hwd", x, slow.array(last.weight)[:, :, 0, 0]) + slow.array(last.bias)
    expected = slow.layer_norm(x, stem.norm, 1e-5)
    assert slow.array(stem(image)[0]) == pytest.approx(expected, abs=1e-4)


def slow_convolution(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """3x3, stride 2, one pixel of zeros around."""
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1)))
    size = x.shape[1] // 2
    out = np.zeros((len(weight), size, size))
    for row in range(size):
        for column in range(size):
            patch = padded[:, 2 * row : 2 * row + 3, 2 * column : 2 * column + 3]
            out[:, row, column] = (weight * patch).sum(axis=(1, 2, 3))
    return out


@pytest.fixture(scope="module")
def network(scramble: Any) -> Any:
    with SkipRandomInit():
        return scramble(ctranspath.build(depth=2))


def test_both_layouts_give_the_same_network(network: nn.Module) -> None:
    modern = network.state_dict()
    old = {to_old_layout(name): tensor for name, tensor in modern.items()}
    old["layers.0.blocks.0.attn.relative_position_index"] = torch.zeros(49, 49, dtype=torch.int64)
    old["layers.0.blocks.1.attn_mask"] = torch.zeros(64, 49, 49)
    old["head.weight"], old["head.bias"] = torch.zeros(1000, 768), torch.zeros(1000)
    for layout in (modern, old):
        loaded = ctranspath.from_upstream(layout)
        assert loaded.keys() == modern.keys()
        assert all(torch.equal(loaded[name], modern[name]) for name in modern)


def to_old_layout(name: str) -> str:
    match = ctranspath.DOWNSAMPLE.match(name)
    return name.replace(match[0], f"layers.{int(match[1]) - 1}.downsample.") if match else name


@pytest.mark.nightly
@torch.no_grad()
def test_image_sizes_are_multiples_of_224(network: Any) -> None:
    small = torch.randn(1, 3, 224, 224)
    before = network(small)
    assert before.shape == (1, 768)
    assert network(torch.randn(1, 3, 448, 448)).shape == (1, 768)
    assert any(network.layers[3].blocks[1].shift_size), "14 x 14 tokens hold windows to shift"
    torch.testing.assert_close(network(small), before)
    with pytest.raises(ValueError, match="224"):
        network(torch.randn(1, 3, 256, 256))
