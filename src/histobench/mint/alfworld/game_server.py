"""The side process that plays games: loads the engine once, then forks for each play.

The engine keeps its state in a C library, one game per process, and takes seconds to import; a game takes
another second to load. Run as `python -m histobench.mint.alfworld.game_server DESCRIPTOR`; over that socket
it receives a game's path with one socket per play, on which a fork answers JSON lines: the introduction
first, then what comes of each command.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from copy import deepcopy
from typing import Any, TextIO

_PATH_BYTES = 1 << 15


def main() -> None:
    """Serve until the host's end of the control socket closes."""
    control = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the host decides when to stop
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children are reaped by the system
    import alfworld.agents.environment.alfred_tw_env  # noqa: F401 - seconds, spent before the first fork

    remember_parsed_texts()
    while True:
        path, descriptors, _, _ = socket.recv_fds(control, _PATH_BYTES, 1)
        if not path:
            return
        if os.fork() == 0:
            try:
                control.close()
                _play(
                    os.fsdecode(path), socket.socket(fileno=descriptors[0]).makefile("rw", encoding="utf-8")
                )
            finally:
                os._exit(0)
        os.close(descriptors[0])


def _play(path: str, lines: TextIO) -> None:
    try:
        env, state = open_game(path)
        _send(lines, {"text": state.feedback})
        for line in lines:
            state, _, _ = env.step(json.loads(line))
            _send(lines, {"text": state.feedback, "won": bool(state["won"])})
    except Exception as error:
        with contextlib.suppress(OSError):  # the host has gone
            _send(lines, {"error": f"{type(error).__name__}: {error}"})


def _send(lines: TextIO, message: dict[str, Any]) -> None:
    lines.write(json.dumps(message) + "\n")
    lines.flush()


def open_game(path: str) -> tuple[Any, Any]:
    """The environment with ALFWorld's names for things, and its first state."""
    import textworld
    from alfworld.agents.environment.alfred_tw_env import AlfredDemangler

    infos = textworld.EnvInfos(won=True, admissible_commands=True)
    env = textworld.start(path, infos, wrappers=[AlfredDemangler(shuffle=False)])
    return env, env.reset()


def remember_parsed_texts() -> None:
    """Make the engine parse and translate each text once; it does so again at every step otherwise.

    A game's problem is translated four times while it loads (twice for a planner that is not used here), and
    every possible command of every step is parsed anew. The answers stay the same; loading and steps take
    about a third of the time.
    """
    import fast_downward
    from textworld.envs.pddl import textgen
    from textworld.logic import Rule

    translate = fast_downward.pddl2sas

    @functools.cache
    def translate_once(domain: str, problem: str) -> Any:
        return translate(domain, problem, verbose=False)

    fast_downward.pddl2sas = lambda domain, problem, verbose=False, optimize=False: translate_once(
        domain, problem
    )
    Rule.parse_conjunctive_query = functools.cache(Rule.parse_conjunctive_query)
    if (parse := getattr(textgen, "_parse_and_convert", None)) is not None:  # not part of its interface
        textgen._parse_and_convert = _copied(functools.cache(parse))


def _copied(function: Callable[..., Any]) -> Callable[..., Any]:
    """The engine writes into what it parsed, so everyone gets a copy."""

    def copied(*args: Any, **kwargs: Any) -> Any:
        return deepcopy(function(*args, **kwargs))

    return copied


if __name__ == "__main__":
    main()
