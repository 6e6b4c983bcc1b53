"""Carries out a run: many episodes at a time, each on disk as soon as it has finished."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path

from histobench.mint.agents.agent import Player
from histobench.mint.agents.agent_spec import AgentSpec
from histobench.mint.agents.completion import ProviderError, Sampling
from histobench.mint.agents.costs import CostLimitError, CostTracker
from histobench.mint.configs.cell import Cell
from histobench.mint.envs.action import Outcome
from histobench.mint.runs.cell_store import CellStore
from histobench.mint.runs.episode_run import EpisodeStoppedError, RunContext, run_episode
from histobench.mint.runs.planned_cell import PlannedCell
from histobench.mint.runs.writers import Part, Writer, finished_by_writers
from histobench.mint.tasks.base import CheckerError, Task

#: So many episodes in a row that no provider let finish, for each episode at a time, end the run.
FAILURES_PER_WORKER = 3
#: So many episodes whose checker raised end the run: the next will raise, too.
CHECKER_ERRORS = 3
WINDOW = 200
#: Seconds within which the system that has ended the sandbox has ended this process too, if it was a cluster.
LAST_WORDS = 2.0
#: The folder of the second, third, ... time that the same cells are played.
REPEAT = "repeat{number}"

#: Who a specification with its sampling names; the flag says whether as an expert.
OpenPlayer = Callable[[AgentSpec, Sampling, bool], Player]


@dataclass(frozen=True)
class PendingEpisode:
    planned: PlannedCell
    task: Task
    repeat: int
    store: CellStore
    player: Player
    expert: Player | None


@dataclass(frozen=True)
class Standing:
    """One moment of a run. `seconds_left` is unknown until an episode has finished."""

    total: int
    done: int = 0
    earlier: int = 0  # of these, finished by an earlier run
    successes: int = 0
    failures: int = 0
    tokens: int = 0
    spent: float = 0.0
    unpriced: int = 0
    seconds: float = 0.0
    seconds_left: float | None = None

    @property
    def success_rate(self) -> float | None:
        return 100 * self.successes / self.done if self.done else None


class EpisodeCounter:
    def __init__(self, total: int) -> None:
        self._start = time.monotonic()
        self._lock = threading.Lock()
        self._now = Standing(total)
        self._recent: deque[float] = deque([self._start], maxlen=WINDOW + 1)

    def add(self, **more: int) -> None:
        with self._lock:
            values = {name: getattr(self._now, name) + number for name, number in more.items()}
            self._now = replace(self._now, **values)
            if more.get("done") and "earlier" not in more:
                self._recent.append(time.monotonic())

    def add_earlier(self, successes: int, failures: int) -> None:
        self.add(earlier=successes + failures, done=successes + failures, successes=successes)

    def standing(self, *, spent: float = 0.0, unpriced: int = 0) -> Standing:
        with self._lock:
            now, recent = self._now, list(self._recent)
        pace = (recent[-1] - recent[0]) / (len(recent) - 1) if len(recent) > 1 else None
        return replace(
            now,
            spent=spent,
            unpriced=unpriced,
            seconds=time.monotonic() - self._start,
            seconds_left=None if pace is None else pace * (now.total - now.done - now.failures),
        )


@dataclass(frozen=True)
class RunOutcome:
    standing: Standing
    stopped: str | None = None
    problems: tuple[str, ...] = ()
    #: It was broken off, because the rest would have failed as well: a wrong key, a checker that raises.
    failed: bool = False

    @property
    def why_incomplete(self) -> str | None:
        if self.complete:
            return None
        missing = f"{self.standing.total - self.standing.done} of {self.standing.total} episodes are missing"
        reason = self.stopped or "; ".join(self.problems[:3])
        return f"{missing}: {reason}" if reason else missing

    @property
    def complete(self) -> bool:
        return self.standing.done == self.standing.total


def place_of(cell: Cell, repeat: int) -> str:
    return cell.path if repeat == 1 else f"{REPEAT.format(number=repeat)}/{cell.path}"


class Run:
    """All episodes of the planned cells, or those of a writer's part, without the ones on disk already."""

    def __init__(
        self,
        cells: Sequence[tuple[PlannedCell, Sequence[Task]]],
        output: str | Path,
        *,
        open_player: OpenPlayer,
        repeats: int = 1,
        costs: CostTracker | None = None,
        writer: Writer | None = None,
    ) -> None:
        self._open_player = open_player
        self._writer = writer
        self._costs = costs or CostTracker()
        self._players: dict[tuple[AgentSpec, Sampling, bool], Player] = {}
        self._stores: list[CellStore] = []
        self._lock = threading.Lock()
        self._in_a_row = self._checker_errors = 0
        self._stopped: str | None = None
        self._broken_off = False
        self._problems: list[str] = []
        self.pending: list[PendingEpisode] = []
        try:
            self._plan(cells, Path(output), repeats)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        for player in self._players.values():
            player.close()
        for store in self._stores:
            store.close()

    def carry_out(
        self, shared: RunContext, *, concurrency: int = 8, watch: Callable[[Standing], None] = lambda _: None
    ) -> RunOutcome:
        """Play what is missing. An interruption stops all episodes; what has finished is kept."""
        for store in self._stores:
            store.describe(sandbox=shared.pool.backend)
        limits = [player.max_concurrency for player in self._players.values()]
        workers = max(1, min([concurrency, len(self.pending), *(limit for limit in limits if limit)]))
        self._shared, self._watch, self._give_up_after = shared, watch, FAILURES_PER_WORKER * workers
        with ThreadPoolExecutor(workers, "episode") as threads:
            played = [threads.submit(self._work, episode) for episode in self.pending]
            try:
                while wait(played, 1.0).not_done:  # a look costs as much as there are episodes
                    if self._broken_off:
                        self._stop_players()
            except BaseException as error:
                self._stop(str(error), broken_off=True)
                self._stop_players()
                raise
        for each in played:
            each.result()  # raises what was a defect
        return RunOutcome(self._standing(), self._stopped, tuple(self._problems), self._broken_off)

    def _plan(self, cells: Sequence[tuple[PlannedCell, Sequence[Task]]], output: Path, repeats: int) -> None:
        total = successes = failures = 0
        for planned, tasks in cells:
            for repeat in range(1, repeats + 1):
                place = place_of(planned.cell, repeat)
                finished = finished_by_writers(output, place, and_alone=self._writer is not None)
                part = self._writer.part if self._writer else Part(0, 1)
                mine = [task for task in tasks if part.has(place, task.task_id)]
                if self._writer is None or any(str(task.task_id) not in finished for task in mine):
                    root = output if self._writer is None else self._writer.folder
                    store = CellStore(root / place, planned.settings(), planned.record())
                    self._stores.append(store)
                    finished |= store.finished
                known = [finished.get(str(task.task_id)) for task in mine]
                total += len(mine)
                successes += known.count(True)
                failures += known.count(False)
                missing = [task for task, done in zip(mine, known, strict=True) if done is None]
                if not missing:
                    continue
                player = self._player(planned.agent, planned.sampling, as_expert=False)
                expert, adviser = planned.expert, None
                if expert is not None and expert.spec is not None:
                    adviser = self._player(expert.spec, expert.sampling, as_expert=True)
                self.pending += [
                    PendingEpisode(planned, task, repeat, store, player, adviser) for task in missing
                ]
        self.counter = EpisodeCounter(total)
        self.counter.add_earlier(successes, failures)

    def _player(self, spec: AgentSpec, sampling: Sampling, *, as_expert: bool) -> Player:
        key = (spec, sampling, as_expert)
        if key not in self._players:
            self._players[key] = self._open_player(spec, sampling, as_expert)
        return self._players[key]

    def _stop_players(self) -> None:
        for player in self._players.values():
            player.stop()

    def _standing(self) -> Standing:
        return self.counter.standing(spent=self._costs.spent, unpriced=self._costs.unpriced_calls)

    def _stop(self, why: str, *, broken_off: bool = False) -> None:
        """Start no more turns; answers that are under way are waited for unless the run is broken off."""
        self._stopped = self._stopped or why
        self._broken_off = self._broken_off or broken_off
        self._shared.stopping.set()

    def _work(self, episode: PendingEpisode) -> None:
        if self._shared.stopping.is_set():
            return
        try:
            self._play(episode)
        except BaseException as error:  # a defect or a full disk: the whole run ends with it
            self._stop(str(error), broken_off=True)
            raise

    def _play(self, episode: PendingEpisode) -> None:
        from histobench.mint.alfworld.simulator import SimulatorError
        from histobench.mint.sandbox.zygote_process import SandboxError

        shared = self._shared
        sandbox = shared.pool.pid
        try:
            finished = run_episode(
                episode.planned,
                episode.task,
                episode.repeat,
                shared=shared,
                player=episode.player,
                expert=episode.expert,
            )
        except EpisodeStoppedError:
            return
        except CostLimitError as error:
            self._stop(str(error))
            return
        except (ProviderError, SimulatorError, SandboxError, CheckerError) as error:
            if not shared.stopping.is_set():
                self._note_failure(episode, error)
            return
        if not finished.success and (self._broken_off or shared.pool.is_lost_since(sandbox)):
            # The cluster may have ended its sandbox first, and this process will learn it in a moment.
            shared.stopping.wait(LAST_WORDS)
            if self._broken_off:
                return
        episode.store.add(finished.episode, finished.details, finished.images)
        self._in_a_row = 0
        self.counter.add(done=1, successes=finished.success, tokens=finished.usage.total_tokens)
        self._watch(self._standing())

    def _note_failure(self, episode: PendingEpisode, error: Exception) -> None:
        message = f"{type(error).__name__}: {error}"
        outcome: Outcome = "checker_error" if isinstance(error, CheckerError) else "provider_failure"
        note = {"task_id": episode.task.task_id, "repeat": episode.repeat, "outcome": outcome}
        episode.store.add_failure({**note, "error": message, "time": time.time()})
        self.counter.add(failures=1)
        with self._lock:
            if message not in self._problems:
                self._problems.append(message)
            self._in_a_row += 1
            self._checker_errors += outcome == "checker_error"
            why = ""
            if self._checker_errors >= CHECKER_ERRORS:
                why = f"{self._checker_errors} times {error}; fix the checker"
            elif isinstance(error, ProviderError) and error.hopeless:
                why = str(error)
            elif self._in_a_row >= self._give_up_after:
                why = f"{self._in_a_row} episodes in a row could not be played: {message}"
            if why:
                self._stop(why, broken_off=True)
        self._watch(self._standing())
