"""Downloads against a server that breaks off, lies, redirects and refuses."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path

import pytest

from histobench.core.errors import HistobenchError
from histobench.roi.registry import download
from histobench.roi.registry.download import fetch, fetch_all
from histobench.roi.registry.entry import RemoteFile

from .conftest import Habits

DATA = random.Random(0).randbytes(3_000_000)


def _file(server: Habits, data: bytes = DATA, **more: object) -> RemoteFile:
    server.files.setdefault("/a.zip", data)
    facts = {"bytes": len(DATA), "md5": hashlib.md5(DATA).hexdigest(), **more}
    return RemoteFile(name="a.zip", url=f"{server.address}/a.zip", **facts)  # type: ignore[arg-type]


def _fetch(file: RemoteFile, folder: Path) -> bytes:
    return fetch(file, folder, dataset="x", pause=0.01).path.read_bytes()


def test_a_download_that_breaks_goes_on_where_it_stopped(server: Habits, tmp_path: Path) -> None:
    server.break_after["/a.zip"] = [1_000_000, 500_000]
    assert _fetch(_file(server), tmp_path) == DATA
    ranges = [headers.get("Range") for _, headers in server.seen]
    assert ranges[0] is None
    assert all(item and item.startswith("bytes=") for item in ranges[1:])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.zip"]


def test_a_second_run_goes_on_where_the_first_was_killed(
    server: Habits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "_ATTEMPTS", 1)
    server.break_after["/a.zip"] = [1_500_000]
    with pytest.raises(HistobenchError, match="run the command again"):
        _fetch(_file(server), tmp_path)
    assert (tmp_path / "a.zip.part").stat().st_size == 1_500_000
    assert _fetch(_file(server), tmp_path) == DATA
    assert server.seen[-1][1]["Range"] == "bytes=1500000-"


def test_a_file_that_changed_on_the_server_is_fetched_anew(server: Habits, tmp_path: Path) -> None:
    server.break_after["/a.zip"] = [1_000_000]
    file = _file(server, data=bytes(len(DATA)))
    server.tags["/a.zip"] = '"old"'
    original = download._stream

    def changing(*args: object) -> bool:
        if len(server.seen) == 1:
            server.files["/a.zip"], server.tags["/a.zip"] = DATA, '"new"'
        return original(*args)  # type: ignore[arg-type]

    download._stream = changing  # type: ignore[assignment]
    try:
        assert _fetch(file, tmp_path) == DATA
    finally:
        download._stream = original


def test_a_server_without_ranges_is_asked_from_the_beginning(server: Habits, tmp_path: Path) -> None:
    server.no_range.add("/a.zip")
    server.break_after["/a.zip"] = [1_000_000]
    assert _fetch(_file(server), tmp_path) == DATA


def test_a_wrong_hash_names_both_and_keeps_nothing(server: Habits, tmp_path: Path) -> None:
    wrong = DATA[:-1] + bytes([DATA[-1] ^ 1])
    with pytest.raises(HistobenchError) as caught:
        _fetch(_file(server, data=wrong), tmp_path)
    assert hashlib.md5(wrong).hexdigest() in str(caught.value)
    assert hashlib.md5(DATA).hexdigest() in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_size_is_refused_before_the_bytes_travel(server: Habits, tmp_path: Path) -> None:
    with pytest.raises(HistobenchError, match="offers 10 bytes, but 3,000,000 are published"):
        _fetch(_file(server, data=bytes(10)), tmp_path)


@pytest.mark.parametrize(
    ("code", "message"), [(403, "refuses access"), (404, "not there any more"), (451, "answered 451")]
)
def test_a_refusal_is_one_line(server: Habits, tmp_path: Path, code: int, message: str) -> None:
    server.answers["/a.zip"] = (code, {}, b"")
    with pytest.raises(HistobenchError, match=message):
        _fetch(_file(server), tmp_path)


@pytest.mark.parametrize("kind", ["text/html; charset=utf-8", "application/octet-stream"])
def test_a_web_page_instead_of_the_file_is_told_apart(server: Habits, tmp_path: Path, kind: str) -> None:
    server.answers["/a.zip"] = (200, {"Content-Type": kind}, b"<!DOCTYPE html><p>Log in</p>")
    with pytest.raises(HistobenchError, match="web page instead of the file"):
        _fetch(_file(server, bytes=None, md5=None), tmp_path)
    assert not (tmp_path / "a.zip").exists()
    assert not (tmp_path / "a.zip.part").exists()


def test_redirects_are_followed(server: Habits, tmp_path: Path) -> None:
    server.files["/there"] = DATA
    server.answers["/a.zip"] = (302, {"Location": "/there"}, b"")
    assert _fetch(_file(server), tmp_path) == DATA


def test_a_busy_server_is_asked_again(server: Habits, tmp_path: Path) -> None:
    server.answers["/a.zip"] = (503, {}, b"")
    file = _file(server)
    calls: list[float] = []

    def sleep(seconds: float) -> None:
        calls.append(seconds)
        if len(calls) == 2:
            del server.answers["/a.zip"]

    original, download.time.sleep = download.time.sleep, sleep  # type: ignore[assignment]
    try:
        assert _fetch(file, tmp_path) == DATA
    finally:
        download.time.sleep = original  # type: ignore[assignment]
    assert calls == sorted(calls)


def test_a_slow_server_is_waited_for(server: Habits, tmp_path: Path) -> None:
    server.slow = 0.05
    seen: list[int] = []
    fetch(_file(server), tmp_path, dataset="x", progress=lambda name, have, total: seen.append(have))
    assert seen == sorted(seen)
    assert seen[-1] == len(DATA)


def test_what_is_there_and_right_is_not_fetched_again(server: Habits, tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_bytes(DATA)
    _fetch(_file(server), tmp_path)
    assert server.seen == []


def test_a_wrong_file_of_the_user_is_named_and_kept(server: Habits, tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_bytes(b"<html>" + DATA[6:])
    with pytest.raises(HistobenchError, match=r"it is a web page.*remove"):
        _fetch(_file(server), tmp_path)
    assert (tmp_path / "a.zip").exists()


def test_too_little_disk_is_said_before_the_first_byte(
    server: Habits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download.shutil, "disk_usage", lambda path: type("U", (), {"free": 1_000})())
    with pytest.raises(HistobenchError, match=r"needs 0\.0 GB"):
        fetch_all([_file(server)], tmp_path, dataset="x")
    assert server.seen == []


def test_a_mirror_goes_before_the_host(
    server: Habits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = _file(server)
    server.files["/mirror/x/a.zip"] = server.files.pop("/a.zip")
    monkeypatch.setenv("HISTOBENCH_DATA_MIRROR", f"{server.address}/mirror/")
    assert _fetch(file, tmp_path / "1") == DATA
    (tmp_path / "m" / "x").mkdir(parents=True)
    (tmp_path / "m" / "x" / "a.zip").write_bytes(DATA)
    monkeypatch.setenv("HISTOBENCH_DATA_MIRROR", str(tmp_path / "m"))
    assert _fetch(file, tmp_path / "2") == DATA


def test_a_token_never_travels_in_the_clear(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    assert download._authorisation("http://huggingface.co/x") == {}
    assert download._authorisation("https://nothuggingface.co/x") == {}
    assert download._authorisation("https://huggingface.co/x") == {"Authorization": "Bearer secret"}
