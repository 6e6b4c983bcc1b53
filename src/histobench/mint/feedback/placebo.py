"""The control arm: encouragement that says nothing about the task."""

from __future__ import annotations

from collections.abc import Sequence

from histobench.mint.messages.parts import Message

#: None of these depends on what the agent did, names a mistake, or says whether it is on the right track.
SENTENCES: Sequence[str] = (
    "Thank you for your work so far. Please go on and take the time you need.",
    "Keep going. Think about the task once more and decide on your next step.",
    "You still have a chance to use what you have learnt. Please continue.",
    "Please carry on with care, and remember what the task asks for.",
)


def placebo(history: tuple[Message, ...], observation: str) -> str:
    """The sentence of this turn; which one depends on the turn's number alone."""
    turn = sum(message.role == "user" for message in history)
    return SENTENCES[(turn - 1) % len(SENTENCES)]
