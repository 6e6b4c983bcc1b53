"""Answers that were paid for once, on disk: an interrupted episode costs nothing when it is played again."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import threading
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from histobench.core.errors import HistobenchError
from histobench.core.files import create_json, read_note
from histobench.core.folders import is_shared
from histobench.core.plain_data import parse_json
from histobench.mint.agents.completion import Completion, Receipt, Sampling, Usage
from histobench.mint.messages.parts import Message, ToolSpec
from histobench.mint.messages.record import part_from_record, part_record


class AnswerCache:
    """A SQLite file: the hash of a request -> the answer as JSON, and what it cost. Safe between threads."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._lock = threading.Lock()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._database = sqlite3.connect(self._path, check_same_thread=False, timeout=30)
        except sqlite3.Error as error:
            raise HistobenchError(f"cannot open the cache of answers {path}: {error}") from error
        # The faster journal needs memory that all readers share, which two machines do not have.
        self._run(f"PRAGMA journal_mode={'DELETE' if is_shared(self._path.parent) else 'WAL'}")
        self._run("CREATE TABLE IF NOT EXISTS answers (request TEXT PRIMARY KEY, answer TEXT, cost REAL)")

    def find(self, key: str) -> Completion | None:
        row = self._run("SELECT answer FROM answers WHERE request = ?", key)
        return _completion(row[0]) if row else None

    def add(self, key: str, completion: Completion, cost: float | None) -> None:
        self._run(
            "INSERT OR REPLACE INTO answers VALUES (?, ?, ?)", key, json.dumps(_record(completion)), cost
        )

    def close(self) -> None:
        with self._lock:
            self._database.close()

    def _run(self, statement: str, *values: Any) -> Any:
        try:
            with self._lock, self._database:
                return self._database.execute(statement, values).fetchone()
        except sqlite3.Error as error:
            raise HistobenchError(f"cannot use the cache of answers {self._path}: {error}") from error


class AnswerFiles(AnswerCache):
    """The same for several processes, perhaps on several machines: a folder with one file per answer."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find(self, key: str) -> Completion | None:
        return _completion((read_note(self._file(key)) or {}).get("answer"))

    def add(self, key: str, completion: Completion, cost: float | None) -> None:
        create_json(self._file(key), {"answer": _record(completion), "cost": cost})

    def close(self) -> None:
        """Nothing is open."""

    def _file(self, key: str) -> Path:
        return self._folder / key[:2] / f"{key}.json"


def _record(completion: Completion) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "text": completion.text,
        "finish": completion.finish,
        "usage": asdict(completion.usage),
    }
    if completion.receipt:
        answer["receipt"] = asdict(completion.receipt)
    if completion.discarded.total_tokens:
        answer["discarded"] = asdict(completion.discarded)
    if completion.parts:
        answer["parts"] = [part_record(part, inline=True) for part in completion.parts]
    return answer


def _completion(answer: Any) -> Completion | None:
    """What `_record` made, as JSON or read; a damaged answer is asked for again."""
    try:
        answer = parse_json(answer) if isinstance(answer, str) else answer
        receipt = answer.get("receipt")
        return Completion(
            answer["text"],
            Usage(**answer["usage"]),
            answer["finish"],
            cached=True,
            discarded=Usage(**answer.get("discarded") or {}),
            parts=tuple(part_from_record(part) for part in answer.get("parts") or ()),
            receipt=Receipt(**receipt) if receipt else None,
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def request_key(
    base_url: str,
    model: str,
    messages: Sequence[Message],
    sampling: Sampling,
    sample: int,
    functions: Sequence[ToolSpec] = (),
) -> str:
    """The same for the same request; `sample` tells repeated runs apart."""
    request: dict[str, Any] = {
        "base_url": base_url,
        "model": model,
        "messages": [
            [message.role, message.content, *([[*map(part_record, message.parts)]] if message.parts else [])]
            for message in messages
        ],
        "sampling": sampling.as_key(),
        "sample": sample,
    }
    if functions:
        request["functions"] = [asdict(spec) for spec in functions]
    return hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()
