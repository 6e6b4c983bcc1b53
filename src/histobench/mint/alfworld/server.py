"""The side process that plays games: loads the engine once, then forks one child for each game.

The engine keeps its state in a C library, one game per process, and takes seconds to import. Run as
`python -m histobench.mint.alfworld.server DESCRIPTOR`; over that socket it receives one socket per game, on
which the child answers JSON lines: a game's path first, then one command per line.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from typing import Any, TextIO

from histobench.mint.alfworld import engine


def main() -> None:
    """Serve until the host's end of the control socket closes."""
    control = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the host decides when to stop
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children are reaped by the system
    import alfworld.agents.environment.alfred_tw_env  # noqa: F401 - seconds, spent before the first fork

    engine.remember_parsed_texts()
    while True:
        word, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not word:
            return
        if os.fork() == 0:
            control.close()
            status = 1
            try:
                _play(socket.socket(fileno=descriptors[0]).makefile("rw", encoding="utf-8"))
                status = 0
            finally:
                os._exit(status)
        for descriptor in descriptors:
            os.close(descriptor)


def _play(lines: TextIO) -> None:
    try:
        env, state = engine.open_game(json.loads(lines.readline()))
        _send(lines, {"text": state.feedback})
        for line in lines:
            state, _, _ = env.step(json.loads(line))
            _send(lines, {"text": state.feedback, "won": bool(state["won"])})
    except OSError:  # the host has gone
        return
    except Exception as error:
        _send(lines, {"error": f"{type(error).__name__}: {error}"})


def _send(lines: TextIO, message: dict[str, Any]) -> None:
    lines.write(json.dumps(message) + "\n")
    lines.flush()


if __name__ == "__main__":
    main()
