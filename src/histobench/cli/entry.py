"""How every command starts and how it fails: the one place where errors become exit codes."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import traceback
from collections.abc import Sequence
from types import ModuleType

from histobench.core.errors import HistobenchError

USER_ERROR = 2
DEFECT = 1
INTERRUPTED = 130


def run_verb(module: ModuleType, argv: Sequence[str], *, prog: str) -> int:
    """Parse `argv` with the verb's arguments, run it, and turn failures into a line and an exit code."""
    parser = argparse.ArgumentParser(
        prog=prog, description=module.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    module.add_arguments(parser)
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    try:
        args = parser.parse_args(argv)
    except SystemExit as stop:  # argparse has printed help (0) or the usage error (2)
        return int(stop.code or 0)
    # Libraries may log at import; only what they call a warning is for the user's eyes.
    logging.basicConfig(level=logging.WARNING, format=f"{prog}: %(levelname)s: %(message)s", force=True)
    logging.addLevelName(logging.WARNING, "warning")
    logging.getLogger("huggingface_hub").propagate = False  # it prints its warnings itself
    try:
        return int(module.run(args) or 0)
    except HistobenchError as error:
        if args.debug:
            traceback.print_exc()
        print(f"{prog}: error: {error}", file=sys.stderr)
        return USER_ERROR
    except KeyboardInterrupt:
        print(f"{prog}: interrupted; what was finished is kept", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader (head, less) has gone; keep the interpreter from complaining about it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if args.debug:
            traceback.print_exc()
        print(
            f"{prog}: unexpected {type(error).__name__}: {error}\n"
            "This is a defect of histobench; --debug shows where it happened.",
            file=sys.stderr,
        )
        return DEFECT
