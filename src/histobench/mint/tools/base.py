"""The base class of every tool."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, ClassVar

from histobench.mint.messages.parts import Image


class ToolServiceError(Exception):
    """What a tool asks (a web site, another model) did not answer: no one here made a mistake."""


class ToolArgumentError(ValueError):
    """A tool cannot work with a value that it was given: the agent's mistake, whatever the types say."""


class IllustratedText(str):
    """The text that a tool returns, with pictures: the agent's code sees the text, its model both.

    >>> IllustratedText("a crop of 64 x 64", [Image(b"...")]).upper()
    'A CROP OF 64 X 64'
    """

    images: tuple[Image, ...]

    def __new__(cls, text: str, images: Iterable[Image] = ()) -> IllustratedText:
        made = super().__new__(cls, text)
        made.images = tuple(images)
        return made


class Tool(ABC):
    """A function that an agent can call from its code, with a name and words that explain it.

    A tool class sets the three class variables and implements `__call__`, which returns the text that the
    agent observes (an `IllustratedText` where there is something to see). A tool with state also implements
    `reset`, called before each episode; one that is not there from the start answers `is_open`.
    """

    name: ClassVar[str]
    signature: ClassVar[str]
    description: ClassVar[str]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        call = cls.__dict__.get("__call__")
        if call is not None:
            # What Python says about wrong arguments reaches the agent, who knows no class names.
            call.__qualname__ = "__call__"

    @abstractmethod
    def __call__(self, *args: Any, **kwargs: Any) -> str:
        """Do the work; the returned text is what the agent sees."""

    def reset(self) -> None:  # noqa: B027 - most tools have no state
        """Forget the last episode."""

    def is_open(self) -> bool:
        """Whether the agent may call it in this turn. A closed tool is not listed among native functions."""
        return True
