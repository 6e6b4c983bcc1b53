"""Nothing that was written elsewhere commands the terminal."""

from __future__ import annotations

import argparse
import io
import logging
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import pytest
from rich.table import Table

from histobench.cli.entry import Command, run_command
from histobench.cli.main import main
from histobench.cli.terminal import Busy, labelled, open_terminal, print_table, say
from histobench.core.text import shown

HOSTILE = (
    "[/x] [bold]loud[/] [link=http://elsewhere]here[/] :smile: "
    "\x1b[2J\x1b]8;;http://elsewhere\x07here\x1b]8;;\x07 \x9b31m \x07\x08\r \u202eflipped \\["
)
COMMANDS = ("\x1b", "\x07", "\x08", "\r", "\x9b", "\u202e")


class ColourTerminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_control_characters_are_written_out_and_the_rest_stays() -> None:
    text = shown(HOSTILE)
    assert not any(command in text for command in COMMANDS)
    assert "[/x] [bold]loud[/] [link=http://elsewhere]here[/] :smile: " in text
    assert r"\x1b[2J" in text
    assert shown("naïve\ttable\n") == "naïve\ttable\n"


def test_every_way_to_print_shows_brackets_and_obeys_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = ColourTerminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("COLUMNS", "400")
    terminal = open_terminal()
    table = Table(title=HOSTILE)
    table.add_column(HOSTILE)
    table.add_row(HOSTILE)
    terminal.print(HOSTILE)
    terminal.print(table)
    terminal.print(labelled("stopped:", "yellow", HOSTILE))
    say(HOSTILE)
    text = screen.getvalue()
    assert text.count("[/x]") == 6
    assert text.count(":smile:") == 6
    assert "\x1b]8" not in text  # no link
    assert "\x1b[2J" not in text
    assert not any(command in text for command in COMMANDS[1:])
    assert "\x1b[33mstopped:" in text  # this project's own colours are still there


def test_an_error_message_obeys_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mint", "table", f"{tmp_path}/\x1b[2J[/x]"]) == 2
    said = capsys.readouterr().err
    assert r"\x1b[2J[/x]" in said
    assert "\x1b" not in said


@pytest.mark.parametrize("before", [True, False])
def test_a_message_that_advises_debug_is_followed_by_every_job(
    before: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--debug", "table", "/nowhere"] if before else ["table", "/nowhere", "--debug"]
    assert main(["mint", *flags]) == 2
    assert "Traceback" in capsys.readouterr().err
    assert main(["mint", "table", "/nowhere"]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_what_takes_long_is_said_where_there_is_no_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("histobench.cli.terminal.PATIENCE", 0.05)
    with Busy("reading a folder") as busy:
        busy.update("measuring uni_v1")
        time.sleep(0.4)
        busy.stop()
        busy.start()
        time.sleep(0.4)
    assert capsys.readouterr().err == "measuring uni_v1 ...\n", "once"
    with Busy("quick"):
        pass
    time.sleep(0.2)
    assert capsys.readouterr().err == ""


VALUE = "0.884* [0.845, 0.912]"
WIDE = [
    {"encoder": name, **dict.fromkeys(("index", "margin", "site AUROC", "new site", "worst site"), VALUE)}
    for name in ("efficientnet-lite0", "tiny-vl")
]


@pytest.mark.parametrize("width", [44, 60, 80, 100, 130, 160])
def test_a_table_fits_the_terminal_and_loses_nothing(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    print_table([{**row, "empty": ""} for row in WIDE], title="robustness", notes=["one " * 60])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    assert text.count("0.884*") == 10
    assert text.count("845") == text.count("912]") == 10
    assert all(text.count(heading) == 1 for heading in WIDE[0] if heading != "encoder")
    assert "empty" not in text
    assert ("[0.845, 0.912]" in text) == (width > 133), "intervals are shortened first"
    assert (text.count("tiny-vl") > 1) == (width < 80), "then they are below the values, then columns follow"


def test_columns_are_left_out_by_name_and_numbers_are_aligned(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"name": "a", "size": "5", "notes": "x" * 50}, {"name": "long-name", "size": "1,200"}]
    print_table(rows)
    assert capsys.readouterr().out.splitlines()[1] == f"a              5  {'x' * 50}"
    monkeypatch.setenv("COLUMNS", "40")
    print_table(rows, drop=("notes",))
    assert capsys.readouterr().out.splitlines() == [
        "name        size",
        "a              5",
        "long-name  1,200",
        "Not shown at this width: notes.",
    ]


def test_a_warning_is_shown_once(capsys: pytest.CaptureFixture[str]) -> None:
    def warn_flags(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--n-neighbors")

    def warn_command(args: argparse.Namespace) -> int:
        for encoder in ("a", "b", "c"):
            logging.getLogger(encoder).warning("set `n_neighbors` to 4")
        return 0

    module = cast(Any, ModuleType("histobench.cli.warn"))
    module.warn_flags, module.warn_command = warn_flags, warn_command
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "histobench.cli.warn", module)
        assert run_command(Command("warn:warn", ""), [], prog="histobench warn") == 0
    assert capsys.readouterr().err == "histobench warn: warning: set --n-neighbors to 4\n"
