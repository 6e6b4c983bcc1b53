"""Whether the simulator's engine is installed; it is optional."""

from __future__ import annotations

from importlib.util import find_spec

from histobench.core.errors import HistobenchError

PACKAGES = ("textworld", "fast_downward", "alfworld", "tatsu", "jericho", "hashids", "mementos", "termcolor")
INSTALL = "run: make alfworld (or scripts/alfworld/install.sh PYTHON)"


def missing_packages() -> list[str]:
    """The packages of the engine that cannot be imported here."""
    return [name for name in PACKAGES if find_spec(name) is None]


def check() -> None:
    """Raise with the install command if the engine is not complete."""
    missing = missing_packages()
    if missing:
        raise HistobenchError(
            f"the ALFWorld engine is not installed ({', '.join(missing)} missing); {INSTALL}"
        )


def checkup() -> tuple[str, str, str]:
    """Verdict, message and fix for `histobench doctor`."""
    missing = missing_packages()
    if missing:
        return "WARN", "the engine is not installed; all other tasks work without it", INSTALL
    return "PASS", "the engine is installed", ""
