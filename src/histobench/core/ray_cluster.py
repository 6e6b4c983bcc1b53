"""A Ray cluster: the one that is named, the one this machine is part of, or a new one on this machine."""

from __future__ import annotations

import os
import socket
import sys

from histobench.core.errors import HistobenchError

#: Seconds within which a cluster has to answer at all.
KNOCK = 10.0


def connect(address: str | None = None) -> None:
    """Connect this process; one line where that is not possible. Workers import what this process imports."""
    address = address or os.environ.get("RAY_ADDRESS")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError as error:
        raise HistobenchError(f"`engine` ray needs Ray ({error}): pip install 'histobench[ray]'") from error
    if ray.is_initialized():
        return
    _knock(address)
    environment = {"PYTHONPATH": os.pathsep.join(entry or os.getcwd() for entry in sys.path)}
    for name in ("HISTOBENCH_CACHE", "HISTOBENCH_LOCAL", "HF_HOME", "HF_HUB_OFFLINE"):
        if name in os.environ:
            environment[name] = os.environ[name]
    try:
        ray.init(
            address=address,
            runtime_env={"env_vars": environment},
            log_to_driver=False,
            include_dashboard=None if address else False,
            logging_level="error",
        )
    except (ConnectionError, ValueError, RuntimeError, OSError, TimeoutError) as error:
        told = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise HistobenchError(
            f"no Ray cluster at {address or 'this machine'}: {told}; `ray start --head` starts one"
        ) from error


def _knock(address: str | None) -> None:
    """Ray itself waits for minutes before it says that nobody is there."""
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        return
    try:
        with socket.create_connection((host, int(port)), timeout=KNOCK):
            pass
    except (OSError, OverflowError) as error:
        raise HistobenchError(
            f"no Ray cluster at {address}: {error}; `ray start --head` starts one, --ray-address names it"
        ) from error
