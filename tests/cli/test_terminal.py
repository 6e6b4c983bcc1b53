"""Nothing that was written elsewhere commands the terminal."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
from rich.table import Table

from histobench.cli.main import main
from histobench.cli.mint import MINT_COMMANDS
from histobench.cli.terminal import labelled, open_terminal, say
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


@pytest.mark.parametrize("job", [*MINT_COMMANDS, "data check", "cache ls"])
def test_every_job_knows_debug(job: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = job.split() if " " in job else ["mint", job]
    assert main([*words, "--help"]) == 0
    assert "--debug" in capsys.readouterr().out
