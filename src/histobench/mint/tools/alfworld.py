"""The household actions of ALFWorld, one tool each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from histobench.mint.tools.base import Tool

if TYPE_CHECKING:
    from histobench.mint.alfworld.simulator import Game


class AlfWorldTool(Tool):
    """An action in a running game; `command` is what the simulator understands, with the arguments put in."""

    arguments = ""

    def __init__(self, game: Game, name: str, command: str, description: str) -> None:
        self._game, self._command = game, command
        self.name, self.description = name, description  # type: ignore[misc]
        self.signature = f"{name}({self.arguments}) -> str"  # type: ignore[misc]

    def __call__(self) -> str:
        return self._game.step(self._command)


class _AtReceptacle(AlfWorldTool):
    arguments = "receptacle: str"

    def __call__(self, receptacle: str) -> str:  # type: ignore[override]
        return self._game.step(self._command.format(receptacle))


class _WithObject(AlfWorldTool):
    arguments = "object: str, receptacle: str"

    def __call__(self, object: str, receptacle: str) -> str:  # type: ignore[override]
        return self._game.step(self._command.format(object, receptacle))


class _Toggle(AlfWorldTool):
    arguments = "object_or_receptacle: str"

    def __call__(self, object_or_receptacle: str) -> str:  # type: ignore[override]
        return self._game.step(self._command.format(object_or_receptacle))


_PUT = "Puts an object that you hold in or on a receptacle."
_HELD = "an object that you hold with something next to you."
_OPEN = "Opens a receptacle that you stand at and tells what is inside."
#: In the order in which they are listed to the agent: arguments, name, command, what it does, an example.
ACTIONS: tuple[tuple[type[AlfWorldTool], str, str, str, str], ...] = (
    (_WithObject, "put", "put {} in/on {}", _PUT, '"vase 2", "shelf 4"'),
    (_AtReceptacle, "goto", "go to {}", "Walks to a receptacle and tells what is there.", '"armchair 1"'),
    (
        *(_WithObject, "take_from", "take {} from {}"),
        *("Takes an object from a receptacle that you stand at.", '"vase 2", "dresser 1"'),
    ),
    (_AtReceptacle, "open_receptacle", "open {}", _OPEN, '"safe 1"'),
    (_Toggle, "toggle", "toggle {}", "Switches an object or a receptacle on or off.", '"faucet 1"'),
    (_AtReceptacle, "close_receptacle", "close {}", "Closes a receptacle that you stand at.", '"safe 1"'),
    *(
        (_WithObject, name, f"{name} {{}} with {{}}", f"{does} {_HELD}", example)
        for name, does, example in (
            ("clean", "Cleans", '"ladle 1", "sinkbasin 2"'),
            ("heat", "Heats", '"cup 3", "microwave 1"'),
            ("cool", "Cools", '"bread 1", "fridge 1"'),
        )
    ),
    (_AtReceptacle, "use", "use {}", "Uses a thing that you stand at, such as a lamp.", '"floorlamp 1"'),
    (AlfWorldTool, "look", "look", "Tells where you are and what is next to you.", ""),
)


def household_tools(game: Game) -> list[AlfWorldTool]:
    return [
        kind(game, name, command, f"{does} Example: {name}({example})")
        for kind, name, command, does, example in ACTIONS
    ]
