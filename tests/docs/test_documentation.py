"""The documentation builds without a broken link, its tables are current, and what it prints runs."""

from __future__ import annotations

import argparse
import importlib.util
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from histobench.cli.main import COMMANDS, HIDDEN
from histobench.core.records import flags_of, spelled_as_declared

pytestmark = pytest.mark.slow

TOP = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((TOP / "docs" / "notebooks").glob("*.ipynb"))
BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!\w+:)([^)\s]+)\)")
FENCED = re.MULTILINE | re.DOTALL


def blocks(page: Path) -> list[tuple[str, str, str]]:
    """Language, title and text of the fenced blocks of a page."""
    return [
        (found[1], found[2] or "", found[3]) for found in BLOCK.finditer(page.read_text(encoding="utf-8"))
    ]


def test_the_messages_of_what_went_wrong_are_those_of_the_program() -> None:
    page = (TOP / "docs" / "how-to" / "what-went-wrong.md").read_text(encoding="utf-8")
    code = "".join(path.read_text(encoding="utf-8") for path in (TOP / "src").rglob("*.py"))
    code = re.sub(r'"\s+f?"', "", code)  # texts that go on in the next line
    messages = re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE)
    assert len(messages) >= 20
    for message in messages:
        for part in re.split(r"\s*\(?\.\.\.\)?\s*", message):
            assert part in code, message


def shown_commands() -> Iterator[tuple[str, list[str]]]:
    """The histobench commands in blocks of the README and the documentation: where, and their words."""
    for page in (TOP / "README.md", *(TOP / "docs").rglob("*.md")):
        for language, _, text in blocks(page):
            lines = text.replace("\\\n", " ").splitlines() if language in ("bash", "text") else []
            for line in (line.strip().removeprefix("$ ") for line in lines):
                words = shlex.split(line, comments=True) if line.startswith("histobench ") else []
                if words[1:] and words[1] != "help" and not words[1].startswith("-"):
                    end = min(
                        (words.index(stop) for stop in ("|", ">", "&&", "&") if stop in words), default=None
                    )
                    yield page.name, words[1:end]


def parser_of(name: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"histobench {name}")
    {**COMMANDS, **HIDDEN}[name].add_flags(parser)
    return parser


def test_every_command_of_the_documentation_has_flags_and_values_that_exist() -> None:
    found = list(shown_commands())
    assert len(found) > 80
    for page, (name, *words) in found:
        parser = parser_of(name)
        try:
            parser.parse_args(spelled_as_declared(parser, words))
        except SystemExit:
            pytest.fail(f"{page}: histobench {name} {shlex.join(words)}")


def test_commands_in_messages_exist() -> None:
    files = [*(TOP / "src").rglob("*.py"), *(TOP / "report-frontend" / "src").rglob("*.tsx")]
    code = "".join(path.read_text(encoding="utf-8") for path in files)
    found = re.findall(r"[`>]histobench ([a-z]+)((?: [^`<\n]*)?)[`<]", re.sub(r'"\s+f?"', "", code))
    assert len(found) > 20
    for name, rest in found:
        assert name in {*COMMANDS, *HIDDEN}, f"histobench {name}{rest}"
        known = {flag.replace("_", "-") for flag, _ in flags_of(parser_of(name))}
        for flag in re.findall(r"(?<=\s)--[a-z-]+", rest):
            assert flag in known, f"histobench {name}{rest}"


def test_the_table_of_extras_is_whole() -> None:
    extras = set(
        tomllib.loads((TOP / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    )
    page = (TOP / "docs" / "installation.md").read_text(encoding="utf-8")
    assert extras - {"report", "docs", "bench", "dev"} <= set(
        re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)
    )


@pytest.mark.nightly
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    monkeypatch.setenv("HISTOBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("MPLBACKEND", "agg")
    monkeypatch.setenv("PATH", str(tmp_path))  # a kernel may have nothing but its own interpreter
    notebook = nbformat.read(path, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "notebooks are kept without outputs"
    nbclient.NotebookClient(
        notebook, timeout=900, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    shown = "".join(
        str(output.get("data", "")) for cell in notebook.cells for output in cell.get("outputs", ())
    )
    if "hb.compare(" in "".join(cell.source for cell in notebook.cells):
        difference = re.search(r"[+-]0\.\d+ \[[+-]?0\.\d+, [+-]?0\.\d+\]", shown)
        assert difference, "the comparison has an answer: a difference with its interval"


@pytest.mark.nightly
def test_the_site_builds_and_every_link_holds(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    site = tmp_path / "site"
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(site)],
        cwd=TOP,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    page = (site / "reference" / "api" / "index.html").read_text(encoding="utf-8")
    assert 'id="histobench.run"' in page
    assert "histobench.api.benchmark.run" not in re.sub(r"<[^>]*>", "", page), (
        "names are those of `import histobench`"
    )
    outside = [part for part in page.split('"') if part.startswith(("//", "http")) and "fonts." in part]
    assert outside == [], "nothing is fetched when a page is looked at"
    commands = (site / "reference" / "cli" / "index.html").read_text(encoding="utf-8")
    assert 'class="language-bash highlight"' in commands, "site.css lets commands wrap"
    assert all(name in commands for name in ("histobench run", "histobench mint run", "--group-regex"))


def test_every_link_between_pages_leads_to_a_file_and_a_heading() -> None:
    pages = [*TOP.glob("*.md"), *(TOP / "docs").rglob("*.md")]
    without_code = {page: re.sub(r"^```.*?^```$|`[^`\n]*`", "", read(page), flags=FENCED) for page in pages}
    links = [(page, link) for page, text in without_code.items() for link in LINK.findall(text)]
    assert len(links) > 100
    made = {TOP / "docs" / "reference" / name for name in ("api.md", "cli.md", "datasets.md")}
    for page, link in links:
        place, _, heading = link.partition("#")
        target = (page.parent / place).resolve() if place else page
        if target in made:  # when the site is built
            continue
        assert target.exists(), f"{page.relative_to(TOP)}: {link}"
        if heading and "." not in heading and target.suffix == ".md":  # with a dot: a name of the API
            assert heading in headings(target), f"{page.relative_to(TOP)}: {link}"


def headings(page: Path) -> set[str]:
    """How the headings of a page are called in links."""
    return {
        re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", title).strip().lower())
        for title in re.findall(r"^#+ (.+)$", read(page), re.MULTILINE)
    }


def read(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def written_tables() -> Any:
    """The script that writes the tables of the documentation."""
    spec = importlib.util.spec_from_file_location("write_tables", TOP / "scripts" / "write_tables.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_tables_of_the_documentation_are_current() -> None:
    script = written_tables()
    pages = [
        path for path in (TOP / "docs").rglob("*.md") if "<!-- table: " in path.read_text(encoding="utf-8")
    ]
    written = {
        name for path in pages for name in re.findall(r"<!-- table: ([a-z-]+) -->", path.read_text("utf-8"))
    }
    assert written == set(script.TABLES)
    for path in pages:
        text = path.read_text(encoding="utf-8")
        assert script.current(text) == text, (
            f"{path.name} is not current; run: python scripts/write_tables.py"
        )


def test_the_documentation_stays_short() -> None:
    """At most 27,000 words, not counting what scripts have written and what commands print."""
    made = re.compile(
        r"<!-- (?:table: )?[a-z-]+ -->.*?<!-- /[a-z-]+ -->|^```text\n.*?^```$", re.DOTALL | re.MULTILINE
    )
    pages = [TOP / "README.md", *(TOP / "docs").rglob("*.md")]
    words = sum(len(made.sub("", page.read_text(encoding="utf-8")).split()) for page in pages)
    assert words <= 27_000


def test_workflows_pin_actions_by_hash_and_keep_no_credentials() -> None:
    for path in TOP.glob(".github/workflows/*.yml"):
        workflow = yaml.safe_load(path.read_text(encoding="utf-8"))
        assert workflow["permissions"] == {"contents": "read"}, path.name
        steps = [step for job in workflow["jobs"].values() for step in job["steps"] if "uses" in step]
        for step in steps:
            assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", step["uses"]), (path.name, step["uses"])
            if "checkout" in step["uses"]:
                assert step["with"]["persist-credentials"] is False, path.name
    text = (TOP / ".github" / "workflows" / "nightly.yml").read_text(encoding="utf-8")
    assert "schedule:" in text
    assert "make test-rest" in text


def test_version_and_citation_agree() -> None:
    from histobench import __version__

    citation = yaml.safe_load((TOP / "CITATION.cff").read_text(encoding="utf-8"))
    assert str(citation["version"]) == __version__
