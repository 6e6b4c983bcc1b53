"""Which Python a run was recorded with: the paths in its tracebacks tell."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from histobench.mint.replay.recording import Recording

#: How the sandbox is told to behave like the Python of most recordings.
PYTHON38 = "python3.8"
NATIVE = "native"
_SHOWN = re.compile(r"/python3\.(\d+)/")


def python_of_runs(recordings: Iterable[Recording]) -> dict[str, str]:
    """The sandbox's `wording` for each run: Python 3.8's, unless most paths it shows are of a Python whose
    errors read as today's (from 3.10 on).
    """
    shown: dict[str, Counter[int]] = {}
    for recording in recordings:
        seen = shown.setdefault(recording.run, Counter())
        for turn in recording.turns:
            seen.update({int(minor) for minor in _SHOWN.findall(turn.observation or "")})
    return {run: _wording(seen) for run, seen in shown.items()}


def _wording(seen: Counter[int]) -> str:
    newer = sum(times for minor, times in seen.items() if minor >= 10)
    return NATIVE if newer > seen.total() / 2 else PYTHON38
