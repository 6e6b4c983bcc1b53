"""A real Ray and a real Slurm, two nodes each on this machine: killed at random, they give the same bytes."""

from __future__ import annotations

import importlib.util
import random
import sys
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.slow

HARNESS = Path(__file__).resolve().parents[3] / "benchmarks" / "cluster_faults.py"


@pytest.fixture(scope="module")
def clusters() -> ModuleType:
    """`benchmarks/cluster_faults.py`, which does the same with more faults."""
    spec = importlib.util.spec_from_file_location("cluster_faults", HARNESS)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["cluster_faults"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("engine", "faults"), [("ray", ["worker", "node", "driver"]), ("slurm", ["worker", "requeue"])]
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
    finally:
        made.stop()
    assert clusters.differences(local, tmp_path / "results") == []
