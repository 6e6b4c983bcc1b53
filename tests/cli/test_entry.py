"""How commands end: what the terminal cannot show, and a reader that has gone."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from histobench.cli.entry import printing
from histobench.cli.main import main


def _histobench(*arguments: str, stdout: int, **environment: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "histobench", *arguments]
    return subprocess.run(
        command, stdout=stdout, stderr=subprocess.PIPE, env={**os.environ, **environment}, check=False
    )


@pytest.mark.parametrize(
    ("arguments", "begin"),
    [
        (["help"], "histobench: which"),
        (["help", "power"], "usage: histobench power"),
        (["help", "mint", "run"], "usage: histobench mint run"),
        (["help", "help"], "histobench: which"),
        (["--version"], "histobench "),
        (["version"], "histobench "),
    ],
)
def test_help_and_version_are_found_where_people_look(
    arguments: list[str], begin: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 0
    assert capsys.readouterr().out.startswith(begin)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "--dataset", "x"], "histobench run: error: unknown option --dataset; did you mean --data"),
        (["run", "--metric", "auroc"], "unknown option --metric (histobench run --help lists the options)"),
        (["run", "--data", "my", "images", "--encoders", "x"], "a path with spaces needs quotes"),
        (["run", "--data", "d", "--encoders", "a", "b"], "unexpected argument 'b': lists take commas"),
        (["data", "check", "x", "--seed", "-1"], "expected a whole number of at least 0"),
        (["run"], "give --data FOLDER --encoders NAME,... or a plan file"),
        (["data", "check", "my", "images"], "unexpected argument 'images'; a path with spaces needs quotes"),
        (["mint", "run", "--modle", "x"], "unknown option --modle"),
        (["data", "chekc", "x"], "unknown command 'chekc'; did you mean check?"),
        (["cache", "clear"], "unknown command 'clear'; known: list, ls, rm, verify"),
    ],
)
def test_a_mistyped_option_is_one_line_with_the_nearest(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert words in said
    assert "usage" not in said


@pytest.mark.sample(3)
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


@pytest.mark.sample(2)
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("when", ["in the command", "at the exit of the interpreter"])
def test_a_signal_gives_its_code_and_no_traceback_at_any_moment(number: int, when: str) -> None:
    program = f"""
import atexit, signal, sys, time
from histobench.cli import main as module
from histobench.cli import cache
from histobench.cli.cache import NoFlags

signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it

def wait(args: 'NoFlags' = None):
    print("ready", flush=True)
    time.sleep(60)

def leave(args: 'NoFlags'):
    atexit.register(wait)

cache.ls_command = wait if {when == "in the command"} else leave
sys.exit(module.main())
"""
    process = subprocess.Popen(
        [sys.executable, "-c", program, "cache", "ls"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    while "ready" not in process.stdout.readline():
        assert process.poll() is None
    process.send_signal(number)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 128 + number, said
    assert "Traceback" not in said


@pytest.mark.slow
def test_ctrl_c_is_answered_while_a_batch_is_computed() -> None:
    program = """
import hashlib, signal, sys
from histobench.cli import main as module
from histobench.cli import cache
from histobench.cli.cache import NoFlags

signal.signal(signal.SIGINT, signal.default_int_handler)

def compute(args: 'NoFlags'):
    print("ready", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"a", b"b", 20_000_000)  # no signal interrupts it

cache.ls_command = compute
sys.exit(module.main())
"""
    command = [sys.executable, "-c", program, "cache", "ls"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(1)  # until it computes
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        assert "stopping; finishing the current batch" in process.stderr.readline()
        assert time.monotonic() - began < 10  # 0.5 s on a machine without other work
        process.kill()


@pytest.mark.parametrize("arguments", ["run {}.yaml", "mint run --prices {}.yaml --config {}.json"])
def test_a_file_that_the_system_refuses_is_named_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: str
) -> None:
    (tmp_path / "odd.yaml").mkdir()
    (tmp_path / "odd.json").write_bytes(b"\xff\xfe\xfd")
    assert main(arguments.format(*2 * [tmp_path / "odd"]).split()) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert str(tmp_path / "odd") in line
    assert "bug" not in line
