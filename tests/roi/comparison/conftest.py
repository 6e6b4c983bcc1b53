"""Results folders with predictions whose quality is known."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from comparison_runs import Write, write_to


@pytest.fixture
def write_run(tmp_path: Path) -> Write:
    return partial(write_to, tmp_path)
