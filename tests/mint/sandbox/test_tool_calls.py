"""Tools called from many threads, after time-outs, from forks and past the end of a cell."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import pytest

from histobench.mint.sandbox import SandboxPool

pytestmark = pytest.mark.slow


def test_many_threads_call_tools_and_each_gets_its_own_answer(bare_pool: SandboxPool) -> None:
    code = (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "with ThreadPoolExecutor(4) as threads:\n"
        "    print(list(threads.map(search, range(300))) == [f'about {n}' for n in range(300)])"
    )
    with bare_pool.episode({"search": lambda what: f"about {what}"}) as episode:
        assert episode.run_cell(code, timeout=120).text == "True\n"
        assert episode.run_cell("print(search('it'))").text == "about it\n"


def test_the_host_runs_calls_of_threads_one_after_the_other(bare_pool: SandboxPool) -> None:
    inside, most = 0, 0
    used = set()

    def tool(_: int) -> None:
        nonlocal inside, most
        used.add(threading.get_ident())
        inside += 1
        most = max(most, inside)
        time.sleep(0.002)
        inside -= 1

    code = (
        "from concurrent.futures import ThreadPoolExecutor\nlist(ThreadPoolExecutor(4).map(tool, range(40)))"
    )
    with bare_pool.episode({"tool": tool}) as episode:
        assert episode.run_cell(code, timeout=120).kind == "ok"
    assert (most, used) == (1, {threading.get_ident()})


def test_an_exception_reaches_the_thread_that_called(bare_pool: SandboxPool) -> None:
    def odd(number: int) -> int:
        if number % 2:
            raise ValueError(f"no {number}")
        return number

    code = (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "def attempt(n):\n    try:\n        return odd(n)\n"
        "    except ValueError as error:\n        return str(error)\n"
        "with ThreadPoolExecutor(4) as threads:\n"  # one pool: eight threads may not fit into the memory
        "    print(list(threads.map(attempt, range(6))))\n"
        "    list(threads.map(odd, range(3)))"
    )
    with bare_pool.episode({"odd": odd}) as episode:
        result = episode.run_cell(code, timeout=120)
        assert result.text.startswith("[0, 'no 1', 2, 'no 3', 4, 'no 5']\n"), result
        assert result.text.endswith("ValueError: no 1\n")
        assert result.kind == "error"


def test_a_call_that_outlives_its_cell_is_answered_in_the_next(bare_pool: SandboxPool) -> None:
    calls: list[int] = []

    def note(number: int) -> int:
        calls.append(number)
        return 10 * number

    begin = (
        "import threading, time\ngot = []\ngo = threading.Event()\n"
        "def work():\n    go.wait()\n    time.sleep(0.3)\n    for n in range(3): got.append(note(n))\n"
        "thread = threading.Thread(target=work)\nthread.start()\ngo.set()"
    )
    with bare_pool.episode({"note": note}) as episode:
        assert episode.run_cell(begin).kind == "ok"
        time.sleep(0.6)
        assert calls == []  # nobody attends between cells
        assert episode.run_cell("thread.join()\nprint(got)").text == "[0, 10, 20]\n"
        assert calls == [0, 1, 2]


def test_a_thread_that_goes_on_calling_disturbs_neither_cells_nor_orders(bare_pool: SandboxPool) -> None:
    begin = (
        "import threading\nended = False\ncount = 0\n"
        "def work():\n    global count\n    while not ended: count += len(echo('x'))\n"
        "threads = [threading.Thread(target=work, daemon=True) for _ in range(4)]\n"
        "for thread in threads: thread.start()"
    )
    with bare_pool.episode({"echo": lambda text: text}) as episode:
        assert episode.run_cell(begin).kind == "ok"
        for number in range(30):
            assert episode.run_cell(f"print({number}, echo('y'))").text == f"{number} y\n"
        stop = "ended = True\nfor thread in threads: thread.join()\nprint(count > 0)"
        assert episode.run_cell(stop).text == "True\n"


def test_a_soft_time_out_while_threads_call_tools_keeps_the_state(bare_pool: SandboxPool) -> None:
    code = (
        "import threading\nkept = 41\n"
        "def work():\n    while True: echo('x')\n"
        "for _ in range(4): threading.Thread(target=work, daemon=True).start()\n"
        "while True: kept"
    )
    with bare_pool.episode({"echo": lambda text: text}) as episode:
        assert episode.run_cell(code, timeout=0.5).kind == "timeout"
        assert episode.run_cell("print(kept + 1, echo('still'))").text == "42 still\n"


def test_a_time_out_reaches_a_cell_that_waits_for_its_threads(bare_pool: SandboxPool) -> None:
    code = (
        "from concurrent.futures import ThreadPoolExecutor\nkept = 1\n"
        "def work(n):\n    while True: echo('x')\n"
        "list(ThreadPoolExecutor(4).map(work, range(4)))"
    )
    with bare_pool.episode({"echo": lambda text: text}) as episode:
        result = episode.run_cell(code, timeout=0.5)
        assert (result.kind, "Timed out after 0.5 seconds." in result.text) == ("timeout", True), result
        assert episode.run_cell("print(kept)").text == "1\n"


def test_the_time_of_tools_is_excused_for_threads_too(bare_pool: SandboxPool) -> None:
    code = (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "print(list(ThreadPoolExecutor(3).map(slow, range(3))))"
    )
    with bare_pool.episode({"slow": lambda n: time.sleep(0.6) or n}) as episode:
        episode._limits = replace(bare_pool.limits, patience=20)
        assert episode.run_cell(code, timeout=0.8).text == "[0, 1, 2]\n"
        assert episode.run_cell("while True: pass", timeout=0.3).kind == "timeout"


def test_a_fork_is_told_that_it_has_no_tools(bare_pool: SandboxPool) -> None:
    code = (
        "import os\nreader, writer = os.pipe()\n"
        "if os.fork() == 0:\n"
        "    try:\n        echo('x')\n    except BaseException as error:\n"
        "        os.write(writer, f'{type(error).__name__}: {error}'.encode())\n    os._exit(0)\n"
        "print(os.read(reader, 1000).decode())\nprint(echo('own'))"
    )
    with bare_pool.episode({"echo": lambda text: text}) as episode:
        assert episode.run_cell(code).text == (
            "RuntimeError: tools can be called from the session's own process only, not from a fork of it\n"
            "own\n"
        )


def test_a_forged_result_is_cut_to_the_limit_by_the_host(bare_pool: SandboxPool) -> None:
    code = (
        "import os, json, struct\n"
        "b = json.dumps({'op': 'done', 'cell': 1, 'kind': 'ok', 'text': 'x' * 1_000_000}).encode()\n"
        "b = struct.pack('!I', len(b)) + b\nwhile b: b = b[os.write(3, b):]"
    )
    with bare_pool.episode() as episode:
        assert len(episode.run_cell(code).text) == bare_pool.limits.output_chars
