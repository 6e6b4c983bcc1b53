"""Compiled modules on disk: without them every start of a zygote compiles the scientific packages anew."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import cache_from_source, find_spec

from histobench.core.redaction import environment_without_keys


def ensure_compiled(modules: tuple[str, ...]) -> None:
    """Import `modules` once in a process that may write their bytecode, where that is missing and writable.

    Inside the sandbox the packages are read-only, and an environment with PYTHONDONTWRITEBYTECODE (common in
    container images) never wrote them outside either.
    """
    if any(_lacks_bytecode(name) for name in modules):
        environment = environment_without_keys()
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        # A module that fails to import is reported when the zygote loads it.
        command = [sys.executable, "-c", "; ".join(f"import {name}" for name in modules)]
        subprocess.run(
            command, env=environment, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )


def _lacks_bytecode(name: str) -> bool:
    try:
        spec = find_spec(name.partition(".")[0])
    except (ImportError, ValueError):
        return False
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return False
    compiled = cache_from_source(spec.origin)
    folder = os.path.dirname(spec.origin)
    return not os.path.exists(compiled) and os.access(folder, os.W_OK)
