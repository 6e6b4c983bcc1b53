"""A second run into one folder keeps the first; a run that measured nothing does not look like success."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from builders import feature_set
from histobench.cli.main import main
from histobench.roi.comparison.tidy_rows import read_rows
from histobench.roi.data.demo import write_demo_dataset
from histobench.roi.evaluation.evaluation_request import EvaluationRequest
from histobench.roi.evaluation.evaluation_run import evaluate
from histobench.roi.features.feature_file import FeatureSet, save
from histobench.roi.options import Options
from histobench.roi.results.layout import TaskFiles, claim_place, place_of
from histobench.roi.results.reader import load_runs

pytestmark = pytest.mark.slow


def features(seed: int, *, size: int = 224, encoder: str | None = "e") -> FeatureSet:
    rng = np.random.default_rng(seed)
    labels = np.arange(30) % 3
    rows = rng.normal(size=(30, 8)) + labels[:, None]
    meta = {"dataset": "set", "size": size, "classes": ["a", "b", "c"]}
    meta |= {"encoder": encoder} if encoder else {}
    return feature_set(rows, labels, names=f"{seed}-{{}}", **meta)


@pytest.fixture
def asked(tmp_path: Path) -> EvaluationRequest:
    options = Options(n_iter=5)
    return EvaluationRequest(
        ("Few-shot", "KNN"), features(0), features(1), tmp_path, device="cpu", options=options
    )


def files_below(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*_results.*")}


def test_another_seed_and_another_size_keep_what_is_there(asked: EvaluationRequest, tmp_path: Path) -> None:
    evaluate(asked)
    first = files_below(tmp_path)
    assert json.loads(first["KNN/KNN_complete_results.json"])["additional_info"]["size"] == "224"
    evaluate(replace(asked, seed=1))
    larger = replace(asked, train=features(0, size=448), test=features(1, size=448))
    outcome = evaluate(larger)
    assert outcome.results_dir == tmp_path / "size-448"
    now = files_below(tmp_path)
    assert {name: now[name] for name in first} == first
    assert {name.split("/")[0] for name in set(now) - set(first)} == {"seed-1", "size-448"}
    assert now.keys() == first.keys() | {f"{place}/{n}" for place in ("seed-1", "size-448") for n in first}
    seeds = [run.identity.seed for run in load_runs(tmp_path) if run.task == "KNN"]
    assert sorted(seeds) == [0, 0, 1]


def test_what_chose_hyper_parameters_by_other_rows_keeps_what_is_there(
    asked: EvaluationRequest, tmp_path: Path
) -> None:
    grouped = tuple(f"g{number % 12}" for number in range(30))
    asked = replace(
        asked, tasks=("Linear-Probe",), preset="sklearn", train=replace(asked.train, groups=grouped)
    )
    for choose_by in ("group", "image"):
        evaluate(replace(asked, options=Options(choose_by=choose_by)))
    assert {run.info["chosen_by"] for run in load_runs(tmp_path)} == {"group", "image"}


def test_the_same_run_again_replaces_its_own_files_and_is_found_by_a_run_that_goes_on(
    asked: EvaluationRequest, tmp_path: Path
) -> None:
    for seed in (0, 1):
        evaluate(replace(asked, seed=seed))
    before = set(files_below(tmp_path))
    for seed in (0, 1):
        evaluate(replace(asked, seed=seed))
        assert evaluate(replace(asked, seed=seed), resume=True).unchanged == ("Few-shot", "KNN")
    assert set(files_below(tmp_path)) == before
    assert len(read_rows(tmp_path / "results.parquet")) == len(read_rows(tmp_path / "seed-1/results.parquet"))


def test_files_of_other_tools_are_told_apart_by_their_content(tmp_path: Path) -> None:
    nameless = [features(seed, encoder=None) for seed in (0, 1, 5)]
    evaluate(EvaluationRequest(("KNN",), nameless[0], nameless[1], tmp_path, device="cpu"))
    outcome = evaluate(EvaluationRequest(("KNN",), nameless[2], nameless[1], tmp_path, device="cpu"))
    assert outcome.results_dir.name.startswith("features-")
    assert len(load_runs(tmp_path)) == 2


def test_results_from_before_claims_are_kept_too(asked: EvaluationRequest, tmp_path: Path) -> None:
    evaluate(asked)
    for claim in tmp_path.rglob(".run.json"):
        claim.unlink()
    first = files_below(tmp_path)
    assert evaluate(replace(asked, seed=7)).results_dir == tmp_path / "seed-7"
    assert {name: files_below(tmp_path)[name] for name in first} == first


def test_names_in_folders_cannot_lead_elsewhere(tmp_path: Path) -> None:
    claim_place(tmp_path, "KNN", {"encoder": "a"})
    TaskFiles.of(tmp_path, "KNN").complete.touch()
    for encoder in ("..", "../../x", "/etc/passwd", "a\0b", "x" * 500):
        place = place_of(tmp_path, "KNN", {"encoder": encoder})
        assert place.parent == tmp_path
        assert place.name not in ("..", ".")


def test_a_plan_with_another_seed_divides_the_images_anew_and_keeps_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HISTOBENCH_CACHE", str(tmp_path / "cache"))
    table = write_demo_dataset(tmp_path / "data", train_per_class=4, test_per_class=2, size=32)
    command = ["run", "--data", str(table.parent / "tiles"), "--split", "0.6/0.4", "--models", "tiny-vl"]
    command += ["--tasks", "KNN", "--results", str(tmp_path / "r"), "--device", "cpu", "--num_workers", "0"]
    assert main(command) == 0
    first = files_below(tmp_path / "r")
    features_of = {path: path.read_bytes() for path in (tmp_path / "r").rglob("*.pt")}
    capsys.readouterr()
    assert main([*command, "--seed", "1", "--verbose"]) == 0
    said = capsys.readouterr().out
    assert "not compared" not in said
    assert "seed 1)" in said
    now = files_below(tmp_path / "r")
    assert {name: now[name] for name in first if "comparison" not in name} == first
    assert {run.identity.seed for run in load_runs(tmp_path / "r")} == {0, 1}
    assert {path: path.read_bytes() for path in features_of} == features_of
    assert main(["compare", str(tmp_path / "r"), "--task", "KNN", "--seed", "1"]) == 0


def test_a_command_whose_only_task_is_skipped_does_not_succeed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HISTOBENCH_CACHE", str(tmp_path / "cache"))
    for part, seed in (("train", 0), ("test", 1)):
        save(features(seed, encoder="random-vit"), tmp_path / f"{part}.pt")
    files = [f"--{part}_feature_file={tmp_path / part}.pt" for part in ("train", "test")]
    command = ["evaluate", *files, "--log_dir", str(tmp_path / "out"), "--device", "cpu"]
    assert main([*command, "--TASK", "Zero-shot"]) == 2
    assert main([*command, "--TASK", "Zero-shot,KNN"]) == 0
    table = write_demo_dataset(tmp_path / "data", train_per_class=2, test_per_class=1, size=32)
    run = ["run", "--data", str(table), "--models", "tiny-vl", "--results", str(tmp_path / "r")]
    assert main([*run, "--tasks", "KNN", "--presets", "eva", "--device", "cpu", "--num_workers", "0"]) == 2
