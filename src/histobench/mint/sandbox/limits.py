"""What one episode may use."""

from __future__ import annotations

from dataclasses import dataclass

# Loaded once in the zygote; an episode's import of them then costs nothing.
SCIENCE = (
    "numpy",
    "scipy.stats",
    "scipy.optimize",
    "scipy.integrate",
    "pandas",
    "sympy",
)


@dataclass(frozen=True)
class Limits:
    """Limits of one episode.

    Each process of it is held to `memory_mb` and `cpu_seconds`, and so are all of them together; `scratch_mb`
    holds for its files and, apart from them, for its shared memory.
    """

    memory_mb: int = 2048
    scratch_mb: int = 64
    file_mb: int = 64
    processes: int = 64
    open_files: int = 256
    cpu_seconds: int = 600
    output_chars: int = 65_536
    tool_seconds: float = 600.0  # time that tools may take in one cell without counting against it
    patience: float = 3.0  # how many times its limit a cell may be starved by a busy machine without harm
    grace: float = 5.0  # seconds between the soft time-out, which keeps the state, and the hard kill
