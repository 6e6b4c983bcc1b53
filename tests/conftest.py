"""Fixtures shared by all tests."""

from __future__ import annotations

import builtins
import gc
import io
import os
import random
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# A busy machine is no defect of what is tested.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("fast", settings.get_profile("patient"), max_examples=20)
settings.load_profile("patient")

ROOT = Path(__file__).resolve().parents[1]


#: Files with tests of a minute and more.
LONGEST = ("test_clusters.py", "test_live_model.py", "test_documentation.py")
SLOW_FILE = re.compile(r"^pytestmark = .*pytest\.mark\.slow\b", re.MULTILINE)
#: From here on a test belongs to the slow ones; `--durations=0` shows what each took.
SLOW_SECONDS = 2.0


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--unmarked-slow",
        action="store_true",
        help=f"list tests that took more than {SLOW_SECONDS:g} s and are not marked slow",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Where slow tests are left out, examples that are drawn at random are fewer, too."""
    if config.option.markexpr == "not slow":
        settings.load_profile("fast")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Files that are slow as a whole are not even imported where slow tests are left out."""
    if config.option.markexpr != "not slow" or collection_path.suffix != ".py":
        return None
    return SLOW_FILE.search(collection_path.read_text(encoding="utf-8")) is not None or None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first, then those that begin with a slow test: no worker ends alone with them."""
    turn: dict[Path, int] = {}
    for item in items:
        slow = item.get_closest_marker("slow") is not None
        turn.setdefault(item.path, 0 if item.path.name in LONGEST else 1 if slow else 2)
    items.sort(key=lambda item: turn[item.path])


def pytest_collection_finish() -> None:
    """What collecting has imported stays to the end: looking through it again and again finds no garbage.

    A full collection took 0.6 s with everything imported; statsmodels asks for one at every call.
    """
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    gc.unfreeze()


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """With `--unmarked-slow`: the tests that should carry the marker, slowest first; nothing fails for it."""
    if not config.option.unmarked_slow:
        return
    seconds: dict[str, float] = {}
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport) and "slow" not in report.keywords:
                seconds[report.nodeid] = seconds.get(report.nodeid, 0.0) + report.duration
    terminalreporter.section(f"more than {SLOW_SECONDS:g} s and not marked slow")
    for name in sorted(seconds, key=lambda name: -seconds[name]):
        if seconds[name] > SLOW_SECONDS:
            terminalreporter.line(f"{seconds[name]:6.1f} s  {name}")


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """The folder of reference data beside the repository; tests that need it skip where it is absent."""
    folder = ROOT.parent / "shared"
    if not folder.is_dir():
        pytest.skip("reference data (../shared) is not on this machine")
    return folder


@pytest.fixture(scope="session", params=["slice", "whole"])
def reference_dir(request: pytest.FixtureRequest) -> Path:
    """Reference data: the slice that comes with the tests, and the whole where it is on this machine."""
    if request.param == "slice":
        return ROOT / "tests" / "data" / "reference"
    whole: Path = request.getfixturevalue("shared_dir")
    return whole


@pytest.fixture(scope="session")
def best_reference_dir() -> Path:
    """The whole reference data where it is on this machine, else the slice: for checks that take long."""
    whole = ROOT.parent / "shared"
    return whole if whole.is_dir() else ROOT / "tests" / "data" / "reference"


class FaultyDisk:
    """A file layer with faults: opening and listing below a folder fail, or listings lag behind."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder, self._code, self._left, self.failed = "", 0, 0, 0
        self._hidden: set[str] = set()
        self._listdir = os.listdir
        self._chance: tuple[random.Random, Sequence[int], float] | None = None
        for module, name in (
            (io, "open"),
            (builtins, "open"),
            (os, "open"),
            (os, "listdir"),
            (os, "scandir"),
        ):
            monkeypatch.setattr(module, name, self._guarded(getattr(module, name), listing="dir" in name))

    @contextmanager
    def failing(self, folder: Path, code: int, *, times: int = 10**9) -> Iterator[None]:
        """The next `times` calls that open for reading, or list, below `folder` fail with this error."""
        self._folder, self._code, self._left = str(folder), code, times
        try:
            yield
        finally:
            self._left = 0

    @contextmanager
    def at_random(
        self, folder: Path, rng: random.Random, codes: Sequence[int], *, share: float
    ) -> Iterator[None]:
        """This share of the calls fails with one of the errors; as many listings lack their last file."""
        self._folder, self._chance = str(folder), (rng, codes, share)
        try:
            yield
        finally:
            self._chance = None

    @contextmanager
    def lagging(self, *paths: Path) -> Iterator[None]:
        """Listings do not show these files yet."""
        self._hidden = {str(path) for path in paths}
        try:
            yield
        finally:
            self._hidden = set()

    def _guarded(self, call: Callable[..., Any], *, listing: bool) -> Callable[..., Any]:
        def guarded(path: Any = ".", *args: Any, **options: Any) -> Any:
            reads = not args or not isinstance(args[0], str) or args[0] in ("r", "rb")
            if self._left and reads and not isinstance(path, int) and str(path).startswith(self._folder):
                self._left -= 1
                self.failed += 1
                raise OSError(self._code, os.strerror(self._code), str(path))
            if self._chance and reads and not isinstance(path, int) and str(path).startswith(self._folder):
                rng, codes, share = self._chance
                if rng.random() < share:
                    self.failed += 1
                    code = rng.choice(codes)
                    raise OSError(code, os.strerror(code), str(path))
                if call is self._listdir and rng.random() < share:
                    return call(path, *args, **options)[:-1]
            found = call(path, *args, **options)
            if listing and isinstance(found, list):
                return [name for name in found if os.path.join(path, name) not in self._hidden]
            return found

        return guarded


@pytest.fixture
def faulty_disk(monkeypatch: pytest.MonkeyPatch) -> FaultyDisk:
    """A disk whose errors are arranged by the test."""
    return FaultyDisk(monkeypatch)
