"""What a cluster gets to do and to suffer in `cluster_faults`: programs, a disk with faults, a provider."""

from __future__ import annotations

import json
import re
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from histobench.roi.comparison.tidy_rows import read_rows

DATE = re.compile(rb'"\d{4}-\d\d-\d\dT[\d:+.Z-]+"')

#: Encoders that take their time, so that there is something to kill.
ENCODERS = """
import time, torch
from histobench.roi.encoders.base import BasePatchEncoder
from histobench.roi.encoders.transform import TransformSpec


class Colour(BasePatchEncoder):
    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.eval_transforms = TransformSpec(resize=24, crop=24)
        self.embed_dim = 12
        self.net = torch.nn.Conv2d(3, 12, 5, stride=3)

    def forward(self, images):
        time.sleep(0.05)
        return self.net(images).relu().mean(dim=(2, 3))


class Edge(Colour):
    def __init__(self):
        super().__init__(1)
"""
#: A disk with faults, for every Python process of the cluster; a file says which fault there is now.
DISK = """
import builtins, errno, io, os, stat, time

FOLDER, FAULT, MET, LATE = {folder!r}, {fault!r}, {met!r}, {late!r}
real_open, real_lstat, own = open, os.lstat, set()

def fail(error, number, path):
    with real_open(MET, "a") as file:
        file.write(".")
    raise error(number, os.strerror(number), path)

def check(path, writes):
    path = os.fspath(path) if not isinstance(path, (int, type(None))) else ""
    if not isinstance(path, str) or not path.startswith(FOLDER):
        return
    try:
        with real_open(FAULT) as file:
            fault = file.read()
    except OSError:
        return
    if fault == "read-only" and writes:
        fail(OSError, errno.EROFS, path)
    if writes:
        own.add(path)
    elif fault == "late files" and path not in own:
        found = real_lstat(path)
        if stat.S_ISREG(found.st_mode) and time.time() - found.st_ctime < LATE:
            fail(FileNotFoundError, errno.ENOENT, path)
        own.add(path)

def guard(module, name, writes, target=0):
    call = getattr(module, name)
    def guarded(*args, **options):
        mode = args[1] if len(args) > 1 else options.get("mode", "r")
        if name == "open":
            flags = os.O_CREAT | os.O_WRONLY | os.O_RDWR
            changes = mode & flags if module is os else set(mode) & set("wax+")
        else:
            changes = writes
        if len(args) > target and options.get("dir_fd") is None:
            check(args[target], changes)
        return call(*args, **options)
    setattr(module, name, guarded)

for module in (builtins, io, os):
    guard(module, "open", None)
for name in ("stat", "lstat"):
    guard(os, name, False)
for name, target in (("link", 1), ("rename", 1), ("replace", 1), ("unlink", 0), ("mkdir", 0), ("utime", 0)):
    guard(os, name, True, target)
listdir = os.listdir
def listed(path="."):
    for name in listdir(path):
        try:
            check(os.path.join(os.fspath(path), name) if not isinstance(path, int) else "", False)
        except FileNotFoundError:
            continue
        yield name
os.listdir = lambda path=".": list(listed(path))
"""
#: `sbatch` that kills the command which has called it, before it submits or before it returns.
SBATCH = """#!/bin/bash
read -r what left < {fault}
case "$what $*" in late*--array*|sbatch*--array*) left=$((left - 1)); echo "$what $left" > {fault};; esac
[ "$what $left" = "late 0" ] && {{ kill -9 $PPID; sleep 4; }}
{sbatch} "$@" || exit
[ "$what $left" = "sbatch 0" ] && kill -9 $PPID
exit 0
"""


def write_work(folder: Path, results: Path) -> None:
    """Write a benchmark of a few images, and questions for agents."""
    rng = np.random.default_rng(0)
    lines, images = ["image_path,label,split"], folder / "images"
    images.mkdir()
    for number in range(60):
        pixels = rng.integers(0, 120, (20, 20, 3)) + np.eye(3, dtype=int)[number % 3] * 90
        Image.fromarray(pixels.astype(np.uint8)).save(images / f"{number}.png")
        lines.append(f"{images / str(number)}.png,{number % 3},{'test' if number % 5 < 2 else 'train'}")
    (folder / "tiles.csv").write_text("\n".join(lines))
    own = folder / "own.py"
    own.write_text(ENCODERS)
    (folder / "plan.yaml").write_text(
        f"datasets: [{folder / 'tiles.csv'}]\nencoders: ['{own}:Colour', '{own}:Edge']\n"
        f"results: {results}\nn_bootstrap: 20\nn_neighbors: 3\ncompile: 'off'\n"
        "num_workers: 0\ntasks: [KNN]\n"
    )
    data = folder / "data" / "gsm8k"
    data.mkdir(parents=True)
    tasks = [{"id": i, "prompt": f"What is {i} + 1?", "reference": str(i + 1)} for i in range(8)]
    (data / "test_prompts.json").write_text("".join(json.dumps(task) + "\n" for task in tasks))


def contents(track: str, folder: Path) -> dict[str, object]:
    """Results without dates and seconds; of agents, what was said in each episode."""
    found: dict[str, object] = {}
    if track == "agents":
        lines = [line for path in folder.rglob("results.jsonl") for line in path.read_text().splitlines()]
        for record in map(json.loads, lines):
            said = [turn["content"] for turn in record["state"]["history"]]
            name = f"episode {record['task']['task_id']}"
            found[name] = found.get(name), record["state"]["success"], said  # nested if it is there twice
        return found
    for path in folder.rglob("*"):
        name = path.relative_to(folder).as_posix()
        if name.startswith("work/") or path.suffix == ".tmp" or not path.is_file():
            continue
        if path.name == "results.parquet":
            found[name] = [{**row, "date": None} for row in read_rows(path)]
        else:
            found[name] = "seconds" if path.name == "speeds.json" else DATE.sub(b"", path.read_bytes())
    return found


class Server:
    """A provider that counts: every question is answered after a moment, the first answer is wrong."""

    def __init__(self) -> None:
        self.asked: Counter[bytes] = Counter()
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                server.asked[body] += 1
                time.sleep(0.3)
                talk = json.loads(body)["messages"]
                number = int(re.findall(r"What is (\d+) \+ 1\?", talk[0]["content"])[-1])
                turn = sum(message["role"] == "assistant" for message in talk)
                text = f"<solution>{number + 1 if turn else -7}</solution>"
                choice = {
                    "index": 0,
                    "message": {"role": "assistant", "content": text},
                    "finish_reason": "stop",
                }
                usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
                reply = json.dumps({"id": "1", "model": "m", "choices": [choice], "usage": usage}).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(reply)))
                self.end_headers()
                self.wfile.write(reply)

            def log_message(self, *_: Any) -> None:
                pass

        class Quiet(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: Any) -> None:
                pass  # a client that was killed

        self._server = Quiet(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"
