"""Zero-shot: which encoder, which weights, which prompts; also with a user's own image-text class."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from histobench.cli.main import main
from histobench.roi.data.demo import write_demo_dataset
from histobench.roi.encoders.base import BasePatchEncoder
from histobench.roi.encoders.registry import create_encoder
from histobench.roi.evaluation.evaluation_request import EvaluationRequest
from histobench.roi.evaluation.evaluation_run import evaluate
from histobench.roi.evaluation.zero_shot_task import _zoo_entry
from histobench.roi.features.feature_file import FeatureSet
from histobench.roi.options import Options

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


def zero_shot_request(folder: Path, encoder: str, **metadata: object) -> EvaluationRequest:
    features = FeatureSet(
        embeddings=torch.randn(6, 256, generator=torch.Generator().manual_seed(0)),
        labels=torch.arange(6) % 2,
        img_names=tuple(f"{number}.png" for number in range(6)),
        metadata={"encoder": encoder, "classes": ["tumour", "stroma"], **metadata},
    )
    return EvaluationRequest(("Zero-shot",), features, features, folder / "results", device="cpu")


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


@pytest.mark.slow
def test_a_users_own_class_with_a_plain_transform_runs_zero_shot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HISTOBENCH_CACHE", str(tmp_path / "cache"))
    Path("own.py").write_text(OWN)
    write_demo_dataset(Path("data"), name="D", train_per_class=2, test_per_class=2, layout="wide")
    prompts = next(Path("data").glob("*rompts*.txt"))
    extracted = main(
        [
            "extract",
            *("--dataset_split_csv", "data/D.csv", "--class2id_txt", "data/D.txt", "--dataset_name", "D"),
            *("--model_name", "own.py:Own", "--save_dir", "features", "--device", "cpu"),
        ]
    )
    assert not extracted
    train, test = (str(next(Path("features").glob(f"*_{split}.pt"))) for split in ("train", "test"))
    evaluated = main(
        [
            "evaluate",
            *("--TASK", "Zero-shot", "--train_feature_file", train, "--test_feature_file", test),
            *("--class2id_txt", "data/D.txt", "--log_dir", "results", "--device", "cpu"),
            *("--zeroshot_model_name", "own.py:Own", "--zeroshot_prompt_file", str(prompts)),
        ]
    )
    assert not evaluated
    stored = json.loads(next(Path("results").rglob("Zero-shot_complete_results.json")).read_text())
    assert 0 <= stored["metrics"]["accuracy"] <= 1
