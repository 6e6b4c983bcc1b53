"""A file layer with faults, for tests of shared disks."""

from __future__ import annotations

import builtins
import io
import os
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from histobench.core.files import set_patience


class FaultyDisk:
    """A file layer with faults: opening and listing below a folder fail, or listings lag behind."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder, self._code, self._left, self.failed = "", 0, 0, 0
        self._hidden: set[str] = set()
        self._listdir = os.listdir
        self._chance: tuple[random.Random, Sequence[int], float] | None = None
        calls = [(io, "open"), (builtins, "open"), (os, "open"), (os, "listdir"), (os, "scandir")]
        for module, name in calls:
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


@pytest.fixture(autouse=True)
def _no_more_patient_than_a_user() -> Iterator[None]:
    yield
    set_patience(0.0)  # a command of a test may have been a worker, which waits for two minutes
