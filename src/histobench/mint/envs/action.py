"""What the model did in a turn, read from its text alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["execute", "invalid", "proposal", "proposal_unparsable", "error"]


@dataclass(frozen=True)
class Action:
    """A classified message. `content` is the code or the solution; `error` is the provider's complaint."""

    kind: Kind
    text: str
    content: str = ""
    error: str | None = None

    @property
    def is_proposal(self) -> bool:
        """Whether the message spends a proposal."""
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
    return Action("execute" if code else "invalid", text, code)


def provider_error(message: str) -> Action:
    """The action of a turn in which the provider rejected the request."""
    return Action("error", "", error=message)


def _joined(tag: str, text: str) -> str:
    """What stands between each opening tag and the next closing one.

    Not a lazy pattern: that looks for the missing end once more for every tag that was never closed.
    """
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
