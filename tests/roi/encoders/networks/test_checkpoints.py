"""Files in the published layout, read through the zoo, give the features they were made for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from histobench.roi.encoders.construct import SkipRandomInit, construct
from histobench.roi.encoders.networks import conch, conch_v15, ctranspath, genbio_pathfm, keep, musk
from histobench.roi.encoders.registry import get_spec

pytestmark = pytest.mark.nightly

NETWORKS = {
    "conch_v1": conch,
    "conch_v15": conch_v15,
    "musk": musk,
    "ctranspath": ctranspath,
    "keep": keep,
    "genbio-pathfm": genbio_pathfm,
}
#: Blocks kept of each tower; two in a Swin stage, so that one of them shifts its windows.
BLOCKS = {"ctranspath": 2}
Save = Callable[[dict[str, Any]], Path]
SIZES = {"musk": 384}


@pytest.fixture
def save(tmp_path: Path) -> Iterator[Save]:
    path = tmp_path / "checkpoint.pth"

    def write(content: dict[str, Any]) -> Path:
        torch.save(content, path)
        return path

    yield write
    path.unlink(missing_ok=True)  # hundreds of megabytes that pytest would keep


@pytest.mark.parametrize(
    "name",
    [
        "conch_v15",
        *(pytest.param(name, marks=pytest.mark.nightly) for name in NETWORKS if name != "conch_v15"),
    ],
)
def test_published_layout_gives_the_features_of_the_network(
    name: str, manifest: Callable[[str], Any], save: Save
) -> None:
    blocks = BLOCKS.get(name, 1)
    state = manifest(name).tensors(blocks=blocks)
    with SkipRandomInit():
        network = NETWORKS[name].build(depth=blocks).eval()
    network.load_state_dict(getattr(NETWORKS[name], "from_upstream", dict)(state), strict=True)
    encoder = construct(get_spec(name), weights=str(save(state)), depth=blocks)
    images = torch.randn(1, 3, SIZES.get(name, 224), SIZES.get(name, 224))
    with torch.no_grad():
        features = encoder(images)
        torch.testing.assert_close(features, network(images), atol=1e-5, rtol=1e-5)
    assert features.shape == (1, encoder.embed_dim)


def test_stored_conch_features_are_projected_before_they_meet_the_text(
    manifest: Callable[[str], Any], save: Save, byte_level_tokenizer: Path
) -> None:
    state = manifest("conch_v1").tensors(blocks=1)
    encoder = construct(get_spec("conch_v1"), weights=str(save(state)), depth=1)
    texts = ["tumour", "normal tissue", "fat"]
    stored = torch.randn(4, 512)
    probabilities = encoder.run_zero_shot(texts, stored, "cpu")
    tokens = conch.load_tokenizer({byte_level_tokenizer.name: byte_level_tokenizer})(texts)
    with torch.no_grad():
        text = encoder.network.encode_text(tokens)
        images = F.normalize(stored @ state["visual.proj_contrast"], dim=-1)
        expected = (state["logit_scale"].exp() * images @ text.T).softmax(dim=-1)
    torch.testing.assert_close(probabilities, expected)


@pytest.mark.parametrize("name", NETWORKS)
def test_full_network_has_the_published_tensors(name: str, manifest: Callable[[str], Any]) -> None:
    module: ModuleType = NETWORKS[name]
    network = full_size(name)
    with torch.device("meta"):
        published = {name: torch.empty(shape) for name, shape in manifest(name).shapes.items()}
    expected = getattr(module, "from_upstream", dict)(published)
    assert shapes(network.state_dict()) == shapes(expected)


@lru_cache(maxsize=len(NETWORKS))
def full_size(name: str) -> nn.Module:
    with torch.device("meta"):
        network: nn.Module = NETWORKS[name].build()
    return network


def shapes(state: dict[str, torch.Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in state.items()}
