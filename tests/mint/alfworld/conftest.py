"""The engine is optional: without it these tests are skipped and say how to install it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from histobench.mint.alfworld.games import GameFile, find_games, read_games
from histobench.mint.alfworld.simulator import INSTALL, Simulator, missing_packages


@pytest.fixture(scope="session")
def games(shared_dir: Path) -> list[GameFile]:
    """The published games."""
    return read_games(find_games(shared_dir / "mint"))


@pytest.fixture(scope="session")
def simulator() -> Iterator[Simulator]:
    """A side process that plays."""
    if missing_packages():
        pytest.skip(f"the ALFWorld engine is not installed; {INSTALL}")
    simulator = Simulator()
    yield simulator
    simulator.close()
