"""A Ray cluster: the one that is named, the one this machine is part of, or a new one on this machine."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

from histobench.core.errors import HistobenchError
from histobench.core.plain_file import read_plain_text

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
    address = _that_answers(address)
    environment = {"PYTHONPATH": os.pathsep.join(entry or os.getcwd() for entry in sys.path)}
    for name in ("HISTOBENCH_CACHE", "HISTOBENCH_LOCAL", "HF_HOME", "HF_HUB_OFFLINE"):
        if name in os.environ:
            environment[name] = os.environ[name]
    try:
        ray.init(
            address=address,
            runtime_env={"env_vars": environment},
            log_to_driver=False,
            include_dashboard=False if address in (None, "local") else None,
            logging_level="error",
        )
    except (
        ConnectionError,
        ValueError,
        RuntimeError,
        OSError,
        TimeoutError,
        ray.exceptions.RayError,
    ) as error:
        told = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        where = address or "this machine"
        if _asks_for_token(error):
            raise HistobenchError(
                f"the Ray cluster at {where} asks for a token; set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN "
                "where ~/.ray/auth_token is not the cluster's"
            ) from error
        raise HistobenchError(f"no Ray cluster at {where}: {told}; `ray start --head` starts one") from error


def _asks_for_token(error: BaseException | None) -> bool:
    """Whether Ray was turned away: where an address is named it does not send a token by itself."""
    # Newer versions have a class for it, the others only words.
    named = type(error).__name__ == "AuthenticationError" or "AuthToken" in str(error)
    return error is not None and (named or _asks_for_token(error.__cause__))


def _that_answers(address: str | None) -> str | None:
    """The address to connect to. Ray itself waits for minutes before it says that nobody is there."""
    if address not in (None, "auto"):
        if (error := _no_answer(str(address))) is not None:
            raise HistobenchError(
                f"no Ray cluster at {address}: {error}; `ray start --head` starts one, --ray-address names it"
            ) from error
        return address
    remembered = _remembered()
    if (error := _no_answer(remembered)) is None:
        return address
    if address is None:
        return "local"  # of a cluster that has died Ray still knows the address: a new one is begun
    raise HistobenchError(
        f"no Ray cluster at {address}: {remembered}, which Ray remembers, does not answer ({error}); "
        "`ray start --head` starts one, --ray-address names it"
    ) from error


def _no_answer(address: str) -> OSError | OverflowError | None:
    """Why nobody answers at `host:port`; None where somebody does, or where it is no such address."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        return None
    host = host.removeprefix("[").removesuffix("]")  # of an IPv6 address
    try:
        with socket.create_connection((host, int(port)), timeout=KNOCK):
            return None
    except (OSError, OverflowError) as error:
        return error


def _remembered() -> str:
    """The cluster that `ray start` has begun on this machine; empty where there is none."""
    # Where Ray itself looks; batch systems often give a job a TMPDIR of its own.
    place = os.environ.get("RAY_TMPDIR")
    if place is None:
        place = os.environ.get("TMPDIR", "/tmp") if sys.platform == "linux" else "/tmp"
    file = Path(place) / "ray" / "ray_current_cluster"
    try:
        return read_plain_text(file).strip()
    except (OSError, UnicodeDecodeError):
        return ""
