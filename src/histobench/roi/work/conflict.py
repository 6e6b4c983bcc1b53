"""Whether a results folder is in use by a run that this one would get in the way of."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from histobench.core.claim import holder_of
from histobench.core.errors import HistobenchError
from histobench.core.reading import files_below
from histobench.roi.work.engines.slurm import queued
from histobench.roi.work.run_folder import RunFolder

#: In a run's folder: held by the process that began it, as long as it lives.
DRIVER = "driver.json"


def check_free(results: Path, plan: Mapping[str, Any]) -> None:
    """Raise where another engine, or another plan on a cluster, is at work in the results folder."""
    last = RunFolder.latest(results)
    if last is None or not at_work(last):
        return
    engine, other = plan["engine"], last.plan.get("engine")
    if engine != other:
        raise HistobenchError(
            f"{results} is being written by a run with `engine` {other}: wait for it (histobench status "
            f"{results}), or give another `results`"
        )
    differing = differences(plan, last.plan)
    if engine != "local" and differing:
        raise HistobenchError(
            f"the plan has changed while jobs of it are at work in {results} ({', '.join(differing)}): wait "
            "for them, stop them, or give another `results`"
        )


def at_work(folder: RunFolder) -> list[dict[str, Any]]:
    """Who is at work on a run: the holders of its claims, and the jobs that wait for their turn."""
    paths = [folder.path / DRIVER, *files_below(folder.path / "claims", ".json", deep=False)]
    holders = [holder for path in paths if (holder := holder_of(path)) is not None]
    jobs = [{"job": name, "tasks": count} for name, count in queued(folder).items()]
    return [*holders, *jobs]


def differences(plan: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """The keys in which two plans differ."""
    return sorted(key for key in {*plan, *other} if plan.get(key) != other.get(key))
