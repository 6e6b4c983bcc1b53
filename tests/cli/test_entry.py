"""How commands end: what the terminal cannot show, and a reader that has gone."""

from __future__ import annotations

import io
import os
import subprocess
import sys

import pytest

from histobench.cli.entry import printing


def _histobench(*arguments: str, stdout: int, **environment: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "histobench.cli.main", *arguments]
    return subprocess.run(
        command, stdout=stdout, stderr=subprocess.PIPE, env={**os.environ, **environment}, check=False
    )


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [(), ("--version",), ("power", "--help")])
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_has_gone_is_no_error(arguments: tuple[str, ...], unbuffered: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = _histobench(*arguments, stdout=writing, PYTHONUNBUFFERED=unbuffered)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_terminal_without_the_letters_shows_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(shown, encoding="ascii"))
    assert printing(lambda: sys.stdout.write("5 µm … done\n") * 0) == 0
    assert shown.getvalue() == b"5 ?m ? done\n"


def test_another_pipe_that_breaks_is_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    def command() -> int:
        raise BrokenPipeError(32, "of a process that has ended")

    assert printing(command) == 1
    assert "unexpected BrokenPipeError" in capfd.readouterr().err
