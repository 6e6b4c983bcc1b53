"""An IPython shell that behaves like the published benchmark's, minus what has no place in a sandbox."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
import traceback
from types import TracebackType
from typing import Any

from IPython.core.displaypub import DisplayPublisher
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from .cell_limits import HIDDEN, AlarmPaused, Capture, memory_limit, soft_limit

_WARM_UP = (
    "def f(x):\n    return 1 / x\n[i for i in range(3)]",
    "f(0)",
    "1 +",
    "return 1",
    "import sys\nsys.exit()",
    "{'a': [1.5] * 40, 'b': (None,) * 40}",
)
_OWN_FOLDER = os.path.dirname(__file__) + os.sep
# Some IPython versions forget the line break after the mark of left-out lines.
_GAP = re.compile(r"^   \(\.\.\.\)(?=[^\n])", re.MULTILINE)


class SilentPublisher(DisplayPublisher):
    """Rich display calls are not part of a cell's text."""

    def publish(self, *args: Any, **kwargs: Any) -> None:
        """Drop it."""


class CellShell(InteractiveShell):
    """IPython's shell with a traceback off the clock and a shell escape that needs no terminal."""

    def showtraceback(self, *args: Any, **kwargs: Any) -> None:
        error = sys.exc_info()[1]
        if error is not None:
            error.__traceback__ = _without_own_frames(error.__traceback__)
        with AlarmPaused(excused=math.inf), memory_limit(None):
            super().showtraceback(*args, **kwargs)
        if isinstance(error, MemoryError):  # what filled the memory mostly hangs on the frames that failed
            _empty_frames(error.__traceback__)

    def _showtraceback(self, etype: type, evalue: BaseException, stb: list[str]) -> None:
        super()._showtraceback(etype, evalue, [_GAP.sub("   (...)\n", part) for part in stb])

    def _format_exception_for_storage(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        return {}  # kept for a history file that is never written

    def system(self, cmd: str) -> None:
        """`!command`: run by bash, both streams shown, no terminal involved."""
        done = subprocess.run(
            ["/bin/bash", "-c", self.var_expand(cmd, depth=1)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        sys.stdout.write(done.stdout.decode("utf-8", "replace"))
        self.user_ns["_exit_code"] = done.returncode


# Error messages name the class; the agent should see the one that IPython's documentation describes.
CellShell.__name__ = CellShell.__qualname__ = "InteractiveShell"


class IPythonShell:
    def __init__(self) -> None:
        config = Config()
        config.HistoryManager.enabled = False  # its thread would not survive the fork
        config.InteractiveShell.colors = "nocolor"
        self._shell = CellShell.instance(config=config)
        self._shell.display_pub = SilentPublisher(parent=self._shell)
        self._warm_up()

    def start(self, names: dict[str, Any], first_cell_number: int) -> None:
        # Nothing has run in this process yet: what the zygote's trial cells left behind, it cleared itself.
        self._shell.user_ns.update(names)
        history = self._shell.history_manager
        for cells in (history.input_hist_parsed, history.input_hist_raw):
            cells[:] = [""] * first_cell_number
        self._shell.execution_count = first_cell_number

    def run(self, code: str, timeout: float, patience: float) -> str:
        try:
            with soft_limit(timeout, patience=patience) as timed_out:
                result = self._shell.run_cell(code, store_history=True)
        except BaseException as error:  # the alarm rang inside IPython, or model code broke it
            sys.stdout.write(f"{type(error).__name__}: {error}\n")
            return "timeout" if timed_out(error) else "error"
        if result.success:
            return "ok"
        return "timeout" if timed_out(result.error_in_exec) else "error"

    def _warm_up(self) -> None:
        """Run each kind of outcome once, so that what it imports lazily is loaded before the fork."""
        for code in _WARM_UP:
            with Capture(10_000):
                self.run(code, 60, 0)
        self._shell.reset(new_session=False)
        for name in ("last_type", "last_value", "last_traceback", "last_exc"):
            vars(sys).pop(name, None)


def _without_own_frames(trace: TracebackType | None) -> TracebackType | None:
    """The traceback up to the call of a tool; how the call reaches the host is left out."""
    kept: list[TracebackType] = []
    own = False
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        own = own or name.startswith(_OWN_FOLDER)
        if not own or name == HIDDEN:
            kept.append(trace)
        trace = trace.tb_next
    rest = None
    for part in reversed(kept):
        rest = TracebackType(rest, part.tb_frame, part.tb_lasti, part.tb_lineno)
    return rest


def _empty_frames(trace: TracebackType | None) -> None:
    """Let go of the local variables of the functions that failed."""
    traceback.clear_frames(trace)
    for frame, _ in traceback.walk_tb(trace):
        frame.f_locals  # noqa: B018 - looking at it again brings the copy made for the traceback up to date
