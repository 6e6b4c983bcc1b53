"""Importing is cheap. That it points one way, and not to private names, is checked by `make check`."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import histobench

SOURCE = Path(histobench.__file__).parent
NAMES_THAT_EXPLAIN_NOTHING = {"utils", "util", "helpers", "helper", "common", "misc", "manager"}
#: Brackets of foreign text would be read as markup; cli/terminal.py opens the consoles.
MARKUP = re.compile(r"""\bConsole\(|markup=True|TextColumn\(\s*f?["'][^"']*\{[^"']*["']\s*\)""")


def test_no_file_has_a_name_that_explains_nothing() -> None:
    assert not {path.stem for path in SOURCE.rglob("*.py")} & NAMES_THAT_EXPLAIN_NOTHING


def test_no_file_opens_a_console_of_its_own_or_takes_brackets_for_markup() -> None:
    found = MARKUP.findall("Console()\nTextColumn('{task}')\nshow('[b]', markup=True)\nTextColumn('left')")
    assert len(found) == 3
    paths = [path for path in SOURCE.rglob("*.py") if path.parent.name != "guest"]
    assert not [path for path in paths if MARKUP.search(path.read_text(encoding="utf-8"))]


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
