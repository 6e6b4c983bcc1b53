"""Fixtures and marks shared by all tests."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import HealthCheck, settings

# A busy machine is not a defect of what is tested.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("usual", settings.get_profile("patient"), max_examples=25)
settings.register_profile("fast", settings.get_profile("patient"), max_examples=10)
settings.load_profile("patient")

pytest_plugins = ["faulty_disk"]
ROOT = Path(__file__).resolve().parents[1]
os.environ.pop("COLUMNS", None)  # a worker of xdist has the width of its terminal
if "PYTEST_XDIST_WORKER" in os.environ:
    # Threads of several workers would wait for each other's cores, and they wait by spinning.
    for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(_name, "1")
#: Files with tests of a minute and more: they begin first, so that no worker ends alone with them.
LONGEST = ("test_clusters.py", "test_wheel.py", "test_live_model.py", "test_documentation.py")


def pytest_configure(config: pytest.Config) -> None:
    """Draw fewer random examples where slow tests are left out."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in the background of a script
        signal.signal(signal.SIGINT, signal.default_int_handler)
    profile = {"not slow": "fast", "not nightly": "usual"}.get(config.option.markexpr)
    if profile:
        settings.load_profile(profile)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item], config: pytest.Config) -> None:
    """Mark the cases beyond `sample(n)` as nightly, every nightly test as slow, and begin with the longest.

    The cases that stay are those that are not slow, then by a hash of the name: the same in every run. Tests
    that draw random examples are in both tiers: the nightly one draws all of them.
    """
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("sample"):
            cases.setdefault(item.nodeid.split("[")[0], []).append(item)
        drawn = getattr(getattr(item, "obj", None), "is_hypothesis_test", False)
        if config.option.markexpr == "nightly" and drawn:
            item.add_marker("nightly")

    def tier(item: pytest.Item) -> tuple[bool, bool, int]:
        marked = (item.get_closest_marker(name) is not None for name in ("nightly", "slow"))
        return *marked, crc32(item.name.encode())  # type: ignore[return-value]

    for group in cases.values():
        for item in sorted(group, key=tier)[group[0].get_closest_marker("sample").args[0] :]:
            item.add_marker("nightly")
    for item in items:
        if item.get_closest_marker("nightly"):
            item.add_marker("slow")
    items.sort(key=lambda item: item.path.name not in LONGEST)


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """The folder of reference data beside the repository; tests that need it skip where it is absent."""
    folder = ROOT.parent / "shared"
    if not folder.is_dir():
        pytest.skip("reference data (../shared) is not on this machine")
    return folder


@pytest.fixture(scope="session")
def needs_sandbox() -> None:
    """Skip where model code cannot be confined."""
    from histobench.mint.sandbox import active_backend

    name, why = active_backend()
    if name == "none":
        pytest.skip(f"no sandbox works on this machine: {why}")


@pytest.fixture(scope="session", params=["slice", pytest.param("whole", marks=pytest.mark.nightly)])
def reference_dir(request: pytest.FixtureRequest) -> Path:
    """Reference data: the slice that comes with the tests, and the whole where it is on this machine."""
    if request.param == "slice":
        return ROOT / "tests" / "data" / "reference"
    whole: Path = request.getfixturevalue("shared_dir")
    return whole


@pytest.fixture(scope="session")
def best_reference_dir() -> Path:
    """The whole reference data where it is on this machine, else the slice: for checks that take long."""
    whole = ROOT.parent / "shared"
    return whole if whole.is_dir() else ROOT / "tests" / "data" / "reference"
