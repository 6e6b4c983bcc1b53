"""The household actions of ALFWorld, one tool each."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from histobench.mint.tools.base import Tool

if TYPE_CHECKING:
    from histobench.mint.alfworld.simulator import Game


class AlfWorldTool(Tool):
    """An action in a running game; `command` is what the simulator understands, with the arguments put in."""

    command: ClassVar[str]

    def __init__(self, game: Game) -> None:
        self._game = game

    def __call__(self) -> str:
        return self._game.step(self.command)


class _AtReceptacle(AlfWorldTool):
    def __call__(self, receptacle: str) -> str:  # type: ignore[override]
        return self._game.step(self.command.format(receptacle))


class _WithObject(AlfWorldTool):
    def __call__(self, object: str, receptacle: str) -> str:  # type: ignore[override]
        return self._game.step(self.command.format(object, receptacle))


class Put(_WithObject):
    name, command = "put", "put {} in/on {}"
    signature = "put(object: str, receptacle: str) -> str"
    description = 'Puts an object that you hold in or on a receptacle. Example: put("vase 2", "shelf 4")'


class GoTo(_AtReceptacle):
    name, command = "goto", "go to {}"
    signature = "goto(receptacle: str) -> str"
    description = 'Walks to a receptacle and tells what is there. Example: goto("armchair 1")'


class TakeFrom(_WithObject):
    name, command = "take_from", "take {} from {}"
    signature = "take_from(object: str, receptacle: str) -> str"
    description = (
        'Takes an object from a receptacle that you stand at. Example: take_from("vase 2", "dresser 1")'
    )


class OpenReceptacle(_AtReceptacle):
    name, command = "open_receptacle", "open {}"
    signature = "open_receptacle(receptacle: str) -> str"
    description = (
        'Opens a receptacle that you stand at and tells what is inside. Example: open_receptacle("safe 1")'
    )


class Toggle(AlfWorldTool):
    name, command = "toggle", "toggle {}"
    signature = "toggle(object_or_receptacle: str) -> str"
    description = 'Switches an object or a receptacle on or off. Example: toggle("faucet 1")'

    def __call__(self, object_or_receptacle: str) -> str:  # type: ignore[override]
        return self._game.step(self.command.format(object_or_receptacle))


class CloseReceptacle(_AtReceptacle):
    name, command = "close_receptacle", "close {}"
    signature = "close_receptacle(receptacle: str) -> str"
    description = 'Closes a receptacle that you stand at. Example: close_receptacle("safe 1")'


class Clean(_WithObject):
    name, command = "clean", "clean {} with {}"
    signature = "clean(object: str, receptacle: str) -> str"
    description = (
        'Cleans an object that you hold with something next to you. Example: clean("ladle 1", "sinkbasin 2")'
    )


class Heat(_WithObject):
    name, command = "heat", "heat {} with {}"
    signature = "heat(object: str, receptacle: str) -> str"
    description = (
        'Heats an object that you hold with something next to you. Example: heat("cup 3", "microwave 1")'
    )


class Cool(_WithObject):
    name, command = "cool", "cool {} with {}"
    signature = "cool(object: str, receptacle: str) -> str"
    description = (
        'Cools an object that you hold with something next to you. Example: cool("bread 1", "fridge 1")'
    )


class Use(_AtReceptacle):
    name, command = "use", "use {}"
    signature = "use(receptacle: str) -> str"
    description = 'Uses a thing that you stand at, such as a lamp. Example: use("floorlamp 1")'


class LookAround(AlfWorldTool):
    name = command = "look"
    signature = "look() -> str"
    description = "Tells where you are and what is next to you. Example: look()"


#: In the order in which they are listed to the agent.
ACTIONS: tuple[type[AlfWorldTool], ...] = (
    *(Put, GoTo, TakeFrom, OpenReceptacle, Toggle, CloseReceptacle, Clean, Heat, Cool, Use, LookAround),
)


def household_tools(game: Game) -> list[AlfWorldTool]:
    """Every action, on one game."""
    return [action(game) for action in ACTIONS]
