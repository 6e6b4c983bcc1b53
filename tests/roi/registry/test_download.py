"""Downloads against a server that breaks off, lies, redirects and refuses."""

from __future__ import annotations

import email.utils
import hashlib
import io
import json
import random
import threading
import time
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from histobench.core import http as transfer
from histobench.core.errors import HistobenchError
from histobench.roi.registry import dataset_download as download
from histobench.roi.registry.dataset_download import Fetcher
from histobench.roi.registry.dataset_entry import RemoteFile

from .conftest import Habits, answer

pytestmark = pytest.mark.slow


def _archive() -> bytes:
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w") as archive:
        archive.writestr(zipfile.ZipInfo("a.bin"), random.Random(0).randbytes(2_999_998))
    return memory.getvalue()


DATA = _archive()
PAGE = b"<html>Log in</html>"


def _file(server: Habits, data: bytes = DATA, **more: object) -> RemoteFile:
    server.files.setdefault("/a.zip", data)
    facts = {"bytes": len(DATA), "md5": hashlib.md5(DATA).hexdigest(), **more}
    return RemoteFile(name="a.zip", url=f"{server.address}/a.zip", **facts)  # type: ignore[arg-type]


def _fetch(file: RemoteFile, folder: Path) -> bytes:
    return Fetcher(folder, "x", pause=0.01).fetch(file).path.read_bytes()


def test_a_download_that_breaks_goes_on_where_it_stopped(server: Habits, tmp_path: Path) -> None:
    server.break_after["/a.zip"] = [1_000_000, 500_000]
    seen: list[int] = []
    Fetcher(tmp_path, "x", lambda name, have, total: seen.append(have), pause=0.01).fetch(_file(server))
    assert (tmp_path / "a.zip").read_bytes() == DATA
    assert seen == sorted(seen)
    assert seen[-1] == len(DATA)
    ranges = [headers.get("Range") for _, headers in server.seen]
    assert ranges[0] is None
    assert all(item and item.startswith("bytes=") for item in ranges[1:])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.zip"]


def test_a_second_run_goes_on_where_the_first_was_killed(
    server: Habits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "DOWNLOAD", replace(transfer.DOWNLOAD, attempts=1))
    server.break_after["/a.zip"] = [1_500_000]
    with pytest.raises(HistobenchError, match="run the command again"):
        _fetch(_file(server), tmp_path)
    assert (tmp_path / "a.zip.part").stat().st_size == 1_500_000
    assert _fetch(_file(server), tmp_path) == DATA
    assert server.seen[-1][1]["Range"] == "bytes=1500000-"


@pytest.mark.sample(2)
@pytest.mark.parametrize("pinned", [True, False])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"ETag": '"old"'}, {"ETag": '"new"'}),
        (
            {"Last_Modified": "Mon, 01 Jan 2024 00:00:00 GMT"},
            {"Last_Modified": "Tue, 02 Jan 2024 00:00:00 GMT"},
        ),
        ({}, {}),
    ],
)
def test_a_file_that_changed_on_the_server_is_fetched_anew(
    server: Habits, tmp_path: Path, before: dict[str, str], after: dict[str, str], pinned: bool
) -> None:
    """Even where the server goes on with the new one as if it were the old."""
    old = bytes(len(DATA) + (0 if before or pinned else 5))
    server.script["/a.zip"] = [
        answer(200, old, sent=1_000_000, **before),
        answer(206, DATA[1_000_000:], Content_Range=f"bytes 1000000-{len(DATA) - 1}/{len(DATA)}", **after),
    ]
    file = _file(server) if pinned else _file(server, md5=None, bytes=None)
    if pinned and not before:
        with pytest.raises(HistobenchError, match="nothing was kept"):  # only the checksum can tell
            _fetch(file, tmp_path)
    else:
        assert _fetch(file, tmp_path) == DATA
    assert not list(tmp_path.glob("*.part*"))


def test_a_server_without_ranges_is_asked_from_the_beginning(server: Habits, tmp_path: Path) -> None:
    server.no_range.add("/a.zip")
    server.break_after["/a.zip"] = [1_000_000]
    assert _fetch(_file(server), tmp_path) == DATA


def test_a_wrong_hash_names_both_and_keeps_nothing_and_a_wrong_size_is_refused_before(
    server: Habits, tmp_path: Path
) -> None:
    wrong = DATA[:-1] + bytes([DATA[-1] ^ 1])
    with pytest.raises(HistobenchError) as caught:
        _fetch(_file(server, data=wrong), tmp_path)
    assert hashlib.md5(wrong).hexdigest() in str(caught.value)
    assert hashlib.md5(DATA).hexdigest() in str(caught.value)
    assert list(tmp_path.iterdir()) == []
    server.files["/a.zip"] = bytes(10)
    with pytest.raises(HistobenchError, match=f"offers 10 bytes, but {len(DATA):,} are published"):
        _fetch(_file(server), tmp_path)


class _Clock(threading.Event):
    """Notes how long it was to be waited, and does not wait."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.waits.append(timeout or 0.0)
        return False


def test_a_busy_server_is_asked_again_when_it_says(server: Habits, tmp_path: Path) -> None:
    server.script["/a.zip"] = [
        answer(503),
        answer(429, Retry_After="42"),
        answer(503, Retry_After=email.utils.formatdate(time.time() + 100, usegmt=True)),
        answer(503, Retry_After="soon"),
    ]
    clock = _Clock()
    found = Fetcher(tmp_path, "x", stop=clock).fetch(_file(server))
    assert found.path.read_bytes() == DATA
    assert clock.waits[0] == 1
    assert clock.waits[1] == 42
    assert 8 < clock.waits[2] <= 100  # less by what has passed meanwhile
    assert clock.waits[3] == 8


@pytest.mark.parametrize(
    "habit",
    [
        [answer(200, DATA, sent=1_000_000), answer(416)],
        [answer(200, DATA, sent=1_000_000), answer(200, DATA, sent=2_000_000)],
    ],
    ids=["takes back what it gave", "never gets further"],
)
def test_a_server_that_never_gets_further_is_given_up(
    server: Habits, tmp_path: Path, habit: list[Callable[[Any], None]]
) -> None:
    server.script["/a.zip"] = habit * 40
    with pytest.raises(HistobenchError, match="run the command again"):
        _fetch(_file(server), tmp_path)
    assert len(server.seen) < 20


@pytest.mark.parametrize("size", [0, 2], ids=["whole", "too long"])
@pytest.mark.parametrize("known", [True, False])
def test_a_part_that_is_whole_is_not_fetched_again(
    server: Habits, tmp_path: Path, size: int, known: bool
) -> None:
    """The last run may have been killed between the last byte and the check."""
    file = _file(server) if known else _file(server, bytes=None, md5=None)
    (tmp_path / "a.zip.part").write_bytes(DATA + bytes(size))
    note = {"url": file.url, "same": '"one"', "total": len(DATA)}
    (tmp_path / "a.zip.part.json").write_text(json.dumps(note), encoding="utf-8")
    assert _fetch(file, tmp_path) == DATA
    assert len(server.seen) == (2 if size else 0 if known else 1)


@pytest.mark.sample(5)
@pytest.mark.parametrize(
    ("given", "message"),
    [
        (answer(204), "answered 204"),
        (answer(304), "answered 304"),
        (answer(302), "answered 302"),
        (answer(302, Location="/a.zip"), "redirects"),
        (answer(302, Location="file:///etc/passwd"), "unsupported protocol"),
        (answer(403), "refuses access"),
        (answer(404), "no longer available"),
        (answer(451), "answered 451"),
        (answer(200, PAGE, Content_Type="text/html; charset=utf-8"), "web page"),
        (answer(200, b"\xef\xbb\xbf <!-- x -->" + PAGE), "web page"),
    ],
)
def test_what_is_no_file_is_not_kept_as_one(
    server: Habits, tmp_path: Path, given: Callable[[Any], None], message: str
) -> None:
    server.script["/a.zip"] = [given] * 30
    file = _file(server, bytes=None, md5=None)
    with pytest.raises(HistobenchError, match=message):
        _fetch(file, tmp_path)
    assert not list(tmp_path.iterdir())
    assert len(server.seen) <= 21  # nothing is asked for again but the redirects


def test_what_is_there_is_not_fetched_again_and_kept_even_if_wrong(server: Habits, tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_bytes(DATA)
    _fetch(_file(server), tmp_path)
    assert server.seen == []
    (tmp_path / "a.zip").write_bytes(b"<html>" + DATA[6:])
    with pytest.raises(HistobenchError, match=r"it is a web page.*remove"):
        _fetch(_file(server), tmp_path)
    assert (tmp_path / "a.zip").exists()


def test_too_little_disk_is_said_before_the_first_byte(
    server: Habits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download.shutil, "disk_usage", lambda path: type("U", (), {"free": 1_000})())
    with pytest.raises(HistobenchError, match=r"needs 3\.0 MB, but .* has 0\.0 MB free"):
        Fetcher(tmp_path, "x").fetch_all([_file(server)])
    assert server.seen == []


def test_a_token_never_travels_in_the_clear(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    assert transfer._authorisation("http://huggingface.co/x") == {}
    assert transfer._authorisation("https://nothuggingface.co/x") == {}
    assert transfer._authorisation("https://huggingface.co/x") == {"Authorization": "Bearer secret"}
    monkeypatch.setenv("HF_TOKEN", "secret\n")  # as read from a file
    assert transfer._authorisation("https://huggingface.co/x") == {"Authorization": "Bearer secret"}


def test_a_token_does_not_follow_a_redirect_to_another_host(
    server: Habits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "_authorisation", lambda url: {"Authorization": "Bearer secret"})
    server.files["/elsewhere"] = DATA
    there = server.address.replace("127.0.0.1", "localhost")
    server.script["/a.zip"] = [answer(302, Location=f"{there}/elsewhere")]
    assert _fetch(_file(server), tmp_path) == DATA
    (_, first), (path, second) = server.seen
    assert path == "/elsewhere"
    assert first["Authorization"] == "Bearer secret"
    assert "Authorization" not in second
