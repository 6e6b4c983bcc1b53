"""tiny-vl: the trained image-text encoder that comes with the package."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from safetensors.torch import load_file

from builders import examples
from histobench.roi.data.demo import CLASSES, PROMPT_WORDS, render_tile
from histobench.roi.encoders.construct import ImageTextEncoder
from histobench.roi.encoders.registry import create_encoder
from histobench.roi.encoders.tiny_vl import WEIGHTS
from histobench.roi.encoders.tiny_vl.tiny_vl_encoder import (
    EMBED_DIM,
    NATIVE_SIZE,
    SHARED_DIM,
    TinyVL,
    encode_texts,
    pieces_of,
)

PROMPTS = [f"This is a pathology image showing {PROMPT_WORDS[c]} tissue characteristics" for c in CLASSES]


@pytest.fixture(scope="module")
def encoder() -> ImageTextEncoder:
    return create_encoder("tiny-vl")  # type: ignore[return-value]


@pytest.fixture(scope="module")
def sample() -> tuple[list[Image.Image], np.ndarray]:
    """Six fresh demo tiles per class, of patients that no other test and no training saw."""
    labels = np.repeat(np.arange(len(CLASSES)), 6)
    tiles = [
        Image.fromarray(render_tile(CLASSES[label], seed=77, index=5 * (number % 6)))
        for number, label in enumerate(labels)
    ]
    return tiles, labels


@pytest.fixture(scope="module")
def sample_features(encoder: ImageTextEncoder, sample) -> torch.Tensor:
    return _features(encoder, sample[0])


@torch.inference_mode()
def _features(encoder: ImageTextEncoder, tiles: list[Image.Image]) -> torch.Tensor:
    return encoder(torch.stack([encoder.eval_transforms(tile) for tile in tiles]))


def _accuracy(probabilities: torch.Tensor, labels: np.ndarray) -> float:
    return float((probabilities.argmax(1).numpy() == labels).mean())


def test_the_weights_are_small_and_safe_to_load() -> None:
    assert WEIGHTS.stat().st_size < 6_000_000
    state = load_file(WEIGHTS)
    assert set(state) == set(TinyVL().state_dict())
    assert all(torch.isfinite(value.float()).all() for value in state.values())


def test_features_are_the_embedding_before_the_projection(encoder: ImageTextEncoder) -> None:
    with torch.inference_mode():
        features = encoder(torch.randn(3, 3, NATIVE_SIZE, NATIVE_SIZE))
    assert features.shape == (3, EMBED_DIM) == (3, encoder.embed_dim)
    assert encoder.precision is torch.float32
    assert not torch.allclose(features.norm(dim=1), torch.ones(3), atol=0.05)
    projected = encoder.project_image(features)
    assert projected.shape == (3, SHARED_DIM)
    torch.testing.assert_close(projected.norm(dim=1), torch.ones(3))


@pytest.mark.slow
def test_zero_shot_names_most_fresh_synthetic_tiles(
    encoder: ImageTextEncoder, sample, sample_features: torch.Tensor
) -> None:
    tiles, labels = sample
    probabilities = encoder.run_zero_shot(PROMPTS, sample_features, "cpu")
    torch.testing.assert_close(probabilities.sum(1), torch.ones(len(tiles)))
    assert _accuracy(probabilities, labels) > 0.6  # chance is 1/9


def test_zero_shot_is_the_scaled_cosine_of_projections(encoder: ImageTextEncoder, sample) -> None:
    features = _features(encoder, sample[0][:5])
    images, texts = encoder.project_image(features).double(), encoder.encode_prompts(PROMPTS, "cpu").double()
    expected = []
    for image in images:
        logits = [float(encoder.network.logit_scale.exp()) * float(image @ text) for text in texts]
        weights = [math.exp(value - max(logits)) for value in logits]
        expected.append([weight / sum(weights) for weight in weights])
    found = encoder.run_zero_shot(PROMPTS, features, "cpu")
    torch.testing.assert_close(
        found.double(), torch.tensor(expected, dtype=torch.float64), atol=1e-5, rtol=1e-4
    )


@pytest.mark.sample(1)
@pytest.mark.slow
@pytest.mark.parametrize("size", [64, 224])
def test_other_input_sizes_give_nearly_the_same_answer(
    encoder: ImageTextEncoder, sample, sample_features: torch.Tensor, size: int
) -> None:
    tiles, labels = sample
    native = encoder.run_zero_shot(PROMPTS, sample_features, "cpu").argmax(1)
    other = create_encoder("tiny-vl", resize_size=size)
    probabilities = other.run_zero_shot(PROMPTS, _features(other, tiles), "cpu")
    assert _accuracy(probabilities, labels) > 0.5
    assert (probabilities.argmax(1) == native).float().mean() > (0.6 if size == 64 else 0.9)


@pytest.mark.slow
@settings(deadline=None, max_examples=examples(20))
@given(texts=st.lists(st.text(max_size=200), min_size=1, max_size=4))
def test_any_text_becomes_a_unit_vector(encoder: ImageTextEncoder, texts: list[str]) -> None:
    vectors = encoder._encode_texts(texts, "cpu")
    assert vectors.shape == (len(texts), SHARED_DIM)
    torch.testing.assert_close(vectors.norm(dim=1), torch.ones(len(texts)), atol=1e-4, rtol=0)
    alone = torch.cat([encoder._encode_texts([text], "cpu") for text in texts])
    torch.testing.assert_close(alone, vectors, atol=1e-4, rtol=1e-3)


def test_case_and_punctuation_do_not_matter_and_stems_share_pieces() -> None:
    assert np.array_equal(encode_texts(["Tumour, epithelium!"]), encode_texts(["tumour epithelium"]))
    assert set(pieces_of("tumour")) & set(pieces_of("tumours"))
    assert pieces_of("tumour")[0] != pieces_of("tumours")[0]
