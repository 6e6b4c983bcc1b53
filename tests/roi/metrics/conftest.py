"""Makes the reference implementation importable under pytest's importlib mode."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def reference() -> Callable[..., dict[str, float]]:
    """Every metric by scikit-learn; see sklearn_reference.py."""
    spec = importlib.util.spec_from_file_location(
        "sklearn_reference", Path(__file__).with_name("sklearn_reference.py")
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.reference
