"""The side process that plays games: loads the engine once and each game once, then forks for each play.

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
from collections import OrderedDict
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import partial
from typing import Any, TextIO

#: Loaded games that wait for another play.
HELD_GAMES = 4
_PATH_BYTES = 1 << 15


def main() -> None:
    """Serve until the host's end of the control socket closes."""
    control = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the host decides when to stop
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children are reaped by the system
    import alfworld.agents.environment.alfred_tw_env  # noqa: F401 - seconds, spent before the first fork

    remember_parsed_texts()
    holders: OrderedDict[tuple[bytes, float], socket.socket] = OrderedDict()
    for path, descriptor in _requests(control):
        with contextlib.suppress(OSError):
            try:
                game = path, os.stat(path).st_mtime
            except OSError:
                game = path, 0.0
            if game not in holders or not _pass_on(holders[game], path, descriptor):
                holders[game] = _start_holder(path, [control, *holders.values()])
                _pass_on(holders[game], path, descriptor)
            holders.move_to_end(game)
            while len(holders) > HELD_GAMES:
                holders.popitem(last=False)[1].close()
        os.close(descriptor)


def _requests(control: socket.socket) -> Iterator[tuple[bytes, int]]:
    while True:
        path, descriptors, _, _ = socket.recv_fds(control, _PATH_BYTES, 1)
        if not path:
            return
        yield path, descriptors[0]


def _pass_on(holder: socket.socket, path: bytes, descriptor: int) -> bool:
    """Hand a play to the process that holds its game; False if that is gone."""
    try:
        socket.send_fds(holder, [path], [descriptor])
    except OSError:
        return False
    return True


def _start_holder(path: bytes, not_its_own: list[socket.socket]) -> socket.socket:
    """A process that loads a game and forks a player for each socket it is sent."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def hold() -> None:
        for other in (ours, *not_its_own):
            other.close()
        try:
            opened: Any = open_game(os.fsdecode(path))
        except Exception as error:
            opened = error
        for _, descriptor in _requests(theirs):
            if isinstance(opened, Exception):
                with contextlib.suppress(OSError):
                    _send_error(_lines(descriptor), opened)
                return  # the next play tries anew
            _fork(partial(_play, descriptor, *opened))
            os.close(descriptor)

    _fork(hold)
    theirs.close()
    return ours


def _fork(job: Callable[[], None]) -> None:
    if os.fork() == 0:
        status = 1
        try:
            job()
            status = 0
        finally:
            os._exit(status)


def _play(descriptor: int, env: Any, state: Any) -> None:
    lines = _lines(descriptor)
    try:
        _send(lines, {"text": state.feedback})
        for line in lines:
            state, _, _ = env.step(json.loads(line))
            _send(lines, {"text": state.feedback, "won": bool(state["won"])})
    except OSError:  # the host has gone
        return
    except Exception as error:
        _send_error(lines, error)


def _lines(descriptor: int) -> TextIO:
    return socket.socket(fileno=descriptor).makefile("rw", encoding="utf-8")


def _send(lines: TextIO, message: dict[str, Any]) -> None:
    lines.write(json.dumps(message) + "\n")
    lines.flush()


def _send_error(lines: TextIO, error: Exception) -> None:
    _send(lines, {"error": f"{type(error).__name__}: {error}"})


# Opens a game in the TextWorld engine. Imported only in the side process.


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
