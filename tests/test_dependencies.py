"""Importing is cheap and leaves private names alone. That it points one way is checked by `make check`."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import histobench

SOURCE = Path(histobench.__file__).parent
NAMES_THAT_EXPLAIN_NOTHING = {"utils", "util", "helpers", "helper", "common", "misc", "manager"}


@cache
def _nodes(path: Path) -> list[ast.AST]:
    """Imports and calls: all that these tests look at."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom | ast.Call)]


def test_no_file_has_a_name_that_explains_nothing() -> None:
    assert not {path.stem for path in SOURCE.rglob("*.py")} & NAMES_THAT_EXPLAIN_NOTHING


@pytest.mark.slow
def test_nothing_private_is_imported_from_another_package() -> None:
    """Such names change without notice; attributes are checked by ruff (SLF001)."""
    found = set()
    for path in sorted(SOURCE.rglob("*.py")):
        for node in _nodes(path):
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
            elif isinstance(node, ast.Import):
                names = [part for alias in node.names for part in alias.name.split(".")]
            else:
                continue
            found |= {f"{path.relative_to(SOURCE).as_posix()}: {name}" for name in names if _is_private(name)}
    assert found == set()


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_"


def _consoles(path: Path) -> list[str]:
    """Where a file opens a console, or takes brackets in a text for markup; ruff watches over `print`."""
    found = []
    for node in _nodes(path):
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if name not in ("Console", "from_markup", "render_markup", "TextColumn") and not any(
            keyword.arg == "markup" for keyword in node.keywords
        ):
            continue
        keywords = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
        if name in ("Console", "from_markup", "render_markup") or keywords.get("markup") == "True":
            found.append(f"{node.lineno}: {ast.unparse(node)[:60]}")
        if name == "TextColumn" and "{" in ast.unparse(node.args[0]) and keywords.get("markup") != "False":
            found.append(f"{node.lineno}: {ast.unparse(node)[:60]} without markup=False")
    return found


@pytest.mark.slow
def test_no_file_opens_a_console_of_its_own(tmp_path: Path) -> None:
    """`say`, `open_terminal` and `labelled` of cli/terminal.py: foreign text is escaped there."""
    sample = tmp_path / "sample.py"
    sample.write_text("rich.console.Console()\nTextColumn('{task}')\nshow('[b]', markup=True)\n")
    assert len(_consoles(sample)) == 3
    paths = [path for path in SOURCE.rglob("*.py") if path.parent.name != "guest"]
    found = {path.relative_to(SOURCE).as_posix(): places for path in paths if (places := _consoles(path))}
    assert not found


@pytest.mark.parametrize(
    "statement", ["import histobench", "from histobench.cli.main import main; main(['--help'])"]
)
def test_starting_up_imports_nothing_heavy(statement: str) -> None:
    heavy = {"torch", "timm", "numpy", "sklearn", "transformers", "pyarrow", "PIL", "scipy", "pandas", "rich"}
    code = f"{statement}\nimport sys; print(sorted(set(sys.modules) & {heavy!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.slow
def test_a_report_is_built_without_the_deep_learning_libraries() -> None:
    code = (
        "import histobench.report.site, sys; print(sorted({'torch', 'timm', 'sklearn'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["[]"]
