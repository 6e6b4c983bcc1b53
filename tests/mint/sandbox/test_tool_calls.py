"""Tools called from threads, from forks and after time-outs; results that are forged."""

from __future__ import annotations

import time

import pytest

from histobench.mint.sandbox import SandboxPool

pytestmark = pytest.mark.slow

CAUGHT = "    try:\n        echo('x')\n    except RuntimeError as error:\n        said = str(error)\n"
THREAD = (
    f"import threading\ndef work():\n    global said\n{CAUGHT}t = threading.Thread(target=work)\nt.start()"
)
FORK = (
    f"import os\nreader, writer = os.pipe()\nif os.fork() == 0:\n{CAUGHT}"
    "    os.write(writer, said.encode())\n    os._exit(0)\nsaid = os.read(reader, 1000).decode()"
)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (f"{THREAD}\nt.join()", "tools can be called from the main thread only"),
        (FORK, "tools can be called from the session's own process only, not from a fork of it"),
    ],
    ids=["thread", "fork"],
)
def test_only_the_main_thread_of_the_session_has_tools(bare_pool: SandboxPool, code: str, words: str) -> None:
    with bare_pool.episode({"echo": lambda text: text}) as episode:
        assert episode.run_cell(f"{code}\nprint(said)\nprint(echo('own'))").text == f"{words}\nown\n"


def test_each_call_gets_its_own_answer_after_a_call_that_an_exception_ended(bare_pool: SandboxPool) -> None:
    """The cell's own signal handler raises while the host still runs the first call."""
    code = (
        "import os, signal, subprocess\n"
        "def stop(*_): raise KeyError('stopped')\n"
        "signal.signal(signal.SIGUSR1, stop)\n"
        "subprocess.Popen(['sh', '-c', f'sleep 0.3; kill -USR1 {os.getpid()}'])\n"
        "try:\n    slow('first')\nexcept KeyError:\n    print('ended')\n"
        "print(slow('second'), slow('third'))"
    )

    def slow(text: str) -> str:
        time.sleep(1 if text == "first" else 0)
        return text

    with bare_pool.episode({"slow": slow}) as episode:
        assert episode.run_cell(code, timeout=60).text == "ended\nsecond third\n"


def test_a_forged_result_is_cut_to_the_limit_by_the_host(bare_pool: SandboxPool) -> None:
    code = (
        "import os, json, struct\n"
        "b = json.dumps({'op': 'done', 'cell': 1, 'kind': 'ok', 'text': 'x' * 1_000_000}).encode()\n"
        "b = struct.pack('!I', len(b)) + b\nwhile b: b = b[os.write(3, b):]"
    )
    with bare_pool.episode() as episode:
        assert len(episode.run_cell(code).text) == bare_pool.limits.output_chars
