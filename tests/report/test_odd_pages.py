"""Pages of results that are not as they should be: a missing file, a set of one image, names that repeat."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from histobench.report.site import build_site

pytestmark = pytest.mark.slow

Open = Callable[..., Any]


@pytest.fixture(scope="module")
def odd_site(tmp_path_factory: pytest.TempPathFactory, simulated: ModuleType) -> Path:
    folder = tmp_path_factory.mktemp("odd")
    make = simulated.SimulatedSet.of_size

    def write(data: Any, *encoders: str, name: str = "") -> None:
        for encoder in encoders:
            place = folder / "results" / (name or data.name) / encoder
            simulated.write_run(place, data, "KNN", encoder=encoder, skill=2 + len(encoder) / 5)

    write(make("Half", 30, classes="AB"), "uni_v1", "resnet50")
    next((folder / "results/Half/uni_v1").rglob("*_detailed_results.csv")).unlink()
    write(make("One", 1, classes="AB"), "uni_v1", "resnet50")
    write(make("Whole", 60, classes="AB"), "uni_v1", "resnet50")
    # Names repeat, and only one run knows the patients.
    repeated = make("Repeated", 40, classes="AB", patients=20)
    repeated = replace(repeated, img_names=tuple(f"{k % 10}.png" for k in range(40)))
    write(repeated, "uni_v1")
    write(replace(repeated, groups=None), "resnet50")
    return build_site(folder / "results", folder / "site")


@pytest.mark.nightly
def test_only_runs_that_were_read_are_offered_for_comparison(
    odd_site: Path, open_page: Open, expect: Any
) -> None:
    page = open_page(odd_site, "#/compare")
    page.wait_for_selector(".verdict")
    expect(page.get_by_label("Dataset").locator("option")).to_have_text(["One", "Repeated", "Whole"])
    page.get_by_text("On every dataset").wait_for()
    page = open_page(odd_site, "#/run/Half/resnet50/KNN/-/uni")
    page.wait_for_selector(".metrics")
    expect(page.get_by_text("Compare with another encoder")).to_have_count(0)
    page = open_page(odd_site, "#/run/Half/uni_v1/KNN/-/uni")
    page.get_by_text("cannot read the predictions").wait_for()


def test_repeated_names_in_the_same_order_are_the_same_images(
    odd_site: Path, open_page: Open, expect: Any
) -> None:
    page = open_page(odd_site, "#/compare?dataset=Repeated&a=uni_v1&b=resnet50")
    shown = page.get_by_role("group", name="Which images")
    expect(shown).to_contain_text(re.compile(r"Only uni_v1 right \(\d+\)"))
    expect(shown).to_contain_text(re.compile(r"Only resnet50 right \(\d+\)"))


@pytest.mark.nightly
def test_one_image_has_no_curves_because_it_is_of_one_class(
    odd_site: Path, open_page: Open, expect: Any
) -> None:
    page = open_page(odd_site, "#/run/One/uni_v1/KNN/-/uni")
    page.get_by_text("Every test image is of one class").wait_for()
    page = open_page(odd_site)
    head = page.locator("table.leaderboard thead")
    expect(head).to_contain_text(re.compile("(?<![0-9])1 image(?!s)"), use_inner_text=True)


def test_a_reason_that_several_metrics_share_is_given_once(
    tmp_path: Path, simulated: ModuleType, open_page: Open
) -> None:
    data = simulated.SimulatedSet.of_size("Colon", 40, classes="AB")
    simulated.write_run(
        tmp_path / "r", data, "Few-shot", encoder="uni_v1", skill=2, setting="2way_1shot", episodes=5
    )
    page = open_page(
        build_site(tmp_path / "r", tmp_path / "site"), "#/run/Colon/uni_v1/Few-shot/2way_1shot/uni"
    )
    text = page.locator("section", has=page.get_by_role("heading", name="Metrics")).first.inner_text()
    assert text.count("were not kept") == 1
    assert "No interval of balanced accuracy, accuracy" in text
