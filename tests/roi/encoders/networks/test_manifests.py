"""The networks have the tensors of the published checkpoints, no more and no fewer."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from histobench.roi.encoders.networks import conch, conch_v15, ctranspath, genbio_pathfm, keep, musk

pytestmark = pytest.mark.nightly

NETWORKS = {
    "conch_v1": conch,
    "conch_v15": conch_v15,
    "musk": musk,
    "ctranspath": ctranspath,
    "keep": keep,
    "genbio-pathfm": genbio_pathfm,
}


@pytest.mark.parametrize("name", NETWORKS)
def test_full_network_has_the_published_tensors(name: str, manifest: Callable[[str], Any]) -> None:
    module: ModuleType = NETWORKS[name]
    network = full_size(name)
    with torch.device("meta"):
        published = {name: torch.empty(shape) for name, shape in manifest(name).shapes.items()}
    expected = getattr(module, "from_upstream", dict)(published)
    assert shapes(network.state_dict()) == shapes(expected)


@pytest.mark.parametrize("name", NETWORKS)
def test_full_network_has_the_published_number_of_parameters(
    name: str, manifest: Callable[[str], Any]
) -> None:
    assert sum(parameter.numel() for parameter in full_size(name).parameters()) == manifest(name).parameters


@lru_cache(maxsize=len(NETWORKS))
def full_size(name: str) -> nn.Module:
    with torch.device("meta"):
        network: nn.Module = NETWORKS[name].build()
    return network


def shapes(state: dict[str, torch.Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in state.items()}
