"""Zero-shot with a user's own image-text class."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from histobench.cli.main import main
from histobench.roi.data.demo import write_demo_dataset

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
