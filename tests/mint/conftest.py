"""Fixtures of the language-model track's tests."""

from __future__ import annotations

import pytest

from histobench.mint.sandbox import active_backend


@pytest.fixture(scope="session")
def needs_sandbox() -> None:
    """Skip where model code cannot be confined."""
    name, why = active_backend()
    if name == "none":
        pytest.skip(f"no sandbox works on this machine: {why}")
