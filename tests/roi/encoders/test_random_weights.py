"""Networks without the cost of random numbers, and random numbers that are the same everywhere."""

from __future__ import annotations

import torch
from torch import nn

from histobench.roi.encoders.construct import SkipRandomInit, fill_with_seed


def test_random_filling_is_skipped_for_weights_only() -> None:
    with SkipRandomInit():
        layer = nn.Linear(64, 64)
        nn.init.trunc_normal_(layer.weight, std=0.02)
        nn.init.normal_(layer.bias)
        drawn = torch.empty(64).normal_()
    assert not layer.weight.any()
    assert not layer.bias.any()
    assert drawn.std() > 0.5


def test_rejection_sampling_ends_whatever_its_bounds_are() -> None:
    with SkipRandomInit():
        weight = nn.Parameter(torch.empty(512))
        nn.init.trunc_normal_(weight, mean=0.0, std=1.0, a=0.5, b=3.0)
        nn.init.trunc_normal_(weight, mean=0.0, std=1.0, a=1.5, b=3.0)
    assert torch.isfinite(weight).all()


def test_constants_are_still_set() -> None:
    with SkipRandomInit():
        norm = nn.BatchNorm2d(3)
    assert norm.weight.tolist() == [1.0] * 3
    assert norm.running_var.tolist() == [1.0] * 3


def test_seeded_weights_depend_on_the_seed_and_the_name_alone() -> None:
    def weights(seed: int) -> list[torch.Tensor]:
        network = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 8))
        fill_with_seed(network, seed)
        return [parameter.detach().clone() for parameter in network.parameters()]

    first, again, other = weights(0), weights(0), weights(1)
    for one, two in zip(first, again, strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=0)
    assert not torch.equal(first[0], other[0])
    assert not torch.equal(first[0], first[4])
    assert first[1].abs().max() == 0
    assert first[2].tolist() == [1.0] * 8
