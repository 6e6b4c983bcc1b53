"""A run of agents as units of work: parts of its episodes, which workers on any machine play."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from types import SimpleNamespace
from typing import Any

from histobench.core.claim import STALE
from histobench.core.errors import DiskFullError, HistobenchError, error_text
from histobench.core.progress import Progress
from histobench.core.redaction import without_credentials
from histobench.mint.agents.agent_spec import OWN_KEY, PLAIN_HTTP, PROVIDERS, parse_agent
from histobench.mint.runs.cell_store import CellStore
from histobench.mint.runs.episode_queue import EpisodeCounter, RunOutcome, place_of
from histobench.mint.runs.planned_cell import PlannedCell
from histobench.mint.runs.play import (
    Loaded,
    OpenDisplay,
    Played,
    agents_of,
    load_cells,
    no_display,
    open_terms,
    play,
)
from histobench.mint.runs.run_options import RunOptions
from histobench.mint.runs.writers import (
    RUNS,
    Part,
    Writer,
    check_alone,
    finished_by_writers,
    open_writer,
    spent_by_writers,
)
from histobench.mint.tasks.base import Task
from histobench.work.clusters import MOST_TASKS
from histobench.work.engines import AGENTS
from histobench.work.run_folder import FAILED, JobArray, RunFolder, Unit

PLAY = "play"


class PartedRun(RunFolder):
    """Each unit is a part of the episodes; its spec has the options, and the dollars spent before."""

    track = "mint"
    runs = RUNS
    kinds = (PLAY,)
    patience = STALE + 10  # as long as the claim of a dead worker lasts

    def open_worker(self, progress: Progress, say: Callable[[str], None]) -> PartWorker:
        return PartWorker(self, say=say)

    def steps(self) -> list[JobArray]:
        return [JobArray(AGENTS, self.kinds, len(self.units()), on_device=True, is_shared=False)]

    def play_part(
        self, options: RunOptions, more: Mapping[str, Any], writer: Writer, display: OpenDisplay
    ) -> Played:
        return play(options, display, writer=writer)

    def spec(self, unit: Unit | None = None) -> tuple[RunOptions, Part, float, dict[str, Any]]:
        """Options, part, dollars spent before, and more; of the first unit, unless one is given."""
        spec = (unit or self.units()[0]).spec
        options = RunOptions.of(SimpleNamespace(**spec["options"]))  # ignores those of older versions
        return options, Part(spec["part"], spec["of"]), spec["spent"], spec["more"]

    def problems(self) -> list[str]:
        found: list[str] = []
        for unit in self.units():
            note = self.output(unit.id) or {}
            found += [note["reason"]] if note.get("state") == FAILED else note.get("problems", [])
        return list(dict.fromkeys(found))


class PartWorker:
    """Plays one part after the other."""

    def __init__(
        self, run: PartedRun, display: OpenDisplay = no_display, say: Callable[[str], None] = lambda _: None
    ) -> None:
        self._run = run
        self._display = display
        self._say = say
        self.incomplete = self.ended = False

    def perform(self, units: Sequence[Unit]) -> None:
        for unit in units:
            options, part, spent, more = self._run.spec(unit)
            writer = open_writer(self._run.results, part, spent_before=spent)
            try:
                outcome = self._run.play_part(options, more, writer, self._display).outcome
            except DiskFullError:  # not even this could be written down
                raise
            except Exception as error:  # no one else tries the same: it may have cost money
                known = isinstance(error, HistobenchError | OSError)
                prefix = "" if known else f"unexpected {type(error).__name__}: "
                self._run.fail(unit, f"{prefix}{error_text(error)}")
                raise
            problems = [*outcome.problems, *([outcome.stopped] if outcome.stopped else [])]
            standing = outcome.standing
            for text in (f"{standing.done} of {standing.total} episodes of part {part.name}", *problems):
                self._say(text)
            self.incomplete |= not outcome.complete
            self.ended |= outcome.failed
            self._run.finish(unit, problems=problems)

    def close(self) -> None:
        """Nothing is kept for the next part."""


def check_parts(parts: int) -> None:
    if not 1 <= parts <= MOST_TASKS:
        raise HistobenchError(f"`workers` must be a number from 1 to {MOST_TASKS}, not {parts}")


def plan_parts(
    options: RunOptions,
    parts: int,
    cells: Loaded | None = None,
    more: Mapping[str, Any] | None = None,
    *,
    kind: type[PartedRun] = PartedRun,
    engine: str = "",
) -> PartedRun:
    check_parts(parts)
    loaded, output = cells or load_cells(options)
    planned = [cell for cell, _ in loaded]
    more = dict(more or {})
    _check_portable(planned, more.get("expert"))
    check_alone(output)
    terms = open_terms(options, output, agents_of(planned))
    if terms.cache is not None:
        terms.cache.close()
    for cell in planned:
        for repeat in range(1, options.repeat + 1):
            CellStore(output / place_of(cell.cell, repeat), cell.settings(), cell.record()).close()
    spec = {
        "options": asdict(replace(options, output=str(output.absolute()))),
        "of": parts,
        "spent": terms.costs.spent - spent_by_writers(output),
        "more": more,
    }
    datasets = ", ".join(dict.fromkeys(cell.dataset.name for cell in planned))
    agents = ", ".join(dict.fromkeys(cell.cell.model for cell in planned))
    units = [Unit(PLAY, datasets, agents, {**spec, "part": number}) for number in range(parts)]
    return kind.create(output, {"engine": engine}, units)


def count(run: PartedRun, loaded: Sequence[tuple[PlannedCell, Sequence[Task]]]) -> EpisodeCounter:
    options, *_ = run.spec()
    places = [
        (place_of(cell.cell, repeat), tasks)
        for cell, tasks in loaded
        for repeat in range(1, options.repeat + 1)
    ]
    counter = EpisodeCounter(sum(len(tasks) for _, tasks in places))
    for place, tasks in places:
        here = finished_by_writers(run.results, place, and_alone=True)
        known = [here.get(str(task.task_id)) for task in tasks]
        counter.add_earlier(known.count(True), known.count(False))
    return counter


def outcome_of(run: PartedRun, counter: EpisodeCounter) -> RunOutcome:
    _, _, spent, _ = run.spec()
    standing = counter.standing(spent=spent + spent_by_writers(run.results))
    return RunOutcome(standing, problems=tuple(run.problems()))


def _check_portable(cells: Sequence[PlannedCell], expert: str | None) -> None:
    """What only makes sense in this process, or must not be written into a file."""
    experts = [cell.expert.spec for cell in cells if cell.expert is not None]
    asked = [*(cell.agent for cell in cells), *(spec for spec in experts if spec is not None)]
    if expert:
        asked.append(parse_agent(expert))
    for address in (spec.base_url for spec in asked):
        if address and without_credentials(address) != address:
            raise HistobenchError(
                "an address with a key or a password in it is not written down for other machines; leave it "
                "out and set HISTOBENCH_API_KEY"
            )
    if any(spec.kind == "human" for spec in asked):
        raise HistobenchError("a human plays in one terminal: `engine` local")


def keys() -> dict[str, str]:
    names = (*(name for _, names in PROVIDERS.values() for name in names), OWN_KEY, PLAIN_HTTP)
    return {name: os.environ[name] for name in names if name in os.environ}
