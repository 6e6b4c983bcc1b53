"""Importing is cheap and leaves private names alone. That it points one way is checked by `make check`."""

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
MARKUP = re.compile(r"\bConsole\(|markup=True|\bfrom_markup\(|\brender_markup\(")
COLUMN = re.compile(r"\bTextColumn\(([^()]*)\)")
IMPORTED = re.compile(r"^\s*from histobench[\w.]* import (\([^)]*\)|.*)$", re.MULTILINE)


def _marked_up(text: str) -> list[str]:
    columns = [match[1] for match in COLUMN.finditer(text)]
    return MARKUP.findall(text) + [each for each in columns if "{" in each and "markup=False" not in each]


def test_no_file_has_a_name_that_explains_nothing() -> None:
    assert not {path.stem for path in SOURCE.rglob("*.py")} & NAMES_THAT_EXPLAIN_NOTHING


def test_no_file_opens_a_console_of_its_own_or_takes_brackets_for_markup() -> None:
    sample = (
        "Console()\nTextColumn(\n '{task[0]}',\n)\nshow('[b]', markup=True)\nTextColumn('{x}', markup=False)"
    )
    assert len(_marked_up(sample)) == 3
    paths = [path for path in SOURCE.rglob("*.py") if path.parent.name != "guest"]
    assert not [path for path in paths if _marked_up(path.read_text(encoding="utf-8"))]


def test_no_file_imports_private_names_of_another() -> None:
    """Those of other packages are found by ruff (PLC2701), which is lenient with our own."""

    def private(text: str) -> list[str]:
        names = re.findall(r"\w+", " ".join(IMPORTED.findall(text)))
        return [name for name in names if name.startswith("_") and not name.startswith("__")]

    assert private("from histobench.a import b, _c\n    from histobench import (\n    _d,\n)\n") == [
        "_c",
        "_d",
    ]
    assert not {path: found for path in SOURCE.rglob("*.py") if (found := private(path.read_text("utf-8")))}


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
