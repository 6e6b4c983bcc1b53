"""The base class of every tool."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar


class Tool(ABC):
    """A function that an agent can call from its code, with a name and words that explain it.

    A tool class sets the three class variables and implements `__call__`, which returns the text that the
    agent observes. A tool with state also implements `reset`, called before each episode.
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
