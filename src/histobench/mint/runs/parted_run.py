"""A run in parts, for the workers of Ray and Slurm."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from histobench.core import clusters
from histobench.core.address import without_credentials
from histobench.core.errors import HistobenchError
from histobench.core.files import HAND_WRITTEN, read_plain, unreadable, write_json, write_text
from histobench.core.plain_data import parse_json
from histobench.mint.agents.spec import OWN_KEY, PLAIN_HTTP, PROVIDERS, parse_agent
from histobench.mint.results.stored_episode import WRITERS
from histobench.mint.runs.cell_store import CellStore
from histobench.mint.runs.episode_counter import EpisodeCounter
from histobench.mint.runs.options import RunOptions
from histobench.mint.runs.planned_cell import PlannedCell
from histobench.mint.runs.play import (
    Display,
    Loaded,
    Played,
    agents_of,
    load_cells,
    no_display,
    open_terms,
    play,
)
from histobench.mint.runs.run import RunOutcome, place_of
from histobench.mint.runs.writers import (
    JOB,
    RUNS,
    Part,
    Writer,
    check_alone,
    finished_by_writers,
    open_writer,
    spent_by_writers,
)
from histobench.mint.tasks.base import Task

#: As many as an array of Slurm may have tasks.
MOST_PARTS = clusters.MOST_TASKS


@dataclass(frozen=True)
class PartedRun:
    """Options and the number of parts, in a file that every worker reads; `spent` are dollars of before.

    `more` is what a study of its own kind needs besides the options.
    """

    file: Path
    options: RunOptions
    parts: int
    spent: float
    output: Path
    more: Mapping[str, Any] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        """Where the run's own files lie."""
        return self.file.parent


def check_parts(parts: int) -> None:
    """Raise where a run cannot have so many parts."""
    if not 1 <= parts <= MOST_PARTS:
        raise HistobenchError(f"`workers` must be a number from 1 to {MOST_PARTS}, not {parts}")


def plan_parts(
    options: RunOptions,
    parts: int,
    cells: Loaded | None = None,
    more: Mapping[str, Any] | None = None,
) -> PartedRun:
    """Check everything that can be checked here, and write down what the workers need to know.

    `cells` are those of `load_cells` for these options, unless they are given.
    """
    check_parts(parts)
    loaded, output = cells or load_cells(options)
    more = dict(more or {})
    _check_portable(options, [cell for cell, _ in loaded], more.get("expert"))
    check_alone(output)
    terms = open_terms(options, output, agents_of(cell for cell, _ in loaded))
    if terms.cache is not None:
        terms.cache.close()
    for cell, _ in loaded:
        for repeat in range(1, options.repeat + 1):
            CellStore(output / place_of(cell.cell, repeat), cell.settings(), cell.record()).close()
    spent = terms.costs.spent - spent_by_writers(output)
    options = replace(options, output=str(output.absolute()))
    note = {"options": asdict(options), "parts": parts, "spent": spent, "more": more, "run": uuid.uuid4().hex}
    text = json.dumps(note, indent=2) + "\n"
    file = output / WRITERS / RUNS / f"{time.strftime('%Y%m%d-%H%M%S')}-{_digest(text.encode())}.json"
    write_text(file, text)
    return PartedRun(file, options, parts, spent, output, more)


def read_parts(file: Path) -> PartedRun:
    """As `plan_parts` wrote it."""
    try:
        data = read_plain(file, limit=HAND_WRITTEN)
    except OSError as error:
        raise unreadable(file, error) from error
    named = file.stem.rpartition("-")[2]
    # It names servers, which are sent keys, and tools, which are run: workers follow the one they were given.
    if len(named) == len(_digest(data)) and named != _digest(data):
        raise HistobenchError(f"{file} was changed after the run began, perhaps by another user; run again")
    try:
        note = parse_json(data.decode())
        options = RunOptions(**note["options"])
        parts, spent, more = int(note["parts"]), float(note["spent"]), dict(note.get("more", {}))
        return PartedRun(file, options, parts, spent, file.parents[2], more)
    except (KeyError, TypeError, ValueError) as error:
        raise HistobenchError(f"{file} does not describe a run in parts ({error})") from error


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]


def play_part(file: Path, number: int, display: Display) -> Played:
    """Play the part with this number, counted from 0."""
    with open_part(file, number) as (run, writer):
        return play(run.options, display, writer=writer)


@contextmanager
def open_part(file: Path, number: int) -> Iterator[tuple[PartedRun, Writer]]:
    """The run that a file describes, and the folder of whoever plays this part of it."""
    run = read_parts(file)
    if not 0 <= number < run.parts:
        raise HistobenchError(f"{file} has the parts 0 to {run.parts - 1}, not {number}")
    with open_writer(run.output, Part(number, run.parts), spent_before=run.spent) as writer:
        yield run, writer


def count(run: PartedRun, loaded: Sequence[tuple[PlannedCell, Sequence[Task]]]) -> EpisodeCounter:
    """All episodes of the run and those that are on disk, whoever has played them."""
    places = [
        (place_of(cell.cell, repeat), tasks)
        for cell, tasks in loaded
        for repeat in range(1, run.options.repeat + 1)
    ]
    counter = EpisodeCounter(sum(len(tasks) for _, tasks in places))
    for place, tasks in places:
        here = finished_by_writers(run.output, place, and_alone=True)
        known = [here.get(str(task.task_id)) for task in tasks]
        counter.add_earlier(known.count(True), known.count(False))
    return counter


def outcome_of(run: PartedRun, counter: EpisodeCounter, problems: Sequence[str] = ()) -> RunOutcome:
    """How far the run is, and what kept workers from going on."""
    spent = run.spent + spent_by_writers(run.output)
    return RunOutcome(counter.standing(spent=spent), problems=tuple(problems))


def _check_portable(options: RunOptions, cells: Sequence[PlannedCell], expert: str | None) -> None:
    """What only makes sense in this process, or must not be written into a file.

    `expert` is one that is written down whether a cell has it or not.
    """
    if options.batch:
        raise HistobenchError("`batch` needs `engine` local: a batch is the work of one process")
    experts = [cell.expert.spec for cell in cells if cell.expert is not None]
    asked = [*(cell.agent for cell in cells), *(spec for spec in experts if spec is not None)]
    if expert:
        asked.append(parse_agent(expert))
    for address in (server.base_url for spec in asked for server in spec.servers):
        if address and without_credentials(address) != address:
            raise HistobenchError(
                "an address with a key or a password in it is not written down for other machines; leave it "
                "out and set HISTOBENCH_API_KEY"
            )
    if any(spec.kind == "human" for spec in asked):
        raise HistobenchError("a human plays in one terminal: `engine` local")


# Workers of a run in parts on other machines: as an array of Slurm, or as tasks of a Ray cluster.

#: How often Ray gives a part whose worker or node was lost to another.
RETRIES = 3
#: Seconds between two looks at how far the workers are.
PAUSE = 5.0
#: What a worker takes from the environment of the command; nothing of it is written down.
ENVIRONMENT = (*(name for _, names in PROVIDERS.values() for name in names), OWN_KEY, PLAIN_HTTP)


#: Plays a part of the run that a file describes; at the top of a module, so that workers find it.
PlayPart = Callable[[Path, int, Display], Played]


def submit(run: PartedRun, options: Mapping[str, str], *, track: str = "mint") -> str:
    """Queue an array with one task for each part, `histobench TRACK part`; gives the job's number."""
    logs = run.folder.parent / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    job = clusters.submit_array(
        "agents",
        ["worker", track, str(run.file.absolute()), "$SLURM_ARRAY_TASK_ID"],
        tasks=run.parts,
        options=options,
        script=run.file.with_suffix(".sh"),
        logs=logs,
    )
    write_json(run.file.with_suffix(JOB), {"job": job})
    return job


def play_on_ray(run: PartedRun, watch: Callable[[], None], play: PlayPart = play_part) -> list[str]:
    """Have all parts played by the cluster that `connect` found; gives what kept workers from going on."""
    import ray

    environment = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
    task = ray.remote(num_cpus=1, max_retries=RETRIES)(_play)
    waiting = [
        task.remote(str(run.file.absolute()), number, os.getcwd(), environment, play)
        for number in range(run.parts)
    ]
    problems: list[str] = []
    try:
        while waiting:
            ready, waiting = ray.wait(waiting, num_returns=1, timeout=PAUSE)
            with contextlib.suppress(HistobenchError):  # a glance that fails is no reason to end the workers
                watch()
            for one in ready:
                try:
                    problems += [text for text in ray.get(one) if text not in problems]
                except ray.exceptions.RayTaskError as error:
                    cause = getattr(error, "cause", None) or error
                    problems.append(f"a worker ended: {type(cause).__name__}: {cause}")
                except ray.exceptions.RayError as error:
                    problems.append(f"a worker was lost {RETRIES + 1} times: {str(error).splitlines()[0]}")
    finally:
        ray.shutdown()
    return problems


def _play(file: str, number: int, place: str, environment: dict[str, str], play: PlayPart) -> Sequence[str]:
    """What runs on a node."""
    os.chdir(place)
    os.environ.update(environment)
    try:
        outcome = play(Path(file), number, no_display).outcome
    except HistobenchError as error:
        return [str(error)]
    return [*outcome.problems, *([outcome.stopped] if outcome.stopped else [])]
