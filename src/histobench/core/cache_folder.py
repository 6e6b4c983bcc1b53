"""Where histobench keeps what can be made again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir() -> Path:
    """`HISTOBENCH_CACHE`, or `~/.cache/histobench`."""
    given = os.environ.get("HISTOBENCH_CACHE")
    return Path(given).expanduser() if given else Path.home() / ".cache" / "histobench"
