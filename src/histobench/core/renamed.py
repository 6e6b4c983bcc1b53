"""Earlier names of public functions, methods and parameters: they work for two versions, with a warning."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


@functools.cache
def warn_renamed(old: str, new: str) -> None:
    """Warn, once in a process, that a name has changed."""
    warnings.warn(f"{old} is now {new}; the old name will be removed", FutureWarning, stacklevel=3)


class Renamed:
    """An earlier name of a method or attribute, which tab completion does not offer."""

    def __init__(self, new: str) -> None:
        self._new = new

    def __set_name__(self, owner: type, name: str) -> None:
        self._old = name
        listed = owner.__dir__
        owner.__dir__ = lambda instance: [each for each in listed(instance) if each != name]  # type: ignore

    def __get__(self, instance: object, owner: type) -> Any:
        if instance is None:
            return self
        warn_renamed(f"{owner.__name__}.{self._old}", f"{owner.__name__}.{self._new}")
        return getattr(instance, self._new)


def renamed_parameters(**names: str) -> Callable[[F], F]:
    """Let a function take parameters by their earlier names, too; one without a new name is ignored."""

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def call(*args: Any, **given: Any) -> Any:
            for old, new in names.items():
                if old in given and not new:
                    warn_renamed(f"{function.__name__}({old}=)", "ignored")
                    del given[old]
                elif old in given:
                    warn_renamed(f"{function.__name__}({old}=)", f"{function.__name__}({new}=)")
                    given[new] = given.pop(old)
            return function(*args, **given)

        return call  # type: ignore[return-value]

    return decorate
