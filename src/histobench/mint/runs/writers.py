"""Several processes play one run, perhaps on several machines: each a part, into files that only it writes.

    OUTPUT/writers/2of8-3fa1c07e/             what one process has played, laid out as OUTPUT itself
    OUTPUT/writers/2of8-3fa1c07e/spent.json   the dollars it has paid so far

Readers of OUTPUT read the writers' folders with it; an episode that two processes have played counts once.
"""

from __future__ import annotations

import hashlib
import os
import socket
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from histobench.core.claim import holder_of, try_claim
from histobench.core.errors import HistobenchError
from histobench.core.files import names_in, read_note, write_json
from histobench.mint.results.stored_episode import FILE, WRITER, WRITERS, finished_in
from histobench.work import clusters
from histobench.work.engines import AGENTS, remove_keys
from histobench.work.run_folder import RunFolder, holders_of

SPENT = "spent.json"
RUNS = "writers/runs"
#: Held by the command that begins such a run, until its workers can be seen.
BEGINNING = "writers/beginning.json"


@dataclass(frozen=True)
class Part:
    number: int
    of: int

    @property
    def name(self) -> str:
        return f"{self.number + 1}of{self.of}"

    def has(self, place: str, task_id: object) -> bool:
        digest = hashlib.sha256(f"{place}/{task_id}".encode()).digest()
        return int.from_bytes(digest[:8], "big") % self.of == self.number


@dataclass(frozen=True)
class Writer:
    output: Path
    part: Part
    folder: Path
    spent_before: float = 0.0  # dollars, by runs in one process

    def keep_spent(self, dollars: float, held: float = 0.0) -> None:
        write_json(self.folder / SPENT, {"dollars": dollars, "held": held})

    def spent_by_others(self) -> tuple[float, float]:
        paid = spent_by_writers(self.output, besides=self)
        return paid, spent_by_writers(self.output, besides=self, key="held")


def open_writer(output: Path, part: Part, *, spent_before: float = 0.0) -> Writer:
    return Writer(output, part, output / WRITERS / f"{part.name}-{uuid.uuid4().hex[:8]}", spent_before)


@contextmanager
def beginning(output: Path) -> Iterator[None]:
    """Keep other runs from being begun here while this one is begun, or waits for its workers."""
    claim = try_claim(output / BEGINNING)
    if claim is None:
        raise _another_begins(output)
    try:
        yield
    finally:
        claim.release()


def _another_begins(output: Path) -> HistobenchError:
    return HistobenchError(f"another run begins in {output}; wait for it, or give another `results`")


def check_alone(output: Path) -> None:
    """Raise while workers play here, or are queued: their episodes would be played, and paid for, twice."""
    other = holder_of(output / BEGINNING)
    if other is not None and (other.get("host"), other.get("pid")) != (socket.gethostname(), os.getpid()):
        raise _another_begins(output)
    runs = list(RunFolder.every(output, RUNS))
    for run in runs:
        if at_work := holders_of(run):
            named = f"{at_work[0].get('host', 'another')} (process {at_work[0].get('pid', 'unknown')})"
            raise HistobenchError(
                f"{output} is being played by {len(at_work)} workers, such as {named}; wait for them, or "
                "give another `results`"
            )
    names = [clusters.job_name(AGENTS, run.path) for run in runs if run.engine == "slurm"]
    for (_, job), tasks in (clusters.queued_jobs(names, strict=True) if names else {}).items():
        raise HistobenchError(
            f"job {job} of Slurm plays {output} with {tasks} tasks; wait for it, or end it: scancel {job}"
        )
    for run in runs:
        remove_keys(run)  # left by jobs that were canceled


def spent_by_writers(output: Path, *, besides: Writer | None = None, key: str = "dollars") -> float:
    total = 0.0
    for folder in _folders(output):
        if besides is None or folder != besides.folder:
            dollars = (read_note(folder / SPENT) or {}).get(key)
            total += float(dollars) if isinstance(dollars, int | float) else 0.0
    return total


def finished_by_writers(output: Path, place: str, *, and_alone: bool) -> dict[str, bool]:
    """Task id -> success of the episodes of a cell that writers have finished, or runs in one process too."""
    files = [folder / place / FILE for folder in _folders(output)]
    if and_alone:
        files = [output / place / FILE, *files]
    finished: dict[str, bool] = {}
    for file in files:  # of two, the first counts, as for readers of the results
        finished = {**finished_in(file), **finished}
    return finished


def _folders(output: Path) -> list[Path]:
    """The folders of all writers; half a listing would pass for the whole and is an error."""
    return [output / WRITERS / name for name in names_in(output / WRITERS) if WRITER.fullmatch(name)]
