"""Frozen against fine-tuned networks: differences, ranks, and whether the ranking changes."""

from __future__ import annotations

import json

import numpy as np
import pytest

import histobench as hb
from comparison_runs import Write
from histobench.cli.main import main
from histobench.core.errors import HistobenchError
from histobench.roi.comparison.comparison import dataset_table
from histobench.roi.comparison.ranking_shift import ranking_shifts, shift_grid
from histobench.roi.comparison.selection import by_task, select_runs
from histobench.roi.result_options import CompareOptions
from histobench.roi.results.reader import load_runs

BOTH = ("frozen", "lora")


def _write_both(write_run: Write, encoder: str, frozen: float, adapted: float) -> object:
    write_run(encoder, frozen, task="Fine-tune", setting="frozen", n=600)
    return write_run(encoder, adapted, task="Fine-tune", setting="lora", n=600)


@pytest.mark.slow
def test_an_encoder_that_overtakes_another_is_named(
    write_run: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    _write_both(write_run, "a", 1.0, 4.0)
    _write_both(write_run, "b", 3.0, 2.0)
    results = _write_both(write_run, "c", 2.0, 2.0)
    assert [key[2] for key in by_task(load_runs(results))] == ["lora", "frozen"]  # the answer is by the first
    (shift,) = ranking_shifts(load_runs(results), CompareOptions(metric="accuracy"))
    rows = {each.encoder: each for each in shift.shifts}
    assert shift.shifts[0].encoder == "a"
    assert {name: (row.rank_frozen, row.rank_adapted) for name, row in rows.items()}["a"] == (3, 1)
    # By hand: the difference is that of the two accuracies, and its sign and interval agree.
    stored = {(run.identity.encoder, run.setting): run.metrics["accuracy"] for run in load_runs(results)}
    for name, row in rows.items():
        assert row.difference == pytest.approx(stored[name, "lora"] - stored[name, "frozen"])
        assert row.low < row.difference < row.high
        assert row.holds == (row.low > 0 or row.high < 0)
    assert rows["a"].holds
    assert not rows["c"].holds
    assert ("a", "b") in shift.reversals
    order = [[rows[name].rank_frozen for name in "abc"], [rows[name].rank_adapted for name in "abc"]]
    signs = [np.sign(np.subtract.outer(ranks, ranks))[np.triu_indices(3, 1)] for ranks in order]
    assert shift.kendall == pytest.approx(float(np.mean(signs[0] * signs[1])))
    assert "a overtakes b" in " ".join(shift_grid(shift).notes)
    assert "*" not in "".join("".join(row) for row in shift_grid(shift).rows), "it means: may be the best"

    losses = CompareOptions(metric="log_loss")
    (turned,) = ranking_shifts(load_runs(results), losses)
    assert ("a", "b") in turned.reversals
    for found, options in ((shift, CompareOptions(metric="accuracy")), (turned, losses)):
        for setting, field in (("frozen", "ranks_frozen"), ("lora", "ranks_adapted")):
            runs = select_runs(load_runs(results), task="Fine-tune", setting=setting)
            standings = dataset_table("Colon", runs, options).standings
            assert standings is not None
            assert {each.encoder: getattr(each, field) for each in found.shifts} == standings.ranks

    # The command shows it with the table of the adapted networks, which needs no setting.
    assert main(["compare", str(results), "--task", "fine-tune", "--metric", "accuracy"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "overtakes b" in said
    kept = json.loads((results / "comparison" / "ranking_shift.json").read_text())
    assert kept["datasets"][0]["shifts"][0]["encoder"] == "a"
    frame = hb.open_results(results).ranking_shift(metric="accuracy")
    assert frame.set_index("encoder")["rank_adapted"]["a"] == 1
    for setting in BOTH:
        write_run("a", task="Fine-tune", setting=setting, n=600, seed=5, folder=f"other {setting}")
    assert ranking_shifts(load_runs(results), CompareOptions(metric="accuracy", seed=0)) == [shift]


def test_equal_networks_show_no_change_and_other_results_say_what_to_run(write_run: Write) -> None:
    _write_both(write_run, "a", 1.5, 1.5)
    results = _write_both(write_run, "b", 1.6, 1.6)
    (shift,) = ranking_shifts(load_runs(results), CompareOptions())
    assert not any(each.holds for each in shift.shifts)
    assert not shift.reversals
    assert "No change of the ranking is shown" in " ".join(shift_grid(shift).notes)
    few = [write_run("p", task="Fine-tune", setting=each, dataset="few", n=20, groups=True) for each in BOTH]
    (untested,) = ranking_shifts(load_runs(few[0]), CompareOptions(dataset="few"))
    assert "were not tested: too few groups" in " ".join(shift_grid(untested).notes)
    other = write_run("a", folder="probe")
    runs = [run for run in load_runs(other) if run.task != "Fine-tune"]
    with pytest.raises(HistobenchError, match="add it to `tasks`"):
        ranking_shifts(runs, CompareOptions())


def test_fine_tune_on_masks_is_shown_where_segmentation_is_the_main_task(
    write_run: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    for setting in BOTH:
        write_run("a", task="Fine-tune", setting=setting)
        results = write_run("a", task="Fine-tune", setting=f"{setting}-tokens", dataset="glands")

    def shown() -> set[str]:
        return {run.setting for run in select_runs(load_runs(results), task="Fine-tune")}

    assert shown() == {"lora"}
    write_run("a", task="Segmentation", setting="linear", dataset="glands")
    assert shown() == {"lora-tokens"}
    write_run("a")  # of classes: the linear probe
    assert shown() == {"lora"}
    assert main(["compare", str(results), "--task", "Fine-tune"]) == 0
    assert "Setting: lora (--setting chooses another)" in " ".join(capsys.readouterr().out.split())
