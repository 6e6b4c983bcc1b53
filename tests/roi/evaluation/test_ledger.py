"""When a finished task is left alone, and when it is done again."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from builders import feature_set
from histobench.roi.evaluation.evaluation_request import EvaluationRequest
from histobench.roi.evaluation.evaluation_run import evaluate
from histobench.roi.results.reader import load_runs


@pytest.fixture
def request_(tmp_path: Path) -> EvaluationRequest:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(24) % 3
    rows, groups = (
        torch.randn(24, 8, generator=generator) + labels[:, None],
        [f"p{k // 3}" for k in range(24)],
    )
    meta = {"classes": ["a", "b", "c"], "fingerprint": "pixels of these images", "encoder": "e"}
    features = feature_set(rows, labels, groups=groups, **meta)
    return EvaluationRequest(("Proto",), features, features, tmp_path, device="cpu")


def done_again(request: EvaluationRequest) -> bool:
    return not evaluate(request, resume=True).unchanged


def test_a_finished_task_is_left_alone(request_: EvaluationRequest) -> None:
    assert done_again(request_)
    assert not done_again(request_)


@pytest.mark.slow
@pytest.mark.parametrize(
    "correction",
    [
        {"labels": (torch.arange(24) + 1) % 3},
        {"groups": None},
        {"img_names": tuple(f"renamed_{number}.png" for number in range(24))},
    ],
    ids=lambda correction: next(iter(correction)),
)
@pytest.mark.parametrize("split", ["train", "test"])
def test_a_correction_of_the_table_is_evaluated_though_the_images_are_the_same(
    request_: EvaluationRequest, split: str, correction: dict[str, Any]
) -> None:
    evaluate(request_, resume=True)
    corrected: Any = {split: replace(getattr(request_, split), **correction)}
    assert done_again(replace(request_, **corrected))


def test_other_names_of_the_classes_are_written(request_: EvaluationRequest) -> None:
    evaluate(request_, resume=True)
    renamed = replace(request_.test, metadata=request_.test.metadata | {"classes": ["a", "c", "b"]})
    assert done_again(replace(request_, train=renamed, test=renamed))


def test_results_that_were_deleted_are_made_again(request_: EvaluationRequest) -> None:
    evaluate(request_, resume=True)
    shutil.rmtree(request_.results_dir / "Proto")
    assert done_again(request_)
    assert (request_.results_dir / "Proto/Proto_complete_results.json").is_file()
    (request_.results_dir / "Proto/Proto_detailed_results.csv").unlink()
    assert done_again(request_)


@pytest.mark.slow
@pytest.mark.nightly
def test_a_request_to_end_keeps_finished_tasks_and_exits_with_143(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    for name, size in (("train", 300), ("test", 150)):
        labels = torch.arange(size) % 3
        content = {
            "embeddings": (torch.randn(size, 32, generator=generator) + labels[:, None]).numpy(),
            "labels": labels.numpy(),
            "img_names": [f"{name}{number}" for number in range(size)],
        }
        torch.save(content, tmp_path / f"{name}.pt")
    command = [sys.executable, "-m", "histobench.cli.main", "evaluate", "--TASK", "Proto,Few-shot"]
    command += ["--train_feature_file", "train.pt", "--test_feature_file", "test.pt", "--log_dir", "out"]
    process = subprocess.Popen(
        [*command, "--n_iter", "50000", "--device", "cpu"], stderr=subprocess.PIPE, text=True, cwd=tmp_path
    )
    finished = tmp_path / "out" / "Proto" / ".finished.json"
    while process.poll() is None and not finished.exists():
        time.sleep(0.02)
    process.terminate()
    said = process.communicate(timeout=300)[1]
    assert process.returncode == 143, said
    assert "Traceback" not in said
    assert "what was finished is kept" in said
    assert "Continue with: histobench evaluate --TASK Proto,Few-shot" in said
    (kept,) = load_runs(tmp_path / "out")
    assert (kept.task, kept.num_samples) == ("Proto", 150)
