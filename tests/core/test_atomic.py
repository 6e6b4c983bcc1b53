"""A file is either whole or absent."""

from __future__ import annotations

import contextlib
import errno
import json
import os
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
