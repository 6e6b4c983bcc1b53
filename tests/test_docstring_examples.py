"""Every example in a docstring runs and gives what it shows."""

from __future__ import annotations

import doctest
import importlib.util
import pkgutil
from pathlib import Path

import pytest

import histobench
from histobench.mint.configs import datasets

pytestmark = pytest.mark.slow


NAMES = ["histobench"] + [
    module.name
    for module in pkgutil.walk_packages(histobench.__path__, "histobench.")
    if not module.name.endswith("__main__")
]


def _has_examples(name: str) -> bool:
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    return ">>> " in Path(spec.origin).read_text(encoding="utf-8")


#: Measures of two hundred tiles, and a whole study; the tests of both use smaller sets.
LONG = ("histobench.api.site_robustness", "histobench.consult.consult_runs")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.nightly] if name in LONG else [])
        for name in NAMES
        if _has_examples(name)
    ],
)
def test_examples_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HISTOBENCH_CACHE", str(tmp_path))
    # What an example registers is of no use to other tests.
    monkeypatch.setattr(datasets, "TASK_INFO_MAP", dict(datasets.TASK_INFO_MAP))
    pasted = name.startswith(("histobench.api", "histobench.estimators", "histobench.consult.consult_runs"))
    module = pytest.importorskip(name, exc_type=ImportError)
    outcome = doctest.testmod(module, globs={"__name__": "m"} if pasted else None)
    assert outcome.attempted > 0
    assert outcome.failed == 0
