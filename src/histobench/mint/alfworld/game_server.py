"""The side process that plays games (`... DESCRIPTOR`): loads the engine once, then forks for each play.

The engine has one game per process. A fork answers JSON lines: first the introduction.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import socket
import sys
from copy import deepcopy
from typing import Any, TextIO

_PATH_BYTES = 1 << 15


def main() -> None:
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
                lines = socket.socket(fileno=descriptors[0]).makefile("rw", encoding="utf-8")
                _play(os.fsdecode(path), lines)
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
    """Make the engine parse and translate each text once: it takes about a third of the time."""
    import fast_downward
    from textworld.envs.pddl import textgen
    from textworld.logic import Rule

    translated = functools.cache(functools.partial(fast_downward.pddl2sas, verbose=False))
    fast_downward.pddl2sas = lambda domain, problem, *_, **__: translated(domain, problem)
    Rule.parse_conjunctive_query = functools.cache(Rule.parse_conjunctive_query)
    if parse := getattr(textgen, "_parse_and_convert", None):  # not part of its interface
        parsed = functools.cache(parse)  # the engine writes into what it gets
        textgen._parse_and_convert = lambda *args, **kwargs: deepcopy(parsed(*args, **kwargs))  # noqa: SLF001


if __name__ == "__main__":
    main()
