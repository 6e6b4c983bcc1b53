"""What kind of feedback: what the expert knows, and what the agent reads: all, one bit, or a placebo."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from histobench.core.errors import HistobenchError, did_you_mean
from histobench.mint.envs.turn_loop import FeedbackType
from histobench.mint.messages.parts import Message

Form = Literal["textual", "binary", "placebo"]
FORMS: tuple[Form, ...] = ("textual", "binary", "placebo")
GOOD = "This is GOOD."
BAD = "This is BAD."
#: The control arm. None of these depends on what the agent did, names a mistake, or says whether it is on the
#: right track.
SENTENCES: Sequence[str] = (
    "Thank you for your work so far. Please go on and take the time you need.",
    "Keep going. Think about the task once more and decide on your next step.",
    "You still have a chance to use what you have learnt. Please continue.",
    "Please carry on with care, and remember what the task asks for.",
)


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
        return f"{'GT' if self.knows_solution else 'no_GT'}-{self.form}"

    @property
    def state_type(self) -> FeedbackType:
        return "feedback_with_gt" if self.knows_solution else "feedback_wo_gt"


def parse_kind(name: str) -> FeedbackKind:
    knowledge, _, form = name.partition("-")
    known = [FeedbackKind(knows, form).name for knows in (False, True) for form in FORMS]
    if name not in known:
        raise HistobenchError(f"unknown kind of feedback {name!r}; {did_you_mean(name, known)}")
    return FeedbackKind(knowledge == "GT", form)  # type: ignore[arg-type]


def one_bit(text: str) -> str:
    """The verdict in the first sentence of a feedback; empty when there is none.

    >>> one_bit("This is GOOD. Now submit."), one_bit("Hm. This is BAD.")
    ('This is GOOD.', '')
    """
    sentence = text.split(".")[0]
    return GOOD if "GOOD" in sentence else BAD if "BAD" in sentence else ""


def placebo(history: tuple[Message, ...]) -> str:
    """The encouragement of this turn; which one depends on the turn's number alone."""
    turn = sum(message.role == "user" for message in history)
    return SENTENCES[(turn - 1) % len(SENTENCES)]
