"""Carries out a run: many episodes at a time, each on disk as soon as it has finished."""

from __future__ import annotations

import hashlib
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from histobench.core.claim import try_claim
from histobench.core.files import create_json
from histobench.mint.agents.agent import Player
from histobench.mint.agents.agent_spec import AgentSpec
from histobench.mint.agents.completion import ProviderError, Sampling
from histobench.mint.agents.costs import CostLimitError, CostTracker
from histobench.mint.configs.cell import Cell
from histobench.mint.envs.action import Outcome
from histobench.mint.runs.cell_store import CellStore
from histobench.mint.runs.episode_run import EpisodeStoppedError, RunContext, run_episode
from histobench.mint.runs.planned_cell import PlannedCell
from histobench.mint.runs.writers import CLAIMS, Writer, finished_by_writers
from histobench.mint.tasks.base import CheckerError, Task

#: So many episodes in a row that no provider let finish, for each episode at a time, end the run.
FAILURES_PER_WORKER = 3
#: So many episodes whose checker raised end the run: the next will raise, too.
CHECKER_ERRORS = 3
#: Time left is judged by so many of the last episodes.
WINDOW = 200
#: Seconds within which the system that has ended the sandbox has ended this process too, if it was a cluster.
LAST_WORDS = 2.0
#: The folder of the second, third, ... time that the same cells are played.
REPEAT = "repeat{number}"

#: Who a specification with its sampling names; the flag says whether as an expert.
OpenPlayer = Callable[[AgentSpec, Sampling, bool], Player]


@dataclass(frozen=True)
class PendingEpisode:
    """One episode to play."""

    planned: PlannedCell
    task: Task
    repeat: int
    store: CellStore
    player: Player
    expert: Player | None
    #: Where several processes play: held by the one that plays this episode, whichever run it is of.
    claim: Path | None = None

    @property
    def done(self) -> Path | None:
        """Where it is noted that a process has played this episode."""
        return self.claim.with_suffix(".done") if self.claim else None


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
        """Percentage of the finished episodes."""
        return 100 * self.successes / self.done if self.done else None


class EpisodeCounter:
    """Counts episodes as they finish; safe between threads."""

    def __init__(self, total: int) -> None:
        self._start = time.monotonic()
        self._lock = threading.Lock()
        self._now = Standing(total)
        self._recent: deque[float] = deque([self._start], maxlen=WINDOW + 1)

    def add(self, **more: int) -> None:
        """Add to fields of `Standing`; what is finished now (not `earlier`) tells the pace."""
        with self._lock:
            values = {name: getattr(self._now, name) + number for name, number in more.items()}
            self._now = replace(self._now, **values)
            if more.get("done") and "earlier" not in more:
                self._recent.append(time.monotonic())

    def add_earlier(self, successes: int, failures: int) -> None:
        """Episodes that were on disk already."""
        self.add(earlier=successes + failures, done=successes + failures, successes=successes)

    def standing(self, *, spent: float = 0.0, unpriced: int = 0) -> Standing:
        """The numbers now."""
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
    """How a run ended. `stopped` says why it ended early."""

    standing: Standing
    stopped: str | None = None
    problems: tuple[str, ...] = ()
    #: It was broken off, because the rest would have failed as well: a wrong key, a checker that raises.
    failed: bool = False

    @property
    def why_incomplete(self) -> str | None:
        """Why episodes are missing, in one sentence; None where none is."""
        if self.complete:
            return None
        missing = f"{self.standing.total - self.standing.done} of {self.standing.total} episodes are missing"
        reason = self.stopped or "; ".join(self.problems[:3])
        return f"{missing}: {reason}" if reason else missing

    @property
    def complete(self) -> bool:
        """Whether every episode is on disk."""
        return self.standing.done == self.standing.total


def place_of(cell: Cell, repeat: int) -> str:
    """The folder of a cell below the folder of results, the first time it is played or a later one."""
    return cell.path if repeat == 1 else f"{REPEAT.format(number=repeat)}/{cell.path}"


class Run:
    """All episodes of the planned cells, or those of a writer's part, without the ones on disk already.

    Use as a context manager: it opens the folders (and locks them) and the players, and closes both.
    """

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
        """Let go of folders and players."""
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
        work: queue.SimpleQueue[PendingEpisode] = queue.SimpleQueue()
        for episode in self.pending:
            work.put(episode)
        state = _Progress(
            self.counter, self._costs, shared.stopping, watch, give_up_after=FAILURES_PER_WORKER * workers
        )
        threads = [
            threading.Thread(target=_work, args=(work, shared, state), name=f"episode-{number}", daemon=True)
            for number in range(workers)
        ]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                while thread.is_alive():
                    thread.join(0.2)  # in short pieces, so that an interruption is noticed
                    if state.broken_off:
                        self._stop_players()
        except BaseException:
            state.broken_off = True
            shared.stopping.set()
            self._stop_players()
            for thread in threads:
                thread.join()
            raise
        if state.defect is not None:
            raise state.defect
        return RunOutcome(
            state.standing(),
            state.stopped,
            tuple(state.problems),
            state.broken_off,
        )

    def nothing_to_do(self) -> RunOutcome:
        """The outcome when every episode is on disk already."""
        return RunOutcome(self.counter.standing())

    def _plan(self, cells: Sequence[tuple[PlannedCell, Sequence[Task]]], output: Path, repeats: int) -> None:
        total = successes = failures = 0
        for planned, tasks in cells:
            for repeat in range(1, repeats + 1):
                place = place_of(planned.cell, repeat)
                finished = finished_by_writers(output, place, and_alone=self._writer is not None)
                mine = [
                    task
                    for task in tasks
                    if self._writer is None or self._writer.part.has(place, task.task_id)
                ]
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
                expert = planned.expert
                adviser = None
                if expert is not None and expert.spec is not None:
                    adviser = self._player(expert.spec, expert.sampling, as_expert=True)
                self.pending += [
                    PendingEpisode(planned, task, repeat, store, player, adviser, self._claim(place, task))
                    for task in missing
                ]
        self.counter = EpisodeCounter(total)
        self.counter.add_earlier(successes, failures)

    def _claim(self, place: str, task: Task) -> Path | None:
        if self._writer is None:
            return None
        name = hashlib.sha256(f"{place}/{task.task_id}".encode()).hexdigest()[:20]
        return self._writer.output / CLAIMS / f"{name}.json"

    def _player(self, spec: AgentSpec, sampling: Sampling, *, as_expert: bool) -> Player:
        key = (spec, sampling, as_expert)
        if key not in self._players:
            self._players[key] = self._open_player(spec, sampling, as_expert)
        return self._players[key]

    def _stop_players(self) -> None:
        for player in self._players.values():
            player.stop()


class _Progress:
    """What the workers of a run share."""

    def __init__(
        self,
        counter: EpisodeCounter,
        costs: CostTracker,
        stopping: threading.Event,
        watch: Callable[[Standing], None],
        *,
        give_up_after: int,
    ) -> None:
        self._counter = counter
        self._costs = costs
        self._stopping = stopping
        self._watch = watch
        self._give_up_after = give_up_after
        self._lock = threading.Lock()
        self._in_a_row = 0
        self._checker_errors = 0
        self.stopped: str | None = None
        self.broken_off = False
        self.problems: list[str] = []
        self.defect: BaseException | None = None

    def standing(self) -> Standing:
        return self._counter.standing(spent=self._costs.spent, unpriced=self._costs.unpriced_calls)

    def finished(self, *, success: bool, tokens: int) -> None:
        with self._lock:
            self._in_a_row = 0
        self._counter.add(done=1, successes=success, tokens=tokens)
        self._watch(self.standing())

    def failed(self, episode: PendingEpisode, error: Exception) -> None:
        """Note a failure that is not the model's."""
        message = f"{type(error).__name__}: {error}"
        outcome: Outcome = "checker_error" if isinstance(error, CheckerError) else "provider_failure"
        episode.store.add_failure(
            {
                "task_id": episode.task.task_id,
                "repeat": episode.repeat,
                "outcome": outcome,
                "error": message,
                "time": time.time(),
            }
        )
        self._counter.add(failures=1)
        with self._lock:
            if message not in self.problems:
                self.problems.append(message)
            self._in_a_row += 1
            self._checker_errors += outcome == "checker_error"
            if self._checker_errors >= CHECKER_ERRORS:
                self.stop(f"{self._checker_errors} times {error}; fix the checker", broken_off=True)
            elif isinstance(error, ProviderError) and error.hopeless:
                self.stop(str(error), broken_off=True)
            elif self._in_a_row >= self._give_up_after:
                self.stop(
                    f"{self._in_a_row} episodes in a row could not be played: {message}", broken_off=True
                )
        self._watch(self.standing())

    def stop(self, why: str, *, broken_off: bool = False) -> None:
        """Start no more turns; answers that are under way are waited for unless the run is broken off."""
        self.stopped = self.stopped or why
        self.broken_off = self.broken_off or broken_off
        self._stopping.set()


def _work(work: queue.SimpleQueue[PendingEpisode], shared: RunContext, state: _Progress) -> None:
    while not shared.stopping.is_set():
        try:
            episode = work.get_nowait()
        except queue.Empty:
            return
        try:
            _play_alone(episode, shared, state)
        except BaseException as error:  # a defect or a full disk: the whole run ends with it
            state.defect = state.defect or error
            state.stop(str(error), broken_off=True)


def _play_alone(episode: PendingEpisode, shared: RunContext, state: _Progress) -> None:
    """Play an episode that no other process plays, or has played since this one began.

    Jobs of two runs may be at work in one folder: a submission that was killed and repeated.
    """
    if episode.claim is None or episode.done is None:
        _play(episode, shared, state, lambda: True)
        return
    claim = try_claim(episode.claim)
    if claim is None:
        return
    try:
        if episode.done.exists() and (success := _played_elsewhere(episode)) is not None:
            state.finished(success=success, tokens=0)
        elif _play(episode, shared, state, claim.holds):
            create_json(episode.done, {})
    finally:
        claim.release()


def _played_elsewhere(episode: PendingEpisode) -> bool | None:
    assert episode.claim is not None
    output, place = episode.claim.parents[2], place_of(episode.planned.cell, episode.repeat)
    return finished_by_writers(output, place, and_alone=True).get(str(episode.task.task_id))


def _play(episode: PendingEpisode, shared: RunContext, state: _Progress, holds: Callable[[], bool]) -> bool:
    """Play an episode and store it, if that `holds`; return whether it is stored."""
    from histobench.mint.alfworld.simulator import SimulatorError
    from histobench.mint.sandbox.zygote_process import SandboxError

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
        return False
    except CostLimitError as error:
        state.stop(str(error))
        return False
    except (ProviderError, SimulatorError, SandboxError, CheckerError) as error:
        if not shared.stopping.is_set():
            state.failed(episode, error)
        return False
    if not finished.success and (state.broken_off or shared.pool.is_lost_since(sandbox)):
        # The cluster may have ended its sandbox first, and this process will learn it in a moment.
        shared.stopping.wait(LAST_WORDS)
        if state.broken_off:
            return False
    if not holds():  # taken for dead, and another process plays it
        return False
    episode.store.add(finished.episode, finished.details, finished.images)
    state.finished(success=finished.success, tokens=finished.usage.total_tokens)
    return True
