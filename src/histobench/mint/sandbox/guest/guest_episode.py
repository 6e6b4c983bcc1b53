"""The loop of one episode: cells and unit tests in, results out, tools called back over the same socket."""

from __future__ import annotations

import importlib
import linecache
import os
import sys
from typing import Any, Protocol

from .alarm import clock
from .capture import Capture
from .mailbox import EpisodeChannel, Mailbox
from .memory_reserve import within_memory_limit
from .test_runner import run_tests
from .tested_program import serve_program

_RECURSION_LIMIT = 3000  # what the published benchmark's cells ran under


class Shell(Protocol):
    """Something that runs cells in one lasting namespace."""

    def start(self, names: dict[str, Any], first_cell_number: int) -> None:
        """Begin an episode with `names` in the namespace."""

    def run(self, code: str, timeout: float, patience: float) -> str:
        """Run one cell; returns ok, error or timeout. Output goes to the standard streams."""


_shell: Shell | None = None


def prepare(config: dict[str, Any]) -> None:
    """Load the packages and build the shell once, in the zygote, so that every fork starts with them."""
    global _shell
    # An editable install's source tree is not there, or not readable, and its place is no one's business.
    folders = tuple(f"{folder}/" for folder in config["packages"])
    sys.path[:] = [path for path in sys.path if f"{path}/".startswith(folders)]
    for name in config["preload"]:
        importlib.import_module(name)
    linecache.clearcache()  # newer Pythons would show the text of `python -c` as the episode's
    if config["shell"] == "ipython":
        from .ipython_shell import IPythonShell

        _shell = IPythonShell()
    else:
        from .plain_shell import PlainShell

        _shell = PlainShell()


def serve(channel: EpisodeChannel, config: dict[str, Any]) -> None:
    """Answer the host until it closes the socket."""
    assert _shell is not None
    sys.setrecursionlimit(_RECURSION_LIMIT)
    sys.set_int_max_str_digits(0)  # the time limit guards what this one would
    mailbox = Mailbox(channel)
    os.register_at_fork(after_in_child=mailbox.abandon)
    os.register_at_fork(after_in_child=clock.renew)
    own_pid = os.getpid()
    output_chars = config["limits"]["output_chars"]
    memory = config["limits"]["memory_mb"] << 20
    mailbox.send({"op": "ready"})
    while True:
        order = mailbox.next_order()
        kind_of_order = order.get("op")
        if kind_of_order == "start":
            names = {name: mailbox.tool(name) for name in order["tools"]}
            _shell.start(names, order["first_cell_number"])
            continue
        if kind_of_order == "cell":
            with Capture(output_chars) as captured, within_memory_limit(memory):
                kind = _shell.run(order["code"], order["timeout"], order["patience"])
            answer = {"op": "done", "cell": order["cell"], "kind": kind, "text": captured.text()}
        elif kind_of_order == "program":
            serve_program(order, mailbox, memory)
            continue
        elif kind_of_order == "tests":
            with within_memory_limit(memory):
                verdict = run_tests(order, mailbox)
            answer = {"op": "verdict", **verdict}
        else:
            continue
        if os.getpid() != own_pid:
            os._exit(0)  # model code forked and let the copy run on into this loop
        mailbox.send(answer)
