"""A file is either whole or absent."""

from __future__ import annotations

import ast
import contextlib
import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from histobench.core.errors import HistobenchError
from histobench.core.files import atomic_path, write_json, write_text


def test_an_error_while_writing_keeps_the_old_content_and_leaves_nothing_behind(tmp_path: Path) -> None:
    target = tmp_path / "a.txt"
    write_text(target, "old")
    with contextlib.suppress(RuntimeError), atomic_path(target) as temporary:
        temporary.write_text("half")
        raise RuntimeError("killed")
    assert target.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_a_full_disk_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(HistobenchError, match=r"a\.txt: the disk is full"):
        write_text(tmp_path / "a.txt", "x")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_a_file_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("")
    with pytest.raises(HistobenchError, match="cannot write"):
        write_text(tmp_path / "f" / "a.txt", "x")


def test_undefined_numbers_are_null_in_json_and_named(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"x": float("nan"), "y": [1.0, float("inf")]})
    found = json.loads((tmp_path / "a.json").read_text())
    assert (found["x"], found["y"]) == (None, [1.0, None])
    assert len(found["undefined_numbers"]) == 2


def test_new_files_get_the_permissions_of_the_umask(tmp_path: Path) -> None:
    write_text(tmp_path / "a", "x")
    (tmp_path / "b").write_text("x")
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "b").stat().st_mode


#: Runs without conftest, whose `os.fsync` does nothing: names what is synced and renamed, in order.
WATCHED = """
import os, sys
from pathlib import Path

events, fsync, rename, link = [], os.fsync, os.replace, os.link
name_of = lambda path: "temporary" if str(path).endswith(".tmp") else Path(path).name
def seen(descriptor):
    fsync(descriptor)
    events.append("sync " + name_of(os.readlink(f"/proc/self/fd/{descriptor}")))
def moved(source, target, **more):
    rename(source, target, **more)
    events.append("name " + name_of(target))
def linked(source, target, **more):
    link(source, target, **more)
    events.append("name " + name_of(target))
os.fsync, os.replace, os.link = seen, moved, linked
from histobench.core.files import create_json, write_json
from histobench.mint.runs.cell_store import LineJournal
folder = Path(sys.argv[1])
write_json(folder / "result.json", {"a": 1})
create_json(folder / "once.json", {"a": 1})
create_json(folder / "claim.json", {"a": 1}, lasting=False)
journal = LineJournal(folder / "results.jsonl")
journal.append({"a": 1})
journal.append({"a": 2})
print(events)
"""


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="the names of open files are read from /proc")
def test_what_is_to_last_is_synced_before_it_has_its_name(tmp_path: Path) -> None:
    folder = tmp_path / "here"
    done = subprocess.run([sys.executable, "-c", WATCHED, str(folder)], capture_output=True, text=True)
    assert not done.stderr
    assert ast.literal_eval(done.stdout) == [
        *("sync temporary", "name result.json"),
        *("sync temporary", "name once.json"),
        "name claim.json",
        *("sync results.jsonl", "sync results.jsonl"),
    ]
