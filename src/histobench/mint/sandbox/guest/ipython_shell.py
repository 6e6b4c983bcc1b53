"""An IPython shell that behaves like the published benchmark's, minus what has no place in a sandbox."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from IPython.core.displaypub import DisplayPublisher
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from .alarm import soft_limit

_WARM_UP = (
    "def f(x):\n    return 1 / x\n[i for i in range(3)]",
    "f(0)",
    "1 +",
    "return 1",
    "import sys\nsys.exit()",
    "{'a': [1.5] * 40, 'b': (None,) * 40}",
)


class SilentPublisher(DisplayPublisher):
    """Rich display calls are not part of a cell's text."""

    def publish(self, *args: Any, **kwargs: Any) -> None:
        """Drop it."""


class IPythonShell:
    """One InteractiveShell, built and warmed up in the zygote."""

    def __init__(self) -> None:
        config = Config()
        config.HistoryManager.enabled = False  # its thread would not survive the fork
        config.InteractiveShell.display_page = False
        if hasattr(InteractiveShell, "colors"):
            config.InteractiveShell.colors = "nocolor"
        self._shell = InteractiveShell.instance(config=config)
        self._shell.display_pub = SilentPublisher(parent=self._shell)
        self._shell.system = self._system
        self._warm_up()

    def start(self, names: dict[str, Any], first_cell_number: int) -> None:
        """Begin an episode with `names` in the namespace."""
        self._shell.reset(new_session=False)
        self._shell.user_ns.update(names)
        if first_cell_number > 1:
            self._shell.history_manager.input_hist_parsed.extend([""] * (first_cell_number - 1))
            self._shell.history_manager.input_hist_raw.extend([""] * (first_cell_number - 1))
        self._shell.execution_count = first_cell_number

    def run(self, code: str, timeout: float) -> str:
        """Run one cell; returns ok, error or timeout."""
        try:
            with soft_limit(timeout) as limit:
                result = self._shell.run_cell(code, store_history=True)
        except (
            BaseException
        ) as error:  # the alarm rang while IPython itself was at work, or model code broke it
            sys.stdout.write(f"{type(error).__name__}: {error}\n")
            return "timeout" if limit.caused(error) else "error"
        if result.success:
            return "ok"
        return "timeout" if limit.caused(result.error_in_exec) else "error"

    def _warm_up(self) -> None:
        """Run each kind of outcome once, so that what it imports lazily is loaded before the fork."""
        from .capture import Capture

        for code in _WARM_UP:
            with Capture(10_000):
                self.run(code, 60)
        self.start({}, 1)

    def _system(self, command: str) -> None:
        """`!command`: run by bash, both streams shown, no terminal involved."""
        done = subprocess.run(
            ["/bin/bash", "-c", self._shell.var_expand(command, depth=1)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        sys.stdout.write(done.stdout.decode("utf-8", "replace"))
        self._shell.user_ns["_exit_code"] = done.returncode
