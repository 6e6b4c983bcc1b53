"""What is left of an episode when its text is put aside."""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import get_args

from histobench.core.errors import HistobenchError, did_you_mean
from histobench.core.files import atomic_path, read_plain_text
from histobench.mint.envs.action import Outcome

NO_FEEDBACK = "None"
OUTCOMES: tuple[str, ...] = get_args(Outcome)
SOLVED = "solved"
#: Not finished, through no fault of the model: played again by the next run.
UNFINISHED = ("checker_error", "provider_failure")
#: The outcomes that count as failures unless someone says otherwise: all but those.
FAILURES: tuple[str, ...] = tuple(name for name in OUTCOMES if name not in (SOLVED, *UNFINISHED))
#: How an ending reads in records that say no more (those of the published benchmark).
_ENDINGS = {"max_propose_steps": "wrong", "max_steps": "out_of_turns", "error": "too_long"}
#: The families of the published datasets, for tables and recordings that do not name them.
FAMILIES = {
    "gsm8k": "reasoning",
    "math": "reasoning",
    "hotpotqa": "reasoning",
    "mmlu": "reasoning",
    "theoremqa": "reasoning",
    "humaneval": "code_generation",
    "mbpp": "code_generation",
    "alfworld": "decision_making",
}


@dataclass(frozen=True)
class EpisodeOutcome:
    """One episode: who played what under which setting, and how it ended.

    `tokens` (of the model under test) and `leaked` (an expert gave the answer away) are `None` where no one
    counted or looked. `outcome` is one of `OUTCOMES`; for records that have none it is read from the ending.
    """

    model: str
    feedback_model: str
    feedback_type: str
    k: int
    task: str
    task_id: str
    success: bool
    proposals: int = 0
    tool_calls: int = 0
    invalid: int = 0
    terminate_reason: str = ""
    tokens: int | None = None
    leaked: bool | None = None
    family: str = ""
    outcome: str = ""

    def __post_init__(self) -> None:
        # Not recorded, or scored again by another rule.
        if not self.outcome or (self.outcome == SOLVED) != self.success:
            read = SOLVED if self.success else _ENDINGS.get(self.terminate_reason, "wrong")
            object.__setattr__(self, "outcome", read)
        if not self.family:  # a dataset of no known family is its own
            object.__setattr__(self, "family", FAMILIES.get(self.task, self.task))

    @property
    def run_name(self) -> str:
        helped = self.feedback_model != NO_FEEDBACK
        expert = f" + {self.feedback_model} {self.feedback_type}" if helped else ""
        return f"{self.model}{expert}, k={self.k}"

    @property
    def key(self) -> tuple[str, str]:
        return self.task, self.task_id


def counted(outcomes: Iterable[EpisodeOutcome], failures: Collection[str] = FAILURES) -> list[EpisodeOutcome]:
    """The episodes that a success rate is of: those solved, and those whose outcome counts as a failure."""
    return [outcome for outcome in outcomes if outcome.success or outcome.outcome in failures]


def parse_failures(text: str) -> tuple[str, ...]:
    """The outcomes that a user wants to count as failures: a list with commas, or `all`."""
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if names == ("all",):
        return tuple(name for name in OUTCOMES if name != SOLVED)
    for name in names:
        if name not in OUTCOMES or name == SOLVED:
            raise HistobenchError(
                f"{name!r} is not an outcome that can be counted; {did_you_mean(name, OUTCOMES[1:])}"
            )
    return names


def by_task(outcomes: Iterable[EpisodeOutcome]) -> dict[tuple[str, str], list[bool]]:
    tasks: dict[tuple[str, str], list[bool]] = defaultdict(list)
    for outcome in outcomes:
        tasks[outcome.key].append(outcome.success)
    return dict(sorted(tasks.items()))


def read_outcome_table(path: str | Path) -> Iterator[EpisodeOutcome]:
    from pydantic import TypeAdapter, ValidationError

    read = TypeAdapter(EpisodeOutcome).validate_python
    for number, row in enumerate(csv.DictReader(io.StringIO(read_plain_text(path))), start=2):
        try:
            yield read({name: text for name, text in row.items() if text and name})
        except ValidationError as error:
            problem = error.errors()[0]
            raise HistobenchError(
                f"{path}:{number}: not an outcome ({'.'.join(map(str, problem['loc']))}: {problem['msg']})"
            ) from error


def write_outcome_table(path: str | Path, outcomes: Iterable[EpisodeOutcome]) -> None:
    with atomic_path(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(EpisodeOutcome)])
        writer.writeheader()
        for outcome in outcomes:
            leaked = None if outcome.leaked is None else int(outcome.leaked)
            writer.writerow({**asdict(outcome), "success": int(outcome.success), "leaked": leaked})


def mean_tokens(outcomes: Iterable[EpisodeOutcome]) -> float | None:
    tokens = [outcome.tokens for outcome in outcomes]
    known = [number for number in tokens if number is not None]
    return sum(known) / len(known) if known and len(known) == len(tokens) else None
