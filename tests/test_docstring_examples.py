"""Every example in a docstring runs and gives what it shows."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
from pathlib import Path

import pytest

import histobench

pytestmark = pytest.mark.slow


def _modules() -> list[str]:
    return ["histobench"] + [
        module.name
        for module in pkgutil.walk_packages(histobench.__path__, "histobench.")
        if not module.name.endswith("__main__")
    ]


@pytest.mark.parametrize("name", _modules())
def test_examples_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HISTOBENCH_CACHE", str(tmp_path))
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        if (error.name or "").startswith("histobench"):
            raise
        pytest.skip(f"{name} needs the optional package {error.name}")
    assert doctest.testmod(module).failed == 0
