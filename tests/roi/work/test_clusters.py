"""A real Ray and a real Slurm, two nodes each on this machine: killed at random, they give the same bytes."""

from __future__ import annotations

import gzip
import importlib.util
import json
import random
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from histobench.mint.sandbox import active_backend
from histobench.roi.work.status import status_of

pytestmark = pytest.mark.slow

#: What agents are asked on a cluster.
QUESTIONS = [str(number) for number in range(12)]
COUNTS = ("propose_solution", "use_tool", "invalid_action")
HARNESS = Path(__file__).resolve().parents[3] / "benchmarks" / "cluster_faults.py"


@pytest.fixture(scope="module")
def clusters() -> ModuleType:
    """`benchmarks/cluster_faults.py`, which does the same with more faults."""
    spec = importlib.util.spec_from_file_location("cluster_faults", HARNESS)
    assert spec is not None
    assert spec.loader is not None
    sys.path.insert(0, str(HARNESS.parent))  # `two_nodes.py` is beside it
    module = importlib.util.module_from_spec(spec)
    sys.modules["cluster_faults"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("engine", "faults"),
    [("ray", ["two drivers", "node", "driver"]), ("slurm", ["worker", "requeue"])],
)
def test_two_nodes_that_are_killed_at_random_give_the_bytes_of_one_process(
    clusters: ModuleType, tmp_path: Path, engine: str, faults: list[str]
) -> None:
    if engine == "ray":
        pytest.importorskip("ray", reason="Ray is not installed: pip install 'histobench[ray]'")
    elif clusters.SlurmCluster.missing():
        pytest.skip(clusters.SlurmCluster.missing())
    plan = clusters.write_plan(tmp_path, images=280, pause=0.03)
    local = clusters.run_local(plan, tmp_path)
    made = clusters.opened(engine, tmp_path)
    try:
        try:
            made.start()
        except (TimeoutError, RuntimeError) as error:
            pytest.skip(f"{engine} does not start on this machine: {error}")
        clusters.suffer(made, plan, random.Random(7), faults)
        for _ in range(3):  # what was lost is done when asked again; a busy cluster may lose a job once more
            if clusters.differences(local, tmp_path / "results"):
                clusters.run_through(made, plan)
        if (sandbox := active_backend()[0]) != "none":  # a cluster is dear to start: agents use the same one
            played = play_agents(made, engine, tmp_path)
    finally:
        made.stop()
    assert clusters.differences(local, tmp_path / "results") == []
    if engine == "slurm":  # there the images were copied first
        assert not status_of(tmp_path / "results").not_staged
        assert (tmp_path / "node").is_dir()
    assert sandbox == "none" or played == sorted(QUESTIONS)


def play_agents(made: Any, engine: str, folder: Path) -> list[str]:
    """Recorded episodes of twelve questions, played by three workers; gives the tasks that were finished."""
    data, recording, output = folder / "data" / "gsm8k", folder / "one.k5.jsonl.gz", folder / "episodes"
    data.mkdir(parents=True)
    asked = [
        {"id": int(task), "prompt": f"What is {task} + 1?", "reference": str(int(task) + 1)}
        for task in QUESTIONS
    ]
    (data / "test_prompts.json").write_text("".join(json.dumps(task) + "\n" for task in asked))
    with gzip.open(recording, "wt") as file:
        for task in QUESTIONS:
            turn = {"assistant": f"<solution>{int(task) + 1}</solution>", "kind": "?"}
            record = {
                "family": "reasoning",
                "task": "gsm8k",
                "task_id": int(task),
                "model": "scripted",
                "settings": {"max_steps": 5, "max_propose": 2},
                "turns": [turn],
                "success": True,
                "terminate_reason": "task_success",
                "counts": dict.fromkeys(COUNTS, 0),
            }
            file.write(json.dumps(record) + "\n")
    where = made.flags if engine == "ray" else ("--engine", "slurm")
    command = [sys.executable, "-m", "histobench.cli.main", "mint", "run", "--agent", f"replay:{recording}"]
    command += ["--tasks", "gsm8k", "--data", str(data.parent), "-o", str(output), "--workers", "3", *where]
    done = subprocess.run(command, env=made.environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    deadline = time.monotonic() + 600
    while len(finished := finished_in(output)) < len(QUESTIONS) and time.monotonic() < deadline:
        time.sleep(0.5)  # Slurm plays on after the command
    return sorted(finished)


def finished_in(output: Path) -> list[str]:
    texts = [path.read_text() for path in output.rglob("results.jsonl")]
    lines = [line for text in texts for line in text.split("\n")[:-1]]  # the last is being written
    return [str(json.loads(line)["task"]["task_id"]) for line in lines]
