"""How every command starts and how it fails: the one place where errors become exit codes."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import importlib
import inspect
import io
import logging
import os
import select
import shlex
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, NoReturn

from histobench.cli.terminal import in_flags, say, speak_as
from histobench.core.errors import HistobenchError
from histobench.core.records import flags_of, spelled_as_declared
from histobench.core.redaction import redact
from histobench.core.text import shown

USER_ERROR = 2
DEFECT = 1
INTERRUPTED = 130
TERMINATED = 143
#: Whether the system has asked this process to end.
_terminated: list[int] = []


class Command(NamedTuple):
    """A command by the name of its functions: `compare:power` is `power_flags` and `power_command`.

    The functions are in histobench/cli/compare.py. The docstring of `power_command` is the help text.
    """

    functions: str
    summary: str

    def add_flags(self, parser: argparse.ArgumentParser) -> None:
        """Add the description and the flags of the command."""
        parser.description = inspect.cleandoc(self._function("command").__doc__ or "")
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
        self._function("flags")(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Run the command; the exit code."""
        return int(self._function("command")(args) or 0)

    def _function(self, kind: str) -> Callable[..., int | None]:
        module, name = self.functions.split(":")
        found: Callable[..., int | None] = getattr(
            importlib.import_module(f"histobench.cli.{module}"), f"{name}_{kind}"
        )
        return found


def add_commands(parser: argparse.ArgumentParser, commands: Mapping[str, Command]) -> None:
    """Add one sub-parser for each command of a group, such as `histobench mint run`."""
    parsers = parser.add_subparsers(dest="job", required=True, metavar="{" + ",".join(commands) + "}")
    for name, command in commands.items():
        command.add_flags(parsers.add_parser(name, help=command.summary))


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line with the nearest flag, without the whole usage."""

    def error(self, message: str) -> NoReturn:
        hint = ""
        if message.startswith("unrecognized arguments: -"):
            flag = message.removeprefix("unrecognized arguments: ").split()[0].partition("=")[0]
            message = f"unknown option {flag}"
            near = difflib.get_close_matches(flag, list(flags_of(self)), n=1, cutoff=0.65)
            hint = f"; did you mean {near[0]}?" if near else ""
        self.exit(USER_ERROR, f"{self.prog}: error: {message}{hint} ({self.prog} --help lists the options)\n")


def run_command(command: Command, argv: Sequence[str], *, prog: str) -> int:
    """Parse `argv`, run the command, and turn failures into a line and an exit
    code.
    """

    def started() -> int:
        parser = _Parser(prog=prog)
        command.add_flags(parser)
        _accept_debug(parser, default=False)
        return _run(command, parser, argv, prog=prog)

    return printing(started)


def _accept_debug(parser: argparse.ArgumentParser, *, default: object) -> None:
    """Accept `--debug` after the command and after its subcommand."""
    parser.add_argument(
        "--debug", action="store_true", default=default, help="show the traceback of an error"
    )
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for job in dict.fromkeys(action.choices.values()):
                _accept_debug(job, default=argparse.SUPPRESS)  # silence here takes nothing back


def completions(path: str, parser: argparse.ArgumentParser) -> list[str]:
    """What may follow `path`, and what may follow each of its subcommands."""
    words, cases = [], []
    for action in parser._actions:
        words += [flag for flag in action.option_strings if flag.startswith("--")]
        if isinstance(action, argparse._SubParsersAction):
            words += list(action.choices)
            for name, job in action.choices.items():
                cases += completions(f"{path} {name}", job)
    return [*cases, f'"{path}"*) words="{" ".join(words)}";;']


class _PlainLines(logging.Formatter):
    """Warnings may quote files and servers, and name parameters."""

    def format(self, record: logging.LogRecord) -> str:
        """The line with flags for parameters, control characters written out and keys hidden."""
        return shown(redact(in_flags(super().format(record))))


class _Once(logging.Filter):
    """A warning that was shown is not shown again: encoders x tasks would repeat it many times."""

    def __init__(self) -> None:
        super().__init__()
        self._shown: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the message is new."""
        text = record.getMessage()
        new = text not in self._shown
        self._shown.add(text)
        return new


def printing(command: Callable[[], int | None]) -> int:
    """The exit code of a command whose output may lose its reader, or its letters, on the way."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal that has no letter for a sign shows ? for it; that is no reason to fail.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        code = command() or 0
        sys.stdout.flush()  # here and not at exit, where a reader that has gone would be an error
        return code
    except KeyboardInterrupt:  # before the command has begun, or after its end
        say("interrupted", error=True)
        return TERMINATED if _terminated else INTERRUPTED
    except BrokenPipeError as error:
        if not _reader_has_gone():  # it was another pipe: to end in silence would pass for success
            say(f"error: unexpected {type(error).__name__}: {error}; --debug shows where", error=True)
            return 1
        # The reader (head, less) has gone; keep the interpreter from complaining about it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def end_on_signals() -> None:
    """The command is over and its output is written: from here on a signal ends the process at once."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
        signal.signal(signal.SIGTERM, lambda *_: os._exit(TERMINATED))


def _stop_on_request() -> None:
    """Let a request to end (SIGTERM) do what Ctrl-C does, unless the command has its own way."""
    _terminated.clear()
    if threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGTERM) not in (signal.SIG_DFL, _on_request):
        return
    signal.signal(signal.SIGTERM, _on_request)
    _owner.append(os.getpid())


#: Seconds after which a signal that has not ended the command is answered with a line.
_ANSWER_SECONDS = 1.0


@contextlib.contextmanager
def _answering_signals(prog: str) -> Iterator[None]:
    """Say soon that Ctrl-C was seen: the interpreter acts on it only when the current batch is done."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    ended = threading.Event()

    def answer() -> None:
        seen = os.read(reading, 1)
        if seen and seen[0] in (signal.SIGINT, signal.SIGTERM) and not ended.wait(_ANSWER_SECONDS):
            say(f"{prog}: stopping; the batch that is being computed is finished first", error=True)

    watcher = threading.Thread(target=answer, name="histobench-signals", daemon=True)
    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        signal.set_wakeup_fd(before)
        os.close(writing)
        watcher.join()
        os.close(reading)


_owner: list[int] = []


def _on_request(number: int, frame: object) -> None:
    signal.signal(number, signal.SIG_DFL)  # a second request ends the process at once
    if os.getpid() != _owner[-1]:  # a child without a program of its own: it ends as it would have
        os.kill(os.getpid(), number)
    _terminated.append(number)
    raise KeyboardInterrupt


def _reader_has_gone() -> bool:
    """Whether nobody reads the standard output any more."""
    try:
        poller = select.poll()
        poller.register(sys.stdout.fileno(), 0)
        return bool(poller.poll(0))
    except (AttributeError, OSError, ValueError):  # Windows has no such call
        return True


def _run(command: Command, parser: argparse.ArgumentParser, argv: Sequence[str], *, prog: str) -> int:
    try:
        args = parser.parse_args(spelled_as_declared(parser, argv))
    except SystemExit as stop:  # argparse has printed help (0) or the usage error (2)
        return int(stop.code or 0)
    # Libraries may log at import; only what they call a warning is for the user's eyes.
    handler = logging.StreamHandler()
    speak_as(parser)
    handler.addFilter(_Once())
    handler.setFormatter(_PlainLines(f"{prog}: %(levelname)s: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.addLevelName(logging.WARNING, "warning")
    logging.getLogger("huggingface_hub").propagate = False  # it prints its warnings itself
    _stop_on_request()
    try:
        with _answering_signals(prog):
            return command.run(args)
    except HistobenchError as error:
        if args.debug:
            say(redact(traceback.format_exc()), error=True)
        say(f"{prog}: error: {redact(in_flags(str(error)))}", error=True)
        return USER_ERROR
    except KeyboardInterrupt as error:
        kept = str(error) or "what was finished is kept"
        start = ["python"] if prog.endswith(".py") else []
        again = shlex.join([*start, *prog.split(), *argv])
        say(f"{prog}: interrupted; {kept}\nContinue with: {redact(again)}", error=True)
        return TERMINATED if _terminated else INTERRUPTED
    except BrokenPipeError:
        raise
    except Exception as error:
        if args.debug:
            say(redact(traceback.format_exc()), error=True)
        say(
            f"{prog}: unexpected {type(error).__name__}: {redact(str(error))}\n"
            "This is a bug in histobench; repeat with --debug to see where it happened.",
            error=True,
        )
        return DEFECT
