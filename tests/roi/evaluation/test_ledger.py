"""When a finished task is left alone, and when it is done again."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from builders import another, feature_set
from histobench.core.records import options_of
from histobench.roi.evaluation.evaluation_request import EvaluationRequest, task_digest
from histobench.roi.evaluation.evaluation_run import evaluate
from histobench.roi.options import IMAGE_KEYS, LAB_KEYS, Options
from histobench.roi.results.reader import load_runs


@pytest.fixture
def request_(tmp_path: Path) -> EvaluationRequest:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(24) % 3
    rows, groups = torch.randn(24, 8, generator=generator), [f"p{k // 3}" for k in range(24)]
    meta = {"classes": ["a", "b", "c"], "fingerprint": "pixels of these images", "encoder": "e"}
    features = feature_set(rows + labels[:, None], labels, groups=groups, **meta)
    return EvaluationRequest(("Proto",), features, features, tmp_path, device="cpu")


def done_again(request: EvaluationRequest) -> bool:
    return not evaluate(request, resume=True).unchanged


def test_a_finished_task_is_left_alone(request_: EvaluationRequest) -> None:
    assert done_again(request_)
    assert not done_again(request_)


def test_a_correction_of_the_table_is_evaluated_though_the_images_are_the_same(
    request_: EvaluationRequest,
) -> None:
    evaluate(request_, resume=True)
    corrected = replace(request_.test, labels=(request_.test.labels + 1) % 3)
    assert done_again(replace(request_, test=corrected))


#: What the numbers of a task do not depend on.
FREE = {"tasks", "results_dir", "dataset", "encoder", "description", "device", "weights", "split", "options"}


def test_all_that_the_numbers_depend_on_and_nothing_else_changes_the_digest_of_a_task(
    request_: EvaluationRequest,
) -> None:
    part = request_.test
    others = [
        replace(part, labels=(part.labels + 1) % 3),
        replace(part, groups=None),
        replace(part, img_names=part.img_names[::-1]),
        replace(part, sites={"scanner": ("x",) * len(part)}),
        replace(part, metadata=part.metadata | {"classes": ["a", "c", "b"]}),
    ]
    changed: dict[str, list[Any]] = {name: ["other"] for name in FREE - {"options"}}
    changed |= {"train": others, "val": [part, *others], "test": others}
    changed |= {"classes": [tuple("acb")], "preset": ["thunder"], "seed": [1]}
    assert changed.keys() | {"options"} == {each.name for each in fields(EvaluationRequest)}
    requests = [replace(request_, **{name: each}) for name, values in changed.items() for each in values]
    digests = [task_digest(each, "KNN", "features") for each in (request_, *requests)]
    assert len(set(digests)) == 1 + sum(len(values) for name, values in changed.items() if name not in FREE)
    assert task_digest(request_, "KNN", "other") not in digests
    prompts = request_.results_dir / "prompts.txt"
    asked = replace(request_, options=Options(zeroshot_prompt_file=prompts))
    texts = [prompts.write_text(text) and task_digest(asked, "Zero-shot", "") for text in ("fat", "wax")]
    assert texts[0] != texts[1]


@pytest.mark.parametrize(
    ("task", "preset", "without"),
    [
        ("KNN", "uni", {*IMAGE_KEYS, *LAB_KEYS}),
        ("KNN", "patho-bench", IMAGE_KEYS),
        ("Fine-tune", "uni", None),
    ],
)
def test_an_option_changes_the_digest_of_the_tasks_that_it_is_for(
    request_: EvaluationRequest, task: str, preset: str, without: Any
) -> None:
    request_ = replace(request_, preset=preset)
    found = set()
    for each in options_of(Options):
        other = replace(request_, options=Options(**{each.name: another(each)}))
        if task_digest(other, task, "") != task_digest(request_, task, ""):
            found.add(each.name)
    every = {each.name for each in options_of(Options)}
    assert found == ({"choose_by", *IMAGE_KEYS} if without is None else every - {*without})


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
