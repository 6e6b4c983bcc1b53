"""The loop of one episode: cells and unit tests in, results out, tools called back over the same socket."""

from __future__ import annotations

import builtins
import importlib
import itertools
import linecache
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from .cell_limits import AlarmPaused, Capture, memory_limit
from .frames import Channel
from .test_runner import run_tests
from .tested_program import serve_program

_RECURSION_LIMIT = 3000  # what the published benchmark's cells ran under
_shell: Any = None  # with `start(names, first_cell_number)` and `run(code, timeout, patience)`


def prepare(config: dict[str, Any]) -> None:
    """Load the packages and build the shell once, in the zygote, so that every fork starts with them."""
    global _shell
    # An editable install's source tree is not there, or not readable, and its place is not shown.
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


def serve(channel: Channel, config: dict[str, Any]) -> None:
    sys.setrecursionlimit(_RECURSION_LIMIT)
    sys.set_int_max_str_digits(0)  # the time limit guards what this one would
    os.register_at_fork(after_in_child=channel.close)
    own_pid = os.getpid()
    calls = itertools.count(1)
    memory = config["limits"]["memory_mb"] << 20
    channel.send({"op": "ready"})
    while True:
        order = channel.receive()
        match order.get("op"):
            case "start":
                names = {name: _tool(name, channel, calls, own_pid) for name in order["tools"]}
                _shell.start(names, order["first_cell_number"])
            case "cell":
                with Capture(config["limits"]["output_chars"]) as captured, memory_limit(memory):
                    kind = _shell.run(order["code"], order["timeout"], order["patience"])
                if os.getpid() != own_pid:
                    os._exit(0)  # model code forked and let the copy run on into this loop
                channel.send({"op": "done", "cell": order["cell"], "kind": kind, "text": captured.text()})
            case "program":
                serve_program(order, channel, memory)
            case "tests":
                with memory_limit(memory):
                    verdict = run_tests(order, channel)
                channel.send({"op": "verdict", **verdict})


def _tool(name: str, channel: Channel, calls: Iterator[int], own_pid: int) -> Callable[..., Any]:
    def tool(*args: Any, **kwargs: Any) -> Any:
        if os.getpid() != own_pid:
            raise RuntimeError(
                "tools can be called from the session's own process only, not from a fork of it"
            )
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("tools can be called from the main thread only")
        call = str(next(calls))
        with AlarmPaused() as pause:
            channel.send({"op": "tool", "call": call, "name": name, "args": args, "kwargs": kwargs})
            while (answer := channel.receive()).get("call") != call:
                pass  # to a call that an exception ended
            pause.excused = answer["excused"]
        if "error" in answer:
            kind = getattr(builtins, answer["error"], None)
            if not (isinstance(kind, type) and issubclass(kind, Exception)):
                kind = RuntimeError
            raise kind(answer["message"])
        return answer["value"]

    tool.__name__ = tool.__qualname__ = name
    return tool
