"""What is written to a results folder comes back as it was."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import numpy as np
import pytest

from histobench.core.errors import HistobenchError
from histobench.roi.comparison.bootstrap_intervals import BootstrapSettings, bootstrap_runs
from histobench.roi.comparison.metric_intervals import run_metric_intervals
from histobench.roi.comparison.tidy_rows import read_rows, write_tidy_rows, write_whole_table
from histobench.roi.metrics.classification import Score
from histobench.roi.predictions import Predictions
from histobench.roi.results.layout import RunIdentity, TaskFiles
from histobench.roi.results.reader import load_runs
from histobench.roi.results.writer import write_episodes, write_task


def _predictions(*, groups: bool = True) -> Predictions:
    probabilities = np.random.default_rng(0).dirichlet(np.ones(3), size=5)
    return Predictions(
        probabilities=probabilities,
        labels=np.array([0, 1, 2, 1, 0]),
        predicted=probabilities.argmax(1),
        classes=("a,b", 'qu"ote', "ç"),
        img_names=("x.png", "y,1.png", 'z"2.png', "<script>.png", "ü.png"),
        groups=("p1", "p1", "p2", "", "p3") if groups else None,
        info={"note": "n"},
        sites={"scanner": ("S1", "S1", "", "a,b", "S2")} if groups else {},
    )


def _write(folder: Path, predictions: Predictions, *, task: str = "KNN", setting: str = "") -> TaskFiles:
    return write_task(
        folder,
        task,
        predictions,
        identity=RunIdentity("data", "enc", seed=3, fingerprint="f00"),
        scores={"accuracy": Score(0.4), "auroc": Score(None, "class ç is absent")},
        per_class={"ç": {"recall": Score(None, "absent")}},
        confusion_matrix=[[1, 0, 0]] * 3,
        setting=setting,
    )


@pytest.mark.parametrize("groups", [True, False])
def test_predictions_come_back_bit_for_bit(tmp_path: Path, groups: bool) -> None:
    written = _predictions(groups=groups)
    _write(tmp_path, written)
    (run,) = load_runs(tmp_path)
    read = run.predictions
    np.testing.assert_array_equal(read.probabilities, written.probabilities)
    np.testing.assert_array_equal(read.labels, written.labels)
    np.testing.assert_array_equal(read.predicted, written.predicted)
    assert (read.img_names, read.groups, read.classes) == (written.img_names, written.groups, written.classes)
    assert read.sites == written.sites
    assert run.identity == RunIdentity("data", "enc", seed=3, fingerprint="f00")


def test_a_class_that_is_not_covered_stays_uncovered_and_an_image_without_scores_is_left_out(
    tmp_path: Path,
) -> None:
    written = _predictions()
    written.probabilities[:, 2] = np.nan
    written.probabilities[4] = np.nan
    _write(tmp_path, written)
    read = load_runs(tmp_path)[0].predictions
    np.testing.assert_array_equal(read.probabilities, written.probabilities[:4])


def test_the_complete_file_has_the_documented_keys_and_says_why_a_metric_is_null(tmp_path: Path) -> None:
    content = json.loads(_write(tmp_path, _predictions()).complete.read_text())
    assert {
        "task_name",
        "metrics",
        "confusion_matrix",
        "num_samples",
        "num_classes",
        "additional_info",
    } == set(content)
    assert content["metrics"]["auroc"] is None
    assert content["additional_info"]["undefined_metrics"] == {
        "auroc": "class ç is absent",
        "ç/recall": "absent",
    }


def test_every_metric_becomes_a_tidy_row(tmp_path: Path) -> None:
    _write(tmp_path, _predictions())
    write_tidy_rows(tmp_path)
    rows = read_rows(tmp_path / "results.parquet")
    assert [(row["metric"], row["value"]) for row in rows] == [("accuracy", 0.4), ("auroc", None)]
    assert {(row["dataset"], row["encoder"], row["task"], row["n"], row["seed"]) for row in rows} == {
        ("data", "enc", "KNN", 5, 3)
    }


@pytest.mark.slow
def test_one_table_at_the_top_holds_everything_below_with_the_intervals_that_are_of_these_predictions(
    tmp_path: Path,
) -> None:
    for place in ("data/enc/uni", "data/enc/eva/seed-1", "data/enc/uni/splits/5x2/repeat-01_fold-01"):
        _write(tmp_path / place, _predictions())
    _write(tmp_path / "data/enc/uni", _predictions(), task="Proto")
    list(bootstrap_runs(load_runs(tmp_path), BootstrapSettings(20)))
    _write(
        tmp_path / "data/enc/uni", _predictions(groups=False)
    )  # its intervals are of other predictions now
    written = write_whole_table(tmp_path)
    assert written == tmp_path / "results.parquet"
    rows = read_rows(written)
    assert len(rows) == 3 * 2  # what `splits` holds is no part of ordinary tables
    shown = {(row["task"], row["low"], row["high"]) for row in rows if row["metric"] == "accuracy"}
    expected = set()
    for run in load_runs(tmp_path):  # also of the run whose stored file is of other predictions
        interval = run_metric_intervals(run.predictions)[1]["accuracy"]
        expected.add((run.task, interval.low, interval.high))
    assert shown == expected
    assert any(low is not None for _, low, _ in shown)
    assert {row["n"] for row in rows} == {5}


def test_results_put_beside_the_runs_of_a_plan_leave_the_table_of_everything_whole(tmp_path: Path) -> None:
    _write(tmp_path / "data/enc/uni", _predictions())
    write_tidy_rows(tmp_path / "data/enc/uni")
    assert not (tmp_path / "results.parquet").exists()
    write_whole_table(tmp_path)
    _write(tmp_path, _predictions(), task="Proto")
    write_tidy_rows(tmp_path)
    rows = read_rows(tmp_path / "results.parquet")
    assert [row["task"] for row in rows] == ["Proto", "Proto", "KNN", "KNN"]
    assert len(read_rows(tmp_path / "data/enc/uni/results.parquet")) == 2


def test_a_file_of_another_tool_with_values_of_other_kinds_does_not_end_the_table(tmp_path: Path) -> None:
    _write(tmp_path / "data/enc/uni", _predictions())
    path = _write(tmp_path / "data/enc/uni", _predictions(), task="Proto").complete
    content = json.loads(path.read_text())
    content["additional_info"] |= {"date": 20240101, "version": 2.5, "seed": 2**70}
    path.write_text(json.dumps(content))
    path.with_name("Proto_bootstrap_ci.json").write_text('{"metrics": [1]}')
    rows = read_rows(write_whole_table(tmp_path))
    assert [row["task"] for row in rows if row["task"] == "KNN"] == ["KNN", "KNN"]
    assert {(row["date"], row["version"], row["seed"]) for row in rows if row["task"] == "Proto"} <= {
        ("20240101", "2.5", None)
    }


def test_few_shot_files_lie_in_the_documented_folders(tmp_path: Path) -> None:
    files = _write(tmp_path, _predictions(), task="Few-shot", setting="2way_1shot")
    write_episodes(files, {"accuracy": np.array([0.5, np.nan, 1.0])}, info={"n_way": 2})
    assert sorted(path.name for path in (tmp_path / "Few-shot" / "way_2").iterdir()) == [
        "Fewshot_2way_1shot_complete_results.json",
        "Fewshot_2way_1shot_detailed_results.csv",
        "Fewshot_2way_1shot_few_shot_results.json",
        "Fewshot_2way_1shot_per_episode_metrics.json",
    ]
    assert json.loads(files.few_shot.read_text())["metrics"]["accuracy"]["mean"] == 0.75
    assert json.loads(files.per_episode.read_text())["episodes"][1] == {"episode": 1, "accuracy": None}


def test_an_empty_folder_and_a_damaged_file_are_clear_errors(tmp_path: Path) -> None:
    with pytest.raises(HistobenchError, match="no results in"):
        load_runs(tmp_path)
    _write(tmp_path, _predictions()).complete.write_text("{}")
    with pytest.raises(HistobenchError, match="not a results file"):
        load_runs(tmp_path)


def test_a_file_of_another_program_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    files = _write(tmp_path, _predictions())
    content = json.loads(files.complete.read_text())
    content["metrics"] |= {"auroc": float("nan"), "log_loss": float("inf"), "note": "n/a", "all": [1, 2]}
    content["additional_info"] |= {"dataset": None, "encoder": 5, "seed": None, "classes": [1, 2, 3]}
    content["additional_info"] |= {"undefined_metrics": "none", "loss": float("nan")}
    files.complete.write_text("\ufeff" + json.dumps(content), encoding="utf-8")
    files.detailed.write_text("\ufeff" + files.detailed.read_text(), encoding="utf-8")
    (run,) = load_runs(tmp_path)
    assert run.metrics == {"accuracy": 0.4, "auroc": None, "log_loss": None}
    assert (run.identity.dataset, run.identity.encoder, run.identity.seed) == ("", "5", 0)
    assert run.classes == ("1", "2", "3")
    assert (run.undefined_metrics, run.info["loss"]) == ({}, None)
    assert len(run.predictions) == 5


def test_hidden_files_of_other_systems_are_no_results(tmp_path: Path) -> None:
    files = _write(tmp_path, _predictions())
    files.complete.with_name(f"._{files.complete.name}").write_bytes(b"\x00\x05\x16\x07\xb0")
    assert len(load_runs(tmp_path)) == 1


HEADER = "img_name,true_label,predicted_label,probabilities\n"


@pytest.mark.parametrize(
    "text",
    [
        *(f'{HEADER}a,{label},0,"[0.1, 0.9, 0]"\n' for label in ("-1", "inf", "TUM")),
        f"{HEADER}a,0,0,[0.1\n",
        "b\n1\n",
    ],
)
def test_what_is_no_table_of_predictions_is_a_clear_error(tmp_path: Path, text: str) -> None:
    files = _write(tmp_path, _predictions())
    content = json.loads(files.complete.read_text()) | {"num_samples": 1, "additional_info": {}}
    files.complete.write_text(json.dumps(content))
    files.detailed.write_text(text)
    with pytest.raises(HistobenchError, match=r"KNN_detailed_results\.csv: not a table of predictions"):
        _ = load_runs(tmp_path)[0].predictions


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEADER, "is not the file that KNN_complete_results.json was computed from (0 rows instead of 5)"),
        (-2, "(3 rows instead of 5)"),
        ((",0,", ",1,"), "(checksum)"),
    ],
)
@pytest.mark.parametrize("checksum", [True, False])  # other tools write none
def test_predictions_that_were_cut_short_or_changed_are_refused(
    tmp_path: Path, text: str | int | tuple[str, str], message: str, checksum: bool
) -> None:
    files = _write(tmp_path, _predictions())
    content = json.loads(files.complete.read_text())
    if not checksum:
        del content["additional_info"]["predictions_file"]
    files.complete.write_text(json.dumps(content))
    (run,) = load_runs(tmp_path)
    written = files.detailed.read_text()
    if isinstance(text, int):
        text = "".join(written.splitlines(keepends=True)[:text])
    elif isinstance(text, tuple):
        text = written.replace(*text, 1)
        message = message if checksum else ""
    files.detailed.write_text(text)
    if message:
        with pytest.raises(HistobenchError, match=rf"KNN_detailed_results\.csv.*{re.escape(message)}"):
            _ = run.predictions
    else:
        assert len(run.predictions) == 5


def test_other_line_ends_are_no_damage(tmp_path: Path) -> None:
    files = _write(tmp_path, _predictions())
    files.detailed.write_bytes(files.detailed.read_bytes().replace(b"\n", b"\r\n"))
    assert len(load_runs(tmp_path)[0].predictions) == 5


def test_a_table_that_lacks_a_result_is_made_again_whatever_the_times_of_files_are(tmp_path: Path) -> None:
    _write(tmp_path, _predictions())
    late = _write(tmp_path, _predictions(), task="Proto").complete
    hidden = late.rename(tmp_path / "hidden")  # another machine wrote it, and the disk does not show it yet
    write_tidy_rows(tmp_path)
    assert {row["task"] for row in read_rows(tmp_path / "results.parquet")} == {"KNN"}
    hidden.rename(late)
    os.utime(late, (1.0, 1.0))
    write_tidy_rows(tmp_path)
    assert {row["task"] for row in read_rows(tmp_path / "results.parquet")} == {"KNN", "Proto"}
