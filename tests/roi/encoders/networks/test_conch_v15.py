"""CONCH v1.5 block by block, against the formulas."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from histobench.roi.encoders.construct import SkipRandomInit
from histobench.roi.encoders.families.family import resample_positions
from histobench.roi.encoders.networks import conch_v15

pytestmark = pytest.mark.nightly


def test_pooler_is_one_attention_without_biases(slow: Any, scramble: Any) -> None:
    pooler = scramble(conch_v15.UnbiasedPooler(16, 24, queries=2, heads=4))
    tokens = torch.randn(2, 5, 24)
    query = slow.linear(slow.layer_norm(slow.array(pooler.query), pooler.ln_q, 1e-5), pooler.to_q.weight)
    key_weight, value_weight = pooler.to_kv.weight.chunk(2)
    for got, image in zip(slow.array(pooler(tokens)), slow.array(tokens), strict=True):
        context = slow.layer_norm(image, pooler.ln_k, 1e-5)
        key, value = slow.linear(context, key_weight), slow.linear(context, value_weight)
        expected = slow.linear(slow.attention(query, key, value, heads=4), pooler.to_out.weight)
        assert got == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(("method", "more"), [("dino", 0.1), ("plain", 0.0)])
def test_positions_are_resized_bicubically_and_cls_keeps_its_own(method: str, more: float, slow: Any) -> None:
    stored = torch.randn(1, 1 + 4 * 4, 3)
    got = resample_positions(stored, 36, method)
    grid = slow.array(stored[0, 1:]).reshape(4, 4, 3)
    expected = slow.bicubic(grid, rows=6, columns=6, scale=((6 + more) / 4,) * 2).reshape(-1, 3)
    assert slow.array(got[0, 1:]) == pytest.approx(expected, abs=1e-5)
    torch.testing.assert_close(got[:, :1], stored[:, :1])


def test_feature_of_224_pixels_equals_timm_and_the_pooler(scramble: Any) -> None:
    with SkipRandomInit():
        network = scramble(conch_v15.build(depth=1))
    images = torch.randn(2, 3, 224, 224)
    with torch.no_grad():
        tokens = network.trunk.forward_features(images)
        expected = network.ln_contrast(network.attn_pool_contrast(tokens)[:, 0])
        torch.testing.assert_close(network(images), expected)
        assert network(torch.randn(1, 3, 240, 240)).shape == (1, 768)
