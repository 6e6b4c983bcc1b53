"""The benchmarks: what they use of the package exists, and one that measured nothing is an error."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

SPEED = Path(__file__).parents[1] / "benchmarks" / "speed"


@pytest.mark.parametrize("script", sorted(SPEED.glob("*.py")), ids=lambda path: path.stem)
def test_what_a_benchmark_imports_exists(script: Path) -> None:
    for node in ast.walk(ast.parse(script.read_text())):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("histobench"):
            module = importlib.import_module(str(node.module))
            for name in (alias.name for alias in node.names):
                if not hasattr(module, name):
                    importlib.import_module(f"{node.module}.{name}")


@pytest.mark.nightly
def test_all_five_tasks_are_timed() -> None:
    command = [sys.executable, str(SPEED / "all_tasks.py"), "--train", "2000", "--episodes", "2"]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600).stdout
    assert "| 2 threads | " in said
    assert "| 2,000 | " in said


@pytest.mark.slow
@pytest.mark.nightly
def test_many_workers_write_little_for_each_unit() -> None:
    options = ["--workers", "32", "--units", "160", "--seconds", "0.2"]
    command = [sys.executable, str(SPEED / "many_units.py"), *options]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout
    found = {what: float(number) for what, number in re.findall(r"(\w+) per unit: ([\d.]+)", said)}
    assert "160 of 160 units" in said
    assert found["written"] <= 5  # 29 where a claim is written before others are looked at
    assert found["operations"] <= 120  # 194 where all begin with the same unit
