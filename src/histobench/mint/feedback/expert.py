"""The expert of one episode."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from histobench.mint.agents.agent import EpisodeAgent
from histobench.mint.agents.completion import ProviderError, Usage
from histobench.mint.envs.episode import RequestRefusedError
from histobench.mint.feedback.expert_prompt import expert_prompt
from histobench.mint.feedback.kind import FeedbackKind, one_bit, placebo
from histobench.mint.feedback.leak import leaks_answer
from histobench.mint.messages.parts import Message
from histobench.mint.prompts.first_message import Wording
from histobench.mint.tasks.base import Task
from histobench.mint.tools.base import Tool


@dataclass
class EpisodeExpert:
    """Gives feedback after each turn and keeps the books on it.

    A provider that fails gives no feedback and the episode goes on, as in the published benchmark; the
    failure is counted. `writer` is the model or person behind the expert; without one the feedback is a
    placebo.
    """

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
        """Tokens spent on feedback."""
        return self.writer.usage if self.writer else Usage()

    @property
    def cost(self) -> float | None:
        """Dollars spent on feedback."""
        return self.writer.cost if self.writer else 0.0

    def __call__(self, history: tuple[Message, ...], observation: str) -> str:
        """The feedback for the turn, "" for none."""
        feedback = self._feedback(history, observation)
        self.given.append(feedback)
        self.leaks.append(leaks_answer(self.task, history, observation, feedback))
        return feedback

    def as_record(self) -> dict[str, Any]:
        """For the details of an episode."""
        record = {"given": sum(map(bool, self.given)), "leaks": self.leaks, "failures": self.failures}
        if self.writer is not None and self.writer.turns:
            record["turns"] = list(self.writer.turns)
            record["prompts"] = self.prompts  # of each turn, in order: what `messages` was
        return record

    def _feedback(self, history: tuple[Message, ...], observation: str) -> str:
        if self.kind.form == "placebo" or self.writer is None:
            return placebo(history)
        prompt = expert_prompt(
            self.task,
            self.tools,
            self.wording,
            history,
            observation,
            knows_solution=self.kind.knows_solution,
        )
        self.prompts.append(prompt)
        try:
            answer = self.writer((Message("user", prompt),))
            text = (answer if isinstance(answer, str) else answer.content).strip()
        except RequestRefusedError as error:
            self.failures.append(str(error))
            return ""
        except ProviderError as error:
            if error.hopeless:
                raise
            self.failures.append(str(error))
            return ""
        return one_bit(text) if self.kind.form == "binary" else text
