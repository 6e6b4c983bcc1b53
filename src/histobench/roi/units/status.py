"""How far a run is, from its files alone, while it is at work or long after."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from histobench.core.errors import HistobenchError
from histobench.roi.units.roi_run import RoiRun
from histobench.work.engines import queued
from histobench.work.run_folder import BLOCKED, DONE, FAILED, HUNG, RunFolder, Unit, holders_of


def check_free(results: Path, plan: Mapping[str, Any]) -> None:
    """Raise where another engine, or another plan on a cluster, is at work in the results folder."""
    last = RoiRun.latest(results)
    if last is None or not at_work(last):
        return
    engine, other = plan["engine"], last.engine
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


def at_work(folder: RunFolder) -> bool:
    return bool(holders_of(folder) or queued(folder))


def differences(plan: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    return sorted(key for key in {*plan, *other} if plan.get(key) != other.get(key))


RUNNING, STALE, WAITING = "running", "stale", "waiting"


@dataclass(frozen=True)
class EncoderStatus:
    dataset: str
    encoder: str
    states: Counter[str]
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class Status:
    folder: Path
    engine: str
    cells: tuple[EncoderStatus, ...]
    states: Counter[str]
    #: host -> units that are being done there
    hosts: Counter[str]
    images: int
    images_per_second: float | None
    seconds_left: float | None
    logs: tuple[Path, ...]
    #: Units that seem to hang, in words.
    hung: tuple[str, ...]


def status_of(results: Path, folder: RunFolder | None = None) -> Status:
    """A run in a results folder: the last one of the ROI track, unless another is given."""
    folder = folder or RoiRun.latest(results)
    if folder is None:
        raise HistobenchError(f"no run in {results}: start one with `histobench run`")
    folder.refresh()
    units = folder.units()
    claimed = folder.claimed()
    cells: dict[tuple[str, str], tuple[Counter[str], list[str]]] = {}
    states: Counter[str] = Counter()
    hosts: Counter[str] = Counter()
    hung: list[str] = []
    computed, seconds = 0, 0.0
    for unit in units:
        state = folder.state(unit.id)
        if state is None:
            holder = folder.holder(unit.id, even_stale=True) if unit.id in claimed else None
            state = WAITING if holder is None else RUNNING if "age" in holder else STALE
            hosts.update([str(holder["host"])] if holder and state == RUNNING else [])
            hung += [_hung(folder, unit, holder, state)] if holder else []
        states[state] += 1
        # A unit of several encoders counts for each; preparing and comparing are of none.
        encoders = unit.encoder.split(", ") if unit.kind == "shards" else [unit.encoder or f"({unit.kind})"]
        for encoder in encoders:
            found, reasons = cells.setdefault((unit.dataset or "(all)", encoder), (Counter(), []))
            found[state] += 1
            if state == FAILED:
                reasons.append(str((folder.output(unit.id) or {}).get("reason", "")))
        if state == DONE and unit.kind == "shards":
            note = folder.output(unit.id) or {}
            computed += sum(note.get("computed", {}).values())
            seconds += sum(note.get("seconds", {}).values())
    return Status(
        folder.path,
        folder.engine,
        tuple(EncoderStatus(*key, counts, tuple(dict.fromkeys(why))) for key, (counts, why) in cells.items()),
        states,
        hosts,
        computed,
        computed / seconds if seconds > 0 else None,
        None if any(hung) else _left(folder, units, states),
        tuple(sorted((folder.path / "logs").glob("*.log"))),
        tuple(filter(None, hung)),
    )


def _hung(folder: RunFolder, unit: Unit, holder: Mapping[str, Any], state: str) -> str:
    """What to report of a unit whose worker shows no sign of life, or works at it for too long."""
    minutes = (time.time() - holder.get("began", time.time())) / 60
    if state == RUNNING and minutes < HUNG / 60:
        return ""
    silent = "" if state == RUNNING else ", without a sign of life"
    return (
        f"{folder.title(unit)} ({unit.kind}): began {minutes:.0f} min ago on {holder.get('host')} (process "
        f"{holder.get('pid')}){silent}; if it hangs, end that process or its job: another worker takes over"
    )


def _left(folder: RunFolder, units: list[Unit], states: Counter[str]) -> float | None:
    """Seconds until the end at the pace so far; None before anything is done, or when all is."""
    left = len(units) - states[DONE] - states[FAILED] - states[BLOCKED]
    if not left or not states[DONE]:
        return None
    return (time.time() - (folder.path / "plan.json").stat().st_mtime) / states[DONE] * left
