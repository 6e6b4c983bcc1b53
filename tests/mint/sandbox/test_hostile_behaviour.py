"""Hostile code that grabs, loops, floods, lies or dies. Each time the host and the other episodes go on."""

from __future__ import annotations

import os
import time
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from histobench.mint.sandbox import SandboxPool

pytestmark = pytest.mark.slow

_LIST = Path(__file__).with_name("hostile_behaviour.toml").read_text(encoding="utf-8")
BEHAVIOURS = {entry["does"]: entry for entry in tomllib.loads(_LIST)["behaviour"]}


@pytest.mark.parametrize("what", BEHAVIOURS)
def test_is_contained(bare_pool: SandboxPool, what: str) -> None:
    behaviour = BEHAVIOURS[what]
    with bare_pool.episode() as bystander, bare_pool.episode({"echo": lambda text: text}) as episode:
        if "killed" in behaviour["ends"]:  # need not be waited for
            episode._limits = replace(bare_pool.limits, grace=0.2)
        bystander.run_cell("kept = 1")
        assert episode.run_cell("before = 1").kind == "ok"
        result = episode.run_cell(behaviour["code"], timeout=behaviour.get("seconds", 60))
        assert result.kind in behaviour["ends"], result
        assert behaviour.get("words", "") in result.text
        assert len(result.text) <= bare_pool.limits.output_chars
        assert bystander.run_cell("print(kept)").text == "1\n"
    with bare_pool.episode({"echo": lambda text: text}) as after:
        assert (
            after.run_cell("print(echo('still') + ' here', 'before' in globals())").text
            == "still here False\n"
        )


@pytest.mark.parametrize("what", [name for name, b in BEHAVIOURS.items() if b["ends"] == ["timeout"]])
def test_a_soft_time_out_keeps_the_state(bare_pool: SandboxPool, what: str) -> None:
    with bare_pool.episode({"echo": lambda text: text}) as episode:
        episode.run_cell("kept = 41")
        assert episode.run_cell(BEHAVIOURS[what]["code"], timeout=0.1).kind == "timeout"
        assert episode.run_cell("print(kept + 1)").text == "42\n"


def test_after_a_kill_the_episode_goes_on_with_tools_and_numbering(bare_pool: SandboxPool) -> None:
    with bare_pool.episode({"echo": lambda text: text}) as episode:
        episode.run_cell("lost = 1")
        assert episode.run_cell("import os\nos._exit(1)").kind == "killed"
        assert "NameError" in episode.run_cell("lost").text
        assert episode.run_cell("echo('a')").text == "Out[4]: 'a'\n"


def test_nothing_outlives_the_episode(bare_pool: SandboxPool) -> None:
    mark = f"31{os.getpid()}.5"
    with bare_pool.episode() as episode:
        started = episode.run_cell(
            "import subprocess\n"
            f"subprocess.Popen(['setsid', 'sh', '-c', 'trap \"\" TERM HUP; sleep {mark}; sleep {mark}'])\n"
            f"subprocess.run(['setsid', '-f', 'sleep', '{mark}'])"
        )
        assert started.kind == "ok", started
        _wait_until(lambda: len(_running(mark)) >= 2)
    _wait_until(lambda: not _running(mark))


def test_an_episode_sees_no_other_processes(bare_pool: SandboxPool) -> None:
    with bare_pool.episode() as other, bare_pool.episode() as episode:
        other.run_cell("secret = 'in another episode'")
        text = episode.run_cell(
            "import os\ntry:\n    print([p for p in os.listdir('/proc') if p.isdigit()])\n"
            "except OSError:\n    print('[]')"
        ).text
    assert text in ("['1']\n", "[]\n")


def test_no_socket_leads_from_one_episode_to_another(bare_pool: SandboxPool) -> None:
    with bare_pool.episode() as listener, bare_pool.episode() as caller:
        listener.run_cell(
            "import socket\ns = socket.socket(socket.AF_UNIX)\ns.bind('\\0between-episodes')\ns.listen()"
        )
        called = caller.run_cell(
            "import socket\nsocket.socket(socket.AF_UNIX).connect('\\0between-episodes')\nprint('reached')"
        )
    assert called.kind == "error"
    assert "reached" not in called.text


def test_files_of_one_episode_are_not_seen_by_another(bare_pool: SandboxPool) -> None:
    with bare_pool.episode() as writer, bare_pool.episode() as reader:
        where = writer.run_cell(
            "import os\nopen('note.txt', 'w').write('mine')\nprint(os.getcwd())"
        ).text.strip()
        where = where.splitlines()[0]
        assert writer.run_cell("print(open('note.txt').read())").text == "mine\n"
        assert "Error" in reader.run_cell(f"open({where + '/note.txt'!r})").text
        assert reader.run_cell("import os\nprint(os.listdir('.'))").text == "[]\n"


def test_files_of_an_ended_episode_are_gone(bare_pool: SandboxPool) -> None:
    with bare_pool.episode() as writer:
        where = writer.run_cell("import os\nopen('note.txt', 'w')\nprint(os.getcwd())").text.splitlines()[0]
    _wait_until(lambda: not Path(where, "note.txt").exists())


def test_the_time_a_tool_takes_is_not_the_cells(bare_pool: SandboxPool) -> None:
    def slow(seconds: float) -> str:
        time.sleep(seconds)
        return "done"

    with bare_pool.episode({"slow": slow}) as episode:
        episode._limits = replace(bare_pool.limits, patience=20)
        assert episode.run_cell("slow(1)", timeout=0.5).text == "Out[1]: 'done'\n"
        assert episode.run_cell("slow(0.4)\nwhile True: x = 1", timeout=0.3).kind == "timeout"
        assert episode.run_cell("x").text == "Out[3]: 1\n"


def test_slow_tools_without_end_are_the_cells(bare_pool: SandboxPool) -> None:
    episode = bare_pool.episode({"slow": lambda: time.sleep(0.2)})
    episode._limits = replace(bare_pool.limits, tool_seconds=0.4)
    with episode:
        assert episode.run_cell("while True: slow()", timeout=0.1).kind == "timeout"


def _running(mark: str) -> list[str]:
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and mark.encode() in (folder / "cmdline").read_bytes():
                found.append(folder.name)
        except OSError:
            continue
    return found


def _wait_until(condition) -> None:
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)
