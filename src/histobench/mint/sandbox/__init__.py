"""The sandbox: model code runs here and never in the host process."""

from histobench.mint.sandbox.backends import (
    STRENGTH,
    active_backend,
    backend_works,
    check_sandbox,
    open_sandbox,
    shared_pool,
)
from histobench.mint.sandbox.code_session import CellResult, CodeSession
from histobench.mint.sandbox.limits import SCIENCE, Limits
from histobench.mint.sandbox.sandbox_pool import SandboxPool
from histobench.mint.sandbox.unit_test_runs import Verdict, run_unit_tests
from histobench.mint.sandbox.zygote_process import SandboxError

__all__ = [
    "SCIENCE",
    "STRENGTH",
    "CellResult",
    "CodeSession",
    "Limits",
    "SandboxError",
    "SandboxPool",
    "Verdict",
    "active_backend",
    "backend_works",
    "check_sandbox",
    "open_sandbox",
    "run_unit_tests",
    "shared_pool",
]
