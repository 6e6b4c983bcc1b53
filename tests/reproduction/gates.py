"""Replay of recorded episodes: what must agree with the published recordings, and how much of it does."""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from histobench.core.files import read_json_lines, read_plain_text
from histobench.core.plain_data import read_json
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
from reproduction.python38_language import prelude, python38_program


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
    (re.compile(r"\r"), ""),
    (re.compile(r"\bat 0x[0-9a-fA-F]+"), "at ADDRESS"),
    (re.compile(r"\bOut ?\[\d+\]"), "Out[N]"),
    (re.compile(r"^/bin/bash: line \d+: ", re.MULTILINE), "/bin/bash: "),
    (re.compile(r"(?:~|\.)?(?:/[\w.+-]+)+/([\w.+-]+\.pyx?)(?::\d+)?"), r"PATH/\1"),
    (re.compile(r"[ \t]+$", re.MULTILINE), ""),
)
#: An error as IPython shows it: under a ruler, or after the place in a cell that cannot be compiled.
_ERROR = re.compile(
    r"^(?:-{75}\n|(?: *(?:File|Cell In|Input In)|Traceback)\b.*\n(?:.*\n)*?)([\w.]+)(?=:| +Traceback|$)",
    re.MULTILINE,
)
_OF_SYNTAX = {"IndentationError", "TabError", "_IncompleteInputError"}


def normalised(text: str) -> str:
    """The observation without what depends on the machine; an error by its name, not its words.

    >>> normalised("<f at 0x7f3a>, Out[3]: 1")
    '<f at ADDRESS>, Out[N]: 1'
    """
    for pattern, replacement in _STEPS:
        text = pattern.sub(replacement, text)
    if error := _ERROR.search(text):
        name = "SyntaxError" if error[1] in _OF_SYNTAX else error[1]
        text = f"{text[: error.start()]}{name}"
    return text.strip()


def same(one: str, other: str) -> bool:
    """Whether two observations differ in nothing but paths, addresses, cell numbers and words of errors."""
    cut = one.endswith(TRUNCATED) and other.endswith(TRUNCATED)
    one, other = normalised(one.removesuffix(TRUNCATED)), normalised(other.removesuffix(TRUNCATED))
    if cut:
        # Longer paths leave less room for the rest.
        shared = max(LEAST, min(len(one), len(other)) - 1)
        return one[:shared] == other[:shared]
    return one == other


# Which Python a run was recorded with: the paths in its tracebacks tell.

#: The Python of most recordings; newer ones are played again with the session as it is.
PYTHON38, NEWER = "python3.8", "newer"
_SHOWN = re.compile(r"/python3\.(\d+)/")


def python_of_runs(recordings: Iterable[Recording]) -> dict[str, str]:
    """By run: Python 3.8, unless most paths that the run shows are of Python 3.10 or later."""
    shown: dict[str, list[int]] = {}
    for recording in recordings:
        text = "".join(turn.observation or "" for turn in recording.turns)
        shown.setdefault(recording.run, []).extend(map(int, _SHOWN.findall(text)))
    return {
        run: NEWER if sum(minor >= 10 for minor in minors) > len(minors) / 2 else PYTHON38
        for run, minors in shown.items()
    }


# Gate 3: the recorded messages are executed again, in this sandbox, with these tools and checkers.

#: Opens the environment of a recording: it knows the task, the tools and the sandbox.
OpenEnv = Callable[[Recording], GeneralEnv]


@dataclass(frozen=True)
class Replayed:
    """How one episode came out when played again."""

    recording: Recording
    success: bool
    observations: int  # recorded observations that were made again
    differences: tuple[tuple[int, str, str], ...]  # (turn, recorded, now)

    @property
    def agrees(self) -> bool:
        """Whether the outcome is the recorded one."""
        return self.success == self.recording.success

    @property
    def same(self) -> int:
        """How many observations are the recorded ones."""
        return self.observations - len(self.differences)


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
    differences = tuple(entry for entry in seen if not same(*entry[1:]))
    return Replayed(recording, state.success, len(seen), differences)


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
        if self._fresh:
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


#: What was answered: dataset and id, and whether the verdict is the recorded one.
Scored = tuple[str, bool]


def score_reasoning(folder: Path, tasks: Mapping[tuple[str, object], Task]) -> list[Scored]:
    """Every recorded answer of the reasoning datasets, under the published and the recording-time rule."""
    scored = []
    for _, record in read_json_lines(folder / REASONING):
        if task := tasks.get((record["task"], record["task_id"])):
            rules: dict[Rule, str] = {"published": "verdict", "recorded": "verdict_legacy"}
            for rule, verdict in rules.items():
                if record.get(verdict) is not None:
                    agrees = _verdict(task, rule, record["answer"]) == record[verdict]
                    scored.append((f"{record['task']} {record['task_id']}", agrees))
    return scored


def score_code(
    folder: Path,
    tasks: Mapping[tuple[str, object], Task],
    *,
    pool: SandboxPool,
    workers: int,
    limit: int | None = None,
    done: Callable[[], None] = lambda: None,
) -> list[Scored]:
    """Every recorded program, tested in the sandbox; `limit` takes an even sample."""
    records = [r for _, r in read_json_lines(folder / CODE) if (r["task"], r["task_id"]) in tasks]

    def scored(record: dict[str, Any]) -> Scored:
        now = _verdict(tasks[record["task"], record["task_id"]], "published", record["solution"], pool)
        done()
        return f"{record['task']} {record['task_id']}", now == record["passed"]

    with ThreadPoolExecutor(workers) as threads:
        return list(threads.map(scored, spread(records, limit)))


def spread(cases: Sequence[Any], limit: int | None) -> list[Any]:
    """At most `limit` of them, evenly spread."""
    size = len(cases) if limit is None else min(limit, len(cases))
    return [cases[index * len(cases) // size] for index in range(size)]


def _verdict(task: Task, rule: Rule, solution: str, pool: SandboxPool | None = None) -> bool:
    task = copy.copy(task)
    task.rule = rule
    if isinstance(task, CodeGenTask):
        task.pool = pool
        as_recorded_program(task)
    return task.success(solution)


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


# The household experts' recorded games, won again through the tools.


def replay_expert(game: GameFile, simulator: Simulator) -> tuple[bool, bool]:
    """Play every recorded action: whether it wins, and whether the simulator says what the record says."""
    trajectory = game.expert_trajectory()
    running = simulator.start(game.path)
    try:
        tools = {tool.name: tool for tool in household_tools(running)}
        seen = [tools[call.tool](*call.arguments) for call in expert_calls(trajectory)]
        return running.won, seen == expert_observations(trajectory)[: len(seen)]
    finally:
        running.close()


def experts_gate(
    games: Sequence[GameFile], simulator: Simulator, *, workers: int, done: Callable[[], None] = lambda: None
) -> Gate:
    """Records that win, of those that need no more actions than an episode has."""
    fitting = [game for game in games if 0 < len(expert_calls(game.expert_trajectory())) <= MAX_ACTIONS]

    def wins(game: GameFile) -> bool:
        won, _ = replay_expert(game, simulator)
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


def scoring_gate(subject: str, cases: Sequence[Scored], required: float) -> Gate:
    """Verdicts of the checkers."""
    wrong = [case for case, agrees in cases if not agrees]
    return Gate(subject, len(cases) - len(wrong), len(cases), required, _some(wrong))


def execute(
    recordings: Sequence[Recording],
    open_env: OpenEnv,
    *,
    workers: int,
    done: Callable[[], None] = lambda: None,
) -> list[Replayed]:
    """Play episodes again, some at a time; household games last, plays of one game after another."""

    def one(recording: Recording) -> Replayed:
        replayed = replay(recording, open_env)
        done()
        return replayed

    def place(recording: Recording) -> str:
        return str(recording.task_id) if recording.task == HOUSEHOLD else ""

    with ThreadPoolExecutor(workers) as threads:
        return list(threads.map(one, sorted(recordings, key=place)))


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
    expected = read_json(read_plain_text(path), where=str(path))
    outcomes = read_outcome_table(folder / "episode_outcomes.csv.gz")
    standings = {standing.model: standing.as_published() for standing in leaderboard(outcomes)}
    wrong = [model for model, values in expected.items() if standings.get(model) != values]
    return Gate("metrics of the leaderboard", len(expected) - len(wrong), len(expected), 1.0, _some(wrong))


def sample(recordings: Sequence[Recording], limit: int | None) -> list[Recording]:
    """At most `limit` episodes of each dataset of each run, evenly spread."""
    groups: dict[tuple[str, str], list[Recording]] = {}
    for recording in recordings:
        groups.setdefault((recording.run, recording.task), []).append(recording)
    return [chosen for group in groups.values() for chosen in spread(group, limit)]


def _observations(subject: str, episodes: Sequence[Replayed], required: float | None) -> Gate:
    total = sum(episode.observations for episode in episodes)
    return Gate(subject, sum(episode.same for episode in episodes), total, required)


def _some(names: Sequence[str]) -> str:
    if not names:
        return ""
    return ", ".join(names[:2]) + (f" and {len(names) - 2} more" if len(names) > 2 else "")
