"""The pages in a real browser: what a reader does, with the mouse and without it."""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from histobench.report.server import SiteServer, follow, snapshot
from histobench.report.site import build_site
from histobench.roi.comparison.comparison import compare_runs
from histobench.roi.comparison.selection import select_runs
from histobench.roi.result_options import CompareSettings
from histobench.roi.results.reader import load_runs
from histobench.roi.results.stored_run import StoredRun

pytestmark = pytest.mark.slow

Open = Callable[..., Any]
Drawn = Callable[[Any], None]
TABLE = "table.leaderboard tbody tr"


def stored(results: Path, **wanted: str) -> StoredRun:
    """The one run of a dataset, encoder and task."""
    runs = select_runs(
        load_runs(results), task=wanted["task"], dataset=wanted["dataset"], encoders=[wanted["encoder"]]
    )
    assert len(runs) == 1
    return runs[0]


def rows(page: Any) -> Any:
    """The names of the encoders of the leaderboard, in its order."""
    return page.locator("table.leaderboard tbody th .encoder")


def run_address(dataset: str, encoder: str, task: str) -> str:
    return f"#/run/{dataset}/{encoder}/{task}/-/uni"


def test_the_leaderboard_shows_every_encoder_with_interval_and_ties(
    site: Path, results: Path, open_page: Open, expect: Any
) -> None:
    page = open_page(site)
    expect(page.locator(TABLE)).to_have_count(5)
    assert page.title() == "Leaderboard: Our lab"
    expect(page.locator("td.value .range, td.value .outside")).to_have_count(10)
    runs = select_runs(load_runs(results), task="Linear-Probe", dataset="tissue")
    table = compare_runs(runs, CompareSettings()).tables[0]
    for entry in table.entries:
        pair = None if entry is table.entries[0] else table.pair(entry.name, table.entries[0].name)
        cell = page.get_by_label(re.compile(f"^{entry.name} on tissue:"))
        expect(cell).to_contain_text(f"{entry.value:.3f}")
        expect(cell.locator(".mark")).to_have_text("●" if pair is None or not pair.holds else "")


@pytest.mark.nightly
def test_columns_sort_both_ways(site: Path, open_page: Open, drawn: Drawn, expect: Any) -> None:
    page = open_page(site)
    header = page.get_by_role("columnheader", name=re.compile("tissue"))
    header.get_by_role("button").click()
    expect(header).to_have_attribute("aria-sort", "descending")

    def values() -> list[float]:
        drawn(page)
        cells = page.locator(f"{TABLE} td.value:last-child .figures").all_inner_texts()
        return [float(re.findall(r"[\d.]+", text)[0]) for text in cells]

    best_first = values()
    assert best_first == sorted(best_first, reverse=True)
    header.get_by_role("button").click()
    expect(header).to_have_attribute("aria-sort", "ascending")
    assert values() == best_first[::-1]
    page.get_by_role("columnheader", name="Encoder").get_by_role("button").click()
    expect(rows(page)).to_have_text(["my-encoder", "phikon", "plip", "resnet50", "uni_v1"])


def test_task_metric_licence_and_name_filter(site: Path, results: Path, open_page: Open, expect: Any) -> None:
    page = open_page(site)
    page.get_by_label("Task").select_option("KNN")
    page.get_by_label("Metric").select_option("log_loss")
    page.get_by_role("heading", name=re.compile("KNN: log loss")).wait_for()
    value = stored(results, dataset="tissue", encoder="plip", task="KNN").metrics["log_loss"]
    expect(page.get_by_label(re.compile("^plip on tissue:"))).to_contain_text(f"{value:.3f}")
    page.get_by_label("License").select_option("open")
    expect(rows(page)).to_have_text(["resnet50"])  # whether plip is free for all uses is unclear
    expect(page.locator("main")).to_contain_text("4 of 5 encoders hidden")
    page.get_by_label("Find").fill("res")
    expect(rows(page)).to_have_text(["resnet50"])
    page.reload()  # the address holds the choices
    expect(rows(page)).to_have_text(["resnet50"])


def test_a_cell_of_the_confusion_matrix_shows_exactly_its_images(
    site: Path, results: Path, open_page: Open, drawn: Drawn, expect: Any
) -> None:
    run = stored(results, dataset="tissue", encoder="resnet50", task="KNN")
    truth, guess = run.predictions.labels, run.predictions.predicted
    table = np.zeros((9, 9), dtype=int)
    np.add.at(table, (truth, guess), 1)
    t, q = max(((t, q) for t in range(9) for q in range(9) if t != q), key=lambda cell: table[cell])
    page = open_page(site)
    page.get_by_label("Task").select_option("KNN")
    page.get_by_role("heading", name=re.compile("KNN: ")).wait_for()
    page.get_by_label(re.compile("^resnet50 on tissue:")).click()
    page.get_by_role("heading", name="resnet50 on tissue").wait_for()
    expect(page.locator("[data-true]")).to_have_text([str(count) if count else "·" for count in table.flat])
    cell = page.locator(f"[data-true='{t}'][data-predicted='{q}']")
    cell.click()
    expect(cell).to_have_attribute("aria-pressed", "true")
    expect(page.locator(".pictures [data-image]")).to_have_count(int(table[t, q]))
    drawn(page)
    names = page.locator(".pictures [data-image]").evaluate_all("items => items.map(i => i.dataset.image)")
    expected = {run.predictions.img_names[k] for k in np.flatnonzero((truth == t) & (guess == q))}
    assert len(names) == len(expected) == table[t, q]
    assert set(names) == expected
    page.wait_for_function(
        "[...document.querySelectorAll('.pictures img')].every(i => i.complete && i.naturalWidth)"
    )
    confidences = [
        float(text.rstrip("%"))
        for text in page.locator(".pictures .caption span:last-child").all_inner_texts()
    ]
    assert confidences == sorted(confidences, reverse=True)
    page.get_by_role("button", name="Row %").click()
    expect(cell).to_have_text(f"{100 * table[t, q] / table[t].sum():.0f}%")


@pytest.mark.nightly
def test_an_image_opens_with_its_probabilities(
    site: Path, results: Path, open_page: Open, expect: Any
) -> None:
    run = stored(results, dataset="tissue", encoder="plip", task="KNN")
    page = open_page(site, run_address("tissue", "plip", "KNN"))
    first = page.locator(".pictures [data-image]").first
    name = first.get_attribute("data-image")
    first.click()
    dialog = page.get_by_role("dialog")
    expect(dialog.locator(".bars em")).to_have_count(9)
    k = run.predictions.img_names.index(name)
    probabilities = np.sort(run.predictions.probabilities[k])[::-1]
    shown = [float(text) for text in dialog.locator(".bars em").all_inner_texts()]
    assert shown == pytest.approx(probabilities.tolist(), abs=6e-4)
    page.keyboard.press("Escape")
    dialog.wait_for(state="detached")


def test_curves_and_metrics_of_a_run_are_those_of_its_predictions(
    site: Path, results: Path, open_page: Open, expect: Any
) -> None:
    run = stored(results, dataset="tissue", encoder="plip", task="Linear-Probe")
    page = open_page(site, run_address("tissue", "plip", "Linear-Probe"))
    page.get_by_role("heading", name="ROC of each class").wait_for()
    for metric in ("balanced_accuracy", "auroc", "ece"):
        expect(page.locator("table.metrics")).to_contain_text(f"{run.metrics[metric]:.3f}")
    figure = page.locator("figure", has=page.get_by_role("heading", name="ROC of each class"))
    areas = figure.locator("svg text").filter(has_text=re.compile("^AUROC"))
    expect(areas).to_have_count(9)
    texts = areas.all_text_contents()
    truth, p = run.predictions.labels, run.predictions.probabilities
    expected = sorted(roc_auc_score(truth == k, p[:, k]) for k in range(9))
    assert sorted(texts) == [f"AUROC {area:.3f}" for area in expected]


def test_two_encoders_are_compared(site: Path, results: Path, open_page: Open, expect: Any) -> None:
    page = open_page(site, run_address("tissue", "plip", "KNN"))
    page.get_by_role("link", name="Compare with another encoder").click()
    page.get_by_label("Second", exact=True).select_option("resnet50")
    page.get_by_role("heading", name="plip is better than resnet50 in balanced accuracy").wait_for()
    runs = select_runs(load_runs(results), task="KNN", dataset="tissue")
    pair = compare_runs(runs, CompareSettings()).tables[0].pair("plip", "resnet50")
    assert pair is not None
    verdict = page.locator(".verdict")
    expect(verdict).to_contain_text(f"+{pair.difference:.3f}")
    expect(verdict).to_contain_text(f"+{pair.simultaneous.low:.3f} to +{pair.simultaneous.high:.3f}")
    first, second = (
        stored(results, dataset="tissue", encoder=e, task="KNN").predictions for e in ("plip", "resnet50")
    )
    right, other = first.predicted == first.labels, second.predicted == second.labels
    page.get_by_role("button", name=re.compile("Only resnet50 right")).click()
    expected = {first.img_names[k] for k in np.flatnonzero(~right & other)}
    expect(page.locator(".gallery [data-image]")).to_have_count(len(expected))
    for name in expected:
        expect(page.locator(f".gallery [data-image='{name}']")).to_have_count(1)
    page.get_by_role("button", name="Swap").click()
    page.get_by_role("heading", name="plip is better than resnet50").wait_for()
    expect(verdict).to_contain_text(f"−{pair.difference:.3f}")


@pytest.mark.nightly
def test_alike_encoders_are_not_told_apart(site: Path, open_page: Open, expect: Any) -> None:
    page = open_page(site, "#/compare?dataset=tissue&a=uni_v1&b=phikon")
    page.get_by_role("heading", name="uni_v1 and phikon: no difference shown in balanced accuracy").wait_for()
    expect(page.locator(".verdict")).to_contain_text("does not mean “equal”")


@pytest.mark.nightly
def test_the_map_is_walked_by_arrow_keys(
    site: Path, results: Path, open_page: Open, drawn: Drawn, expect: Any
) -> None:
    page = open_page(site, run_address("tissue", "plip", "KNN"))
    map_of_images = page.locator("figure svg[tabindex]")
    expect(map_of_images).to_be_visible()
    map_of_images.focus()
    expect(map_of_images).to_be_focused()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    pointed = map_of_images.locator("g[aria-label='tip'] tspan").first
    pointed.wait_for()
    drawn(page)  # the second key moves the tip after the first has shown it
    name = pointed.text_content().strip("\u200b")
    assert name in stored(results, dataset="tissue", encoder="plip", task="KNN").predictions.img_names
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_have_attribute("aria-label", name)


@pytest.mark.nightly
def test_the_preset_is_chosen_where_there_are_several(
    simulated: ModuleType, tmp_path: Path, open_page: Open
) -> None:
    data = simulated.SimulatedSet.of_size("clinic", 80, classes=("benign", "malignant"))
    for preset in ("uni", "thunder"):
        for encoder, skill in (("plip", 3.0), ("resnet50", 1.0)):
            folder = tmp_path / "results" / preset / encoder
            seed = int(preset == "thunder")
            simulated.write_run(folder, data, "KNN", encoder=encoder, skill=skill, preset=preset, seed=seed)
    page = open_page(build_site(tmp_path / "results", tmp_path / "site"))
    for preset in ("uni", "thunder"):
        page.get_by_label("Preset").select_option(preset)
        run = next(r for r in load_runs(tmp_path / "results" / preset) if r.identity.encoder == "plip")
        value = f"{run.metrics['balanced_accuracy']:.3f}"
        page.get_by_label(re.compile(f"^plip on clinic: {re.escape(value)}")).wait_for()


def test_what_the_evaluation_warned_of_stands_above_the_numbers(
    simulated: ModuleType, tmp_path: Path, open_page: Open, expect: Any
) -> None:
    data = simulated.SimulatedSet.of_size("clinic", 80, classes=("benign", "malignant"))
    warning = "3 of 9 test groups are also in <training>"
    simulated.write_run(
        tmp_path / "results", data, "KNN", encoder="plip", skill=2.0, info={"warnings": [warning]}
    )
    site = build_site(tmp_path / "results", tmp_path / "site")
    page = open_page(site, run_address("clinic", "plip", "KNN"))
    expect(page.locator(".notice.warning")).to_have_text(warning)


@pytest.mark.nightly
def test_the_page_follows_a_run_that_is_going_on(
    results: Path, tmp_path: Path, open_page: Open, expect: Any
) -> None:
    folder, out = tmp_path / "results", tmp_path / "site"
    shutil.copytree(results / "clinic" / "plip" / "KNN", folder / "plip" / "KNN")
    build = partial(build_site, folder, out, live=True)
    build()
    seen, stop = snapshot(folder), threading.Event()
    server = SiteServer(out, port=0)
    threads = [
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}),
        threading.Thread(target=follow, args=(folder, build, stop), kwargs={"seen": seen, "interval": 0.1}),
    ]
    for thread in threads:
        thread.start()
    try:
        page = open_page(server.address)
        expect(rows(page)).to_have_text(["plip"])
        expect(page.get_by_role("status")).to_contain_text("Live")
        shutil.copytree(results / "clinic" / "resnet50" / "KNN", tmp_path / "resnet50" / "KNN")
        (tmp_path / "resnet50").rename(folder / "resnet50")  # at once, for one new build
        expect(rows(page)).to_have_text(["plip", "resnet50"])
    finally:
        stop.set()
        server.shutdown()
        for thread in threads:
            thread.join()
        server.server_close()


def test_a_dataset_shows_classes_examples_checks_and_curves(site: Path, open_page: Open, expect: Any) -> None:
    page = open_page(site, "#/datasets")
    page.get_by_role("link", name=re.compile("^tissue")).click()
    page.get_by_role("heading", name="Few-shot").wait_for()
    page.get_by_role("heading", name="Label efficiency").wait_for()
    expect(page.locator(".examples img")).to_have_count(72)
    checked = "126 images looked at: no image and no patient is in two splits"
    expect(page.locator("main")).to_contain_text(checked)
    chips = page.get_by_role("group", name="Encoders shown").first
    chips.get_by_role("button", name="plip").click()
    expect(chips.get_by_role("button", name="plip")).to_have_attribute("aria-pressed", "false")


def test_agents_and_their_conversations(site: Path, open_page: Open, expect: Any) -> None:
    page = open_page(site, "#/agents")
    page.get_by_role("heading", name="Gain from feedback").wait_for()
    page.get_by_role("link", name="agent-x").first.click()
    page.get_by_role("link", name=re.compile("gsm8k 1")).click()
    page.get_by_role("heading", name="gsm8k 1").wait_for()
    for said in ("Look again x", "print(1)", "Out[1]: 1"):
        expect(page.locator("main")).to_contain_text(said)
    page.get_by_role("link", name="next →").click()
    page.get_by_role("heading", name="gsm8k 2").wait_for()


@pytest.mark.nightly
def test_figures_and_tables_are_saved(site: Path, open_page: Open, tmp_path: Path) -> None:
    page = open_page(site, run_address("tissue", "plip", "KNN"))
    page.get_by_role("heading", name="Reliability").wait_for()

    def saved(label: str) -> bytes:
        with page.expect_download() as found:
            page.get_by_role("button", name=label).click()
        path = tmp_path / found.value.suggested_filename
        found.value.save_as(path)
        return path.read_bytes()

    svg = saved("Reliability: save as SVG").decode()
    assert svg.startswith("<?xml")
    assert "stated confidence" in svg
    assert "var(--" not in svg
    pdf = saved("Reliability: save as PDF")
    assert pdf.startswith(b"%PDF-1")
    assert b"/FontFile2" in pdf
    # All text is in the embedded font: PDF's own ones know no arrows and no Greek.
    assert re.findall(rb"/BaseFont /(\w+)", pdf)
    assert not re.search(rb"/BaseFont /(Times|Helvetica|Courier)", pdf)
    assert b"Identity-H)" not in pdf
    section = page.locator("section", has=page.get_by_role("heading", name="Confusion matrix"))
    with page.expect_download() as found:
        section.get_by_role("button", name="Save the table as LaTeX").click()
    text = Path(found.value.path()).read_text(encoding="utf-8")
    assert r"\begin{tabular}{lrrrrrrrrr}" in text
    assert text.count(r"\\") == 10
    with page.expect_download() as found:
        section.get_by_role("button", name="Save the table as CSV").click()
    lines = Path(found.value.path()).read_text(encoding="utf-8").splitlines()
    assert lines[0] == "true \\ predicted,NORM,STR,TUM,MUS,MUC,LYM,DEB,BACK,ADI"
    assert sum(int(cell) for line in lines[1:] for cell in line.split(",")[1:]) == 108


@pytest.mark.nightly
def test_methods_can_be_copied(site: Path, open_page: Open, expect: Any) -> None:
    page = open_page(site, "#/methods")
    page.get_by_role("heading", name="How to read the numbers").wait_for()
    page.get_by_role("button", name="Copy: BibTeX").click()
    page.get_by_role("button", name="Copy: BibTeX").get_by_text("Copied").wait_for()
    page.get_by_label("Find").fill("clinic")
    table = page.locator("section", has=page.get_by_role("heading", name="Every run")).locator("tbody")
    expect(table).to_contain_text("clinic")
    expect(table).not_to_contain_text("tissue")


def test_an_unknown_address_is_told_and_leads_home(site: Path, open_page: Open) -> None:
    page = open_page(site, "#/run/no/such/run/-/uni")
    page.get_by_text("This report has no such run").wait_for()
    page.get_by_role("link", name="Go to the leaderboard").click()
    page.wait_for_selector(TABLE)
