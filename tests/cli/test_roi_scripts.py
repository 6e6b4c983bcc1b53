"""The three documented scripts, run as a user would run them, on a small synthetic dataset."""

from __future__ import annotations

import csv
import io
import json
import runpy
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from histobench.roi.data.demo import write_demo_dataset
from histobench.roi.features.feature_file import load, save

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
TASKS = "Linear-Probe,KNN,Proto,Few-shot,Zero-shot"
DOCUMENTED_METRICS = ("accuracy", "balanced_accuracy", "precision", "recall", "f1_score", "auroc")


def _run(script: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """A script, in this process, which has loaded the libraries already."""
    out, err = io.StringIO(), io.StringIO()
    command = [str(ROOT / script), *arguments]
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.chdir(cwd)
        patch.setenv("HISTOBENCH_CACHE", str(cwd / "cache"))
        patch.setattr(sys, "argv", command)
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(command[0], run_name="__main__")
    assert isinstance(ended.value.code, int)
    return subprocess.CompletedProcess(command, ended.value.code, out.getvalue(), err.getvalue())


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the documented example workflow has been run, with tiny-vl for conch_v1."""
    folder = tmp_path_factory.mktemp("work")
    write_demo_dataset(
        folder / "example_dataset", name="CRC-100K", train_per_class=6, test_per_class=3, layout="wide"
    )
    extracted = _run(
        "00-ROI_Feature_Extract.py",
        *("--dataset_split_csv", "./example_dataset/CRC-100K.csv"),
        *("--class2id_txt", "./example_dataset/CRC-100K.txt"),
        *("--dataset_name", "CRC-100K", "--model_name", "tiny-vl", "--resize_size", "448"),
        *("--batch_size", "128", "--device", "cuda:0"),
        *("--save_dir", "./example_dataset/features"),
        cwd=folder,
    )
    assert extracted.returncode == 0, extracted.stderr
    evaluated = _run(
        "01-ROI_BenchMark_Main.py",
        *("--TASK", TASKS),
        *("--train_feature_file", _features("train")),
        *("--test_feature_file", _features("test")),
        *("--class2id_txt", "./example_dataset/CRC-100K.txt"),
        *("--zeroshot_model_name", "tiny-vl"),
        *("--zeroshot_prompt_file", "./example_dataset/CRC-100K-Zero_Shot_Prompts.txt"),
        *("--log_dir", "./results/CRC-100K_tiny-vl"),
        *("--log_description", "Comprehensive evaluation of tiny-vl on the synthetic dataset"),
        *("--device", "cuda:0", "--n_neighbors", "5", "--n_iter", "10"),
        *("--n_way", "2,9,10", "--n_shot", "1,4,256"),
        cwd=folder,
    )
    assert evaluated.returncode == 0, evaluated.stderr
    (folder / "evaluate.log").write_text(evaluated.stdout + evaluated.stderr)
    return folder


def _features(split: str) -> str:
    return f"./example_dataset/features/Dataset_[CRC-100K]_Model_[tiny-vl]_Size_[448]_{split}.pt"


def test_feature_files_hold_the_documented_keys_and_no_code(workplace: Path) -> None:
    content = torch.load(workplace / _features("test"), weights_only=True)
    assert {"embeddings", "labels", "img_names"} <= set(content)
    assert len(content["embeddings"]) == len(content["labels"]) == len(content["img_names"]) == 27


def test_every_documented_results_file_is_there(workplace: Path) -> None:
    results = workplace / "results" / "CRC-100K_tiny-vl"
    for task in ("Linear-Probe", "KNN", "Proto", "Zero-shot"):
        content = json.loads((results / task / f"{task}_complete_results.json").read_text())
        assert content["task_name"] == task
        assert content["num_samples"] == 27
        assert content["num_classes"] == 9
        assert all(0 <= content["metrics"][name] <= 1 for name in DOCUMENTED_METRICS)
        assert sum(map(sum, content["confusion_matrix"])) == 27
        assert content["additional_info"]["preset"] == "uni"
        with (results / task / f"{task}_detailed_results.csv").open() as handle:
            rows = list(csv.DictReader(handle))
        assert list(rows[0])[:4] == ["img_name", "true_label", "predicted_label", "probabilities"]
        assert abs(sum(json.loads(rows[0]["probabilities"])) - 1) < 1e-6
    for way in (2, 9):
        names = {path.name for path in (results / "Few-shot" / f"way_{way}").iterdir()}
        assert f"Fewshot_{way}way_4shot_per_episode_metrics.json" in names
        assert f"Fewshot_{way}way_4shot_few_shot_results.json" in names
        assert f"Fewshot_{way}way_256shot_complete_results.json" not in names
    assert (results / "results.parquet").is_file()


def test_settings_that_do_not_fit_are_named(workplace: Path) -> None:
    log = (workplace / "evaluate.log").read_text()
    assert "Few-shot: ways 10 left out" in log
    assert "Few-shot: shots 256 left out" in log


def test_zero_shot_on_the_synthetic_tiles_beats_chance(workplace: Path) -> None:
    path = workplace / "results" / "CRC-100K_tiny-vl" / "Zero-shot" / "Zero-shot_complete_results.json"
    assert json.loads(path.read_text())["metrics"]["accuracy"] > 0.4


def test_the_bootstrap_script_writes_intervals_and_skips_them_the_second_time(workplace: Path) -> None:
    arguments = ("--results_dir", "./results", "--n_bootstrap", "50", "--random_state", "1")
    first = _run("02-Bootstrap_Statistical_Analysis.py", *arguments, cwd=workplace)
    assert first.returncode == 0, first.stderr
    summary = json.loads((workplace / "results" / "bootstrap_ci_summary.json").read_text())
    assert summary
    assert "computed, 0 skipped" in first.stdout
    knn = workplace / "results" / "CRC-100K_tiny-vl" / "KNN"
    stamp = (knn / "KNN_bootstrap_ci.json").stat().st_mtime_ns
    second = _run("02-Bootstrap_Statistical_Analysis.py", *arguments, cwd=workplace)
    assert second.returncode == 0
    assert (knn / "KNN_bootstrap_ci.json").stat().st_mtime_ns == stamp


def test_the_same_extraction_again_computes_nothing(workplace: Path) -> None:
    again = _run(
        "00-ROI_Feature_Extract.py",
        *("--dataset_split_csv", "example_dataset/CRC-100K.csv"),
        *("--class2id_txt", "example_dataset/CRC-100K.txt"),
        *("--dataset_name", "CRC-100K", "--model_name", "tiny-vl", "--save_dir", "again"),
        cwd=workplace,
    )
    assert again.returncode == 0, again.stderr
    assert "54 images, all from the cache" in again.stdout
    # 448 is the script's documented default size, so the features are those of the first run.
    name = "Dataset_[CRC-100K]_Model_[tiny-vl]_Size_[448]_test.pt"
    again_, first = (
        torch.load(workplace / path, weights_only=True) for path in (f"again/{name}", _features("test"))
    )
    assert torch.equal(again_["embeddings"], first["embeddings"])
    assert again_["metadata"]["fingerprint"] == first["metadata"]["fingerprint"]


def test_features_of_two_encoders_are_not_mixed(workplace: Path) -> None:
    content = load(workplace / _features("test"))
    metadata = {**content.metadata, "encoder": "other"}
    other = replace(content, embeddings=content.embeddings.repeat(1, 2), metadata=metadata)
    save(other, workplace / "other.pt")
    done = _run(
        "01-ROI_BenchMark_Main.py",
        *("--TASK", "KNN", "--log_dir", "results/mixed"),
        *("--train_feature_file", _features("train")),
        *("--test_feature_file", "other.pt"),
        cwd=workplace,
    )
    assert done.returncode == 2
    assert "256" in done.stderr
    assert not (workplace / "results" / "mixed").exists()
