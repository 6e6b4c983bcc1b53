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

import cluster_faults  # the command does the same with more faults
from histobench.cli.main import main
from histobench.mint.sandbox import active_backend
from histobench.roi.units.status import status_of

pytestmark = pytest.mark.nightly

#: What agents are asked on a cluster.
QUESTIONS = [str(number) for number in range(12)]
#: Who consults encoders there, in which arms.
CONSULT = ["consult", "run", "--agent", "policy:always-trust", "--arms", "none,strong", "--cache", "none"]
COUNTS = ("propose_solution", "use_tool", "invalid_action")


def _module(path: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study of Consult with six cases, and what one process makes of them below `alone`."""
    drawn = _module(Path(__file__).parents[2] / "consult" / "conftest.py", "consult_images")
    folder: Path = drawn.make_images(tmp_path_factory.mktemp("consult"))
    encoders = ",".join(f"{folder / 'three.py'}:{name}" for name in ("Colours", "Green", "Noise"))
    prepare = ["consult", "prepare", str(folder / "tiles.csv"), "--classes", str(folder / "tiles.txt")]
    prepare += ["--encoders", encoders, "--cases", "6", "--measured", "4", "--num_workers", "0"]
    prepare += ["--organ", "colon", "--device", "cpu", "--out", str(folder / "study")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HISTOBENCH_CACHE", str(folder / "cache"))
        assert main(prepare) == 0
        assert main([*CONSULT, str(folder / "study"), "-o", str(folder / "study" / "alone")]) == 0
    return folder / "study"


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("engine", "faults"),
    [("ray", ["worker", "two drivers", "node", "driver"]), ("slurm", ["worker", "requeue"])],
)
def test_two_nodes_that_are_killed_at_random_give_the_bytes_of_one_process(
    tmp_path: Path, request: pytest.FixtureRequest, engine: str, faults: list[str]
) -> None:
    if engine == "ray":
        pytest.importorskip("ray", reason="Ray is not installed: pip install 'histobench[ray]'")
    elif cluster_faults.SlurmCluster.missing():
        pytest.skip(cluster_faults.SlurmCluster.missing())
    plan = cluster_faults.write_plan(tmp_path, images=280, pause=0.03)
    local = cluster_faults.run_local(plan, tmp_path)
    made = cluster_faults.opened(engine, tmp_path)
    try:
        try:
            made.start()
        except (TimeoutError, RuntimeError) as error:
            pytest.skip(f"{engine} does not start on this machine: {error}")
        cluster_faults.suffer(made, plan, random.Random(7), faults)
        for _ in range(3):  # what was lost is done when asked again; a busy cluster may lose a job once more
            if cluster_faults.differences(local, tmp_path / "results"):
                cluster_faults.run_through(made, plan)
        if (sandbox := active_backend()[0]) != "none":  # a cluster is dear to start: agents use the same one
            played = play_agents(made, engine, tmp_path)
            study: Path = request.getfixturevalue("study")
            consulted = play_consult(made, engine, study, tmp_path / "consulted")
    finally:
        made.stop()
    assert cluster_faults.differences(local, tmp_path / "results") == []
    status = status_of(tmp_path / "results")
    assert sum(cell.states["done"] for cell in status.cells if cell.encoder == "(hash)") == 5
    if engine == "slurm":  # there the images were copied first
        assert not status.not_staged
        assert (tmp_path / "node").is_dir()
    if sandbox != "none":
        assert played == sorted(QUESTIONS)
        alone = records_of(study / "alone")
        assert len(alone) == 12
        assert consulted == alone


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
    command = ["mint", "run", "--agent", f"replay:{recording}", "--tasks", "gsm8k"]
    share_out(
        made, engine, [*command, "--data", str(data.parent)], output, workers=3, episodes=len(QUESTIONS)
    )
    return sorted(str(task["task_id"]) for task in tasks_in(output))


def play_consult(made: Any, engine: str, study: Path, output: Path) -> dict[tuple[str, str], Any]:
    """The cases of a study in two arms, played by two workers; what happened in each."""
    share_out(made, engine, [*CONSULT, str(study)], output, workers=2, episodes=12)
    return records_of(output)


def share_out(
    made: Any, engine: str, command: list[str], output: Path, *, workers: int, episodes: int
) -> None:
    """Have a run of agents played on the cluster; Slurm plays on after the command."""
    where = made.flags if engine == "ray" else ("--engine", "slurm")
    whole = [sys.executable, "-m", "histobench.cli.main", *command, "-o", str(output), *where]
    done = subprocess.run(
        [*whole, "--workers", str(workers)], env=made.environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    deadline = time.monotonic() + 600
    while len(tasks_in(output)) < episodes and time.monotonic() < deadline:
        time.sleep(0.5)


def tasks_in(output: Path) -> list[dict[str, Any]]:
    texts = [path.read_text() for path in output.rglob("results.jsonl")]
    lines = [line for text in texts for line in text.split("\n")[:-1]]  # the last is being written
    return [json.loads(line)["task"] for line in lines]


def records_of(output: Path) -> dict[tuple[str, str], Any]:
    """(arm, case) -> what happened; an episode that was played twice is an error."""
    tasks = tasks_in(output)
    found = {(task["metadata"]["consult"]["arm"], task["task_id"]): task for task in tasks}
    assert len(found) == len(tasks)
    return {key: (task["reference"], task["metadata"]["consult"]) for key, task in found.items()}
