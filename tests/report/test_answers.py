"""What the pages claim: no encoder is called best without a test, and every command gives its number."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from tests.report.conftest import write_agent_run

from builders import feature_set
from histobench.cli.main import main
from histobench.report.site import build_site
from histobench.roi.comparison.answer import Evidence, answer
from histobench.roi.features.feature_file import save
from histobench.roi.results.reader import load_runs

Read = Callable[[Path, str], Any]
LONG = "moderately differentiated squamous cell carcinoma of the lung"


def folders(write: ModuleType, out: Path) -> Iterator[tuple[str, Path]]:
    """The kinds of results folders that reports are built from."""

    def runs(kind: str, data: list[Any], encoders: int, *tasks: str, **options: Any) -> tuple[str, Path]:
        for each in data:
            for k in range(encoders):
                name = f"a-vision-transformer-of-{k:02d}-many-words"
                for task in tasks:
                    place = out / kind / each.name / name
                    write.write_run(place, each, task, encoder=name, skill=1 + k / encoders, **options)
        return kind, out / kind

    make = write.SimulatedSet.of_size
    many = [f"{LONG}, grade {k}" for k in range(40)]
    yield runs("two encoders", [make("a", 60, classes="AB", patients=20)], 2, "KNN", "Linear-Probe")
    yield runs("16 encoders", [make("a", 40, classes="AB")], 16, "KNN")
    yield runs("40 classes", [make("a", 160, classes=many)], 2, "KNN")
    yield runs("20 datasets", [make(f"data-{k}", 30, classes="AB") for k in range(20)], 2, "KNN")
    yield runs("one encoder", [make("a", 30, classes="AB")], 1, "KNN")
    yield runs("no tests", [make("a", 16, classes=[f"{LONG} {k}" for k in range(8)], patients=2)], 2, "KNN")
    for setting in ("frozen", "lora"):
        made = runs("fine-tuned", [make("a", 90, classes="AB", patients=30)], 2, "Fine-tune", setting=setting)
    yield made
    yield runs("two classes, one dataset", [make("a", 300, classes="AB")], 3, "KNN")
    write_agent_run(out / "only agents")
    yield "only agents", out / "only agents"
    yield runs("patients", [make("a", 24, classes="AB", patients=24)], 2, "KNN", setting="patients")


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory, simulated: ModuleType) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("kinds")
    return {
        kind: build_site(results, folder / "sites" / kind)
        for kind, results in folders(simulated, folder / "results")
    }


@pytest.mark.slow
def test_nothing_is_marked_without_a_test(sites: dict[str, Path], data_of: Read) -> None:
    tested = {}
    for kind, site in sites.items():
        for number in range(len(data_of(site, "site")["boards"])):
            for metric in data_of(site, f"board/{number}")["metrics"].values():
                for column, (test, _) in enumerate(metric["tests"]):
                    marks = [row[column] for row in metric["mayBeBest"]]
                    assert any(marks) == bool(test), (kind, metric["answer"])
                    tested[kind] = tested.get(kind, False) or bool(test)
                assert metric["answer"], kind
    assert {kind for kind, found in tested.items() if not found} == {"no tests", "one encoder"}
    assert len(sites) >= 10


@pytest.mark.slow
def test_many_datasets_are_in_natural_order_and_alike_ones_are_described_once(
    sites: dict[str, Path], data_of: Read
) -> None:
    names = [each["name"] for each in data_of(sites["20 datasets"], "site")["datasets"]]
    assert names == [f"data-{k}" for k in range(20)]
    paragraph = data_of(sites["20 datasets"], "methods")["paragraph"]
    assert paragraph.count("30 test images") == 1
    assert "data-18 and data-19 (each): 2 classes" in paragraph
    assert "20 tables: Differences of balanced accuracy" in paragraph
    paragraph = data_of(sites["two encoders"], "methods")["paragraph"]
    assert "Linear-Probe and KNN on a: Differences of" in paragraph


@pytest.mark.slow
def test_frozen_and_fine_tuned_networks_have_a_page(sites: dict[str, Path], data_of: Read) -> None:
    (table,) = data_of(sites["fine-tuned"], "shift")
    runs = load_runs(sites["fine-tuned"].parents[2] / "results" / "fine-tuned")
    values = {(run.identity.encoder, run.setting): run.metrics["balanced_accuracy"] for run in runs}
    for name, frozen, adapted, *_ in table["rows"]:
        assert frozen == f"{values[name, 'frozen']:.3f}"
        assert adapted == f"{values[name, 'lora']:.3f}"
    assert "intervals" in table["notes"][0]
    assert data_of(sites["fine-tuned"], "site")["shift"]
    assert not data_of(sites["two encoders"], "site")["shift"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "page"),
    [
        ("one encoder", ""),
        ("only agents", ""),
        *(("no tests", page) for page in ("", "#/datasets", "#/dataset/a", "#/compare")),
    ],
)
def test_pages_without_a_test_do_not_say_best(
    sites: dict[str, Path], open_page: Any, kind: str, page: str
) -> None:
    shown = open_page(sites[kind], page)
    assert not re.search(r"\bbest\b|●", shown.locator("main").inner_text())
    assert shown.title() != open_page(sites[kind], "#/methods").title()


@pytest.mark.slow
@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", ["40 classes", "no tests", "16 encoders", "20 datasets"])
def test_long_names_fit(sites: dict[str, Path], open_page: Any, kind: str) -> None:
    dataset = "data-1" if kind == "20 datasets" else "a"
    setting = "a-vision-transformer-of-01-many-words/KNN/-/uni"
    for page in ("", "#/compare", f"#/run/{dataset}/{setting}"):
        shown = open_page(sites[kind], page, viewport={"width": 390, "height": 800})
        assert shown.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, page
    shown = open_page(sites["no tests"], f"#/run/a/{setting}")
    fits = "element => element.scrollWidth <= element.clientWidth + 1"
    assert shown.locator(".scroll", has=shown.locator("table.confusion")).evaluate(fits)


@pytest.mark.slow
def test_compare_begins_with_the_first_two(site: Path, open_page: Any, data_of: Read) -> None:
    board = data_of(site, "board/0")
    values = [row[0] for row in board["metrics"]["balanced_accuracy"]["value"]]
    order = [board["rows"][k] for k in sorted(range(len(values)), key=lambda k: -values[k])]
    page = open_page(site, "#/compare")
    assert page.get_by_label("First").input_value() == order[0]
    assert page.get_by_label("Second").input_value() == order[1]
    assert "uncorrected" not in page.locator(".verdict > :not(details)").all_inner_texts()


@pytest.fixture(scope="module")
def features(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train, validation and test features of one encoder, with patients."""
    folder = tmp_path_factory.mktemp("features") / "results" / "features"
    folder.mkdir(parents=True)
    for seed, (split, n) in enumerate({"train": 60, "val": 30, "test": 45}.items()):
        rng, labels = np.random.default_rng(seed), np.arange(n) % 3
        rows = rng.normal(size=(n, 8)) + np.eye(3, 8)[labels]
        groups = [f"{split}-{k // 5}" for k in range(n)]
        features = feature_set(rows, labels, names=split + "-{}.png", groups=groups)
        save(features, folder / f"Dataset_[own set]_Model_[mine]_Size_[8]_{split}.pt")
    return folder


@pytest.mark.slow
def test_the_command_of_a_run_repeats_it(
    features: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data_of: Read
) -> None:
    stem = f"{features}/Dataset_[own set]_Model_[mine]_Size_[8]"
    files = [f"--{split}_feature_file={stem}_{split}.pt" for split in ("train", "val", "test")]
    tasks = "Linear-Probe,KNN,Few-shot"
    options = ["--seed", "4", "--n-iter", "7", "--n-shot", "1,2", "--n-neighbors", "3"]
    assert main(["evaluate", "--TASK", tasks, *files, "--log_dir", str(tmp_path / "first"), *options]) == 0
    site = build_site(tmp_path / "first", tmp_path / "site")
    names = data_of(site, "site")["runs"]["encoder"]
    told = "90 training images of 18 patients or slides, 30 of them from the validation set, which was joined"
    for words in (told, "45 test images of 9 patients or slides"):
        assert words in data_of(site, "methods")["paragraph"]
    monkeypatch.chdir(tmp_path)
    for number in range(len(names)):
        page = data_of(site, f"run/{number}")
        command = page["provenance"]["command"].replace("\\\n", " ")
        assert str(tmp_path) not in command
        assert main(shlex.split(command)[1:]) == 0
    first, again = (
        {(run.task, run.setting): run.metrics for run in load_runs(tmp_path / name)}
        for name in ("first", "repeated-results")
    )
    assert len(first) > 3
    assert again == first


def test_the_answer_names_setting_and_number_as_they_are() -> None:
    values = {"a": (0.9, 0.8, 1.0), "b": (0.5, 0.4, 0.6)}
    one = Evidence("d", "accuracy", values, ("a",), 1, None)
    said = answer([one], task="Fine-tune", metric="accuracy", setting="lora").text
    assert said.startswith("On d (Fine-tune lora, accuracy; 1 test image), a ")
    of_patients = replace(one, n_images=24, of_patients=True)
    assert "; 24 test patients)" in answer([of_patients], task="KNN", metric="accuracy").text


@pytest.mark.slow
def test_the_answer_of_a_board_of_patients_counts_patients(sites: dict[str, Path], data_of: Read) -> None:
    said = data_of(sites["patients"], "board/0")["metrics"]["balanced_accuracy"]["answer"]
    assert "(KNN patients, balanced accuracy; 24 test patients)" in said
    said = data_of(sites["fine-tuned"], "board/0")["metrics"]["balanced_accuracy"]["answer"]
    assert "(Fine-tune frozen, balanced accuracy; 90 test images of 30 patients or slides)" in said


@pytest.mark.slow
def test_mean_ranks_are_among_the_methods_only_where_there_are_some(
    sites: dict[str, Path], data_of: Read, simulated: ModuleType, tmp_path: Path
) -> None:
    assert "Friedman" in data_of(sites["20 datasets"], "methods")["paragraph"]
    assert "Friedman" not in data_of(sites["two encoders"], "methods")["paragraph"]
    for name, task in (("a", "KNN"), ("b", "Proto")):  # no task is on both
        data = simulated.SimulatedSet.of_size(name, 60, classes="AB")
        for encoder in ("uni_v1", "resnet50"):
            simulated.write_run(tmp_path / "r" / name / encoder, data, task, encoder=encoder, skill=2)
    paragraph = data_of(build_site(tmp_path / "r", tmp_path / "site"), "methods")["paragraph"]
    assert "on 2 datasets" in paragraph
    assert "Friedman" not in paragraph
