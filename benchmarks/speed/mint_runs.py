"""What a run of agents costs besides the model and the sandbox: processor time and memory of the harness.

    python benchmarks/speed/mint_runs.py [--episodes 1000] [--concurrency 32] [--write]
    python benchmarks/speed/mint_runs.py --http [--concurrency 64]
    python benchmarks/speed/mint_runs.py --recording FILE.k5.jsonl.gz --data FOLDER

Replayed episodes: the messages are known, so that everything else is what remains. Without --recording the
episodes are made up: a question, one or two cells of code, a proposal. With it they are those of the file
(household tasks left out), played as often as it takes. With --http the same messages come from a server on
this machine, in a process of its own that is not counted: what remains is the harness with its HTTP client.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import math
import multiprocessing
import os
import re
import resource
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from pathlib import Path

from page import write_section

from histobench.mint.agents.agent_spec import parse_agent
from histobench.mint.agents.answer_cache import AnswerCache
from histobench.mint.agents.factory import Terms, open_player, player_name
from histobench.mint.prompts.first_message import OwnWording
from histobench.mint.runs.episode_queue import Run, Standing
from histobench.mint.runs.episode_run import RunContext
from histobench.mint.runs.planned_cell import plan_cells
from histobench.mint.runs.task_source import choose_datasets, load_tasks
from histobench.mint.sandbox import open_sandbox
from histobench.mint.tools.wikipedia_search import Tape

MEGABYTE = 1 << 20
MARKS = (0.1, 0.25, 0.5, 0.75, 1.0)
ALL_BUT_HOUSEHOLD = ("reasoning", "code_generation")
GOAL_MS = 40.0


@dataclass
class Memory:
    """Memory of this process when a share of the episodes was done."""

    marks: Sequence[int]
    megabytes: dict[int, float] = field(default_factory=dict)

    def look(self, standing: Standing) -> None:
        """Called after every episode, from any thread."""
        if standing.done in self.marks:
            self.megabytes[standing.done] = resident_bytes() / MEGABYTE


@dataclass(frozen=True)
class Figures:
    """One run."""

    name: str
    episodes: int
    turns: int
    concurrency: int
    per_second: float
    harness_ms: float
    sandbox_ms: float
    memory: dict[int, float]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--episodes", type=int, default=1000)
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--recording", help="recorded episodes of one model, *.k5.jsonl.gz")
    parser.add_argument("--http", action="store_true", help="ask a server for the messages")
    parser.add_argument("--data", help="folder of the datasets that they are of")
    parser.add_argument("--tape", help="recorded answers of the encyclopedia")
    parser.add_argument("--write", action="store_true", help="put the section into docs/benchmarks.md")
    args = parser.parse_args()
    if args.http:
        load = os.getloadavg()[0]
        with tempfile.TemporaryDirectory() as folder, served() as url:
            row = measure_made_up(Path(folder), args.episodes, args.concurrency, url)
        section = describe(
            row, load, heading="### Over HTTP", flags=f" --http --concurrency {args.concurrency}"
        )
        print(section)
        if args.write:
            write_section("mint-http", section)
        return
    sections = {"mint-runs": measured_section(args.episodes, args.concurrency)}
    if args.recording:
        load = os.getloadavg()[0]
        row = measure_recording(args.recording, args.data, args.tape, args.episodes, args.concurrency)
        sections["mint-recordings"] = describe(row, load, heading="### Recorded episodes")
    for name, section in sections.items():
        print(section)
        if args.write:
            write_section(name, section)


def measured_section(episodes: int = 1000, concurrency: int = 32) -> str:
    """The made-up episodes, with the goal and with how busy the machine was."""
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        row = measure_made_up(Path(folder), episodes, concurrency)
    return describe(row, load)


@contextlib.contextmanager
def served() -> Iterator[str]:
    """The address of a server in another process that answers with the made-up messages."""
    process = multiprocessing.get_context("spawn").Process
    ours, theirs = multiprocessing.Pipe()
    server = process(target=serve, args=(theirs,), daemon=True)
    server.start()
    try:
        yield f"http://127.0.0.1:{ours.recv()}/v1"
    finally:
        server.terminate()


def serve(pipe: Connection) -> None:
    """Chat completions, as fast as a plain server can."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            talk = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["messages"]
            number = int(re.findall(r"What is (\d+) \+ 1\?", talk[0]["content"])[-1])
            said = sum(message["role"] == "assistant" for message in talk)
            message = {"role": "assistant", "content": made_up_texts(number)[said]}
            usage = {"prompt_tokens": 10, "completion_tokens": 5}
            answer = {"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage}
            raw = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    pipe.send(server.server_address[1])
    server.serve_forever()


def measure_made_up(folder: Path, episodes: int, concurrency: int, url: str | None = None) -> Figures:
    """Questions of this script and the messages that answer them."""
    data = folder / "data" / "gsm8k"
    data.mkdir(parents=True)
    recording = folder / "made-up.k5.jsonl.gz"
    with (data / "test_prompts.json").open("w") as tasks, gzip.open(recording, "wt") as episodes_file:
        for number in range(episodes):
            question = {"id": number, "prompt": f"What is {number} + 1?", "reference": str(number + 1)}
            tasks.write(json.dumps(question) + "\n")
            episodes_file.write(json.dumps(made_up_episode(number)) + "\n")
    agent = f"openai:made-up@{url}" if url else f"replay:{recording}"
    return measure("made up", agent, folder / "data", ("gsm8k",), None, episodes, concurrency)


def made_up_texts(number: int) -> list[str]:
    """One or two cells, now and then a wrong answer, the right answer."""
    texts = [f"<thought>Compute.</thought>\n<execute>x = {number} + 1\nprint(x)</execute>"]
    if number % 2:
        texts.append("<execute>assert isinstance(x, int)\nx</execute>")
    if number % 3 == 0:
        texts.append("<solution>-1</solution>")
    return [*texts, f"<solution>{number + 1}</solution>"]


def made_up_episode(number: int) -> dict[str, object]:
    """These messages as a recording."""
    return {
        "family": "reasoning",
        "task": "gsm8k",
        "task_id": number,
        "model": "made-up",
        "settings": {"max_steps": 5, "max_propose": 2},
        "turns": [{"assistant": text, "kind": "?"} for text in made_up_texts(number)],
        "success": True,
        "terminate_reason": "task_success",
        "counts": {"propose_solution": 0, "use_tool": 0, "invalid_action": 0},
    }


def measure_recording(
    path: str, data: str | None, tape: str | None, episodes: int, concurrency: int
) -> Figures:
    """The episodes of a file."""
    return measure(Path(path).name, f"replay:{path}", data, ALL_BUT_HOUSEHOLD, tape, episodes, concurrency)


def measure(
    name: str,
    agent: str,
    data: str | Path | None,
    tasks: Sequence[str],
    tape: str | None,
    episodes: int,
    concurrency: int,
) -> Figures:
    """Play and count. The pool is opened before the clock starts; its processes are counted apart."""
    spec = parse_agent(agent)
    cells = plan_cells(player_name(spec), spec, choose_datasets(tasks), (5,))
    loaded = [(cell, load_tasks(cell.dataset, data)) for cell in cells]
    repeats = math.ceil(episodes / sum(len(items) for _, items in loaded))
    children = cpu_seconds(resource.RUSAGE_CHILDREN)
    with (
        tempfile.TemporaryDirectory() as output,
        Run(
            loaded,
            output,
            open_player=lambda spec, sampling, as_expert: open_player(
                spec,
                Terms(concurrency=concurrency, cache=AnswerCache(Path(output) / "answers.sqlite")),
                sampling=sampling,
            ),
            repeats=repeats,
        ) as work,
    ):
        total = len(work.pending)
        memory = Memory([round(total * share) for share in MARKS])
        with open_sandbox() as pool:
            stage = RunContext(pool, OwnWording(), Tape(tape) if tape else None, threading.Event())
            own, start = cpu_seconds(resource.RUSAGE_SELF), time.perf_counter()
            outcome = work.carry_out(stage, concurrency=concurrency, watch=memory.look)
            seconds = time.perf_counter() - start
            own = cpu_seconds(resource.RUSAGE_SELF) - own
        assert outcome.complete, outcome.problems
        turns = sum(
            len(json.loads(line)["state"]["history"]) // 2
            for file in Path(output).rglob("results.jsonl")
            for line in file.read_text().splitlines()
        )
    children = cpu_seconds(resource.RUSAGE_CHILDREN) - children
    return Figures(
        name,
        total,
        turns,
        concurrency,
        total / seconds,
        1e3 * own / total,
        1e3 * children / total,
        memory.megabytes,
    )


def cpu_seconds(who: int) -> float:
    """CPU time of this process or of its ended descendants."""
    usage = resource.getrusage(who)
    return usage.ru_utime + usage.ru_stime


def resident_bytes() -> int:
    """Memory that this process holds now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def describe(row: Figures, load: float, heading: str = "## Runs of agents", flags: str = "") -> str:
    """A section of the page."""
    memory = ", ".join(f"{value:.0f} MB after {done:,}" for done, value in sorted(row.memory.items()))
    origin = "asked for" if flags else "replayed"
    harness = f"{row.harness_ms:.1f}" + ("" if row.harness_ms <= GOAL_MS else " (missed)")
    return (
        f"{heading}\n\n`python benchmarks/speed/mint_runs.py{flags}`, {date.today()}, "
        f"{os.cpu_count()} processors, load {load:.1f} from other work when this began. Messages are "
        f"{origin}; the rest is the harness (turn loop, prompts, checkers, files; one process) "
        "and the sandbox (all processes, opening and closing included).\n\n"
        "| episodes | number | turns each | at a time | episodes/s | harness, CPU ms/episode | goal "
        "| sandbox, CPU ms/episode | memory of the harness |\n|---|---|---|---|---|---|---|---|---|\n"
        f"| {row.name} | {row.episodes:,} | {row.turns / row.episodes:.1f} | {row.concurrency} "
        f"| {row.per_second:.1f} | {harness} | <= {GOAL_MS:.0f} | {row.sandbox_ms:.1f} | {memory} |\n"
    )


if __name__ == "__main__":
    main()
