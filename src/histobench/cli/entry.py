"""How every command starts and how it fails: the one place where errors become exit codes."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import inspect
import io
import logging
import os
import re
import select
import shlex
import signal
import sys
import textwrap
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn, TextIO

from histobench.cli.terminal import in_flags, say, speak_as
from histobench.core.errors import HistobenchError, did_you_mean, error_text
from histobench.core.records import add_flags, flags_of, from_flags, options_of, spelled_as_declared
from histobench.core.redaction import redact
from histobench.core.text import shown

USER_ERROR = 2
DEFECT = 1
INTERRUPTED = 130
TERMINATED = 143
#: Whether the system has asked this process to end.
_terminated: list[int] = []


class Parser(argparse.ArgumentParser):
    """Shows what most people need first, then the examples, then the other flags by topic."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{**settings, "add_help": False})

    def format_help(self) -> str:
        """Return the help: usage, what the command does, main flags, examples, other flags, details."""
        text, _, examples = re.sub(r"\n+Examples?:\n", "\0", self.description or "").partition("\0")
        first, _, details = text.partition("\n\n")
        main = [*self._positionals._group_actions, *self._optionals._group_actions]
        formatter = self._get_formatter()
        formatter.add_usage(self._usage(), self._actions, self._mutually_exclusive_groups)
        formatter.add_text(first)
        formatter.start_section("commands" if self._subparsers else "main options")
        formatter.add_arguments(main)
        formatter.end_section()
        lines = [_broken(line) for line in examples.rstrip().splitlines()]
        formatter.add_text("\n".join(["examples:", *lines]) if lines else None)
        for group in self._action_groups[2:]:
            formatter.start_section(group.title)
            formatter.add_arguments(group._group_actions)
            formatter.end_section()
        parts = [part if "\n " in part else textwrap.fill(part, 78) for part in details.split("\n\n")]
        formatter.add_text("\n\n".join(parts))
        return formatter.format_help()

    def _usage(self) -> str:
        """Return the arguments and required flags; all others are `[options]`."""
        parts = []
        for action in self._actions:
            name = str(action.metavar or action.dest)
            if isinstance(action, argparse._SubParsersAction):
                parts.append("COMMAND")
            elif action.option_strings:
                parts += [f"{action.option_strings[0]} {name}"] * action.required
            else:
                parts.append(
                    {"?": f"[{name}]", "*": f"[{name} ...]", "+": f"{name} ..."}.get(str(action.nargs), name)
                )
        return textwrap.fill(" ".join([self.prog, *parts, "[options]"]), 72).replace("%", "%%")

    def parsed(self, argv: Sequence[str]) -> argparse.Namespace:
        """The arguments; an unknown one ends with the nearest flag."""
        args, unknown = self.parse_known_args(spelled_as_declared(self, argv))
        if unknown and unknown[0].startswith("-"):
            flag = unknown[0].partition("=")[0]
            near = did_you_mean(flag, [name for name, _ in flags_of(self)], all_if_none=False)
            self.error(f"unknown option {flag}{near and f'; {near}'}")
        if unknown:
            self.error(f"unexpected argument {unknown[0]!r}; a path with spaces needs quotes")
        return args

    def error(self, message: str) -> NoReturn:
        self.exit(USER_ERROR, f"{self.prog}: error: {message} ({self.prog} --help lists the options)\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if isinstance(action, argparse._SubParsersAction) and value not in action.choices:
            self.error(f"unknown command {value!r}; {did_you_mean(value, action.choices)}")
        super()._check_value(action, value)


def _broken(line: str) -> str:
    """Break a long command as the shell allows."""
    parts = textwrap.wrap(line, 78, subsequent_indent=" " * 6, break_long_words=False, break_on_hyphens=False)
    return " \\\n".join(parts) if "  " not in line.strip() else line


class Command(NamedTuple):
    """A command by the name of its function: `compare:power` is `power_command` in histobench/cli/compare.py.

    The docstring of the function is the help text. A group of commands has them in `POWER_COMMANDS`. If the
    type of the function's parameter is a record, the flags are the options of the record; otherwise
    `power_flags` adds them. `as_script` shows the flags in the spelling of HistoROIBench's scripts.
    """

    functions: str
    summary: str
    as_script: bool = False

    def add_flags(self, parser: argparse.ArgumentParser) -> None:
        parser.description = inspect.cleandoc(self._function("command").__doc__ or "")
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
        record = self._record()
        if jobs := self._jobs():
            parsers = parser.add_subparsers(dest="job", required=True, metavar="{" + ",".join(jobs) + "}")
            for name, command in jobs.items():
                below = parsers.add_parser(name, help=command.summary)
                below.set_defaults(job=name)
                command.add_flags(below)
                parsers.choices.update({alias: below for alias, meant in _ALIASES.items() if meant == name})
        elif record is None:
            self._function("flags")(parser)
        else:
            without = getattr(record, "WITHOUT", ())
            options = [each for each in options_of(record) if each.name not in without]
            add_flags(parser, options, as_script=self.as_script)

    def run(self, args: argparse.Namespace) -> int:
        if jobs := self._jobs():
            return jobs[args.job].run(args)
        record = self._record()
        return int(self._function("command")(args if record is None else from_flags(record, args)) or 0)

    def _record(self) -> type | None:
        function = self._function("command")
        (named, *_) = inspect.get_annotations(function).values()
        found = getattr(importlib.import_module(function.__module__), str(named), None)
        return found if isinstance(found, type) else None

    def _jobs(self) -> Mapping[str, Command]:
        module, name = self.functions.split(":")
        found: Mapping[str, Command] = getattr(
            importlib.import_module(f"histobench.cli.{module}"), f"{name.upper()}_COMMANDS", {}
        )
        return found

    def _function(self, kind: str) -> Callable[..., int | None]:
        module, name = self.functions.split(":")
        found: Callable[..., int | None] = getattr(
            importlib.import_module(f"histobench.cli.{module}"), f"{name}_{kind}"
        )
        return found


#: Other names of commands of a group.
_ALIASES = {"ls": "list", "list": "ls"}


def run_command(command: Command, argv: Sequence[str], *, prog: str) -> int:
    """Parse `argv`, run the command, and turn failures into a line and an exit code."""

    def started() -> int:
        parser = Parser(prog=prog)
        command.add_flags(parser)
        _accept_debug(parser, default=False)
        return _run(command, parser, argv, prog=prog)

    return printing(started)


def _accept_debug(parser: argparse.ArgumentParser, *, default: object) -> None:
    group = parser.add_argument_group("help")
    group.add_argument("-h", "--help", action="help", help="show this help")
    group.add_argument("--debug", action="store_true", default=default, help="show the traceback of an error")
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for job in dict.fromkeys(action.choices.values()):
                _accept_debug(job, default=argparse.SUPPRESS)  # silence here takes nothing back


class _Warnings(logging.StreamHandler[TextIO]):
    """Print each warning once, with flags for parameters, control characters escaped and keys hidden.

    Encoders x tasks would repeat the same warning many times.
    """

    def __init__(self) -> None:
        super().__init__()
        self._shown: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if text not in self._shown:
            self._shown.add(text)
            super().emit(record)

    def format(self, record: logging.LogRecord) -> str:
        return shown(redact(in_flags(super().format(record))))


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
_ANSWER_SECONDS = 0.5


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
            say(f"{prog}: stopping; finishing the current batch", error=True)

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
    try:
        poller = select.poll()
        poller.register(sys.stdout.fileno(), 0)
        return bool(poller.poll(0))
    except (OSError, ValueError):
        return True


def _run(command: Command, parser: Parser, argv: Sequence[str], *, prog: str) -> int:
    try:
        args = parser.parsed(argv)
    except SystemExit as stop:  # argparse has printed help (0) or the usage error (2)
        return int(stop.code or 0)
    # Libraries may log at import; only what they call a warning is for the user's eyes.
    speak_as(parser)
    handler = _Warnings()
    handler.setFormatter(logging.Formatter(f"{prog}: %(levelname)s: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.addLevelName(logging.WARNING, "warning")
    logging.getLogger("huggingface_hub").propagate = False  # it prints its warnings itself
    _stop_on_request()
    try:
        with _answering_signals(prog):
            return command.run(args)
    except BrokenPipeError:
        raise
    except KeyboardInterrupt as error:
        kept = str(error) or "what was finished is kept"
        start = ["python"] if prog.endswith(".py") else []
        again = shlex.join([*start, *prog.split(), *argv])
        say(f"{prog}: interrupted; {kept}\nContinue with: {redact(again)}", error=True)
        return TERMINATED if _terminated else INTERRUPTED
    except Exception as error:
        if args.debug:
            say(redact(traceback.format_exc()), error=True)
        if isinstance(error, HistobenchError | OSError):
            say(f"{prog}: error: {redact(in_flags(error_text(error)))}", error=True)
            return USER_ERROR
        say(
            f"{prog}: unexpected {type(error).__name__}: {redact(str(error))}\n"
            "This is a bug in histobench; repeat with --debug to see where it happened.",
            error=True,
        )
        return DEFECT
