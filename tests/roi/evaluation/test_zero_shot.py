"""Zero-shot: which encoder, which weights, which prompts; also with a user's own image-text class."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from builders import feature_set
from histobench.roi.encoders.base import BasePatchEncoder
from histobench.roi.encoders.registry import create_encoder
from histobench.roi.evaluation.evaluation_request import EvaluationRequest
from histobench.roi.evaluation.evaluation_run import evaluate
from histobench.roi.evaluation.zero_shot_task import _zoo_entry
from histobench.roi.options import Options
from histobench.roi.results.reader import load_runs

OWN = '''
import torch
from torchvision import transforms
from histobench.roi.encoders.base import BasePatchEncoder


class Own(BasePatchEncoder):
    """Mean colours, with a transform that is a plain callable and no size that could be changed."""

    def __init__(self):
        super().__init__()
        self.eval_transforms = transforms.Compose([transforms.Resize((32, 32)), transforms.ToTensor()])
        self.precision = torch.float32
        self.embed_dim = 3

    def forward(self, images):
        return images.mean((2, 3))

    def run_zero_shot(self, texts, image_features, device):
        words = torch.tensor([[len(text), text.count("e"), text.count("a")] for text in texts]).float()
        features = torch.nn.functional.normalize(image_features.to(device), dim=1)
        return (features @ torch.nn.functional.normalize(words, dim=1).T).softmax(1)
'''


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """The weights that were asked for; the encoder is tiny-vl, which has its own."""
    given: list[str | None] = []

    def create(name: str, *, weights: str | None = None) -> BasePatchEncoder:
        given.append(weights)
        return create_encoder(name)

    monkeypatch.setattr("histobench.roi.encoders.registry.create_encoder", create)
    return given


def zero_shot_request(folder: Path, encoder: str, *, d: int = 256, **metadata: object) -> EvaluationRequest:
    rows = torch.randn(6, d, generator=torch.Generator().manual_seed(0))
    meta = {"encoder": encoder, "classes": ["tumour", "stroma"], **metadata}
    features = feature_set(rows, torch.arange(6) % 2, **meta)
    train = replace(features, embeddings=rows.flip(0))
    return EvaluationRequest(("Zero-shot",), train, features, folder / "results", device="cpu")


def with_prompts(request: EvaluationRequest, folder: Path) -> EvaluationRequest:
    (folder / "prompts.txt").write_text("tumour tissue\nstroma tissue\n")
    return replace(request, options=Options(zeroshot_prompt_file=folder / "prompts.txt"))


def test_the_text_tower_gets_the_weights_of_the_request(tmp_path: Path, asked: list[str | None]) -> None:
    request = with_prompts(zero_shot_request(tmp_path, "tiny-vl"), tmp_path)
    assert evaluate(replace(request, weights="table.json")).rows
    assert asked == ["table.json"]


def test_features_of_other_weights_are_not_compared_with_texts(
    tmp_path: Path, asked: list[str | None]
) -> None:
    request = zero_shot_request(tmp_path, "tiny-vl", identity={"weights": "sha256:0123"})
    outcome = evaluate(with_prompts(request, tmp_path))
    assert "other weights of tiny-vl" in outcome.failed["Zero-shot"]
    own = create_encoder("tiny-vl").identity
    assert evaluate(with_prompts(zero_shot_request(tmp_path, "tiny-vl", identity=own), tmp_path)).rows


def test_an_encoder_without_text_says_so_before_it_asks_for_prompts(tmp_path: Path) -> None:
    skipped = evaluate(zero_shot_request(tmp_path, "random-vit")).skipped["Zero-shot"]
    assert skipped.startswith("random-vit has no text tower")
    skipped = evaluate(zero_shot_request(tmp_path, "tiny-vl")).skipped["Zero-shot"]
    assert skipped.startswith("no prompts")


def test_an_alias_names_the_same_encoder() -> None:
    assert _zoo_entry("conch") == _zoo_entry("conch_v1") != _zoo_entry("conch_v15")
    assert _zoo_entry("own.py:Own") is None


def test_a_users_own_class_with_a_plain_transform_runs_zero_shot(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    name = f"{tmp_path}/own.py:Own"
    request = with_prompts(zero_shot_request(tmp_path, name, d=3), tmp_path)
    assert not evaluate(request).failed
    (run,) = load_runs(request.results_dir)
    words = ["tumour tissue", "stroma tissue"]
    expected = create_encoder(name).run_zero_shot(words, request.test.embeddings, "cpu")
    np.testing.assert_allclose(run.predictions.probabilities, expected)
