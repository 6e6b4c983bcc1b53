"""Importing is cheap and leaves private names alone. That it points one way is checked by `make check`."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import histobench

SOURCE = Path(histobench.__file__).parent


@pytest.mark.slow
def test_nothing_private_is_imported_from_another_package() -> None:
    """Such names change without notice; attributes are checked by ruff (SLF001)."""
    found = set()
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
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
