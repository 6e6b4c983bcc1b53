"""The state of an episode, in the shape of the published results file."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from histobench.mint.envs.action import Outcome
from histobench.mint.messages.parts import Message
from histobench.mint.messages.record import message_record

FeedbackType = Literal["no_feedback", "feedback_wo_gt", "feedback_with_gt"]
TerminateReason = Literal["task_success", "max_propose_steps", "max_steps", "error"]


@dataclass(frozen=True)
class Budget:
    """How often the agent may act and propose."""

    max_steps: int = 5
    max_propose_solution: int = 2
    count_down: bool = True


@dataclass(frozen=True)
class Counts:
    """Actions so far."""

    propose_solution: int = 0
    use_tool: int = 0
    invalid_action: int = 0

    @property
    def total(self) -> int:
        """All counted actions."""
        return self.propose_solution + self.use_tool + self.invalid_action


@dataclass(frozen=True)
class State:
    """Everything the loop knows; a new one is made in every step."""

    history: tuple[Message, ...]
    counts: Counts = field(default_factory=Counts)
    finished: bool = False
    success: bool = False
    terminate_reason: TerminateReason | None = None
    error: str | None = None
    latest_output: dict[str, Any] = field(default_factory=dict)
    #: What was wrong with each invalid message, in order; not part of the published record.
    faults: tuple[str, ...] = ()
    #: How the episode went; in `details.jsonl`, for the published record has no place for it.
    outcome: Outcome | None = None

    def as_published(self, token_counter: dict[str, int] | None = None) -> dict[str, Any]:
        """The `state` object of a line of `results.jsonl`."""
        return {
            "history": [message_record(message) for message in self.history],
            "finished": self.finished,
            "success": self.success,
            "latest_output": self.latest_output,
            "agent_action_count": {
                "propose_solution": self.counts.propose_solution,
                "use_tool": self.counts.use_tool,
                "invalid_action": self.counts.invalid_action,
            },
            "token_counter": dict(token_counter or {}),
            "terminate_reason": self.terminate_reason,
            "error": self.error,
        }
