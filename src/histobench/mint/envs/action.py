"""The action in a message: how it is read, and the grammar that enforces it."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal

from histobench.mint.messages.parts import Ending, Message, Reasoning, ToolCall

Kind = Literal["execute", "invalid", "proposal", "proposal_unparsable", "error"]
#: How an episode went. The last two are not finished episodes: they are played again.
Outcome = Literal[
    "solved",
    "wrong",
    "out_of_turns",
    "invalid_action",
    "truncated",
    "refused",
    "refused_in_words",
    "filtered",
    "too_long",
    "over_limit",
    "checker_error",
    "provider_failure",
]
#: Why a message is no action: no tag in it, nothing but reasoning, no call, or calls that cannot be made.
Fault = Literal["", "no_tag", "reasoning_only", "no_call", "malformed_call"]


#: A first sentence that declines: "I'm sorry, but I can't help with that."
_REFUSAL = re.compile(
    r"[^.!?\n]{0,80}\b(?:(?:i|we)\s+(?:can(?:not|\s+not|['’]?t)|(?:am|are)\s+(?:not\s+able|unable)\s+to|won['’]?t"
    r"|will\s+not|must\s+(?:decline|refuse)\s+to|(?:decline|refuse)\s+to)|i['’]m\s+(?:not\s+able|unable)\s+to)"
    r"\s+(?:\w+\s+)?(?:help|assist|comply|provide|fulfil+|answer|do\s+(?:that|this)|support|engage|participate"
    r"|discuss|create|generate|share|continue)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class CheckedCall:
    """A native call, and what keeps it from being made (None: nothing)."""

    call: ToolCall
    problem: str | None = None


@dataclass(frozen=True)
class Action:
    """A classified message. `content` is the code or the solution; `error` is the provider's complaint.

    `message` is the model's message where there is more to it than `text`; `calls` are its native calls
    if the turn was played in their dialect (`native`).
    """

    kind: Kind
    text: str
    content: str = ""
    error: str | None = None
    fault: Fault = ""
    message: Message | None = None
    calls: tuple[CheckedCall, ...] = ()
    native: bool = False
    ending: Ending = ""
    #: Of an error: which outcome the episode has.
    outcome: Outcome = "too_long"

    @property
    def is_proposal(self) -> bool:
        return self.kind in ("proposal", "proposal_unparsable")


def classify(text: str) -> Action:
    """A message with an opening solution tag is a proposal, every other message is a tool call.

    >>> classify("<execute>print(1)</execute>").content
    'print(1)'
    >>> classify("<execute>print(1)</execute><solution>").kind
    'proposal_unparsable'
    """
    if "<solution>" in text:
        solution = _joined("solution", text)
        return Action("proposal" if solution else "proposal_unparsable", text, solution)
    code = _joined("execute", text)
    # The test is on the joined text: two empty blocks join to a newline, which the published loop runs.
    return Action("execute", text, code) if code else Action("invalid", text, fault="no_tag")


def classify_message(message: Message) -> Action:
    """The action of a message in the text dialect; reasoning is no part of what is read.

    >>> classify_message(Message("assistant", "", (Reasoning("2 + 2 is 4"),))).fault
    'reasoning_only'
    """
    action = replace(classify(message.content), ending=message.ending)
    if not message.parts:
        return action
    if is_reasoning_only(message):
        action = replace(action, fault="reasoning_only")
    return replace(action, message=message)


def is_reasoning_only(message: Message) -> bool:
    thought = any(isinstance(part, Reasoning) for part in message.parts)
    return thought and not message.content.strip() and not message.calls


def refuses_in_words(text: str) -> bool:
    """Whether the first or second sentence of a message declines to help; a rule of words, not a judgment.

    >>> refuses_in_words("I'm sorry. I cannot help with that."), refuses_in_words("I cannot find the value.")
    (True, False)
    """
    words = text.removeprefix("Assistant:").lstrip(" \n*\"'")[:400]
    second = re.split(r"[.!?]\s+", words, maxsplit=1)[-1]
    return bool(_REFUSAL.match(words) or _REFUSAL.match(second))


def provider_error(message: str, outcome: Outcome = "too_long") -> Action:
    """The action of a turn in which nothing was answered, for good."""
    return Action("error", "", error=message, outcome=outcome)


def _joined(tag: str, text: str) -> str:
    """What is between each opening tag and the next closing one; a lazy pattern is not linear."""
    opening, closing = f"<{tag}>", f"</{tag}>"
    spans = []
    end = 0
    while (start := text.find(opening, end)) >= 0:
        start += len(opening)
        stop = text.find(closing, start)
        if stop < 0:
            break
        spans.append(text[start:stop].strip())
        end = stop + len(closing)
    return "\n".join(spans)


#: Of the grammars of the text dialect (GBNF): one line, no full stop before a space.
_SOLUTION = 'solution ::= "<solution>" piece{1,80} "</solution>"\npiece ::= [^<\\n.] | "." [^<\\n. ]\n'
#: Code or a solution, and no thought before it: small models go round in circles there until their tokens are
#: spent. No "<" inside: a tag ends what it opened.
ACTION_GRAMMAR = (
    f'root ::= execute | solution\nexecute ::= "<execute>" [^<]{{1,600}} "</execute>"\n{_SOLUTION}'
)
#: In the last step, which the agent is asked to use for a solution: only that.
SOLUTION_GRAMMAR = f"root ::= solution\n{_SOLUTION}"
