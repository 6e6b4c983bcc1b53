"""A real Ray and a real Slurm, two nodes each on this machine: whatever fails, the results are the same."""

from __future__ import annotations

import importlib.util
import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster_faults import FAULTS, Harness
from histobench.cli.main import main
from histobench.mint.sandbox import active_backend
from two_nodes import LIMIT, SlurmCluster, wait_for

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1800)]

#: Every fault on the engine that it hurts more.
CASES = [
    ("slurm", "agents", "sbatch"),
    ("slurm", "agents", "late sbatch"),
    ("slurm", "roi", "worker kill"),
    ("slurm", "roi", "worker stop"),
    ("slurm", "roi", "requeue"),
    ("slurm", "agents", "cancel"),
    ("slurm", "agents", "two drivers"),
    ("slurm", "roi", "damage"),
    ("ray", "roi", "driver kill"),
    ("ray", "roi", "driver term"),
    ("ray", "agents", "driver stop"),
    ("ray", "agents", "worker term"),
    ("ray", "roi", "node"),
    ("ray", "roi", "head"),
]
CONSULT = ["consult", "run", "--agent", "policy:always-trust", "--arms", "none,strong", "--cache", "none"]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Harness]]:
    """Start a cluster, or return the one that is there."""
    made: dict[str, Harness] = {}

    def open_cluster(engine: str) -> Harness:
        if engine == "ray":
            pytest.importorskip("ray", reason="Ray is not installed: pip install 'histobench[ray]'")
        elif SlurmCluster.missing():
            pytest.skip(SlurmCluster.missing())
        if active_backend()[0] == "none":
            pytest.skip("agents need a sandbox")
        if engine not in made:
            harness = Harness(engine, tmp_path_factory.mktemp(engine))
            try:
                harness.made.start()
            except (TimeoutError, RuntimeError) as error:
                harness.made.stop()
                pytest.skip(f"{engine} does not start on this machine: {error}")
            made[engine] = harness
        return made[engine]

    yield open_cluster
    for harness in made.values():
        harness.made.stop()


def test_every_fault_has_a_case() -> None:
    assert {fault for _, _, fault in CASES} == {fault for faults in FAULTS.values() for fault in faults}


@pytest.mark.parametrize(("engine", "track", "fault"), CASES)
def test_after_a_fault_the_repeated_command_gives_what_one_process_gives(
    cluster: Callable[[str], Harness], engine: str, track: str, fault: str
) -> None:
    harness, rng = cluster(engine), random.Random(fault)
    for _ in range(3):  # at a random moment there may be nothing to hurt
        has_met, problems = harness.suffer(track, fault, rng)
        assert problems == [], harness.log.read_text()
        if has_met:
            return
    pytest.skip(f"{fault} met nothing three times")


def test_nodes_without_memory_end_the_command_with_an_error(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'histobench[ray]'")
    harness = Harness("ray", tmp_path)
    full = {"RAY_memory_monitor_refresh_ms": "250", "RAY_memory_usage_threshold": "0.01"}
    harness.made.environment.update(full)  # every worker is killed
    try:
        harness.made.start()
        assert harness.play("roi") == 2, harness.log.read_text()
        assert "error: a node of the Ray cluster has no memory left" in harness.log.read_text()
    finally:
        harness.made.stop()


@pytest.mark.parametrize("engine", FAULTS)
def test_two_nodes_give_what_one_process_gives(
    cluster: Callable[[str], Harness], tmp_path: Path, engine: str
) -> None:
    harness = cluster(engine)
    harness.alone("roi")
    harness.tidy()
    assert harness.play("roi") == 0
    assert harness.differences("roi") == []
    study = _prepare_study(tmp_path)
    command = [sys.executable, "-m", "histobench.cli.main", *CONSULT, str(study), "-o", str(tmp_path / "out")]
    command += [*harness.made.flags, "--workers", "2"]
    done = subprocess.run(
        command, env=harness.made.environment, capture_output=True, text=True, timeout=LIMIT
    )
    assert done.returncode == 0, done.stdout + done.stderr
    wait_for(harness.made.is_idle, LIMIT, "jobs do not end")
    assert len(_records(tmp_path / "out")) == 12
    assert _records(tmp_path / "out") == _records(study / "alone")


def _prepare_study(folder: Path) -> Path:
    """A study of Consult with six cases, and what one process makes of them below `alone`."""
    spec = importlib.util.spec_from_file_location("images", Path(__file__).parents[2] / "consult/conftest.py")
    assert spec is not None
    assert spec.loader is not None
    drawn = importlib.util.module_from_spec(spec)
    sys.modules["images"] = drawn
    spec.loader.exec_module(drawn)
    images: Path = drawn.make_images(folder)
    encoders = ",".join(f"{images / 'three.py'}:{name}" for name in ("Colours", "Green", "Noise"))
    prepare = ["consult", "prepare", str(images / "tiles.csv"), "--classes", str(images / "tiles.txt")]
    prepare += ["--encoders", encoders, "--cases", "6", "--measured", "4", "--num_workers", "0"]
    prepare += ["--organ", "colon", "--device", "cpu", "--out", str(folder / "study")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HISTOBENCH_CACHE", str(folder / "cache"))
        assert main(prepare) == 0
        assert main([*CONSULT, str(folder / "study"), "-o", str(folder / "study" / "alone")]) == 0
    return folder / "study"


def _records(output: Path) -> dict[tuple[str, str], Any]:
    """(arm, case) -> what happened; an episode that was played twice is an error."""
    lines = [line for path in output.rglob("results.jsonl") for line in path.read_text().splitlines()]
    tasks = [json.loads(line)["task"] for line in lines]
    found = {(task["metadata"]["consult"]["arm"], task["task_id"]): task for task in tasks}
    assert len(found) == len(tasks)
    return {key: (task["reference"], task["metadata"]["consult"]) for key, task in found.items()}
