"""What the rooms below call a parameter, the command line calls a flag: `group_regex` is --group-regex."""

from __future__ import annotations

import argparse
import re

_NAMED = re.compile(r"`(\w+)`")


def in_flags(text: str) -> str:
    """The text as the command that runs would say it."""
    return _running.translate(text)


def speak_as(parser: argparse.ArgumentParser) -> None:
    """From now on parameters are called as this command calls them."""
    global _running
    _running = FlagNames(parser)


class FlagNames:
    """The flags of one command, by the names of their parameters."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self._flags: dict[str, str] = {}
        self._learn(parser)

    def translate(self, text: str) -> str:
        """The text with parameters that the command has as flags in the spelling of the command line.

        >>> parser = argparse.ArgumentParser()
        >>> _ = parser.add_argument("-g", "--group-regex")
        >>> FlagNames(parser).translate("`group_regex` finds no group; leave out `split`")
        '--group-regex finds no group; leave out `split`'
        """
        return _NAMED.sub(lambda match: self._flags.get(match[1], match[0]), text)

    def _learn(self, parser: argparse.ArgumentParser) -> None:
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                for job in action.choices.values():
                    self._learn(job)
            long = [flag for flag in action.option_strings if flag.startswith("--")]
            if long:
                self._flags.setdefault(action.dest, long[0])
                # A flag keeps its own name where the value is stored under another one.
                self._flags.setdefault(long[0][2:].replace("-", "_"), long[0])


#: One process runs one command.
_running = FlagNames(argparse.ArgumentParser())
