"""Which folder a task's results go to: the one asked for, unless it holds those of another run.

The documented place belongs to the run that was first there. Another seed, image size, encoder or dataset is
another run: it gets a folder of its own beside, named after what sets it apart, and both are kept.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from histobench.core.atomic import create_json
from histobench.core.plain_data import parse_json
from histobench.core.reading import read_bytes, read_note, unreadable
from histobench.roi.results.layout import stored_in

#: Beside the files of a task: whose they are, written before the first of them.
CLAIM = ".run.json"
#: What one run is known by; in this order in the names of folders.
FIELDS = ("dataset", "encoder", "preset", "size", "seed", "choose_by", "features")
#: A claim without results that is older than this was left by a run that was killed.
_ABANDONED_SECONDS = 60.0

Identity = Mapping[str, str]  # field -> value; "" where it is not known


def place_of(results_dir: Path, task: str, identity: Identity) -> Path:
    """The results folder in which `task` is, or would be, that of this run."""
    occupant = _occupant(results_dir / task)
    apart = [] if occupant is None else _differing(identity, occupant)
    if not apart:
        return results_dir
    return results_dir / "_".join(f"{name}-{_safe(identity[name])}" for name in apart)


def claim_place(results_dir: Path, task: str, identity: Identity) -> Path:
    """As `place_of`, for good: whoever comes next finds the place taken."""
    folder = results_dir / task
    folder.mkdir(parents=True, exist_ok=True)
    abandoned = (folder / CLAIM).exists()
    if _occupant(folder) is None:
        if abandoned:
            (folder / CLAIM).unlink(missing_ok=True)
        create_json(folder / CLAIM, dict(identity))  # one of two that come at once gets it
    return place_of(results_dir, task, identity)


def _occupant(folder: Path) -> Identity | None:
    """Whose results are in a task's folder; None where there are none."""
    stored = next(iter(stored_in(folder)), None)
    # A claim that cannot be read now is an error: the place may well be taken.
    content = read_note(folder / CLAIM)
    if content is not None and (stored is not None or _age(folder / CLAIM) < _ABANDONED_SECONDS):
        return {name: str(content.get(name, "")) for name in FIELDS}
    return None if stored is None else _identity_in(stored)


def _age(path: Path) -> float:
    try:
        return abs(time.time() - path.stat().st_mtime)  # the clock may have been set back
    except FileNotFoundError:
        return float("inf")


def _identity_in(path: Path) -> Identity | None:
    """The identity that a results file tells, as far as it does."""
    try:
        info: Any = parse_json(read_bytes(path).decode("utf-8"))["additional_info"]
        size = re.search(r"_Size_\[([^\]]+)\]", str(info.get("test_features") or ""))
        found = {name: str(info.get(name, "") or "") for name in FIELDS}
        return found | {"seed": str(info.get("seed", "")), "size": found["size"] or (size[1] if size else "")}
    except FileNotFoundError:
        return None
    except OSError as error:
        raise unreadable(path, error) from error
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _differing(identity: Identity, other: Identity) -> list[str]:
    """The fields in which two runs differ; what either does not tell is no difference."""
    return [
        name
        for name in FIELDS
        if identity.get(name) and other.get(name) and str(identity[name]) != str(other[name])
    ]


def _safe(value: str) -> str:
    return re.sub(r"[^\w.@+-]", "_", str(value)).strip(".")[:60] or "_"
