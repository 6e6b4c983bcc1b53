"""The expert that gives feedback: its prompt, its answer, and the check that it leaks no solution."""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from histobench.mint.agents.agent import EpisodeAgent
from histobench.mint.agents.completion import ProviderError, Usage
from histobench.mint.envs.episode import RequestRefusedError
from histobench.mint.feedback.kind import FeedbackKind, one_bit, placebo
from histobench.mint.messages.parts import Message
from histobench.mint.prompts.first_message import TASK_HEADER, Wording
from histobench.mint.tasks.base import Task, checked
from histobench.mint.tasks.codegen import CodeGenTask
from histobench.mint.tasks.reasoning import MultipleChoiceTask
from histobench.mint.tools.base import Tool

TEMPLATE = Path(__file__).parent / "expert_prompt.txt"
NOT_GIVEN = "NOT GIVEN"


def expert_prompt(
    task: Task,
    tools: Sequence[Tool],
    wording: Wording,
    history: Sequence[Message],
    observation: str,
    *,
    knows_solution: bool,
) -> str:
    example = wording.example(task, with_feedback=True)
    trajectory = "\n".join(
        [TASK_HEADER + wording.task(task), *(message.content for message in history[1:]), observation]
    )
    values = {
        "example": example[max(example.find(TASK_HEADER.strip()), 0) :],
        "tools": wording.tools(tools),
        "trajectory": trajectory,
        "solution": solution_line(task.reference, published=task.rule != "strict")
        if knows_solution
        else NOT_GIVEN,
    }
    return TEMPLATE.read_text(encoding="utf-8").removesuffix("\n").format(**values)


def solution_line(reference: Any, *, published: bool) -> str:
    """The solution as the expert reads it.

    The published benchmark takes a solution that is False, 0 or empty for one that is not given.

    >>> solution_line(False, published=True), solution_line(False, published=False)
    ('NOT GIVEN', 'False')
    """
    if reference is None or (published and not reference):
        return NOT_GIVEN
    return str(reference).strip()


_NUMBER = re.compile(r"-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:/\d+)?")
_FENCED = re.compile(r"```[a-zA-Z0-9]*\n(.*?)```", re.DOTALL)
_OPTION = re.compile(
    r"\b(?i:option|answer|choice)\s*(?:is|should be|:)?\s*\(?([A-Ja-j])\b\)?|\(([A-Ja-j])\)|\b([A-J])\)"
)
_ANSWER = re.compile(r"\b(?:answer|result|solution|value|should (?:be|get)|equals)\b[^.]*$", re.IGNORECASE)
#: "Yes" and "no" stand in most sentences: only as what an answer is said to be do they say anything.
_TRUTH = re.compile(
    r"\b(?:answer|solution|statement|claim)\b(?:\s+\w+){0,2}?\s*(?:\bis|\bshould be|\bmust be|:)\s+[\"'`*]*"
    r"(yes|no|true|false)\b(?=[\"'`*]*\s*(?:[.,;!)]|$))",
    re.IGNORECASE | re.MULTILINE,
)
_OPTION_TEXT = re.compile(r"\banswer\s*(?:is|should be|:)\s*([^.\n]{2,80})", re.IGNORECASE)
_QUOTED = re.compile(r"\"([^\"\n]{2,80})\"|'([^'\n]{2,80})'|`([^`\n]{1,80})`|\*\*([^*\n]{1,80})\*\*")
#: So much of a feedback is read, and so many answers in it are tried: an expert is a model, too.
_READ_CHARS = 20_000
_MOST_CANDIDATES = 200


def leaks_answer(task: Task, history: Sequence[Message], observation: str, feedback: str) -> bool | None:
    """Whether the feedback states the answer before anyone else did; `None` where that cannot be judged.

    Numbers, options, quoted phrases and code are picked out of the feedback and handed to the task's own
    strict checker. What the task, the agent's messages or the observations have said before is no leak, and
    neither is a verdict on the agent's own answer.
    """
    if task.decided_by_acting:
        return None
    if not feedback:
        return False
    said = "\n".join([task.prompt, *(message.content for message in history[1:]), observation])
    task = copy.copy(task)
    task.rule = "strict"
    candidates = _new_answers(task, said, feedback[:_READ_CHARS])
    return any(checked(task, answer) for answer in candidates[:_MOST_CANDIDATES])


def _new_answers(task: Task, said: str, feedback: str) -> list[str]:
    if isinstance(task, CodeGenTask):
        # Fragments of code are help, a program that passes the tests is the answer.
        return [code for code in _FENCED.findall(feedback) if "def " in code and code.strip() not in said]
    if isinstance(task, MultipleChoiceTask):
        # The options stand in the prompt: naming one is news unless the agent has named it.
        spoken = said.replace(task.prompt, "")
        named = _options(feedback) - _options(spoken)
        if len(named) > 1:
            return []  # who discusses several has not chosen one
        return sorted(named) or [
            text for text in _OPTION_TEXT.findall(feedback) if not _contains(spoken, text)
        ]
    if str(task.reference).strip().lower() in {"yes", "no", "true", "false"}:
        spoken = said.replace(task.prompt, "")  # a prompt asks "yes or no", "True or False"
        return sorted({word for word in _TRUTH.findall(feedback) if not _contains(spoken, word)})
    found = {match.group() for match in _NUMBER.finditer(feedback) if _is_stated(match)}
    found = {number for number in found if not _contains(said, number)}
    phrases = {next(filter(None, groups)) for groups in _QUOTED.findall(feedback)}
    reference = str(task.reference).strip()
    if reference and not _NUMBER.fullmatch(reference) and _contains(feedback, reference):
        phrases.add(reference)
    return sorted(found | {phrase for phrase in phrases if not _contains(said, phrase)})


def _is_stated(number: re.Match[str]) -> bool:
    """Digits stand in formulas and lists by chance: a single one counts only where an answer is spoken of."""
    if len(number.group().lstrip("-")) > 1:
        return True
    return _ANSWER.search(number.string[max(0, number.start() - 40) : number.start()]) is not None


def _options(text: str) -> set[str]:
    return {next(filter(None, groups)).lower() for groups in _OPTION.findall(text)}


def _contains(text: str, phrase: str) -> bool:
    return re.search(rf"(?<![\w.]){re.escape(phrase)}(?![\w]|\.\d)", text, re.IGNORECASE) is not None


@dataclass
class EpisodeExpert:
    """Gives feedback after each turn; a provider that fails gives none. Without `writer` it is a placebo."""

    kind: FeedbackKind
    task: Task
    tools: Sequence[Tool]
    wording: Wording
    writer: EpisodeAgent | None = None
    given: list[str] = field(default_factory=list)
    leaks: list[bool | None] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    prompts: list[str] = field(default_factory=list)

    @property
    def usage(self) -> Usage:
        return self.writer.usage if self.writer else Usage()

    @property
    def cost(self) -> float | None:
        return self.writer.cost if self.writer else 0.0

    def __call__(self, history: tuple[Message, ...], observation: str) -> str:
        feedback = self._feedback(history, observation)
        self.given.append(feedback)
        self.leaks.append(leaks_answer(self.task, history, observation, feedback))
        return feedback

    def as_record(self) -> dict[str, Any]:
        record = {"given": sum(map(bool, self.given)), "leaks": self.leaks, "failures": self.failures}
        if self.writer is not None and self.writer.turns:
            record["turns"] = list(self.writer.turns)
            record["prompts"] = self.prompts  # of each turn, in order: what `messages` was
        return record

    def _feedback(self, history: tuple[Message, ...], observation: str) -> str:
        if self.kind.form == "placebo" or self.writer is None:
            return placebo(history)
        prompt = expert_prompt(
            self.task, self.tools, self.wording, history, observation, knows_solution=self.kind.knows_solution
        )
        self.prompts.append(prompt)
        try:
            answer = self.writer((Message("user", prompt),))
            text = (answer if isinstance(answer, str) else answer.content).strip()
        except (RequestRefusedError, ProviderError) as error:
            if isinstance(error, ProviderError) and error.hopeless:
                raise
            self.failures.append(str(error))
            return ""
        return one_bit(text) if self.kind.form == "binary" else text
