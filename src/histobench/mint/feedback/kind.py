"""What kind of feedback: what the expert knows, and what the agent gets to read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from histobench.core.errors import HistobenchError, did_you_mean
from histobench.mint.envs.state import FeedbackType

Form = Literal["textual", "binary", "placebo"]
FORMS: tuple[Form, ...] = ("textual", "binary", "placebo")


@dataclass(frozen=True)
class FeedbackKind:
    """`knows_solution` is the benchmark's GT; `placebo` is encouragement without content, as a control.

    >>> FeedbackKind(knows_solution=True, form="binary").name
    'GT-binary'
    """

    knows_solution: bool = False
    form: Form = "textual"

    @property
    def name(self) -> str:
        """As folders of results spell it."""
        return f"{'GT' if self.knows_solution else 'no_GT'}-{self.form}"

    @property
    def state_type(self) -> FeedbackType:
        """As the state of an episode spells it."""
        return "feedback_with_gt" if self.knows_solution else "feedback_wo_gt"


def parse_kind(name: str) -> FeedbackKind:
    """The kind that a folder name spells."""
    knowledge, _, form = name.partition("-")
    known = [FeedbackKind(knows, form).name for knows in (False, True) for form in FORMS]
    if name not in known:
        raise HistobenchError(f"unknown kind of feedback {name!r}; {did_you_mean(name, known)}")
    return FeedbackKind(knowledge == "GT", form)  # type: ignore[arg-type]
