"""What a cluster gets to do and to suffer in `cluster_faults`: programs and a provider."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from chat_server import ChatServer, Reply, chat
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


def provider() -> ChatServer:
    """Every question is answered after a moment; the first answer is wrong."""

    def answer(body: dict[str, Any], _: int) -> Reply:
        talk = body["messages"]
        number = int(re.findall(r"What is (\d+) \+ 1\?", talk[0]["content"])[-1])
        turn = sum(message["role"] == "assistant" for message in talk)
        reply = chat(f"<solution>{number + 1 if turn else -7}</solution>")
        reply.delay = 0.3
        return reply

    server = ChatServer()
    server.answer = answer
    return server
