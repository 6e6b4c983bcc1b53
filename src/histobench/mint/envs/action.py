"""What the model did in a turn, read from its text alone."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Kind = Literal["execute", "invalid", "proposal", "proposal_unparsable", "error"]

_EXECUTE = re.compile(r"<execute>(.*?)</execute>", re.DOTALL)
_SOLUTION = re.compile(r"<solution>(.*?)</solution>", re.DOTALL)


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
        solution = _joined(_SOLUTION, text)
        return Action("proposal" if solution else "proposal_unparsable", text, solution)
    code = _joined(_EXECUTE, text)
    # The test is on the joined text: two empty blocks join to a newline, which the published loop runs.
    return Action("execute" if code else "invalid", text, code)


def provider_error(message: str) -> Action:
    """The action of a turn in which the provider rejected the request."""
    return Action("error", "", error=message)


def _joined(tag: re.Pattern[str], text: str) -> str:
    return "\n".join(span.strip() for span in tag.findall(text))
