"""The built program: up to date with its source, self-contained, and readable for everyone."""

from __future__ import annotations

import hashlib
import re
from importlib.resources import files
from pathlib import Path

import pytest

from histobench.report.payload import ASSETS

ROOT = Path(__file__).resolve().parents[2]
FRONTEND = ROOT / "report-frontend"
CSS = (FRONTEND / "src" / "app.css").read_text(encoding="utf-8")


def test_the_committed_program_is_built_from_the_committed_source() -> None:
    digest = hashlib.sha256()
    sources = [*FRONTEND.joinpath("src").rglob("*"), FRONTEND / "build.mjs", FRONTEND / "package-lock.json"]
    for path in sorted(path.relative_to(FRONTEND).as_posix() for path in sources if path.is_file()):
        digest.update(path.encode() + b"\0" + (FRONTEND / path).read_bytes() + b"\0")
    built = (files("histobench.report") / "assets" / "SOURCE").read_text().strip()
    assert built == digest.hexdigest(), "the report's pages changed: run make report-assets"


def test_all_parts_are_there_and_small() -> None:
    sizes = {name: len((files("histobench.report") / "assets" / name).read_bytes()) for name in ASSETS}
    assert all(sizes.values())
    assert sizes["app.js"] < 600_000
    assert sizes["pdf.js"] < 900_000


def theme(selector: str) -> dict[str, str]:
    block = CSS[CSS.index(selector + " {") :].split("}", 1)[0]
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", block))


def luminance(colour: str) -> float:
    channels = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, two: str) -> float:
    """The ratio of WCAG 2."""
    light, dark = sorted((luminance(one), luminance(two)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("selector", [":root", ':root[data-theme="dark"]'])
@pytest.mark.parametrize(
    ("text", "ground"),
    [
        *[("ink", ground) for ground in ("page", "surface", "raised", "tie", "best")],
        *[("muted", ground) for ground in ("page", "surface", "raised", "tie")],
        *[("accent", ground) for ground in ("page", "surface", "raised", "tie")],
        *[("second", ground) for ground in ("surface", "raised")],
        *[("good", ground) for ground in ("surface", "raised", "page")],
        ("on-accent", "accent"),
        ("warning-ink", "warning"),
        ("problem-ink", "problem"),
    ],
)
def test_text_has_the_contrast_of_wcag_aa(selector: str, text: str, ground: str) -> None:
    colours = theme(selector)
    assert contrast(colours[text], colours[ground]) >= 4.5


@pytest.mark.parametrize("selector", [":root", ':root[data-theme="dark"]'])
def test_marks_and_borders_of_controls_can_be_seen(selector: str) -> None:
    colours = theme(selector)
    for mark in ("accent", "second", "strong-line"):
        assert contrast(colours[mark], colours["surface"]) >= 3


@pytest.mark.parametrize("selector", [":root", ':root[data-theme="dark"]'])
def test_colours_of_charts_are_legible_as_text(selector: str) -> None:
    colours = theme(selector)
    categories = [colours[f"category-{k}"] for k in range(10)]
    assert len(set(categories)) == 10
    assert min(contrast(colour, colours["surface"]) for colour in categories) >= 4.5
