"""Every option of the commands that read results changes what it is for, and nothing else."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict, astuple, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import friedmanchisquare, norm, rankdata, studentized_range
from statsmodels.stats.multitest import multipletests

import histobench as hb
from builders import uneven_features
from comparison_runs import write_robust, write_to
from histobench.cli.main import main
from histobench.core.records import options_of
from histobench.roi.comparison.comparison import Pair
from histobench.roi.comparison.comparison_files import write_comparison
from histobench.roi.comparison.grids import chances_grid, ranked_grid, shown_p
from histobench.roi.comparison.similarity import similarity_of_results
from histobench.roi.encoders.registry import get_spec
from histobench.roi.features.feature_file import save
from histobench.roi.plan.summary import Scope, compare_tasks, overviews
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
    for encoder, least in (("uni_v1", 0.5), ("virchow2", 0.4)):
        for column, value in (("scanner", least), ("stain", 0.9)):
            write_robust(root / "results", encoder, column, {"robustness_index": np.full(8, value)})
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
RESNET50 = get_spec("resnet50").cost.params  # as many are not more
#: Candidates, datasets and the task of the shortlist.
CHOSEN: dict[str, tuple[Any, set[str], set[str], str, dict[str, Any]]] = {
    "license": ("commercial", {"resnet50"}, {"Liver"}, "Linear-Probe", {"preset": "uni"}),
    "max_params": (RESNET50, {"resnet50"}, {"Liver"}, "Linear-Probe", {"preset": "uni"}),
    "min_robustness": (0.5, {"uni_v1"}, {"Liver"}, "Linear-Probe", {"preset": "uni"}),
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


def test_low_values_come_first_where_lower_is_better_and_each_number_is_that_of_scipy(results: Path) -> None:
    found = hb.compare(results, preset="uni", seed=0, metric="brier", alpha=0.2).comparison
    ranking, place = found.ranking, {name: k for k, name in enumerate(found.ranking.names)}
    values = np.array(
        [
            [{each.name: each.value for each in table.entries}[name] for name in place]
            for table in found.tables
        ]
    )
    assert len(set(values.argmin(axis=1)) | set(values.argmax(axis=1))) > 1
    ranks, (n, m) = rankdata(values, axis=1).mean(axis=0), values.shape
    assert ranking.mean_ranks == pytest.approx(ranks)
    assert ranking.mean_values == pytest.approx(values.mean(axis=0))
    assert ranking.friedman.statistic == pytest.approx(friedmanchisquare(*values.T).statistic)
    scale = np.sqrt(m * (m + 1) / (12 * n))
    critical = studentized_range.ppf(0.8, m, np.inf) * scale
    assert ranking.critical_difference == pytest.approx(critical)
    p_values = studentized_range.sf(np.abs(np.subtract.outer(ranks, ranks)) / scale, m, np.inf)
    np.testing.assert_allclose(ranking.nemenyi_p, p_values, atol=1e-6)
    wins = np.zeros((m, m))
    for table in found.tables:
        assert table.standings.winner.name == table.entries[0].name
        ends, own = table.standings.winner.interval, table.entries[0].interval
        assert ends.low == own.low <= own.high <= ends.high  # a loss may be larger than it looks
        for pair in table.pairs:
            ends = (pair.first, pair.second) if pair.difference < 0 else (pair.second, pair.first)
            wins[place[ends[0]], place[ends[1]]] += pair.holds
    assert wins.any()
    np.testing.assert_array_equal(ranking.win_tie_loss.wins, wins)
    listed = [name for name, _ in ranking.run_on]
    best, worst = (listed.index(ranking.names[k]) for k in (0, -1))
    assert ranking.chances[best][worst].better > 0.5 > ranking.chances[worst][best].better


def test_alpha_is_the_level_of_every_interval(results: Path) -> None:
    wide, narrow = (
        hb.compare(results, preset="uni", seed=0, dataset="Liver", alpha=alpha).comparison.tables[0]
        for alpha in (0.05, 0.2)
    )
    for one, other in zip((*wide.pairs, *wide.entries), (*narrow.pairs, *narrow.entries), strict=True):
        widths = [each.interval.high - each.interval.low for each in (one, other)]
        assert widths[1] / widths[0] == pytest.approx(norm.ppf(0.9) / norm.ppf(0.975), abs=0.03)
    for one, other in zip(wide.pairs, narrow.pairs, strict=True):
        together = [each.simultaneous.high - each.simultaneous.low for each in (one, other)]
        assert other.interval.high - other.interval.low < together[1] < 0.85 * together[0]
    assert wide.standings.winner.interval.low < narrow.standings.winner.interval.low


def test_every_number_of_the_files_is_that_of_the_comparison(results: Path, tmp_path: Path) -> None:
    found = hb.compare(results, preset="uni", seed=0, metric="brier").comparison
    write_comparison(found, tmp_path)
    stored = json.loads(next(tmp_path.glob("*.json")).read_text())
    encoders, pairs = (
        csv.reader((tmp_path / f"comparison_Linear-Probe_brier{end}.csv").read_text().splitlines())
        for end in ("", "_pairs")
    )
    assert next(pairs)[3:9] == ["difference", "ci_lower", "ci_upper", "p_value", "p_holm", "holds"]
    assert next(encoders)[12:15] == ["p_value", "p_holm", "differs_from_best"]

    def numbers(pair: Pair | None) -> list[Any]:
        if pair is None:
            return [""] * 9
        own, together = pair.interval, pair.simultaneous
        alone = pair.difference, own.low, own.high, pair.p_value, pair.p_adjusted, pair.holds
        return [*alone, together.low, together.high, pair.p_simultaneous]

    def row(*cells: Any) -> list[str]:
        return [str(cell).lower() if isinstance(cell, bool) else str(cell) for cell in cells]

    for table, written in zip(found.tables, stored["datasets"], strict=True):
        assert list(written.values())[:3] == [table.dataset, table.n_images, table.n_groups]
        for entry, each in zip(table.entries, written["encoders"], strict=True):
            standing = *table.standings.ranks[entry.name], entry.name in table.standings.best
            ends = entry.interval.low, entry.interval.high
            own = entry.name, entry.rank, entry.value, *ends, entry.interval.method, entry.reported
            assert list(each.values()) == [*own, *standing]
            about = table.dataset, "Linear-Probe", "", "brier", entry.rank, entry.name, entry.value, *ends
            against = numbers(table.pair(entry.name, table.entries[0].name))
            assert next(encoders) == row(*about, *against, *standing)
        for pair, each in zip(table.pairs, written["pairs"], strict=True):
            both = [*each.values(), *each["simultaneous"].values()]
            assert [cell for cell in both if cell not in ("jackknife-t", "max-t", each["simultaneous"])] == [
                pair.first, pair.second, *numbers(pair)
            ]  # fmt: skip
            assert next(pairs) == row(table.dataset, pair.first, pair.second, *numbers(pair))
        adjusted = multipletests([pair.p_value for pair in table.pairs], method="holm")[1]
        assert [pair.p_adjusted for pair in table.pairs] == pytest.approx(adjusted)
        best, ends = table.standings.winner, table.standings.winner.interval
        shown = best.name, best.measured, best.value, ends.low, ends.high, ends.method
        assert tuple(written["winner"].values()) == shown
    asked = "preset == 'uni' and metric == 'brier' and task == 'Linear-Probe'"
    rows = hb.open_results(results).to_frame().query(asked).set_index(["dataset", "encoder"]).sort_index()
    for table in found.tables[:3]:  # the last one is of two seeds
        for entry in table.entries:
            known = entry.value, entry.interval.low, entry.interval.high
            shown = rows.loc[(table.dataset, entry.name), ["value", "low", "high"]]
            assert tuple(shown.squeeze()) == pytest.approx(known, rel=0, abs=1e-12)
    ranking, written = found.ranking, stored["ranking"]
    means = zip(ranking.names, ranking.mean_ranks, ranking.mean_values, strict=True)
    assert [tuple(each.values()) for each in written["encoders"]] == list(means)
    test = replace(ranking.friedman, f_statistic=None)  # infinite: all datasets have one order
    assert tuple(written["friedman"].values()) == astuple(test)
    known = [ranking.critical_difference, list(map(list, ranking.nemenyi_p))]
    assert list(written["nemenyi"].values())[:2] == known
    counts = {name: each.tolist() for name, each in vars(ranking.win_tie_loss).items()}
    assert written["win_tie_loss"] == counts


def test_the_error_rate_that_was_asked_for_is_the_one_that_is_printed(results: Path, capsys: Any) -> None:
    asked = ["--preset", "uni", "--seed", "0", "--encoders", "uni_v1,resnet50,virchow2", "--alpha", "0.2"]
    assert main(["compare", str(results), *asked]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "(Nemenyi, 0.2)" in shown
    assert "[80% interval]" in shown


def test_a_pair_is_the_same_from_both_sides_and_each_number_is_in_its_own_column(results: Path) -> None:
    found = hb.compare(results, preset="uni", seed=0).comparison
    for table in found.tables:
        rows = {row[1]: row for row in ranked_grid(found, table).rows}
        for pair in table.pairs:
            turned = table.pair(pair.second, pair.first)
            assert (turned.first, turned.difference) == (pair.second, -pair.difference)
            for one, other in ((turned.interval, pair.interval), (turned.simultaneous, pair.simultaneous)):
                assert (one.low, one.high) == (-other.high, -other.low)
            if pair.first == table.entries[0].name:
                wide = turned.simultaneous
                shown = f"{turned.difference:.4f} [{wide.low:.4f}, {wide.high:.4f}]"
                assert rows[pair.second][-2:] == (shown, shown_p(pair.p_simultaneous))
                assert wide.high - wide.low > pair.interval.high - pair.interval.low
    ((low, _), *_), (row, *_) = found.ranking.run_on, chances_grid(found.ranking).rows
    best = next(k for k, (name, _) in enumerate(found.ranking.run_on) if name != low)
    chance = found.ranking.chances[0][best]
    assert chance.better != chance.worse
    assert row[1 + best] == "/".join(
        f"{100 * share:.0f}" for share in (chance.better, chance.equivalent, chance.worse)
    )


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
    assert not {each.name.partition(" [")[0] for each in found.excluded} & candidates
    assert datasets <= set(found.datasets)
    assert found.task.partition(",")[0].partition(" ")[0] == task


def test_a_shortlist_follows_its_setting_and_its_metric(results: Path) -> None:
    of_patients = [hb.choose(results, task="Patient", setting=name) for name in ("mean", "abmil")]
    assert changed(*of_patients) >= {"Colon"}
    plain, areas = (hb.choose(results, preset="thunder", metric=name) for name in ("accuracy", "auroc"))
    assert (plain.metric, areas.metric) == ("accuracy", "auroc")
    assert changed(plain, areas) >= {"Lung"}
    losses = hb.choose(results, preset="thunder", metric="brier").candidates
    assert list(losses) == sorted(losses, key=lambda each: each.values["Lung"][0])


def test_a_run_is_shown_what_it_was_about(results: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(results, tmp_path / "results"))
    comparisons, probe = compare_tasks(folder)[0], "Linear-Probe"
    written = (folder / "comparison").glob("*/**/*balanced_accuracy.json")
    assert {path.parent.relative_to(folder).as_posix() for path in written} == {
        "comparison/uni", "comparison/uni/seed-5", "comparison/thunder"
    }  # fmt: skip
    every, two = {"Colon", "Lung", "Skin", "Liver"}, frozenset({"uni_v1", "resnet50"})
    methods = {(probe, ""), ("KNN", ""), ("Patient", "mean"), ("Patient", "abmil")}
    for asked, datasets, columns in (
        ({"seed": 5}, {"Skin"}, {(probe, "")}),
        ({"presets": {"thunder"}}, {"Lung"}, {(probe, "")}),
        ({"tasks": {"KNN"}}, {"Colon"}, {("KNN", "")}),
        ({"datasets": {"Lung"}}, {"Lung"}, {(probe, "uni"), (probe, "thunder")}),
        ({"encoders": two, "seed": 0, "presets": {"uni"}}, every, methods),
    ):
        found = overviews(comparisons, wanted=Scope(**asked), results=folder)
        assert {each.dataset for each in found.overviews} == datasets
        shown = {(each.task, each.detail) for page in found.overviews for each in page.columns}
        assert shown == columns
        names = {encoder for page in found.overviews for encoder in page.encoders}
        assert names == asked.get("encoders", {*SIGNALS})
        assert ("virchow2 was run earlier in this folder" in found.answer) == ("encoders" in asked)


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
