"""GenBio-PathFM block by block, against the formulas."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from histobench.roi.encoders.construct import SkipRandomInit
from histobench.roi.encoders.networks import genbio_pathfm

pytestmark = pytest.mark.nightly


def test_rotation_turns_pairs_of_channels_by_the_patch_centre(slow: Any) -> None:
    positions = genbio_pathfm.RotaryPositions()
    rows, columns, width = 2, 3, 64
    heads = torch.randn(1, 1, 5 + rows * columns, width)
    got = slow.array(genbio_pathfm.rotated(heads, positions(rows, columns)))[0, 0]
    plain = slow.array(heads)[0, 0]
    assert got[:5] == pytest.approx(plain[:5], abs=0.02), "CLS and storage tokens have no position"
    for row in range(rows):
        for column in range(columns):
            place = 5 + row * columns + column
            centre = (2 * (row + 0.5) / rows - 1, 2 * (column + 0.5) / columns - 1)
            for channel in range(32):
                axis, index = divmod(channel, 16)
                angle = 2 * math.pi * centre[axis] / 100 ** (index / 16)
                x, y = plain[place, channel], plain[place, channel + 32]
                turned = (
                    x * math.cos(angle) - y * math.sin(angle),
                    y * math.cos(angle) + x * math.sin(angle),
                )
                # bfloat16 keeps about two digits.
                assert got[place, [channel, channel + 32]] == pytest.approx(turned, abs=0.08)


def test_rotation_survives_a_cast_of_the_whole_network() -> None:
    positions = genbio_pathfm.RotaryPositions()
    expected = positions(4, 4)
    for cast in (positions.float(), positions.half()):
        assert all(torch.equal(a, b) for a, b in zip(cast(4, 4), expected, strict=True))
        assert expected[0].dtype == torch.bfloat16


def test_feed_forward_is_gated_by_silu(slow: Any, monkeypatch: pytest.MonkeyPatch, scramble: Any) -> None:
    monkeypatch.setattr(genbio_pathfm, "WIDTH", 8)
    monkeypatch.setattr(genbio_pathfm, "HIDDEN", 12)
    module = scramble(genbio_pathfm.SwiGlu())
    x = torch.randn(5, 8)
    gate = slow.linear(slow.array(x), module.w1.weight, module.w1.bias)
    other = slow.linear(slow.array(x), module.w2.weight, module.w2.bias)
    expected = slow.linear(gate / (1 + np.exp(-gate)) * other, module.w3.weight, module.w3.bias)
    assert slow.array(module(x)) == pytest.approx(expected, abs=1e-5)


@pytest.fixture(scope="module")
def network(scramble: Any) -> Any:
    with SkipRandomInit():
        return scramble(genbio_pathfm.build(depth=1))


@pytest.mark.slow
@torch.no_grad()
def test_feature_is_the_cls_of_red_green_and_blue_side_by_side(network: Any) -> None:
    images = torch.randn(2, 3, 64, 64)
    features = network(images)
    assert features.shape == (2, 4608)
    for colour in range(3):
        cls = network.tokens(images[:, colour : colour + 1])[:, 0]
        part = features[:, 1536 * colour : 1536 * (colour + 1)]
        torch.testing.assert_close(part, cls, atol=1e-4, rtol=1e-4)
