"""Replay of recorded episodes: what must agree with the published recordings, and how much of it does."""

from __future__ import annotations

import ast
import copy
import json
import os
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from histobench.core.errors import HistobenchError
from histobench.core.files import read_bytes, read_json_lines, read_plain_text
from histobench.core.plain_data import parse_json
from histobench.core.text import parse_python
from histobench.mint.alfworld.games import GameFile
from histobench.mint.alfworld.simulator import MAX_ACTIONS, Simulator
from histobench.mint.envs.action import classify, provider_error
from histobench.mint.envs.general_env import HELP, GeneralEnv, open_environment
from histobench.mint.envs.turn_loop import (
    WRONG,
    ActionOutcome,
    Budget,
    act,
    begin,
    observe,
    proposals_left,
    settle,
    steps_left,
)
from histobench.mint.results.episode_outcome import read_outcome_table
from histobench.mint.results.recording import Recording
from histobench.mint.results.result_tables import leaderboard
from histobench.mint.sandbox import SandboxPool
from histobench.mint.tasks.base import Rule, Task
from histobench.mint.tasks.codegen import CodeGenTask
from histobench.mint.tools.alfworld import household_tools
from histobench.mint.tools.base import Tool
from histobench.mint.tools.python_tool import NO_OUTPUT, PythonREPL
from reproduction.python38_language import python38_program
from reproduction.python38_shell import prelude


@dataclass(frozen=True)
class Gate:
    """`agreeing` of `total` cases; `required` is the least share, or `None` where nothing is asked."""

    subject: str
    agreeing: int
    total: int
    required: float | None = None
    note: str = ""

    @property
    def rate(self) -> float | None:
        """The share, if there are cases."""
        return self.agreeing / self.total if self.total else None

    @property
    def verdict(self) -> str:
        """PASS or FAIL; empty where nothing is asked or nothing was looked at.

        >>> Gate("books", 99, 100, 0.995).verdict
        'FAIL'
        """
        if self.required is None or self.rate is None:
            return ""
        return "PASS" if self.rate >= self.required else "FAIL"


# When two observations are the same although two machines made them.

TRUNCATED = "...\n[Output Truncated]"
#: Two truncated texts are compared as far as both go, but not on less than this.
LEAST = 500

_STEPS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"\x1b\[[0-9;]*m"), ""),  # colours, where a command took its output for a terminal
    (re.compile(r"\bat 0x[0-9a-fA-F]+"), "at ADDRESS"),
    (re.compile(r"\b(In|Out) ?\[\d+\]"), r"\1[N]"),
    (re.compile(r"<ipython-input-\d+-[0-9a-f]+>"), "<cell>"),
    # A hidden path is followed by a line number or, where the hiding went wrong, by the path's beginning.
    (
        re.compile(
            r"^( *File )(?:(?:[~/.][^\s:,]*|<frozen [\w.]+>):\d+|<hidden_filepath>:[^\s,]*)", re.MULTILINE
        ),
        r"\1PATH",
    ),
    (re.compile(r"(?:~|\.)?(?:/[\w.+-]+)+/([\w.+-]+\.pyx?)(?::\d+)?"), r"PATH/\1"),
    # The numbered lines under a frame of a file, up to the empty line that ends it.
    (re.compile(r"^(File PATH[^\n]*)(?:\n[^\n]+)+", re.MULTILINE), r"\1"),
    (re.compile(r"[ \t]+$", re.MULTILINE), ""),
)
_RULER = "-" * 75
_TIME_IS_UP = re.compile(r"^TimeoutError(?:: Timed out after| +Traceback)", re.MULTILINE)
_RECURSION = re.compile(r"^RecursionError(?:: maximum recursion| +Traceback)", re.MULTILINE)


def normalised(text: str) -> str:
    """The observation without what depends on the machine.

    >>> normalised("<f at 0x7f3a>, Out[3]: 1")
    '<f at ADDRESS>, Out[N]: 1'
    """
    for pattern, replacement in _STEPS:
        text = pattern.sub(replacement, text)
    return text.strip()


def same(one: str, other: str) -> bool:
    """Whether two observations differ in nothing but paths, addresses and cell numbers."""
    cut = one.endswith(TRUNCATED) and other.endswith(TRUNCATED)
    one, other = normalised(one.removesuffix(TRUNCATED)), normalised(other.removesuffix(TRUNCATED))
    if cut:
        # Longer paths leave less room for the rest.
        shared = max(LEAST, min(len(one), len(other)) - 1)
        return one[:shared] == other[:shared]
    return one == other


def alike(one: str, other: str) -> bool:
    """Whether they are the same but for Python's version and the machine's speed."""
    return same(one, other) or _ending(one) == _ending(other)


def _ending(text: str) -> str:
    text = normalised(text)
    for name, pattern in (("TimeoutError", _TIME_IS_UP), ("RecursionError", _RECURSION)):
        if pattern.search(text):
            return f"{text.partition(_RULER)[0].strip()}\n{name}".strip()
    return text


# Which Python a run was recorded with: the paths in its tracebacks tell.

#: How the sandbox is told to behave like the Python of most recordings.
PYTHON38 = "python3.8"
NATIVE = "native"
_SHOWN = re.compile(r"/python3\.(\d+)/")


def python_of_runs(recordings: Iterable[Recording]) -> dict[str, str]:
    """The sandbox's `wording` for each run: Python 3.8's, unless most paths it shows are of a Python whose
    errors read as today's (from 3.10 on).
    """
    shown: dict[str, Counter[int]] = {}
    for recording in recordings:
        seen = shown.setdefault(recording.run, Counter())
        for turn in recording.turns:
            seen.update({int(minor) for minor in _SHOWN.findall(turn.observation or "")})
    return {run: _wording(seen) for run, seen in shown.items()}


def _wording(seen: Counter[int]) -> str:
    newer = sum(times for minor, times in seen.items() if minor >= 10)
    return NATIVE if newer > seen.total() / 2 else PYTHON38


# Gate 3: the recorded messages are executed again, in this sandbox, with these tools and checkers.

#: Opens the environment of a recording: it knows the task, the tools and the sandbox.
OpenEnv = Callable[[Recording], GeneralEnv]


@dataclass(frozen=True)
class Replayed:
    """How one episode came out when played again."""

    recording: Recording
    success: bool
    observations: int  # recorded observations that were made again
    exact: int  # of these, equal to the letter
    same: int  # of these, equal but for paths, addresses and cell numbers
    alike: int  # of these, equal but for Python's version and the machine's speed too
    differences: tuple[tuple[int, str, str], ...]  # (turn, recorded, now), of all that are not the same

    @property
    def agrees(self) -> bool:
        """Whether the outcome is the recorded one."""
        return self.success == self.recording.success


def replay(recording: Recording, open_env: OpenEnv) -> Replayed:
    """Feed the recorded messages to a live environment and compare what it says."""
    budget = Budget(recording.max_steps, recording.max_propose)
    state = begin("")
    seen: list[tuple[int, str, str]] = []
    with open_env(recording) as env:
        for number, turn in enumerate(recording.turns, start=1):
            if state.finished:
                break
            action = classify(turn.assistant)
            if number == len(recording.turns) and action.kind == "execute" and not env.task.decided_by_acting:
                break  # what the last cell showed was never recorded, and no verdict depends on it
            state = act(state, action)
            outcome = env.outcome(action)
            state = settle(state, action, outcome, budget)
            if turn.observation is not None and not state.finished:
                now, then = WRONG if outcome.observation is None else outcome.observation, turn.observation
                if now == HELP:  # worded by each project for itself
                    now = then if action.kind in ("invalid", "proposal_unparsable") else now
                seen.append((number, then, now))
            state = observe(state, outcome, budget, feedback=turn.feedback)
    return compared(recording, state.success, seen)


def compared(recording: Recording, success: bool, seen: Sequence[tuple[int, str, str]]) -> Replayed:
    """The comparison of what was recorded with what is seen now: (turn, recorded, now)."""
    differences = tuple(entry for entry in seen if not same(entry[1], entry[2]))
    unlike = sum(not alike(then, now) for _, then, now in differences)
    return Replayed(
        recording,
        success=success,
        observations=len(seen),
        exact=sum(then.strip() == now.strip() for _, then, now in seen),
        same=len(seen) - len(differences),
        alike=len(seen) - unlike,
        differences=differences,
    )


def environment_opener(
    tasks: Mapping[tuple[str, object], Task],
    tools: Mapping[str, Sequence[Tool]],
    *,
    pool: SandboxPool | None = None,
    pythons: Mapping[str, str] | None = None,
) -> OpenEnv:
    """Environments for recorded episodes: `tasks` by (dataset, id), `tools` by dataset, `pythons` by run."""

    def open_env(recording: Recording) -> GeneralEnv:
        task = copy.copy(
            tasks[recording.task, recording.task_id]
        )  # episodes of one task may run side by side
        task.rule = recording.rule
        python = (pythons or {}).get(recording.run, PYTHON38)
        if python == PYTHON38:
            as_recorded_program(task)
        env = open_environment(task, tools.get(recording.task, ()), pool=pool)
        return as_recorded(env, recording.first_cell_number, python)

    return open_env


def as_recorded_program(task: Task) -> None:
    """Let the task, under the published rule, test programs with the Python of the recordings."""
    if isinstance(task, CodeGenTask) and task.rule == "published":
        task.extract_answer = python38_program  # type: ignore[method-assign]


def as_recorded(env: GeneralEnv, first_cell_number: int = 1, python: str = PYTHON38) -> GeneralEnv:
    """The environment with a session like the recorded ones."""
    env._repl = RecordedREPL(env._repl, first_cell_number, python)
    return env


class RecordedREPL(PythonREPL):
    """A session whose every process first runs the cell that gives it the manners of the recordings."""

    def __init__(self, plain: PythonREPL, first_cell_number: int = 1, python: str = PYTHON38) -> None:
        self._plain, self._cell, self._python = plain, first_cell_number, python
        self._fresh = True

    def __call__(self, query: str) -> str:
        if self._fresh and (self._python == PYTHON38 or self._cell > 1):
            said = self._plain(prelude(self._cell, old=self._python == PYTHON38))
            if said != NO_OUTPUT:
                raise RuntimeError(f"the session could not be prepared: {said}")
        said = self._plain(query)
        self._cell += 1
        self.last_result = self._plain.last_result
        self._fresh = self.last_result is not None and self.last_result.kind == "killed"
        return said

    def reset(self) -> None:
        self._plain.reset()
        self._fresh = True


# Replayed episodes on disk, so that a long replay goes on where it stopped.


class Journal:
    """One line for each replayed episode; without a path nothing is kept."""

    def __init__(self, path: str | Path | None) -> None:
        self._path = Path(path) if path else None
        self._lock = threading.Lock()
        self._known: dict[str, dict[str, Any]] = {}
        if self._path and self._path.exists():
            try:
                lines = read_bytes(self._path).split(b"\n")
            except OSError as error:
                raise HistobenchError(f"cannot read the journal {self._path}: {error}") from error
            for line in lines:
                try:
                    record = parse_json(line)
                    self._known[record["episode"]] = record
                except (ValueError, KeyError, TypeError, RecursionError):
                    continue  # the last line of a killed run

    def find(self, recording: Recording) -> Replayed | None:
        """The stored replay of an episode."""
        record = self._known.get(recording.name)
        if record is None:
            return None
        return Replayed(
            recording,
            success=record["success"],
            observations=record["observations"],
            exact=record["exact"],
            same=record["same"],
            alike=record["alike"],
            differences=tuple((turn, then, now) for turn, then, now in record["differences"]),
        )

    def add(self, replayed: Replayed) -> None:
        """Keep one, at once."""
        if self._path is None:
            return
        line = json.dumps(
            {
                "episode": replayed.recording.name,
                "success": replayed.success,
                "recorded_success": replayed.recording.success,
                "observations": replayed.observations,
                "exact": replayed.exact,
                "same": replayed.same,
                "alike": replayed.alike,
                "differences": replayed.differences,
            }
        )
        try:
            with self._lock, self._path.open("a", encoding="utf-8") as file:
                file.write(f"\n{line}" if file.tell() else line)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise HistobenchError(f"cannot write the journal {self._path}: {error}") from error


# Gate 1: the loop's books on recorded texts, with nothing executed.


def book_differences(recording: Recording) -> list[str]:
    """What the loop books differently from the recording; empty when all agrees."""
    budget = Budget(recording.max_steps, recording.max_propose)
    state = begin("")
    wrong: list[str] = []
    for number, turn in enumerate(recording.turns, start=1):
        if state.finished:
            wrong.append(f"ended before turn {number}")
            break
        action = classify(turn.assistant)
        if action.kind != turn.kind:
            wrong.append(f"turn {number} is {action.kind}, recorded {turn.kind}")
        last = number == len(recording.turns)
        solved = turn.verdict == "correct" or (last and recording.terminate_reason == "task_success")
        outcome = ActionOutcome(turn.observation or "", success=solved)
        state = settle(act(state, action), action, outcome, budget)
        left = (steps_left(state, budget), proposals_left(state, budget))
        if turn.steps_left is not None and left != (turn.steps_left, turn.proposals_left):
            wrong.append(f"turn {number} leaves {left}, recorded {(turn.steps_left, turn.proposals_left)}")
        state = observe(state, outcome, budget, feedback=turn.feedback)
    if recording.terminate_reason == "error" and not state.finished:
        action = provider_error(recording.error or "error")
        state = settle(act(state, action), action, ActionOutcome(), budget)
    ending = (state.terminate_reason, state.success)
    if ending != (recording.terminate_reason, recording.success):
        wrong.append(f"ends as {ending}, recorded {(recording.terminate_reason, recording.success)}")
    for name, count in recording.counts.items():
        if getattr(state.counts, name) != count:
            wrong.append(f"{name} is {getattr(state.counts, name)}, recorded {count}")
    return wrong


# Gate 2: the checkers on every recorded answer.

REASONING = "reasoning_answers.jsonl.gz"
CODE = "code_solutions.jsonl.gz"


@dataclass(frozen=True)
class ScoredCase:
    """One recorded answer and what is thought of it."""

    task: str
    task_id: Any
    solution: str
    recorded: bool
    now: bool


def score_reasoning(folder: Path, tasks: Mapping[tuple[str, object], Task]) -> list[ScoredCase]:
    """Every recorded answer of the reasoning datasets, under the published and the recording-time rule."""
    cases = []
    for record in _records(folder / REASONING):
        task = tasks.get((record["task"], record["task_id"]))
        if task is None:
            continue
        rules: dict[Rule, str] = {"published": "verdict", "recorded": "verdict_legacy"}
        for rule, verdict in rules.items():
            if record.get(verdict) is not None:
                now = _verdict(task, rule, record["answer"])
                cases.append(_case(record, record["answer"], record[verdict], now))
    return cases


def score_code(
    folder: Path,
    tasks: Mapping[tuple[str, object], Task],
    *,
    pool: SandboxPool,
    workers: int,
    limit: int | None = None,
    done: Callable[[], None] = lambda: None,
) -> list[ScoredCase]:
    """Every recorded program, tested in the sandbox; `limit` takes an even sample."""
    records = [record for record in _records(folder / CODE) if (record["task"], record["task_id"]) in tasks]
    if limit is not None and limit < len(records):
        records = [records[index * len(records) // limit] for index in range(limit)]

    def scored(record: dict[str, Any]) -> ScoredCase:
        now = _verdict(tasks[record["task"], record["task_id"]], "published", record["solution"], pool)
        done()
        return _case(record, record["solution"], record["passed"], now)

    with ThreadPoolExecutor(workers) as threads:
        return list(threads.map(scored, records))


def _verdict(task: Task, rule: Rule, solution: str, pool: SandboxPool | None = None) -> bool:
    task = copy.copy(task)
    task.rule = rule
    if isinstance(task, CodeGenTask):
        task.pool = pool
        as_recorded_program(task)
    return task.success(solution)


def _case(record: Mapping[str, Any], solution: str, recorded: bool, now: bool) -> ScoredCase:
    return ScoredCase(record["task"], record["task_id"], solution, bool(recorded), bool(now))


def _records(path: Path) -> Iterator[dict[str, Any]]:
    yield from (record for _, record in read_json_lines(path))


# The recorded expert's way through a game, read from its text.

_CELL = re.compile(r"<execute>(.*?)</execute>", re.DOTALL)
_OBSERVATION = re.compile(r"\n\nObservation:\n(.*?)(?=\nAssistant:\n|\Z)", re.DOTALL)
#: The expert's notes name some actions differently from the tools.
_EXPERT_NAMES = {"take": "take_from", "open": "open_receptacle", "close": "close_receptacle"}


@dataclass(frozen=True)
class Call:
    """One action: the tool's name and its arguments."""

    tool: str
    arguments: tuple[str, ...]


def expert_calls(trajectory: str) -> list[Call]:
    """The actions of an expert's trajectory, in order.

    >>> expert_calls('Assistant:\\n<execute>\\ntake("mug 1", "desk 1")\\n</execute>')
    [Call(tool='take_from', arguments=('mug 1', 'desk 1'))]
    """
    calls = []
    for cell in _CELL.findall(trajectory):
        for statement in parse_python(cell.strip()).body:
            match statement:
                case ast.Expr(value=ast.Call(func=ast.Name(id=name), args=args)):
                    words = tuple(str(ast.literal_eval(argument)) for argument in args)
                    calls.append(Call(_EXPERT_NAMES.get(name, name), words))
    return calls


def expert_observations(trajectory: str) -> list[str]:
    """What the expert saw, one line for each action."""
    return [line for block in _OBSERVATION.findall(trajectory) for line in block.strip("\n").split("\n")]


# Plays an expert's recorded actions through the tools.


@dataclass(frozen=True)
class ExpertReplay:
    """What came of an expert's actions."""

    game: GameFile
    won: bool
    actions: int
    same_observations: int

    @property
    def as_recorded(self) -> bool:
        """Whether the simulator said what the record says, at every action."""
        return self.same_observations == self.actions


def replay_expert(game: GameFile, simulator: Simulator) -> ExpertReplay:
    """Every recorded action of one game."""
    trajectory = game.expert_trajectory()
    calls, recorded = expert_calls(trajectory), expert_observations(trajectory)
    running = simulator.start(game.path)
    try:
        tools = {tool.name: tool for tool in household_tools(running)}
        seen = [tools[call.tool](*call.arguments) for call in calls]
        same = sum(now == then for now, then in zip(seen, recorded, strict=False))
        return ExpertReplay(game, running.won, len(calls), same)
    finally:
        running.close()


# The household experts' recorded games, won again through the tools.


def fits_an_episode(game: GameFile) -> bool:
    """Whether the expert needed no more actions than an episode has."""
    return 0 < len(expert_calls(game.expert_trajectory())) <= MAX_ACTIONS


def experts_gate(
    games: Sequence[GameFile], simulator: Simulator, *, workers: int, done: Callable[[], None] = lambda: None
) -> Gate:
    """Records that win."""
    fitting = [game for game in games if fits_an_episode(game)]

    def wins(game: GameFile) -> bool:
        won = replay_expert(game, simulator).won
        done()
        return won

    with ThreadPoolExecutor(workers) as threads:
        won = list(threads.map(wins, fitting))
    note = f"{len(games) - len(fitting)} of {len(games)} records are longer than an episode"
    return Gate("alfworld: experts' games won", sum(won), len(fitting), 1.0, note)


# All gates of a folder of recordings, one after the other.

REASONING_VERDICTS = 1.0
CODE_VERDICTS = 0.999
SUCCESS = 0.995
OBSERVATIONS = 0.91
#: Datasets whose observations hardly depend on the outside world.
OBSERVATIONS_OF = {"humaneval": 0.99, "mbpp": 0.99, "gsm8k": 0.99, "alfworld": 1.0}
HOUSEHOLD = "alfworld"


def books_gate(recordings: Sequence[Recording]) -> Gate:
    """Kinds of action, counters, countdown and ending of every episode."""
    wrong = [recording.name for recording in recordings if book_differences(recording)]
    total = len(recordings)
    return Gate("books: kinds, counters, countdown, ending", total - len(wrong), total, 1.0, _some(wrong))


def scoring_gate(subject: str, cases: Sequence[ScoredCase], required: float) -> Gate:
    """Verdicts of the checkers."""
    wrong = [f"{case.task} {case.task_id}" for case in cases if case.recorded != case.now]
    return Gate(subject, len(cases) - len(wrong), len(cases), required, _some(wrong))


def execute(
    recordings: Sequence[Recording],
    open_env: OpenEnv,
    *,
    workers: int,
    journal: Journal,
    done: Callable[[Replayed], None] = lambda _: None,
) -> list[Replayed]:
    """Play episodes again, some at a time; those in the journal are not played twice."""

    def one(recording: Recording) -> Replayed:
        known = journal.find(recording)
        replayed = known or replay(recording, open_env)
        if known is None:
            journal.add(replayed)
        done(replayed)
        return replayed

    with ThreadPoolExecutor(workers) as threads:
        return list(threads.map(one, _in_good_order(recordings)))


def _in_good_order(recordings: Sequence[Recording]) -> list[Recording]:
    """Household games last, plays of one game after another: it is loaded once then."""
    household = [recording for recording in recordings if recording.task == HOUSEHOLD]
    others = [recording for recording in recordings if recording.task != HOUSEHOLD]
    return others + sorted(household, key=lambda recording: str(recording.task_id))


def execution_gates(replayed: Sequence[Replayed], datasets: Iterable[str]) -> list[Gate]:
    """Success and observations: over all, then for each dataset."""
    wrong = [episode.recording.name for episode in replayed if not episode.agrees]
    gates = [Gate("execution: success", len(replayed) - len(wrong), len(replayed), SUCCESS, _some(wrong))]
    elsewhere = [episode for episode in replayed if episode.recording.task != HOUSEHOLD]
    gates.append(_observations("execution: observations without alfworld", elsewhere, OBSERVATIONS))
    for name in datasets:
        here = [episode for episode in replayed if episode.recording.task == name]
        if here:
            agreeing = sum(episode.agrees for episode in here)
            required = 1.0 if name == HOUSEHOLD else None
            gates.append(Gate(f"  {name}: success", agreeing, len(here), required))
            gates.append(_observations(f"  {name}: observations", here, OBSERVATIONS_OF.get(name)))
    return gates


def metrics_gate(folder: Path) -> Gate:
    """The published leaderboard from the recorded outcomes, every number of a model."""
    path = folder / "expected_metrics.json"
    try:
        expected = parse_json(read_plain_text(path))
    except (OSError, ValueError) as error:
        raise HistobenchError(f"cannot read the published metrics {path}: {error}") from error
    outcomes = read_outcome_table(folder / "episode_outcomes.csv.gz")
    standings = {standing.model: standing.as_published() for standing in leaderboard(outcomes)}
    wrong = [model for model, values in expected.items() if standings.get(model) != values]
    return Gate("metrics of the leaderboard", len(expected) - len(wrong), len(expected), 1.0, _some(wrong))


def sample(recordings: Sequence[Recording], limit: int | None) -> list[Recording]:
    """At most `limit` episodes of each dataset of each run, evenly spread."""
    if limit is None:
        return list(recordings)
    groups: dict[tuple[str, str], list[Recording]] = {}
    for recording in recordings:
        groups.setdefault((recording.run, recording.task), []).append(recording)
    return [
        group[index * len(group) // size]
        for group in groups.values()
        for size in [min(limit, len(group))]
        for index in range(size)
    ]


def _observations(subject: str, episodes: Sequence[Replayed], required: float | None) -> Gate:
    total = sum(episode.observations for episode in episodes)
    exact = sum(episode.exact for episode in episodes)
    alike = sum(episode.alike for episode in episodes)
    note = f"{100 * exact / total:.1f} % to the letter, " if total else ""
    note += f"{100 * alike / total:.1f} % but for Python's version and speed" if total else ""
    return Gate(subject, sum(episode.same for episode in episodes), total, required, note)


def _some(names: Sequence[str]) -> str:
    if not names:
        return ""
    return ", ".join(names[:2]) + (f" and {len(names) - 2} more" if len(names) > 2 else "")


def failed(gates: Iterable[Gate]) -> bool:
    """Whether a required rate was missed."""
    return any(gate.verdict == "FAIL" for gate in gates)
