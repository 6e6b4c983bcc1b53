"""The encoders that work without a network: efficientnet-lite0 and random-vit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from histobench.core.errors import HistobenchError
from histobench.roi.encoders.construct import SkipRandomInit, fill_with_seed
from histobench.roi.encoders.registry import create_encoder, get_spec

PATCH_EMBED_START = [0.006820317, 0.018321397, 0.031856194]


@pytest.mark.sample(1)
@pytest.mark.slow
@pytest.mark.parametrize("dataset", ["lc25000", "lunghist700"])
def test_efficientnet_features_of_real_images_equal_the_stored_ones(shared_dir: Path, dataset: str) -> None:
    stored = np.load(shared_dir / "golden" / "roi" / f"{dataset}_efficientnet-lite0.npz")
    encoder = create_encoder("efficientnet-lite0")
    rows = np.linspace(0, len(stored["test_names"]) - 1, 8).astype(int)
    folder = shared_dir / "data" / dataset
    batch = torch.stack(
        [encoder.eval_transforms(Image.open(folder / str(stored["test_names"][row]))) for row in rows]
    )
    with torch.inference_mode():
        features = encoder(batch).numpy()
    expected = stored["test_embeddings"][rows]
    cosine = (
        (features * expected).sum(1) / np.linalg.norm(features, axis=1) / np.linalg.norm(expected, axis=1)
    )
    assert cosine.min() >= 0.9999
    np.testing.assert_allclose(features, expected, atol=1e-3)


@pytest.mark.slow
def test_an_encoder_is_frozen_in_eval_mode_and_knows_what_made_its_features() -> None:
    encoder = create_encoder("efficientnet-lite0")
    assert not encoder.training
    assert not any(parameter.requires_grad for parameter in encoder.parameters())
    assert encoder.identity["weights"] == f"sha256:{get_spec('efficientnet-lite0').source.sha256}"
    assert encoder.identity["variant"] == "default"


@pytest.mark.slow
def test_a_size_the_network_cannot_take_is_refused_with_the_sizes_it_can() -> None:
    with pytest.raises(HistobenchError, match=r"multiples of 16 \(nearest: 224, 240; its own: 224\)"):
        create_encoder("random-vit", resize_size=225)
    assert create_encoder("random-vit", resize_size=448).eval_transforms.crop == 448


def test_unknown_names_and_outputs_are_refused_with_suggestions() -> None:
    with pytest.raises(HistobenchError, match="did you mean random-vit"):
        create_encoder("random-vti")
    with pytest.raises(HistobenchError, match="random-vit@clsmean"):
        create_encoder("random-vit@nonsense")


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
