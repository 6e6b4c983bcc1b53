"""ALFWorld on the host: find the installation, play games in side processes, ask the expert."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from histobench.core.errors import HistobenchError
from histobench.core.redaction import environment_without_keys

MAX_ACTIONS = 50
LOAD_TIMEOUT_S = 300.0
STEP_TIMEOUT_S = 60.0
_ARRIVAL = re.compile(r"^You arrive at loc \d+\. ")


class SimulatorError(Exception):
    """The simulator broke; nothing the agent did."""


class Game:
    """One running game. After its end, by winning or by the 50th action, it repeats its last observation."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lines = connection.makefile("rw", encoding="utf-8")
        self._last = ""
        self.actions = 0
        self.won = False
        self.failure: SimulatorError | None = None
        connection.settimeout(LOAD_TIMEOUT_S)
        self.intro: str = self._answer()["text"]
        connection.settimeout(STEP_TIMEOUT_S)

    @property
    def done(self) -> bool:
        return self.won or self.actions >= MAX_ACTIONS

    def step(self, command: str) -> str:
        if not self.done:
            with contextlib.suppress(OSError):  # the missing answer tells
                self._lines.write(json.dumps(command) + "\n")
                self._lines.flush()
            answer = self._answer()
            self.actions += 1
            self.won = answer["won"]
            self._last = _ARRIVAL.sub("", answer["text"])
        return self._last

    def close(self) -> None:
        with contextlib.suppress(OSError):  # words that could not be delivered any more
            self._lines.close()
        self._connection.close()

    def _answer(self) -> dict[str, Any]:
        try:
            line = self._lines.readline()
            answer = json.loads(line) if line else {"error": "its process ended"}
        except (OSError, ValueError) as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        if "error" in answer:
            # Kept, because the agent's code may swallow the exception.
            self.failure = SimulatorError(f"the ALFWorld simulator failed: {answer['error']}")
            raise self.failure
        return dict(answer)


class Simulator:
    """The side process that starts games; safe to use from several threads."""

    def __init__(self) -> None:
        if missing := missing_packages():
            raise HistobenchError(
                f"the ALFWorld engine is not installed ({', '.join(missing)} missing); run: {INSTALL}"
            )
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "histobench.mint.alfworld.game_server", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                # The package makes this folder when it is imported; an existing one keeps it from littering.
                env={"ALFWORLD_DATA": tempfile.gettempdir(), **environment_without_keys()},
            )
        self._lock = threading.Lock()

    def start(self, path: str | Path) -> Game:
        """Begin a game; one that was not played lately takes a second or more to load."""
        ours, theirs = socket.socketpair()
        with theirs, self._lock:
            try:
                socket.send_fds(self._control, [os.fsencode(Path(path).resolve())], [theirs.fileno()])
            except OSError as error:
                ours.close()
                raise SimulatorError(f"the ALFWorld process ended: {error}") from error
        try:
            return Game(ours)
        except BaseException:
            ours.close()
            raise

    def alive(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        """End the side process; running games go on until they are closed."""
        self._control.close()
        self._process.wait()


_shared: Simulator | None = None
_shared_lock = threading.Lock()


def shared_simulator() -> Simulator:
    global _shared
    with _shared_lock:
        if _shared is None or not _shared.alive():
            _shared = Simulator()
            atexit.register(_shared.close)
        return _shared


PACKAGES = ("textworld", "fast_downward", "alfworld", "tatsu", "jericho", "hashids", "mementos", "termcolor")
INSTALL = "make alfworld, in a clone of the repository"


def missing_packages() -> list[str]:
    return [name for name in PACKAGES if find_spec(name) is None]
