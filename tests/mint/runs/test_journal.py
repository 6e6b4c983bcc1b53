"""Lines that survive whatever happens to the process."""

from __future__ import annotations

import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from histobench.core.errors import HistobenchError
from histobench.core.files import read_json_lines
from histobench.mint.results.stored_episode import read_details
from histobench.mint.runs.cell_store import CellStore, LineJournal

LINES = [{"id": 0, "text": "first"}, {"id": 1, "text": "zweite \u2028 Zeile\n"}, {"id": 2, "text": "\ud800"}]


def records(journal: LineJournal) -> list[Any]:
    return [record for _, record in read_json_lines(journal.path)]


def test_a_file_cut_at_any_byte_loses_the_torn_line_only(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    whole = b"".join(json.dumps(line).encode() + b"\n" for line in LINES)
    ends = [index + 1 for index, byte in enumerate(whole) if byte == 10]
    for size in range(len(whole) + 1):
        path.write_bytes(whole[:size])
        journal = LineJournal(path)
        kept = sum(size >= end - 1 for end in ends)  # a line is whole with its last brace
        assert records(journal) == LINES[:kept]
        journal.append({"id": "new"})
        assert records(journal) == [*LINES[:kept], {"id": "new"}]
        journal.close()


def test_one_process_writes_at_a_time(tmp_path: Path) -> None:
    journal = LineJournal(tmp_path / "lines.jsonl")
    with pytest.raises(HistobenchError, match="another run"):
        LineJournal(tmp_path / "lines.jsonl")
    journal.close()
    LineJournal(tmp_path / "lines.jsonl").close()


def test_a_full_disk_leaves_no_half_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = LineJournal(tmp_path / "lines.jsonl")
    journal.append(LINES[0])
    real = os.write

    def write(descriptor: int, data: bytes) -> int:
        real(descriptor, data[:5])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", write)
    with pytest.raises(OSError, match="No space left"):
        journal.append(LINES[1])
    monkeypatch.undo()
    journal.append(LINES[2])
    assert records(journal) == [LINES[0], LINES[2]]
    journal.close()


def episode(task_id: int, success: bool = True) -> dict:
    return {"state": {"success": success}, "task": {"task_id": task_id}}


def test_a_folder_remembers_what_is_done_and_under_which_settings(tmp_path: Path) -> None:
    settings = {"rule": "strict", "agent": "a"}
    store = CellStore(tmp_path / "cell", settings, {**settings, "histobench": "1"})
    store.add(episode(3, success=False), {"task_id": 3, "cost": 0.5})
    store.close()
    again = CellStore(tmp_path / "cell", settings, {**settings, "histobench": "2"})
    assert again.finished == {"3": False}
    again.close()
    with pytest.raises(HistobenchError, match="rule was 'strict', now 'published'"):
        CellStore(tmp_path / "cell", {**settings, "rule": "published"}, {})


def test_details_without_a_result_belong_to_an_episode_that_is_played_again(tmp_path: Path) -> None:
    store = CellStore(tmp_path / "cell", {}, {})
    store.add(episode(1), {"task_id": 1, "cost": 1.0})
    store.close()
    results, details = tmp_path / "cell" / "results.jsonl", tmp_path / "cell" / "details.jsonl"
    results.write_bytes(b"")  # killed between the two
    with details.open("a") as file:
        file.write('{"task_id": 2, "co')
    store = CellStore(tmp_path / "cell", {}, {})
    assert store.finished == {}
    store.add(episode(1), {"task_id": 1, "cost": 2.0})
    store.close()
    assert {name: entry["cost"] for name, entry in read_details(results).items()} == {"1": 2.0}


def test_many_threads_write_to_one_folder(tmp_path: Path) -> None:
    store = CellStore(tmp_path / "cell", {}, {})
    start = threading.Barrier(16)

    def add(number: int) -> None:
        start.wait()
        store.add(episode(number), {"task_id": number})
        store.add_failure({"task_id": number})

    with ThreadPoolExecutor(16) as threads:
        list(threads.map(add, range(16)))
    store.close()
    again = CellStore(tmp_path / "cell", {}, {})
    assert set(again.finished) == {str(number) for number in range(16)}
    again.close()
    assert len(read_details(tmp_path / "cell" / "results.jsonl")) == 16
