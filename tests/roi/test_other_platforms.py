"""The ROI track without what only Linux has. macOS and Windows themselves were not at hand."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from histobench.cli.main import main
from histobench.core.devices import resolve_device

#: Read by every process at its start, those of workers included.
HIDING = """
import builtins, mmap, multiprocessing, os, sys
for name in ("sched_getaffinity", "sched_setaffinity", "memfd_create", "posix_fallocate", "posix_fadvise",
             "fork", "forkpty", "sendfile", "setpriority"):
    vars(os).pop(name, None)
for name in [name for name in vars(mmap) if name.startswith(("MADV_", "MAP_"))]:
    if name not in ("MAP_SHARED", "MAP_PRIVATE"):
        delattr(mmap, name)
sys.modules["fcntl"] = sys.modules["resource"] = None
multiprocessing.set_start_method("spawn")
HIDDEN = ("/proc", "/dev/shm", "/sys")

def hide(event, arguments):
    if event in ("open", "os.listdir", "os.scandir", "os.readlink") and isinstance(arguments[0], str):
        if arguments[0].startswith(HIDDEN) and arguments[0] != "/proc/self/maps":  # of torch
            with builtins.open(os.environ["HIDDEN_SEEN"], "a") as log:
                log.write(arguments[0] + "\\n")
            raise FileNotFoundError(2, "hidden", arguments[0])

sys.addaudithook(hide)
"""
RUN = """
import os, sys
from histobench.cli.main import main
if __name__ == "__main__":
    assert not hasattr(os, "fork") and sys.modules["fcntl"] is None
    sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.nightly
def test_a_run_needs_nothing_that_only_linux_has(tmp_path: Path) -> None:
    hiding = tmp_path / "hiding"
    hiding.mkdir()
    (hiding / "sitecustomize.py").write_text(HIDING)
    (tmp_path / "run.py").write_text(RUN)
    demo = ["data", "demo", str(tmp_path / "data"), "--per-class", "6", "--test-per-class", "6"]
    assert main(demo) == 0
    (table,) = (tmp_path / "data").glob("*.csv")
    seen = tmp_path / "seen.txt"
    seen.touch()
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(hiding), *filter(None, sys.path)]),
        "HIDDEN_SEEN": str(seen),
        "HISTOBENCH_CACHE": str(tmp_path / "cache"),
    }

    def run(*arguments: str) -> None:
        command = [sys.executable, str(tmp_path / "run.py"), *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)
        assert done.returncode == 0, done.stdout + done.stderr

    results, tasks = str(tmp_path / "results"), ["--tasks", "KNN,Linear-Probe"]
    run(
        "run", "--data", str(table), "--models", "efficientnet-lite0,random-vit", *tasks, "--results", results
    )
    assert len(list((tmp_path / "results").rglob("*_complete_results.json"))) == 4
    run("report", results, "-o", str(tmp_path / "site"))
    assert (tmp_path / "site" / "index.html").is_file()
    assert "/proc" in seen.read_text()  # the test hides something


@pytest.mark.parametrize(("available", "expected"), [(True, "mps"), (False, "cpu")])
def test_the_gpu_of_a_mac_is_used_where_torch_has_it_and_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, available: bool, expected: str
) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: available)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_device("mps") == expected
    assert resolve_device(None) == "cpu"  # nobody has compared its numbers yet: only where it is asked for
