"""Whatever file a user names, it is a plain one of a bounded size, or one line says what it is."""

from __future__ import annotations

import contextlib
import gzip
import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from histobench.cli.main import main
from histobench.consult.study import read_cases, read_cassette
from histobench.core.errors import HistobenchError
from histobench.core.files import (
    check_plain,
    open_plain,
    open_unpacked,
    read_note,
    read_plain,
    read_plain_text,
)
from histobench.core.plain_data import parse_json
from histobench.mint.messages.parts import load_image
from histobench.mint.results.episode_outcome import read_outcome_table
from histobench.mint.results.recording import read_recordings
from histobench.mint.runs.cell_store import LineJournal
from histobench.mint.tasks.base import read_records
from histobench.mint.tools.wikipedia_search import Tape
from histobench.roi.comparison.tidy_rows import read_rows
from histobench.roi.encoders.file_hash import sha256_of
from histobench.roi.results.reader import read_run
from reproduction.gates import Journal


@pytest.fixture(autouse=True)
def nothing_waits_for_ever() -> Iterator[None]:
    """Opening a pipe that nobody writes to would never end; an alarm interrupts even that."""

    def interrupt(*_: object) -> None:
        raise TimeoutError("this waited for somebody at the other end of a pipe")

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.alarm(120)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def odd_things(folder: Path) -> Iterator[dict[str, Path]]:
    """A pipe, a device, a socket, a folder and a file without end, by what they are called."""
    folder.mkdir(exist_ok=True)
    os.mkfifo(folder / "pipe")
    (folder / "link").symlink_to("/dev/zero")
    (folder / "folder").mkdir()
    with (folder / "vast").open("wb") as handle:
        handle.truncate(5 << 30)
    with socket.socket(socket.AF_UNIX) as server:
        os.chdir(folder)  # the names of sockets are short
        server.bind("socket")
        yield {
            "it is a pipe": folder / "pipe",
            "it is a device": folder / "link",
            "it is a socket": folder / "socket",
            "it is a folder": folder / "folder",
            "bytes": folder / "vast",
        }


@pytest.mark.parametrize("read", [read_plain, read_plain_text, lambda path: check_plain(path, limit=1 << 20)])
def test_only_plain_files_of_a_bounded_size_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: Callable[[Path], Any]
) -> None:
    monkeypatch.chdir(tmp_path)
    with odd_things(tmp_path / "odd") as things:
        for what, path in things.items():
            with pytest.raises(OSError, match=what) as caught:
                read(path)
            assert caught.value.strerror == str(caught.value)
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "nothing")


def test_a_plain_file_is_read_as_it_is_and_through_a_link(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"a\r\nb\rc\n\xc3\xa9")
    (tmp_path / "link").symlink_to(path)
    assert read_plain(tmp_path / "link") == path.read_bytes()
    assert read_plain_text(path) == path.read_text(encoding="utf-8") == "a\nb\nc\n\u00e9"
    assert check_plain(path, limit=10) == path
    with open_plain(path) as handle:
        assert handle.read(1) == b"a"
    with pytest.raises(OSError, match=r"file too large: 9 bytes \(limit 8\)"):
        read_plain(path, limit=8)


def test_a_file_that_grows_while_it_is_read_is_no_way_round_the_limit() -> None:
    # Files of the kernel say that they are empty.
    with pytest.raises(OSError, match=r"\(limit 3\)"):
        read_plain("/proc/self/status", limit=3)


#: Every flag and argument that names a file: `{}` is the odd thing, `{table}` a dataset of two images.
READING = [
    "run {}",
    "run --data {} --models random-vit",
    "run --data {table} --models random-vit --class2id_txt {}",
    "run --data {table} --models random-vit --prompts {}",
    "data check {}",
    "data check {}.tar",
    "data check {table} --class2id_txt {}",
    "extract --dataset_split_csv {} --model_name random-vit --save_dir out",
    "extract --dataset_split_csv {table} --class2id_txt {} --model_name random-vit --save_dir out",
    "extract --dataset_split_csv {table} --model_name uni_v1 --weights {}.pth --save_dir out",
    "extract --dataset_split_csv {table} --model_name uni_v1 --weights {}.json --save_dir out",
    "extract --dataset_split_csv {table} --model_name {}.py:Own --save_dir out",
    "evaluate --TASK KNN --train_feature_file {} --test_feature_file {}",
    "robustness {}",
    "mint run --agent replay:{} --tasks quickstart --output out",
    "mint run --agent replay:{}.jsonl.gz --tasks quickstart --output out",
    "mint run --agent human --tasks gsm8k --data {} --output out",
    "mint run --agent human --tasks quickstart --prices {} --output out",
    "mint run --agent local:{} --tasks quickstart --output out",
    "mint run --config {}",
    "mint table {}",
    "mint table {}.csv",
    "mint table {}.csv.gz",
    "mint table {}.jsonl.gz",
    "mint compare {} --first a --second b",
    "mint rescore {}",
]
#: Those that name a folder.
LISTING = [
    "report {} -o site",
    "compare {}",
    "bootstrap --results_dir {}",
    "status {}",
    "serve {}",
    "consult table {}",
    "consult run {} --agent human --output out",
]


def refused(command: str, odd: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What a verb says about the odd thing when it ends with code 2."""
    assert main(command.format(odd, odd, table="table.csv").split()) == 2
    told = capsys.readouterr().err
    for code in ("Traceback", "Error(", "Errno"):
        assert code not in told
    assert len(told.strip().splitlines()) == 1
    return told


@pytest.mark.sample(28)
@pytest.mark.slow
@pytest.mark.parametrize("command", READING)
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_every_verb_says_that_a_pipe_or_a_device_is_no_file(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
    kind: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        Image.new("RGB", (32, 32)).save(tmp_path / f"{name}.png")
    (tmp_path / "table.csv").write_text("image_path,label,split\na.png,0,train\nb.png,0,test\n")
    for ending in ("", ".tar", ".pth", ".json", ".py", ".csv", ".csv.gz", ".jsonl.gz"):
        odd = tmp_path / f"odd{ending}"
        os.mkfifo(odd) if kind == "pipe" else odd.symlink_to("/dev/zero")
    told = refused(command, tmp_path / "odd", capsys)
    assert f"it is a {kind}, not a plain file; save what it gives to a file, and name that" in told


@pytest.mark.parametrize("command", LISTING)
def test_no_verb_takes_a_pipe_for_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo(tmp_path / "odd")
    assert str(tmp_path / "odd") in refused(command, tmp_path / "odd", capsys)


def test_pipes_among_the_files_of_a_results_folder_are_told_by_name(tmp_path: Path) -> None:
    for read, name in RESULT_FILES:
        path = tmp_path / name
        os.mkfifo(path)
        with pytest.raises(HistobenchError, match="it is a pipe, not a plain file") as caught:
            read(path)
        assert name in str(caught.value)


RESULT_FILES: list[tuple[Callable[[Path], Any], str]] = [
    (read_run, "x_complete_results.json"),
    (read_note, "note.json"),
    (read_rows, "results.parquet"),
    (LineJournal, "results.jsonl"),
    (Journal, "journal.jsonl"),
    (lambda path: list(read_records(path)), "tasks.jsonl"),
    (read_cases, "cases.jsonl"),
    (read_cassette, "cassette.parquet"),
    (Tape, "tape.json"),
    (load_image, "picture.png"),
    (sha256_of, "weights.bin"),
]


def test_json_that_is_nested_too_deep_is_no_json() -> None:
    """`json.loads`, which ruff forbids, raises a RecursionError; nobody expects one."""
    with pytest.raises(ValueError, match="nested too deep"):
        parse_json("[" * 100_000)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 50_000, "9" * 100_000])
def test_a_study_that_is_nested_too_deep_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    (tmp_path / "study.json").write_text(text)
    assert main(["consult", "table", str(tmp_path)]) == 2
    assert "study.json is not a Consult study" in capsys.readouterr().err


def test_a_table_of_no_episode_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "outcomes.csv").write_text("x\n")
    assert main(["mint", "table", str(tmp_path / "outcomes.csv")]) == 2
    assert "no finished episode in" in capsys.readouterr().err


@pytest.mark.slow
def test_a_small_archive_that_unpacks_to_gigabytes_is_refused_before_it_fills_the_memory(
    tmp_path: Path,
) -> None:
    bomb = 200 * gzip.compress(b"\0" * (1 << 20))  # one archive of 200 members
    for name, read in (
        ("bomb.json.gz", Tape),
        ("bomb.csv.gz", lambda path: list(read_outcome_table(path))),
        ("bomb.k5.jsonl.gz", lambda path: list(read_recordings(path))),
    ):
        (tmp_path / name).write_bytes(bomb)
        with pytest.raises(HistobenchError, match="it unpacks to more than"):
            read(tmp_path / name)
    (tmp_path / "text.gz").write_bytes(gzip.compress(b"a\r\nb" * 1000))
    with open_unpacked(tmp_path / "text.gz") as content:
        assert content.read() == b"a\r\nb" * 1000
