"""Claims that several processes want at the same time: one gets each, and a holder that lost finds out."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from histobench.core import claim as claims
from histobench.core.claim import holder_of, try_claim
from histobench.core.files import create_json, write_json

#: Waits for the start, then claims everything in the same order and says what it got. None ends before all
#: have tried, and none is slow enough to be stale: what a process holds that has ended may be taken over.
GREEDY = """
import os, sys, time
from pathlib import Path
from histobench.core import claim as claims
from histobench.core.claim import try_claim

claims.STALE = 3600.0
folder, count, processes = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
held = []
while not (folder / "go").exists():
    time.sleep(0.001)
for number in range(count):
    claim = try_claim(folder / f"{number}.json")
    if claim is not None:
        claim._released.set()  # no thread for each of them
        held.append((number, claim))
(folder / f"done-{os.getpid()}").touch()
while len(list(folder.glob("done-*"))) < processes:
    time.sleep(0.05)
print(*(number for number, claim in held if claim.holds()))
"""


def _leave_stale(path: Path, token: str = "old") -> None:
    write_json(path, {"host": "elsewhere", "pid": 1, "id": token})
    os.utime(path, (1.0, 1.0))


@pytest.mark.parametrize(
    ("processes", "count"), [(4, 200), pytest.param(16, 2000, marks=pytest.mark.nightly)]
)
def test_stale_claims_are_each_taken_over_by_one_process(tmp_path: Path, processes: int, count: int) -> None:
    for number in range(count):
        _leave_stale(tmp_path / f"{number}.json")
    command = [sys.executable, "-c", GREEDY, str(tmp_path), str(count), str(processes)]
    workers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(processes)]
    time.sleep(1)
    (tmp_path / "go").touch()
    held = Counter(number for worker in workers for number in worker.communicate(timeout=600)[0].split())
    assert set(held.values()) == {1}
    assert len(held) == count


def test_a_holder_that_was_taken_for_dead_finds_out_and_harms_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "c.json"
    first = try_claim(path)
    assert first is not None
    os.utime(path, (1.0, 1.0))  # it was stopped for a long time
    second = try_claim(path, unit="u")
    assert second is not None
    assert not first.holds()
    assert second.holds()
    first.release()
    assert (holder_of(path) or {})["unit"] == "u"
    assert try_claim(path) is None
    second.release()
    assert list(tmp_path.glob("*.json")) == []
    monkeypatch.setattr(claims, "RENEWED", 0.01)
    slow = try_claim(path)
    path.unlink()  # taken over and released by another; the next claim has the same file name as the first
    _leave_stale(path, "new")
    time.sleep(0.2)
    os.utime(path, (1.0, 1.0))
    time.sleep(0.2)
    assert path.stat().st_mtime == 1.0, "a claim of another process was renewed"
    assert slow is not None


def test_what_was_seen_long_ago_is_not_taken_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "c.json"
    _leave_stale(path)
    seen = claims._last(path)
    winner = try_claim(path)
    assert winner is not None
    winner.release()
    fresh = try_claim(path)  # the same file name as the stale one
    assert fresh is not None
    counts = claims._counts
    with monkeypatch.context() as patch:  # a process that was slow between look and act
        patch.setattr(claims, "_last", lambda _: seen)
        patch.setattr(claims, "_counts", lambda file, it: None if it["id"] == "old" else counts(file, it))
        assert try_claim(path) is None
    assert fresh.holds()


def test_a_claim_is_not_renewed_beyond_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "RENEWED", 0.01)
    claim = try_claim(tmp_path / "c.json", limit=0.05)
    assert claim is not None
    time.sleep(0.5)
    os.utime(tmp_path / "c.json", (1.0, 1.0))
    time.sleep(0.2)
    assert (tmp_path / "c.json").stat().st_mtime == 1.0
    assert try_claim(tmp_path / "c.json") is not None


def test_a_link_whose_reply_was_lost_counts_as_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = os.link

    def repeated(source: Path, target: Path) -> None:
        link(source, target)
        raise FileExistsError(errno.EEXIST, "File exists")

    monkeypatch.setattr(os, "link", repeated)
    assert create_json(tmp_path / "a.json", {"a": 1})
    monkeypatch.setattr(os, "link", link)
    assert not create_json(tmp_path / "a.json", {"a": 2})
