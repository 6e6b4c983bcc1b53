"""What a newcomer is told: one line that says what is wrong, where, and what to do."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from histobench.cli.demo import build_pages
from histobench.cli.main import main


@pytest.fixture
def places(tmp_path: Path, results: Path) -> dict[str, str]:
    """Folders and files that are not what was asked for."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("years of work")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "KNN_complete_results.json").write_text("{")
    (tmp_path / "file").write_text("")
    names = ("nowhere", "empty", "other", "broken", "file", "site")
    return {name: str(tmp_path / name) for name in names} | {"results": str(results)}


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("report {nowhere}", "no results folder at .*nowhere"),
        ("report {results}x", "no results folder at .*; did you mean"),
        ("report {empty}", "no results in .*empty; `histobench run`"),
        ("report {file}", "file: it is a file; give the folder"),
        (
            "report {broken}",
            "no results in .* that can be read: KNN_complete_results.json is not a results file",
        ),
        ("report {results} -o {other}", "other holds other files; choose a new or empty folder"),
        ("report {results} -o {file}", "file is a file; choose a folder for the site"),
        ("report {results} -o {site} --images {nowhere}.csv", "--images: there is no .*nowhere.csv"),
        ("report {results} -o {site} --images tisue={file}", "no results of 'tisue'; did you mean tissue"),
        (
            "report {results} -o {site} --images {file} --images {file}",
            "names a source for all datasets twice",
        ),
        ("report {results}/agents -o {site} --images {file}", "agents only"),
        ("serve {file}", "file: it is a file; give the folder"),
        ("serve {results} --port 99999", "--port: expected a whole number of at least 0 and at most 65535"),
    ],
)
@pytest.mark.slow
def test_a_mistake_is_one_line_with_advice(
    command: str, told: str, places: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([part.format(**places) for part in command.split()]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    lines = said.err.strip().splitlines()
    assert len(lines) == 1
    assert re.search(told, lines[0])
    assert not Path(places["site"]).exists()
    assert (Path(places["other"]) / "thesis.txt").read_text() == "years of work"


@pytest.mark.slow
@pytest.mark.parametrize("added", ["thesis.txt", ".git"])
def test_what_was_put_into_a_site_is_not_lost_with_it(
    results: Path, tmp_path: Path, added: str, capsys: pytest.CaptureFixture[str]
) -> None:
    site = tmp_path / "site"
    shutil.copytree(results / "clinic" / "plip", tmp_path / "results")
    assert main(["report", str(tmp_path / "results"), "-o", str(site)]) == 0
    assert main(["report", str(tmp_path / "results"), "-o", str(site)]) == 0
    shutil.copytree(tmp_path / "results", site / added)
    assert main(["report", str(tmp_path / "results"), "-o", str(site)]) == 2
    assert f"holds files that are not part of the site, such as {added}" in capsys.readouterr().err
    assert any((site / added).rglob("*_complete_results.json"))


@pytest.mark.slow
def test_the_demo_ends_with_the_place_of_its_pages(results: Path, tmp_path: Path) -> None:
    output = tmp_path / "demo-results"
    shutil.copytree(results / "clinic" / "plip", output / "results")
    page = build_pages(output, Console(record=True, width=200))
    assert page == output / "site" / "index.html"
    assert page.is_file()


def test_a_demo_without_results_builds_no_pages(tmp_path: Path) -> None:
    build_pages(tmp_path, Console(record=True))
    assert not (tmp_path / "site").exists()


def test_copies_of_a_results_file_side_by_side_are_told_apart(tmp_path: Path, results: Path) -> None:
    folder = tmp_path / "results"
    source = next(path for path in sorted(results.rglob("KNN_complete_results.json")))
    shutil.copytree(source.parent, folder / "KNN")
    for path in list((folder / "KNN").iterdir()):
        shutil.copy(path, path.with_name(f"old_{path.name}"))
    assert main(["report", str(folder), "-o", str(tmp_path / "site")]) == 0
    text = (tmp_path / "site" / "data" / "site.js").read_text()
    assert "[KNN_complete_results.json]" in text
    assert "[old_KNN_complete_results.json]" in text
