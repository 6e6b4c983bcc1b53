"""The pages as people need them: dark and light, on paper, on a phone, without a mouse, with weak eyes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

Open = Callable[..., Any]
Drawn = Callable[[Any], None]
TABLE = "table.leaderboard tbody tr"


@pytest.mark.nightly
def test_dark_and_light_are_kept(site: Path, open_page: Open, expect: Any) -> None:
    page = open_page(site, color_scheme="light")
    body, root = page.locator("body"), page.locator("html")
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.get_by_role("button", name="Switch to dark colors").click()
    expect(body).not_to_have_css("background-color", light)
    page.reload()
    page.wait_for_selector(TABLE)
    expect(root).to_have_attribute("data-theme", "dark")
    page.get_by_role("button", name="Switch to light colors").click()
    expect(body).to_have_css("background-color", light)


@pytest.mark.nightly
def test_figures_are_printed_dark_on_white_whatever_the_theme(
    site: Path, open_page: Open, expect: Any
) -> None:
    page = open_page(site, "#/run/tissue/plip/KNN/-/uni", color_scheme="dark")
    figure = page.locator("figure", has=page.get_by_role("heading", name="Reliability"))
    text = figure.locator("svg text").first
    # Paper is narrower, so that figures are drawn again: `expect` waits for that.
    expect(text).to_have_css("fill", "rgb(241, 239, 246)")
    page.emulate_media(media="print")
    expect(text).to_have_css("fill", "rgb(0, 0, 0)")
    expect(page.locator("body")).to_have_css("background-color", "rgb(255, 255, 255)")
    expect(page.locator("header.top")).to_be_hidden()


def test_the_system_decides_until_the_reader_does(site: Path, open_page: Open, expect: Any) -> None:
    page = open_page(site, color_scheme="dark")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")


@pytest.mark.nightly
def test_everything_works_without_a_mouse(site: Path, open_page: Open, drawn: Drawn, expect: Any) -> None:
    page = open_page(site)
    page.wait_for_selector(TABLE)
    focused = page.locator(":focus")

    def press(key: str) -> None:
        page.keyboard.press(key)
        drawn(page)

    def tab_to(attribute: str) -> None:
        for _ in range(40):
            press("Tab")
            if page.evaluate(f"document.activeElement.hasAttribute('{attribute}')"):
                return
        raise AssertionError(f"Tab leads to nothing with {attribute}")

    press("Tab")
    expect(focused).to_have_text("Skip to the content")
    press("Enter")
    expect(focused).to_have_id("main")
    tab_to("data-cell")
    start = page.evaluate("document.activeElement.getAttribute('aria-label')")
    press("ArrowDown")
    press("ArrowRight")
    moved = page.evaluate("document.activeElement.getAttribute('aria-label')")
    assert " on clinic" in start
    assert " on tissue" in moved
    assert start.split(" on ")[0] != moved.split(" on ")[0]
    press("Enter")
    page.get_by_role("heading", name=moved.split(":")[0]).wait_for()
    page.wait_for_selector("table.confusion")
    expect(focused).to_have_id("main")
    drawn(page)
    tab_to("data-true")
    press("ArrowDown")
    press("Enter")
    expect(focused).to_have_attribute("aria-pressed", "true")
    expect(focused).not_to_have_attribute("data-true", "0")
    tab_to("data-image")
    press("Enter")
    page.get_by_role("dialog").wait_for()
    press("Escape")
    page.get_by_role("dialog").wait_for(state="detached")


@pytest.mark.sample(1)
@pytest.mark.parametrize("width", [390, 1440])
@pytest.mark.parametrize(
    "place",
    [
        "",
        "#/datasets",
        "#/dataset/tissue",
        "#/run/tissue/uni_v1/KNN/-/uni",
        "#/compare?dataset=tissue",
        "#/methods",
        "#/agents",
    ],
)
def test_no_page_is_wider_than_the_screen(
    site: Path, open_page: Open, drawn: Drawn, place: str, width: int
) -> None:
    page = open_page(site, place, viewport={"width": width, "height": 800})
    page.wait_for_selector("main h1")
    drawn(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
