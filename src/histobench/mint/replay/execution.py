"""Gate 3: the recorded messages are executed again, in this sandbox, with these tools and checkers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from histobench.mint.envs.action import classify
from histobench.mint.envs.general_env import HELP, GeneralEnv, open_environment
from histobench.mint.envs.turn_loop import WRONG, Budget, act, begin, observe, settle
from histobench.mint.replay.normalise import alike, same
from histobench.mint.replay.recorded_python import PYTHON38
from histobench.mint.replay.recording import Recording
from histobench.mint.sandbox import SandboxPool
from histobench.mint.tasks.base import Task
from histobench.mint.tasks.codegen import CodeGenTask
from histobench.mint.tools.base import Tool

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
        if isinstance(task, CodeGenTask):
            task.published_python = python
        return open_environment(
            task,
            tools.get(recording.task, ()),
            pool=pool,
            first_cell_number=recording.first_cell_number,
            wording=python,
        )

    return open_env
