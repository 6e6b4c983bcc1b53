"""Which software made a file."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

from histobench import __version__

PACKAGES = ("torch", "timm", "numpy", "pillow")


def versions(*more: str) -> dict[str, str]:
    """The versions that may matter to the numbers."""
    found = {"histobench": __version__, "python": platform.python_version()}
    for package in (*PACKAGES, *more):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
