"""The house of the worked examples, and a Python session for each example."""

from __future__ import annotations

import runpy
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from histobench.mint.alfworld.games import find_games, read_games
from histobench.mint.alfworld.simulator import INSTALL, Game, Simulator, missing_packages
from histobench.mint.sandbox import SandboxPool, shared_pool

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def pool(needs_sandbox: None) -> SandboxPool:
    """A sandbox for the examples."""
    return shared_pool()


@pytest.fixture(scope="session")
def example_game(
    shared_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Game]]:
    """Starts the game of a kind of goal in the examples' house."""
    if missing_packages():
        pytest.skip(f"the ALFWorld engine is not installed; {INSTALL}")
    write_house = runpy.run_path(str(HERE / "example_house.py"))["write_house"]
    rules = read_games(find_games(shared_dir / "mint"))[0].path
    folder = tmp_path_factory.mktemp("houses")
    simulator = Simulator()
    yield lambda goal: simulator.start(write_house(rules, goal, folder / f"{goal}.tw-pddl"))
    simulator.close()
