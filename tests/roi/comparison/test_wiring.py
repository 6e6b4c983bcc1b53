"""Every option of the commands that read results changes what it is for, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import rankdata
from tests.roi.comparison.conftest import write_to

import histobench as hb
from builders import uneven_features
from histobench.core.records import options_of
from histobench.roi.comparison.similarity import similarity_of_results
from histobench.roi.features.feature_file import save
from histobench.roi.result_options import (
    MEASURES,
    ChooseOptions,
    CompareOptions,
    PowerOptions,
    RobustnessSettings,
    SimilarityOptions,
)

pytestmark = pytest.mark.slow
#: Encoders with the signal of each; a license that forbids commercial use, a large network, a small one.
SIGNALS = {"uni_v1": 2.0, "resnet50": 1.2, "virchow2": 0.6}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four datasets of unequal size; other tasks, presets and seeds on one of them each."""
    root = tmp_path_factory.mktemp("wiring")
    for number, (dataset, n) in enumerate((("Colon", 151), ("Lung", 92), ("Skin", 61), ("Liver", 77))):
        for encoder, signal in SIGNALS.items():
            common = {"dataset": dataset, "n": n, "test_set": number, "groups": dataset == "Colon"}
            write_to(root, encoder, signal + 0.1 * number, **common)
            if dataset == "Colon":
                write_to(root, encoder, signal / 2, task="KNN", **common)
                write_to(root, encoder, signal / 3, task="Patient", setting="mean", **common)
                write_to(root, encoder, signal / 4, task="Patient", setting="abmil", **common)
            if dataset == "Lung":
                folder = f"thunder_{encoder}"
                write_to(root, encoder, signal / 2, preset="thunder", folder=folder, **common)
            if dataset == "Skin":
                write_to(root, encoder, signal / 2, seed=5, folder=f"seed_{encoder}", **common)
    return root / "results"


def leaves(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Every number and text of a result with the name of its field or column."""
    if isinstance(value, pd.DataFrame):
        value = value.to_dict("list")
    elif is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, str(key))
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from leaves(inner, name)
    else:
        yield name, repr(value)


def changed(one: Any, other: Any) -> set[str]:
    found: list[dict[str, list[str]]] = [{}, {}]
    for place, value in enumerate((one, other)):
        for name, text in leaves(value):
            found[place].setdefault(name, []).append(text)
    before, after = found
    return {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}


def of(datasets: str, *names: str) -> set[tuple[str, str]]:
    return {(dataset, name) for dataset in datasets.split() for name in names or SIGNALS}


#: Another value of each option; what changes; what stays; options of both runs.
Case = tuple[Any, set[str], set[str], dict[str, Any]]
RUN = {"dataset", "first", "second"}
COMPARED: dict[str, Case] = {
    "metric": ("auroc", {"metric", "value", "low", "difference", "p_value", "p_adjusted"}, {"alpha"}, {}),
    "alpha": (0.2, {"alpha", "level", "low", "high"}, {"value", "difference", "p_value"}, {}),
    "rope": (0.2, {"equivalent"}, {"value", "low", "difference", "p_value", "p_adjusted"}, {}),
}
SELECTED: dict[str, tuple[Any, set[tuple[str, str]], dict[str, Any]]] = {
    "task": ("KNN", of("Colon"), {}),
    "encoders": (["resnet50", "uni_v1"], of("Colon Liver Lung Skin", "uni_v1", "resnet50"), {}),
    "setting": ("mean", of("Colon"), {"task": "Patient"}),
    "preset": ("thunder", of("Lung"), {"seed": None}),
    "dataset": ("Liver", of("Liver"), {}),
    "seed": (5, of("Skin"), {"preset": None}),
}
SIZES = {"units_needed", "units_low", "units_high", "detectable"}
SEEN = {"observed", "discordant", "present_units"}
PLANNED: dict[str, Case] = {
    "metric": ("accuracy", {"metric", "observed", *SIZES}, {"discordant", "delta", "power", "alpha"}, {}),
    "delta": (0.1, {"delta", "units_needed", "present_power"}, {"detectable", *SEEN}, {}),
    "power": (0.9, {"power", *SIZES}, {"present_power", "alpha", *SEEN}, {}),
    "alpha": (0.2, {"alpha", "present_power", *SIZES}, {"power", *SEEN}, {}),
    "n_bootstrap": (300, {"present_power"}, {"standard_error", *SEEN}, {}),
    "seed": (1, {"present_power"}, {"standard_error", *SEEN}, {}),
    "task": ("KNN", {"observed", "discordant", *SIZES}, {"unit", "present_units", *RUN}, {}),
    "encoders": (["uni_v1", "virchow2"], {"second", "observed", *SIZES}, {"dataset", "first"}, {}),
    "setting": ("abmil", {"observed", *SIZES}, RUN, {"task": "Patient", "setting": "mean"}),
    "preset": ("thunder", {"observed", *SIZES}, RUN, {"dataset": "Lung", "preset": "uni"}),
    "dataset": ("Liver", {"dataset", "unit", "present_units", *SIZES}, {"first", "second"}, {}),
}
#: Candidates, datasets and the task of the shortlist.
CHOSEN: dict[str, tuple[Any, set[str], set[str], str, dict[str, Any]]] = {
    "license": ("commercial", {"resnet50"}, {"Liver"}, "Linear-Probe", {"preset": "uni"}),
    "max_params": (100_000_000, {"resnet50"}, {"Liver"}, "Linear-Probe", {"preset": "uni"}),
    "min_robustness": (0.5, set(), set(), "Linear-Probe", {"preset": "uni"}),
    "patients": (True, {*SIGNALS}, {"Colon"}, "Patient", {}),
    "task": ("KNN", {*SIGNALS}, {"Colon"}, "KNN", {}),
    "preset": ("thunder", {*SIGNALS}, {"Lung"}, "Linear-Probe", {}),
}


@pytest.mark.parametrize(
    ("record", "covered"),
    [
        (CompareOptions, {*COMPARED, *SELECTED, "splits"}),  # splits: evaluation/test_over_splits.py
        (PowerOptions, {*PLANNED}),
        (ChooseOptions, {*CHOSEN, "setting", "metric"}),
        (SimilarityOptions, {"dataset", "encoders", "k", "measures"}),
        (RobustnessSettings, {"columns", "k", "seed", "device"}),  # device: robustness/test_pack.py
    ],
)
def test_every_option_has_a_case(record: type, covered: set[str]) -> None:
    assert {each.name for each in options_of(record)} == covered


@pytest.mark.parametrize("name", COMPARED)
def test_an_option_of_a_comparison_changes_what_it_is_for(name: str, results: Path) -> None:
    value, changes, stays, base = COMPARED[name]
    base = {"preset": "uni", "seed": 0, **base}
    one, other = (hb.compare(results, **base, **more).comparison for more in ({}, {name: value}))
    found = changed(one, other)
    assert changes <= found
    assert not stays & found


def test_low_values_come_first_where_lower_is_better(results: Path) -> None:
    found = hb.compare(results, preset="uni", seed=0, metric="brier").comparison
    ranking, place = found.ranking, {name: k for k, name in enumerate(found.ranking.names)}
    values = np.array(
        [
            [{each.name: each.value for each in table.entries}[name] for name in place]
            for table in found.tables
        ]
    )
    assert len(set(values.argmin(axis=1)) | set(values.argmax(axis=1))) > 1
    assert ranking.mean_ranks == pytest.approx(rankdata(values, axis=1).mean(axis=0))
    wins = np.zeros((len(place), len(place)))
    for table in found.tables:
        for pair in table.pairs:
            ends = (pair.first, pair.second) if pair.difference < 0 else (pair.second, pair.first)
            wins[place[ends[0]], place[ends[1]]] += pair.holds
    assert wins.any()
    np.testing.assert_array_equal(ranking.win_tie_loss.wins, wins)
    listed = [name for name, _ in ranking.run_on]
    best, worst = (listed.index(ranking.names[k]) for k in (0, -1))
    assert ranking.chances[best][worst].better > 0.5 > ranking.chances[worst][best].better


@pytest.mark.parametrize("name", SELECTED)
def test_a_comparison_is_of_the_runs_that_were_asked_for(name: str, results: Path) -> None:
    value, expected, base = SELECTED[name]
    found = hb.compare(results, **{"preset": "uni", "seed": 0, **base, name: value}).ranked()
    assert set(found[["dataset", "encoder"]].itertuples(index=False, name=None)) == expected
    for row in found.itertuples():
        (run,) = (
            run
            for run in hb.open_results(results).runs
            if (run.identity.dataset, run.identity.encoder) == (row.dataset, row.encoder)
            and run.identity.preset == ("thunder" if name == "preset" else "uni")
            and run.identity.seed == (5 if name == "seed" else 0)
            and (run.task, run.setting)
            == {"task": ("KNN", ""), "setting": ("Patient", "mean")}.get(name, ("Linear-Probe", ""))
        )
        assert row.value == pytest.approx(run.metrics["balanced_accuracy"])


@pytest.mark.parametrize("name", PLANNED)
def test_an_option_of_a_power_analysis_changes_what_it_is_for(name: str, results: Path) -> None:
    value, changes, stays, base = PLANNED[name]
    base = {"encoders": ["uni_v1", "resnet50"], "n_bootstrap": 200, "dataset": "Colon", **base}
    found = changed(hb.power(results, **base), hb.power(results, **{**base, name: value}))
    assert changes <= found
    assert not stays & found


@pytest.mark.parametrize("name", CHOSEN)
def test_an_option_of_a_shortlist_is_a_condition(name: str, results: Path) -> None:
    value, candidates, datasets, task, base = CHOSEN[name]
    found = hb.choose(results, **base, **{name: value})
    assert {each.name.partition(" [")[0] for each in found.candidates} == candidates
    assert datasets <= set(found.datasets)
    assert found.task.partition(",")[0].partition(" ")[0] == task


def test_a_shortlist_follows_its_setting_and_its_metric(results: Path) -> None:
    of_patients = [hb.choose(results, task="Patient", setting=name) for name in ("mean", "abmil")]
    assert changed(*of_patients) >= {"Colon"}
    plain, areas = (hb.choose(results, preset="thunder", metric=name) for name in ("accuracy", "auroc"))
    assert (plain.metric, areas.metric) == ("accuracy", "auroc")
    assert changed(plain, areas) >= {"Lung"}


def test_similarity_is_of_the_datasets_encoders_neighbors_and_measures_asked_for(tmp_path: Path) -> None:
    for dataset, part in (("Gut", "train"), ("Eye", "test")):
        for place, encoder in enumerate(SIGNALS):
            rows = uneven_features(place)[part]
            path = tmp_path / "features" / f"Dataset_[{dataset}]_Model_[{encoder}]_Size_[224]_test.pt"
            path.parent.mkdir(exist_ok=True)
            save(rows, path)

    def measured(**options: Any) -> dict[tuple[str, str, str, str], float | None]:
        found = similarity_of_results(tmp_path, SimilarityOptions(**options))
        return {(each.dataset, each.measure, each.first, each.second): each.value for each in found}

    every = measured()
    assert {key[:2] for key in every} >= {(name, kind) for name in ("Gut", "Eye") for kind in MEASURES[:2]}
    assert {key[0] for key in measured(dataset="Eye")} == {"Eye"}
    two = measured(encoders=("uni_v1", "virchow2"))
    assert {frozenset(key[2:]) for key in two} == {frozenset(("uni_v1", "virchow2"))}
    assert {key[1] for key in measured(measures=("cka",))} == {"cka"}
    more = measured(k=3)
    assert {key[1] for key in every if every[key] != more[key]} == {"neighbors"}


def test_robustness_is_of_the_columns_and_neighbors_asked_for(tmp_path: Path) -> None:
    for name, part in uneven_features().items():
        lab = tuple("XY"[place % 3 == 0] for place in range(len(part)))
        save(replace(part, sites={**part.sites, "lab": lab}), tmp_path / f"{name}.pt")

    def measured(**options: Any) -> dict[tuple[str, str], str]:
        frame = hb.robustness(tmp_path, device="cpu", **options).to_frame()
        return {(row.column, row.measure): repr(row.value) for row in frame.itertuples()}

    every = measured()
    assert {column for column, _ in every} == {"hospital", "lab"}
    lab = measured(columns="lab")
    assert lab == {key: value for key, value in every.items() if key[0] == "lab"}
    other = measured(columns="lab", k=2)
    assert lab["lab", "robustness_index"] != other["lab", "robustness_index"]
