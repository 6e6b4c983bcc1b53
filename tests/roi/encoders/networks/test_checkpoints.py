"""Files in the published layout, read through the zoo, give the features they were made for."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from histobench.core.errors import HistobenchError
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


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["conch_v15", "ctranspath"])
@pytest.mark.parametrize("wrapped", ["half", "module", "container"])
def test_half_precision_and_wrapped_files_load(
    name: str, wrapped: str, manifest: Callable[[str], Any], save: Save
) -> None:
    blocks = BLOCKS.get(name, 1)
    state = manifest(name).tensors(blocks=blocks)
    content: dict[str, Any] = {
        "half": {
            key: tensor.half() if tensor.is_floating_point() else tensor for key, tensor in state.items()
        },
        "module": {f"module.{key}": tensor for key, tensor in state.items()},
        "container": {"model": state, "epoch": 3},
    }[wrapped]
    expected = construct(get_spec(name), weights=str(save(state)), depth=blocks)
    got = construct(get_spec(name), weights=str(save(content)), depth=blocks)
    for key, tensor in expected.network.state_dict().items():
        torch.testing.assert_close(got.network.state_dict()[key], tensor, atol=2e-3, rtol=2e-3)
        assert got.network.state_dict()[key].dtype == tensor.dtype


def test_a_missing_tensor_is_named(manifest: Callable[[str], Any], save: Save) -> None:
    state = manifest("conch_v15").tensors(blocks=1)
    del state["attn_pool_contrast.to_kv.weight"]
    with pytest.raises(HistobenchError, match=re.escape("attn_pool_contrast.to_kv.weight")):
        construct(get_spec("conch_v15"), weights=str(save(state)), depth=1)


def test_the_file_of_another_network_is_refused(manifest: Callable[[str], Any], save: Save) -> None:
    state = manifest("ctranspath").tensors(blocks=2)
    with pytest.raises(HistobenchError, match="conch_v15"):
        construct(get_spec("conch_v15"), weights=str(save(state)), depth=1)


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
