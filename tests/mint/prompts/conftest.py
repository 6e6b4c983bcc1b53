"""A Python session for each worked example."""

from __future__ import annotations

import pytest

from histobench.mint.sandbox import SandboxPool, shared_pool


@pytest.fixture(scope="session")
def pool(needs_sandbox: None) -> SandboxPool:
    """A sandbox for the examples."""
    return shared_pool()
