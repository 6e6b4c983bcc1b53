"""Prompts to class vectors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from histobench.core.errors import HistobenchError
from histobench.roi.encoders.base import PromptEncoder, class_vectors
from histobench.roi.encoders.construct import ImageTextEncoder, construct
from histobench.roi.encoders.families.family import wordpiece_tokenizer
from histobench.roi.encoders.registry import get_spec


def slow_class_vector(vectors: list[list[float]]) -> list[float]:
    """Normalise each, average, normalise, in plain Python."""
    units = [[value / math.sqrt(sum(v * v for v in vector)) for value in vector] for vector in vectors]
    mean = [sum(column) / len(units) for column in zip(*units, strict=True)]
    length = math.sqrt(sum(value * value for value in mean))
    return [value / length for value in mean]


def test_an_ensemble_is_normalised_averaged_and_normalised_again() -> None:
    torch.manual_seed(0)
    groups = [torch.randn(3, 4) * 10, torch.randn(1, 4), torch.randn(5, 4)]
    vectors = class_vectors([list(group) for group in groups])
    for row, group in zip(vectors.tolist(), groups, strict=True):
        assert row == pytest.approx(slow_class_vector(group.tolist()), abs=1e-6)


def test_a_text_is_encoded_once_whatever_class_it_belongs_to() -> None:
    calls: list[Sequence[str]] = []

    def encode(texts: Sequence[str], device: str) -> Tensor:
        calls.append(list(texts))
        return torch.tensor([[float(len(text)), 1.0] for text in texts])

    encoder = PromptEncoder(encode)
    first = encoder(["fat", "tumour"], "cpu")
    second = encoder([["fat", "muscle"], ["tumour", "fat"]], "cpu")
    assert calls == [["fat", "tumour"], ["muscle"]]
    torch.testing.assert_close(encoder(["fat", "tumour"], "cpu"), first)
    assert second.shape == (2, 2)
    torch.testing.assert_close(second.norm(dim=1), torch.ones(2))


@pytest.mark.slow
def test_probabilities_follow_the_cosine_and_the_learned_temperature() -> None:
    pytest.importorskip("transformers")
    encoder = construct(get_spec("clip-b32"), allow_random=True, depth=1)
    features = torch.randn(5, 512) * 7
    prompts = [["a slide of fat", "fat"], ["a slide of tumour"]]
    probabilities = encoder.run_zero_shot(prompts, features, "cpu")
    text = encoder.encode_prompts(prompts, "cpu")
    unit = features / features.norm(dim=1, keepdim=True)
    expected = (encoder.network.logit_scale.exp() * unit @ text.T).softmax(-1)
    torch.testing.assert_close(probabilities, expected)
    assert probabilities.shape == (5, 2)
    assert encoder.supports_zero_shot


def test_an_output_without_a_text_space_says_which_one_has_it() -> None:
    spec = get_spec("musk@ms")
    unaligned = replace(spec, variants={"ms": replace(spec.variants["ms"], zero_shot=False)})
    assert spec.supports_zero_shot
    encoder = ImageTextEncoder(unaligned, nn.Identity(), dict)
    assert not encoder.supports_zero_shot
    with pytest.raises(HistobenchError, match="musk@ms cannot be compared with text; use musk"):
        encoder.encode_prompts(["fat"], "cpu")


@pytest.mark.parametrize("form", ["vocab.txt", "tokenizer.json"])
def test_a_bert_text_tower_takes_its_tokenizer_from_either_file(form: str, tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "tumour", "of", "fat", "##ty"]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    if form == "tokenizer.json":
        tokenizers.BertWordPieceTokenizer(str(tmp_path / "vocab.txt"), lowercase=True).save(
            str(tmp_path / form)
        )
    tokenize = wordpiece_tokenizer(tmp_path / form, 6)
    assert tokenize(["Fatty  tumour", "of"]).tolist() == [[2, 7, 8, 5, 3, 0], [2, 6, 3, 0, 0, 0]]
    assert tokenize(["fat " * 50]).tolist() == [[2, 7, 7, 7, 7, 3]]
