"""The encoders that work without a network: efficientnet-lite0 and random-vit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from histobench.core.errors import HistobenchError
from histobench.roi.encoders.registry import create_encoder, get_spec, list_encoders

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
@pytest.mark.nightly
def test_random_vit_is_the_same_every_time_and_depends_on_the_image() -> None:
    images = torch.linspace(-1, 1, 2 * 3 * 224 * 224).view(2, 3, 224, 224).sin()
    with torch.inference_mode():
        encoder = create_encoder("random-vit")
        first = encoder(images)
        torch.manual_seed(99)
        second = create_encoder("random-vit")(images)
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    assert (first[0] - first[1]).abs().max() > 0.1
    # Made on another occasion with the same NumPy generator: the weights, not only the recipe, are fixed.
    weight = encoder.network.patch_embed.proj.weight
    assert weight.flatten()[:3].tolist() == pytest.approx(PATCH_EMBED_START, abs=1e-7)


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


@pytest.mark.slow
def test_listing_the_zoo_imports_no_torch() -> None:
    code = (
        "import sys; from histobench.roi.encoders import registry;"
        "registry.list_encoders(); registry.get_spec('random-vit'); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    assert len(list_encoders()) >= 4
