"""Batches: the questions of all running episodes, sent together in a file of the common batch format.

One line of the file is one request: `custom_id`, `method`, `url`, `body`; one line of the answer is
`custom_id` and `response` with `status_code` and `body`. OpenAI's batch interface and `vllm run-batch` read
and write it.
"""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from histobench.core.errors import HistobenchError
from histobench.core.files import atomic_path, read_plain, read_plain_text, write_text
from histobench.core.plain_data import parse_json
from histobench.core.redaction import joined, redact
from histobench.mint.agents.client import Bill, Endpoint, clean_completion
from histobench.mint.agents.completion import FILTERED, Completion, MalformedAnswerError, ProviderError
from histobench.mint.agents.provenance import with_receipt
from histobench.mint.agents.providers.provider import (
    Capabilities,
    ProviderAPI,
    Question,
    is_filtered,
    is_too_long,
)
from histobench.mint.envs.episode import RequestRefusedError

#: A batch is sent when every running episode waits for an answer and no one has come for so long.
QUIET_S = 1.0
_POLL_S = 0.1


class CommandCarrier:
    """A program that turns one file into the other, such as `vllm run-batch -i {requests} -o {answers}`."""

    def __init__(self, command: Sequence[str]) -> None:
        if not all(any(mark in word for word in command) for mark in ("{requests}", "{answers}")):
            raise HistobenchError("a batch command names {requests} and {answers}: what it reads and writes")
        self._command = list(command)

    def carry(self, requests: Path, answers: Path) -> None:
        """Write `answers`, a line for each line of `requests`; raises `ProviderError`."""
        words = self._command
        for mark, place in (("{requests}", requests), ("{answers}", answers)):
            words = [word.replace(mark, str(place)) for word in words]
        try:
            done = subprocess.run(words, capture_output=True, text=True)
        except OSError as error:
            raise ProviderError(f"{words[0]} cannot be run: {error.strerror}", hopeless=True) from error
        if done.returncode or not answers.is_file():
            reason = (done.stderr.strip().splitlines() or ["it gave no reason"])[-1]
            raise ProviderError(
                f"{words[0]} wrote no answers (exit {done.returncode}): {redact(reason)[:300]}"
            )


class HostedCarrier:
    """OpenAI's batch interface: the file is uploaded, the batch waited for, the answers fetched."""

    def __init__(self, api: ProviderAPI, *, poll_s: float = 30.0) -> None:
        self._base = api.base_url
        self._headers = api.bearer
        self._poll_s = poll_s

    def carry(self, requests: Path, answers: Path) -> None:
        """Write `answers`, a line for each line of `requests`; raises `ProviderError`."""
        import httpx

        first = parse_json(read_plain_text(requests).partition("\n")[0])
        try:
            with httpx.Client(headers=self._headers, timeout=120.0) as client:
                file = self._json(
                    client.post(
                        joined(self._base, "files"),
                        files={"file": (requests.name, read_plain(requests), "application/jsonl")},
                        data={"purpose": "batch"},
                    )
                )
                order = {"input_file_id": file["id"], "endpoint": first["url"], "completion_window": "24h"}
                batch = self._json(client.post(joined(self._base, "batches"), json=order))
                while batch["status"] not in ("completed", "failed", "expired", "cancelled"):
                    time.sleep(self._poll_s)
                    batch = self._json(client.get(joined(self._base, f"batches/{batch['id']}")))
                text = b""
                for name in ("output_file_id", "error_file_id"):
                    if batch.get(name):
                        response = client.get(joined(self._base, f"files/{batch[name]}/content"))
                        response.raise_for_status()
                        text += response.content.rstrip(b"\n") + b"\n"
        except (httpx.HTTPError, KeyError, TypeError, ValueError) as error:
            raise ProviderError(f"the batch could not be run: {redact(str(error))[:300]}") from error
        if not text:
            raise ProviderError(f"the batch ended as {batch['status']} without answers")
        with atomic_path(answers) as temporary:
            temporary.write_bytes(text)

    def _json(self, response: Any) -> dict[str, Any]:
        response.raise_for_status()
        found: dict[str, Any] = response.json()
        return found


BatchCarrier = CommandCarrier | HostedCarrier


class BatchEndpoint(Endpoint):
    """Gathers the questions of all running episodes and sends them as one batch, turn after turn."""

    def __init__(self, *args: Any, carrier: BatchCarrier, folder: Path, **options: Any) -> None:
        super().__init__(*args, **options)
        self._carrier = carrier
        self._folder = folder
        self._changed = threading.Condition()
        self._episodes = 0
        self._waiting: list[tuple[Question, Future[Completion], Bill]] = []
        self._last = time.monotonic()
        self._ended = False
        self._thread: threading.Thread | None = None

    def begin_episode(self) -> None:
        with self._changed:
            self._episodes += 1
            self._last = time.monotonic()

    def end_episode(self) -> None:
        with self._changed:
            self._episodes -= 1
            self._changed.notify_all()

    def deliver(self, question: Question) -> Completion:
        # Without waiting: a batch waits for every running episode, so waiting for its cost would never end.
        self.costs.hold(question.worst or 0.0)
        bill, answer = Bill(), Future[Completion]()
        try:
            with self._changed:
                if self._ended:
                    raise ProviderError("the request was interrupted")
                self._waiting.append((question, answer, bill))
                self._last = time.monotonic()
                if self._thread is None:
                    self._thread = threading.Thread(target=self._serve, name="batches", daemon=True)
                    self._thread.start()
            completion = answer.result()
            bill.answered = True
            return completion
        finally:
            self.settle(question, bill)

    def stop(self) -> None:
        with self._changed:
            self._ended = True
            waiting, self._waiting = self._waiting, []
            self._changed.notify_all()
        for _, answer, _ in waiting:
            answer.set_exception(ProviderError("the request was interrupted"))
        super().stop()

    def close(self) -> None:
        self.stop()
        super().close()

    def _serve(self) -> None:
        while True:
            with self._changed:
                while not self._ended and not self._is_complete():
                    self._changed.wait(_POLL_S)
                if self._ended:
                    return
                batch, self._waiting = self._waiting, []
            self._send(batch)

    def _is_complete(self) -> bool:
        everyone = bool(self._waiting) and len(self._waiting) >= self._episodes
        return everyone and time.monotonic() - self._last >= QUIET_S

    def _send(self, batch: list[tuple[Question, Future[Completion], Bill]]) -> None:
        for _, _, bill in batch:
            bill.sent = True
        try:
            answers = self._answers([question for question, _, _ in batch])
        except Exception as error:  # the waiting episodes have to get it, whatever it is
            for _, answer, _ in batch:
                answer.set_exception(
                    error if isinstance(error, ProviderError) else ProviderError(f"the batch failed: {error}")
                )
            return
        for number, (question, answer, bill) in enumerate(batch):
            try:
                answer.set_result(self._completion(answers.get(f"request-{number}"), question, bill))
            except Exception as error:  # a refusal is this episode's alone
                answer.set_exception(error)

    def _answers(self, questions: Sequence[Question]) -> dict[str, Any]:
        number = 1 + sum(1 for _ in self._folder.glob("batch-*.requests.jsonl"))
        requests = self._folder / f"batch-{number:04d}.requests.jsonl"
        answers = self._folder / f"batch-{number:04d}.answers.jsonl"
        lines = []
        for position, question in enumerate(questions):
            request = self.api.request(question, Capabilities())
            order = {"method": "POST", "url": urlsplit(request.url).path, "body": request.body}
            lines.append(json.dumps({"custom_id": f"request-{position}", **order}) + "\n")
        write_text(requests, "".join(lines))
        self._carrier.carry(requests, answers)
        found: dict[str, Any] = {}
        for text in read_plain_text(answers).splitlines():
            if text.strip():
                record = parse_json(text)
                found[record["custom_id"]] = record.get("response") or {"error": record.get("error")}
        return found

    def _completion(self, response: Mapping[str, Any] | None, question: Question, bill: Bill) -> Completion:
        if response is None or not isinstance(response.get("body"), Mapping):
            raise ProviderError(f"the batch holds no answer ({redact(str(response))[:200]})")
        body, status = response["body"], response.get("status_code", 200)
        text, problem = json.dumps(body), None
        bill.note(self.api, status, text, body)
        if status == 200:
            try:
                completion = clean_completion(self.api, body, question.sampling)
            except MalformedAnswerError as error:
                raise ProviderError(f"not an answer: {redact(str(error))[:200]}") from error
        else:
            problem = f"HTTP {status}: {redact(text)[:200]}"
            if not is_filtered(status, text):
                if is_too_long(status, text):
                    raise RequestRefusedError(problem)
                raise ProviderError(problem)
            completion = Completion("", finish=f"{FILTERED}:HTTP {status}")
        request = self.api.request(question, Capabilities())
        settings = (question.sampling, Capabilities(), body)
        return with_receipt(completion, self.api, request, *settings, problem=problem)
