"""The shortlist: conditions, evidence, and no winner that the data do not name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import histobench as hb
from comparison_runs import Write, simulated_predictions
from histobench.cli.main import main
from histobench.core.errors import HistobenchError
from histobench.roi.comparison.answer import answer, evidence_of
from histobench.roi.comparison.choice import choice_grid, choose, commercial_use
from histobench.roi.comparison.comparison import compare_runs
from histobench.roi.comparison.sampling_units import taken
from histobench.roi.encoders.registry import list_encoders
from histobench.roi.plan.summary import Scope, overviews
from histobench.roi.predictions import Predictions
from histobench.roi.result_options import ChooseOptions, CompareSettings, Conditions, read_params
from histobench.roi.results.reader import load_runs


def test_the_command_prints_the_shortlist_and_the_paragraph(
    write_run: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    for encoder, signal in (("keep", 2.0), ("biomedclip", 2.0), ("random-vit", 0.2), ("uni_v1", 6.0)):
        results = write_run(encoder, signal, groups=True)
    assert main(["choose", str(results), "--license", "commercial", "--max-params", "1B"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "1 of 1" in shown
    assert "a license that allows commercial use, at most 1000M parameters (image tower)" in shown
    assert "uni_v1: CC-BY-NC-ND-4.0 does not allow commercial use" in shown
    assert main(["choose", str(results), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["best"] == ["uni_v1"]
    assert main(["choose", str(results), "--max-params", "many"]) == 2
    assert "such as 400M" in capsys.readouterr().err


def _with_a_rare_class(predictions: Predictions) -> Predictions:
    """The same test images, of which one class has only those of one patient."""
    groups = np.array(predictions.groups)
    kept = np.flatnonzero((predictions.labels != 2) | (groups == groups[predictions.labels == 2][0]))
    return taken(predictions, kept)


GOOD, POOR = 3.0, 0.2
#: What a folder holds (dataset -> encoder -> signal), what is asked, what the paragraph must say and must
#: not, and which encoders may be the best. Encoders with the same signal have the same predictions.
FOLDERS: dict[str, tuple[dict[str, dict[str, float]], dict[str, Any], list[str], list[str], set[str]]] = {
    "one is shown to be better": (
        {"set0": {"keep": GOOD, "plip": POOR}}, {},
        ["On set0 (Linear-Probe, balanced accuracy; 150 test images of 30 patients or slides), keep (0.",
         "is better than plip (0.", "(95% confidence)"],
        ["Conditions", "tested: too few", "no difference"], {"keep"},
    ),
    "two that are alike": (
        {"set0": {"keep": GOOD, "plip": GOOD}}, {},
        ["no difference between keep (", "each may be the best (95% confidence)"],
        ["is better", "worse"], {"keep", "plip"},
    ),
    "two that are alike and one behind": (
        {"set0": {"keep": GOOD, "plip": GOOD, "uni_v1": POOR}}, {},
        ["may be the best; uni_v1 is shown to be worse than"], ["no difference"], {"keep", "plip"},
    ),
    "too few patients": (
        {"few0": {"keep": GOOD, "plip": POOR}}, {},
        ["differences of balanced accuracy could not be tested: too few groups: 3 (an interval needs 5)",
         "repeat the run with `--splits 5x5`"],
        ["best", "better", "worse", "confidence", "paired"], set(),
    ),
    "a rare class": (
        {"rare0": {"keep": GOOD, "plip": POOR}}, {},
        ["balanced accuracy could not be tested: too few groups of class LYM: 1 (an interval needs 3)",
         "By accuracy, in which frequent classes count most, keep (0.", "is better than plip",
         "To test balanced accuracy on all patients or slides, repeat the run with `--splits 5x5`"],
        ["balanced accuracy; 10"], {"keep"},
    ),
    "a metric without tests": (
        {"set0": {"keep": GOOD, "plip": POOR}}, {"metric": "ece"},
        ["differences of ece could not be tested"], ["better", "worse", "best", "95%"], set(),
    ),
    "authors who restrict an open license": (
        {"set0": {"keep": GOOD, "retccl": POOR, "plip": POOR}}, {"license": "commercial"},
        ["1 of 3 meets them", "retccl: GPL-3.0, but its authors allow non-commercial academic use only",
         "plip: MIT, but its author announced a non-commercial license",
         "keep is the only one, so nothing was compared"],
        ["best", "better", "95%"], set(),
    ),
    "unclear licenses where they are asked for": (
        {"set0": {"keep": GOOD, "retccl": POOR, "plip": POOR}}, {"license": "commercial-or-unclear"},
        ["2 of 3 meet them", "Excluded: retccl"], ["Excluded: plip"], {"keep"},
    ),
    "another one on each dataset": (
        {"set0": {"keep": GOOD, "plip": POOR}, "set1": {"keep": POOR, "plip": GOOD}}, {},
        ["no encoder may be the best on all: on set0, keep (", "; on set1, plip ("],
        ["every other"], set(),
    ),
    "one candidate left on the second dataset": (
        {"set0": {"keep": GOOD, "biomedclip": POOR, "uni_v1": POOR}, "set1": {"keep": GOOD, "uni_v1": POOR}},
        {"license": "commercial"},
        ["On set0 (Linear-Probe", "keep (0.", "is better than biomedclip",
         "On set1 nothing was compared: keep is the only encoder there",
         "biomedclip was not run on set1: `histobench run --data set1 --encoders biomedclip --tasks Linear"],
        ["2 datasets", "every other"], {"keep"},
    ),
    "a run is missing": (
        {"set0": {"keep": GOOD, "plip": POOR, "musk": GOOD}, "set1": {"keep": GOOD, "plip": POOR}}, {},
        ["keep may be the best on all; plip is shown to be worse on at least one; musk was not run on all of "
         "them, and not shown to be worse",
         "musk was not run on set1: `histobench run --data set1 --encoders musk"],
        ["better than every other"], {"keep"},
    ),
    "the second dataset could not be tested": (
        {"set0": {"keep": GOOD, "plip": POOR}, "few1": {"keep": POOR, "plip": GOOD}}, {},
        ["On set0 (", "On few1 (Linear-Probe; 15 test images of 3 patients or slides), differences of "
         "balanced accuracy could not be tested"],
        ["2 datasets", "on each"], {"keep"},
    ),
    "a license with obligations": (
        {"set0": {"hibou_l": GOOD, "ctranspath": POOR}}, {},
        ["License obligations: ctranspath: GPL-3.0 (copyleft)"], [], {"hibou_l"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", FOLDERS)
def test_the_paragraph_says_what_was_tested_and_no_more(case: str, write_run: Write) -> None:
    folder, asked, must, must_not, best = FOLDERS[case]
    results = Path()
    for number, (dataset, encoders) in enumerate(folder.items()):
        for encoder, signal in encoders.items():
            n = 15 if dataset.startswith("few") else 150
            found = simulated_predictions(
                signal=signal, seed=int(10 * signal), n=n, test_set=number, groups=True
            )
            found = _with_a_rare_class(found) if dataset.startswith("rare") else found
            results = write_run(encoder, dataset=dataset, predictions=found)
    choice = hb.choose(results, **asked)
    for words in must:
        assert words in choice.paragraph
    for words in must_not:
        assert words not in choice.paragraph
    assert set(choice.best) == best
    tested = {name for each in choice.candidates for name in each.tied_best}
    assert bool(tested) == bool(choice.tested)
    # `compare` gives the same answer on the same encoders.
    if len(choice.candidates) > 1:
        left = [
            run for run in load_runs(results) if run.identity.encoder in {c.name for c in choice.candidates}
        ]
        comparison = compare_runs(left, CompareSettings(choice.metric))
        assert (
            answer(evidence_of(comparison), task=choice.task, metric=choice.metric).text in choice.paragraph
        )
        if case == "a rare class":
            (table,) = compare_runs(left, CompareSettings(choice.metric, alpha=0.2)).tables
            assert {entry.interval.level for entry in (*table.entries, *table.instead.entries)} == {0.8}
            (page,) = overviews([comparison], wanted=Scope(), results=results).overviews
            for metric, column in zip(("balanced_accuracy", "accuracy"), page.columns, strict=True):
                values = {run.identity.encoder: run.metrics[metric] for run in left}
                assert {name: cell.value for name, cell in column.cells.items()} == pytest.approx(values)


def test_a_mean_over_some_datasets_is_marked(write_run: Write) -> None:
    encoders = ("keep", "set0"), ("keep", "set1"), ("plip", "set0"), ("plip@mine", "set0")
    for encoder, dataset in encoders:
        results = write_run(encoder, dataset=dataset, groups=True)
    rows = {row[0]: row for row in choice_grid(choose(results, ChooseOptions())).rows}
    assert rows["plip"][2].endswith("(on 1 of 2)")
    assert "of" not in rows["keep"][2]
    assert rows["keep"][3] == "305M + 109M text"


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        ({"max_params": 400}, "for millions write 400M"),
        ({"min_robustness": 80.0}, "at most 1, found 80"),
        ({"min_robustness": 2.0}, "at least 0 and at most 1"),
    ],
)
def test_bounds_that_cannot_be_meant_are_refused(bounds: dict[str, Any], message: str) -> None:
    with pytest.raises(HistobenchError, match=message):
        Conditions(**bounds)


def test_every_license_of_the_zoo_is_judged_with_a_reason() -> None:
    for spec in list_encoders():
        assert spec.facts is not None
        use, said = commercial_use(spec.license, spec.facts)
        assert use == spec.facts.commercial, spec.name
        assert (use == "allowed") == (not said)
        if "NC" in spec.license or "non-commercial" in spec.license:
            assert use != "allowed"
    assert read_params("1.1B") == 1_100_000_000
    with pytest.raises(HistobenchError, match="is unknown"):
        Conditions(license="free")
