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
from tiny_vl_captions import NAMES, TEMPLATES, make_caption

from builders import examples
from histobench.core.errors import HistobenchError
from histobench.roi.data.demo import CLASSES, PROMPT_WORDS, render_tile
from histobench.roi.encoders.tiny_vl import WEIGHTS
from histobench.roi.encoders.tiny_vl.tiny_vl_encoder import (
    EMBED_DIM,
    MAX_WORDS,
    NATIVE_SIZE,
    SHARED_DIM,
    TABLE,
    TinyVL,
    TinyVLEncoder,
    encode_texts,
    load_tiny_vl,
    pieces_of,
)
from histobench.roi.encoders.transform import TransformSpec

TRANSFORM = TransformSpec(resize=NATIVE_SIZE, crop=NATIVE_SIZE)
PROMPTS = [f"This is a pathology image showing {PROMPT_WORDS[c]} tissue characteristics" for c in CLASSES]


@pytest.fixture(scope="module")
def encoder() -> TinyVLEncoder:
    return load_tiny_vl(WEIGHTS, TRANSFORM)


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
def sample_features(encoder: TinyVLEncoder, sample) -> torch.Tensor:
    return _features(encoder, sample[0])


@torch.inference_mode()
def _features(encoder: TinyVLEncoder, tiles: list[Image.Image]) -> torch.Tensor:
    return encoder(torch.stack([encoder.eval_transforms(tile) for tile in tiles]))


def _accuracy(probabilities: torch.Tensor, labels: np.ndarray) -> float:
    return float((probabilities.argmax(1).numpy() == labels).mean())


def test_the_weights_are_small_and_safe_to_load() -> None:
    assert WEIGHTS.stat().st_size < 6_000_000
    state = load_file(WEIGHTS)
    assert set(state) == set(TinyVL().state_dict())
    assert all(torch.isfinite(value.float()).all() for value in state.values())


def test_missing_weights_are_reported(tmp_path) -> None:
    with pytest.raises(HistobenchError, match="missing"):
        load_tiny_vl(tmp_path / "weights.safetensors", TRANSFORM)


def test_features_are_the_embedding_before_the_projection(encoder: TinyVLEncoder) -> None:
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
    encoder: TinyVLEncoder, sample, sample_features: torch.Tensor
) -> None:
    tiles, labels = sample
    probabilities = encoder.run_zero_shot(PROMPTS, sample_features, "cpu")
    torch.testing.assert_close(probabilities.sum(1), torch.ones(len(tiles)))
    assert _accuracy(probabilities, labels) > 0.6  # chance is 1/9


@pytest.mark.slow
def test_other_words_for_the_classes_work_too(
    encoder: TinyVLEncoder, sample, sample_features: torch.Tensor
) -> None:
    _, labels = sample
    words = [
        "healthy colon glands",
        "fibrous connective tissue",
        "adenocarcinoma",
        "smooth muscle",
        "mucin",
        "lymphoid tissue",
        "necrosis",
        "an empty slide",
        "fat",
    ]
    for prompts in (list(CLASSES), words, [f"An H&E image of {word}, at 20x" for word in words]):
        assert _accuracy(encoder.run_zero_shot(prompts, sample_features, "cpu"), labels) > 0.5


@pytest.mark.slow
def test_untrained_weights_know_nothing(sample) -> None:
    tiles, labels = sample
    torch.manual_seed(0)
    untrained = TinyVLEncoder(TRANSFORM).eval()
    probabilities = untrained.run_zero_shot(PROMPTS, _features(untrained, tiles), "cpu")
    assert _accuracy(probabilities, labels) < 0.4


@pytest.mark.slow
def test_swapping_two_prompts_swaps_their_probabilities(
    encoder: TinyVLEncoder, sample_features: torch.Tensor
) -> None:
    features = sample_features[:20]
    straight = encoder.run_zero_shot(PROMPTS, features, "cpu")
    swapped = encoder.run_zero_shot([PROMPTS[1], PROMPTS[0], *PROMPTS[2:]], features, "cpu")
    torch.testing.assert_close(swapped[:, [1, 0, *range(2, 9)]], straight)


def test_zero_shot_is_the_scaled_cosine_of_projections(encoder: TinyVLEncoder, sample) -> None:
    features = _features(encoder, sample[0][:5])
    images, texts = encoder.project_image(features).double(), encoder.encode_text(PROMPTS).double()
    expected = []
    for image in images:
        logits = [float(encoder.logit_scale) * float(image @ text) for text in texts]
        weights = [math.exp(value - max(logits)) for value in logits]
        expected.append([weight / sum(weights) for weight in weights])
    found = encoder.run_zero_shot(PROMPTS, features, "cpu")
    torch.testing.assert_close(
        found.double(), torch.tensor(expected, dtype=torch.float64), atol=1e-5, rtol=1e-4
    )


@pytest.mark.slow
def test_a_class_may_have_several_prompts(
    encoder: TinyVLEncoder, sample, sample_features: torch.Tensor
) -> None:
    _, labels = sample
    ensemble = [[TEMPLATES[k].format(name) for k in (0, 5, 9) for name in NAMES[c][:3]] for c in CLASSES]
    assert _accuracy(encoder.run_zero_shot(ensemble, sample_features, "cpu"), labels) > 0.6


@pytest.mark.slow
def test_the_batch_does_not_change_a_feature(encoder: TinyVLEncoder, sample) -> None:
    tiles = sample[0][:12]
    together = _features(encoder, tiles)
    alone = torch.cat([_features(encoder, [tile]) for tile in tiles])
    torch.testing.assert_close(alone, together, atol=1e-4, rtol=1e-4)


@pytest.mark.sample(1)
@pytest.mark.slow
@pytest.mark.parametrize("size", [64, 224, 448])
def test_other_input_sizes_give_nearly_the_same_answer(
    encoder: TinyVLEncoder, sample, sample_features: torch.Tensor, size: int
) -> None:
    tiles, labels = sample
    native = encoder.run_zero_shot(PROMPTS, sample_features, "cpu").argmax(1)
    other = load_tiny_vl(WEIGHTS, TRANSFORM.with_size(size))
    probabilities = other.run_zero_shot(PROMPTS, _features(other, tiles), "cpu")
    assert _accuracy(probabilities, labels) > 0.5
    assert (probabilities.argmax(1) == native).float().mean() > (0.6 if size == 64 else 0.9)


def test_features_of_another_encoder_are_refused(encoder: TinyVLEncoder) -> None:
    with pytest.raises(HistobenchError, match="256"):
        encoder.run_zero_shot(PROMPTS, torch.zeros(2, 512), "cpu")


def test_the_fingerprint_names_the_weights(encoder: TinyVLEncoder) -> None:
    assert encoder.identity["weights"].startswith("sha256:")
    assert encoder.supports_zero_shot


@pytest.mark.slow
@settings(deadline=None, max_examples=examples(80))
@given(texts=st.lists(st.text(max_size=200), min_size=1, max_size=4))
def test_any_text_becomes_a_unit_vector(encoder: TinyVLEncoder, texts: list[str]) -> None:
    vectors = encoder.encode_text(texts)
    assert vectors.shape == (len(texts), SHARED_DIM)
    torch.testing.assert_close(vectors.norm(dim=1), torch.ones(len(texts)), atol=1e-4, rtol=0)
    alone = torch.cat([encoder.encode_text([text]) for text in texts])
    torch.testing.assert_close(alone, vectors, atol=1e-4, rtol=1e-3)


@settings(deadline=None)
@given(text=st.text(max_size=400))
def test_pieces_stay_in_the_table_and_in_the_word_limit(text: str) -> None:
    ids = encode_texts([text])
    assert ids.min() >= 0
    assert ids.max() < TABLE
    assert 1 <= ids.shape[1] <= MAX_WORDS


def test_case_and_punctuation_do_not_matter_and_stems_share_pieces() -> None:
    assert np.array_equal(encode_texts(["Tumour, epithelium!"]), encode_texts(["tumour epithelium"]))
    assert set(pieces_of("tumour")) & set(pieces_of("tumours"))
    assert pieces_of("tumour")[0] != pieces_of("tumours")[0]


def test_no_texts_is_no_rows(encoder: TinyVLEncoder) -> None:
    assert encoder.encode_text([]).shape == (0, SHARED_DIM)


def test_captions_cover_every_class_and_are_reproducible() -> None:
    assert set(NAMES) == set(CLASSES)
    for name in CLASSES:
        captions = [make_caption(name, np.random.default_rng(seed)) for seed in range(50)]
        assert captions == [make_caption(name, np.random.default_rng(seed)) for seed in range(50)]
        assert len(set(captions)) > 40
    all_names = [word for names in NAMES.values() for word in names]
    assert len(all_names) == len(set(all_names))  # no name stands for two classes
