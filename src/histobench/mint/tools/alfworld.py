"""The household actions of ALFWorld, one tool each."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from histobench.mint.tools.base import Tool

if TYPE_CHECKING:
    from histobench.mint.alfworld.simulator import Game


class AlfWorldTool(Tool):
    """An action in a running game; a subclass words the command that the simulator understands."""

    def __init__(self, game: Game) -> None:
        self._game = game

    def act(self, command: str) -> str:
        """The simulator's answer to a command."""
        return self._game.step(command)


class _AtReceptacle(AlfWorldTool):
    """An action on a receptacle: `command`, then its name."""

    command: ClassVar[str]

    def __call__(self, receptacle: str) -> str:
        return self.act(f"{self.command} {receptacle}")


class _Treatment(AlfWorldTool):
    """What is done to an object with a receptacle; the tool's name is the command."""

    def __call__(self, object: str, receptacle: str) -> str:
        return self.act(f"{self.name} {object} with {receptacle}")


class Put(AlfWorldTool):
    name = "put"
    signature = "put(object: str, receptacle: str) -> str"
    description = 'Puts an object that you hold in or on a receptacle. Example: put("vase 2", "shelf 4")'

    def __call__(self, object: str, receptacle: str) -> str:
        return self.act(f"put {object} in/on {receptacle}")


class GoTo(_AtReceptacle):
    name = "goto"
    command = "go to"
    signature = "goto(receptacle: str) -> str"
    description = 'Walks to a receptacle and tells what is there. Example: goto("armchair 1")'


class TakeFrom(AlfWorldTool):
    name = "take_from"
    signature = "take_from(object: str, receptacle: str) -> str"
    description = (
        'Takes an object from a receptacle that you stand at. Example: take_from("vase 2", "dresser 1")'
    )

    def __call__(self, object: str, receptacle: str) -> str:
        return self.act(f"take {object} from {receptacle}")


class OpenReceptacle(_AtReceptacle):
    name = "open_receptacle"
    command = "open"
    signature = "open_receptacle(receptacle: str) -> str"
    description = (
        'Opens a receptacle that you stand at and tells what is inside. Example: open_receptacle("safe 1")'
    )


class Toggle(AlfWorldTool):
    name = "toggle"
    signature = "toggle(object_or_receptacle: str) -> str"
    description = 'Switches an object or a receptacle on or off. Example: toggle("faucet 1")'

    def __call__(self, object_or_receptacle: str) -> str:
        return self.act(f"toggle {object_or_receptacle}")


class CloseReceptacle(_AtReceptacle):
    name = "close_receptacle"
    command = "close"
    signature = "close_receptacle(receptacle: str) -> str"
    description = 'Closes a receptacle that you stand at. Example: close_receptacle("safe 1")'


class Clean(_Treatment):
    name = "clean"
    signature = "clean(object: str, receptacle: str) -> str"
    description = (
        'Cleans an object that you hold with something next to you. Example: clean("ladle 1", "sinkbasin 2")'
    )


class Heat(_Treatment):
    name = "heat"
    signature = "heat(object: str, receptacle: str) -> str"
    description = (
        'Heats an object that you hold with something next to you. Example: heat("cup 3", "microwave 1")'
    )


class Cool(_Treatment):
    name = "cool"
    signature = "cool(object: str, receptacle: str) -> str"
    description = (
        'Cools an object that you hold with something next to you. Example: cool("bread 1", "fridge 1")'
    )


class Use(_AtReceptacle):
    name = command = "use"
    signature = "use(receptacle: str) -> str"
    description = 'Uses a thing that you stand at, such as a lamp. Example: use("floorlamp 1")'


class LookAround(AlfWorldTool):
    name = "look"
    signature = "look() -> str"
    description = "Tells where you are and what is next to you. Example: look()"

    def __call__(self) -> str:
        return self.act("look")


#: In the order in which they are listed to the agent.
ACTIONS: tuple[type[AlfWorldTool], ...] = (
    Put,
    GoTo,
    TakeFrom,
    OpenReceptacle,
    Toggle,
    CloseReceptacle,
    Clean,
    Heat,
    Cool,
    Use,
    LookAround,
)


def household_tools(game: Game) -> list[AlfWorldTool]:
    """Every action, on one game."""
    return [action(game) for action in ACTIONS]
