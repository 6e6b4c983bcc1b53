"""What clusters do to files: stale handles, no descriptors left, listings that lag, claims of the dead."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from histobench.core import claim as claims
from histobench.core import files
from histobench.core.claim import exclusive, holder_of, try_claim
from histobench.core.errors import HistobenchError
from histobench.core.files import create_json, derive, read_note, write_json
from histobench.core.folders import cache_dir, is_shared, local_dir


@pytest.mark.slow
@pytest.mark.parametrize("code", [errno.ESTALE, errno.EMFILE, errno.EIO])
def test_a_passing_error_is_tried_again_and_a_lasting_one_is_not_taken_for_absence(
    faulty_disk: Any, tmp_path: Path, code: int
) -> None:
    write_json(tmp_path / "note.json", {"a": 1})
    with faulty_disk.failing(tmp_path, code, times=2):
        assert read_note(tmp_path / "note.json") == {"a": 1}
    with faulty_disk.failing(tmp_path, code), pytest.raises(OSError, match=str(tmp_path)):
        read_note(tmp_path / "note.json")
    assert read_note(tmp_path / "nothing.json") is None


@pytest.mark.slow
def test_of_several_that_create_one_file_exactly_one_succeeds(tmp_path: Path) -> None:
    code = (
        "import sys; from histobench.core.files import create_json\n"
        "print(create_json(sys.argv[1], {'by': sys.argv[2]}))"
    )
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path / "x.json"), str(number)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(4)
    ]
    said = [process.communicate(timeout=600)[0].strip() for process in started]
    assert sorted(said) == ["False", "False", "False", "True"]
    assert json.loads((tmp_path / "x.json").read_text())["by"] == str(said.index("True"))
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"]
    assert not create_json(tmp_path / "x.json", {})
    with pytest.raises(HistobenchError, match=r"cannot write .*y\.json: "):
        create_json(tmp_path / "x.json" / "y.json", {})
    assert create_json(tmp_path / "new" / "y.json", {"a": 1}, lasting=False)
    assert read_note(tmp_path / "new" / "y.json") == {"a": 1}


def test_a_claim_of_a_killed_process_is_free_at_once_and_that_of_a_lost_machine_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = (
        "import sys, time; from pathlib import Path; from histobench.core.claim import try_claim\n"
        "held = try_claim(Path(sys.argv[1]), unit='u')\nprint(held is not None, flush=True)\ntime.sleep(600)"
    )
    path = tmp_path / "c.json"
    child = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "True\n"
    assert try_claim(path) is None
    assert (holder_of(path) or {})["unit"] == "u"
    child.kill()
    # Ended is ended, also while its parent has not asked for it.
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    mine = try_claim(path)
    child.communicate(timeout=600)
    assert mine is not None
    mine.release()
    assert not path.exists()
    # Of another machine nothing is known but how long it has been silent.
    write_json(path, {**claims._machine(), "host": "elsewhere", "pid": 1, "started": ""})
    assert try_claim(path) is None
    then = time.time() - claims.STALE - 1
    os.utime(path, (then, then))
    again = try_claim(path)
    assert again is not None
    again.release()


def test_a_claim_is_renewed_while_it_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "RENEWED", 0.01)
    with exclusive(tmp_path / "c.json"):
        os.utime(tmp_path / "c.json", (1.0, 1.0))
        deadline = time.monotonic() + 300
        while (tmp_path / "c.json").stat().st_mtime < 1e6:
            assert time.monotonic() < deadline, "the claim was not renewed"
            time.sleep(0.01)


def test_a_view_has_what_came_while_it_was_written(tmp_path: Path) -> None:
    (tmp_path / "1.part").write_text("1")
    written: list[list[str]] = []

    def write(paths: object) -> None:
        written.append([path.name for path in paths])  # type: ignore[attr-defined]
        if len(written) == 1:
            (tmp_path / "2.part").write_text("2")

    derive(lambda: sorted(tmp_path.glob("*.part")), write)
    assert written == [["1.part"], ["1.part", "2.part"]]


def test_a_database_goes_to_this_machines_own_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(
        "/dev/sda1 / ext4 rw 0 0\nserver:/home /home nfs4 rw 0 0\n/dev/sdb1 /home/me/scratch xfs rw 0 0\n"
        "store /lab\\040data lustre rw 0 0\n"
    )
    for place, shared in (("/var/x", False), ("/home/me", True), ("/home/me/scratch/x", False)):
        assert is_shared(Path(place), str(mounts)) is shared
    assert is_shared(Path("/lab data/x"), str(mounts))
    monkeypatch.setenv("HISTOBENCH_CACHE", str(tmp_path / "cache"))
    assert local_dir() == tmp_path / "cache"
    monkeypatch.setattr("histobench.core.folders.is_shared", lambda path: True)
    assert tmp_path not in local_dir().parents
    monkeypatch.setenv("HISTOBENCH_LOCAL", str(tmp_path / "own"))
    assert local_dir() == tmp_path / "own"


def test_a_temporary_folder_that_another_user_could_have_made_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HISTOBENCH_LOCAL", raising=False)
    monkeypatch.setattr("histobench.core.folders.is_shared", lambda path: True)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = tmp_path / f"histobench-{os.getuid()}"
    assert local_dir() == folder
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o755)
    assert local_dir().stat().st_mode & 0o777 == 0o700
    folder.rmdir()
    (tmp_path / "elsewhere").mkdir()
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(HistobenchError, match="belongs to another user; set HISTOBENCH_LOCAL"):
        local_dir()


def test_the_cache_is_in_the_folder_of_the_platform(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from platformdirs import user_cache_dir

    monkeypatch.delenv("HISTOBENCH_CACHE", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert str(cache_dir()) == user_cache_dir("histobench", appauthor=False)
    monkeypatch.setenv("HISTOBENCH_CACHE", str(tmp_path / "mine"))
    assert cache_dir() == tmp_path / "mine"


@pytest.mark.slow
def test_a_worker_waits_for_an_announced_file_and_a_disk_that_is_read_only_for_a_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_patience", 30.0)
    threading.Timer(1.0, lambda: (tmp_path / "late").write_text("x")).start()
    files.await_file(tmp_path / "late")
    assert (tmp_path / "late").exists()
    replace, ends = os.replace, time.monotonic() + 1.0

    def refused(source: object, target: object) -> None:
        if time.monotonic() < ends:
            raise OSError(errno.EROFS, "Read-only file system")
        replace(source, target)  # type: ignore[call-overload]

    monkeypatch.setattr(os, "replace", refused)
    write_json(tmp_path / "a.json", {"a": 1})
    monkeypatch.setattr(files, "_patience", 0.0)
    ends = time.monotonic() + 600
    with pytest.raises(HistobenchError, match="Read-only"):
        write_json(tmp_path / "b.json", {"b": 1})
