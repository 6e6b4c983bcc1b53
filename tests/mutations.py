"""Apply deliberate faults of one line each, in a copy, and say which of them `make test` finds.

    python tests/mutations.py            # all; --list prints them, --only WORD takes those that contain it

Each fault is applied alone. The tests named beside it run as `make test` runs them (no nightly ones);
they must pass without the fault and fail with it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]


class Fault(NamedTuple):
    """One wrong line: `old` occurs once in `file` (below src/histobench) and becomes `new`."""

    file: str
    old: str
    new: str
    tests: str  # files below tests, separated by spaces


FAULTS = [
    # protocols
    Fault(
        "roi/protocols/knn.py",
        "torch.arange(1, relevant.shape[1] + 1,",
        "torch.arange(2, relevant.shape[1] + 2,",
        "roi/protocols/test_presets.py",
    ),
    Fault(
        "roi/protocols/knn.py",
        "torch.softmax(-distances, dim=1)",
        "torch.softmax(-distances.square(), dim=1)",
        "roi/protocols/test_prototype.py",
    ),
    Fault(
        "roi/protocols/knn.py",
        "distances[:, counts == 0] = torch.inf",
        "distances[:, counts == 0] = 3.0",
        "roi/protocols/test_prototype.py",
    ),
    Fault(
        "roi/protocols/neighbours.py",
        "decided[unsure] = exact[:, k - 1] > rest[unsure]",
        "decided[unsure] = True",
        "roi/protocols/test_knn.py",
    ),
    Fault(
        "roi/protocols/few_shot.py",
        "features = test.to(device)[order].double() - shift.mean",
        "features = test.to(device)[order].double()",
        "roi/protocols/test_few_shot.py",
    ),
    Fault(
        "roi/protocols/softmax_regression.py",
        'self.strength * (norm if self.kind == "norm" else norm * norm / 2)',
        'self.strength * (norm if self.kind == "norm" else norm * norm)',
        "roi/protocols/test_linear_probe.py",
    ),
    # metrics
    Fault(
        "roi/metrics/formulas.py",
        '"brier": tally.squared_error / 2 if c == 2 else tally.squared_error',
        '"brier": tally.squared_error',
        "roi/metrics/test_classification.py",
    ),
    Fault(
        "roi/metrics/formulas.py",
        "gap = np.abs(confidence - correct)",
        "gap = confidence - correct",
        "roi/metrics/test_classification.py",
    ),
    Fault("roi/metrics/formulas.py", "distance**2)", "distance**3)", "roi/metrics/test_classification.py"),
    Fault(
        "roi/metrics/formulas.py",
        "recall.sum(1) / (support > 0).sum(1)",
        "recall.mean(1)",
        "roi/metrics/test_classification.py",
    ),
    Fault(
        "roi/metrics/formulas.py",
        "seen = (support + predicted) > 0",
        "seen = support > 0",
        "roi/metrics/test_classification.py",
    ),
    # statistics
    Fault(
        "statistics/tests.py",
        "max(abs(only_first - only_second) - 1, 0)",
        "abs(only_first - only_second)",
        "core/statistics/test_mcnemar.py",
    ),
    Fault(
        "statistics/intervals.py",
        "bias + tails / (1 - acceleration * tails)",
        "tails / (1 - acceleration * tails)",
        "core/statistics/test_intervals.py",
    ),
    Fault(
        "statistics/jackknife.py",
        "extra / (4 * size))",
        "extra / 4)",
        "core/statistics/test_jackknife.py",
    ),
    Fault(
        "statistics/resampling.py",
        "np.bincount(stratified.stratum_of).min() >= 2",
        "np.bincount(stratified.stratum_of).min() >= 1",
        "core/statistics/test_resampling.py",
    ),
    # cache
    Fault(
        "roi/features/cache/row_cache.py",
        "if hashlib.sha256(data).hexdigest() != path.stem:",
        "if not data:",
        "roi/features/test_row_cache.py",
    ),
    Fault(
        "roi/features/cache/row_cache.py",
        'bad = note.get("bad", {}) if note.get("decoder") == DECODER else {}',
        'bad = note.get("bad", {})',
        "roi/features/test_row_cache.py",
    ),
    Fault(
        "roi/features/cache/row_cache.py",
        "if path.stat().st_mtime < limit:",
        "if path.stat().st_mtime > limit:",
        "roi/features/test_row_cache.py",
    ),
    # sandbox
    Fault(
        "mint/sandbox/guest/seccomp.py",
        "process_madvise process_mrelease process_vm_readv process_vm_writev ptrace quotactl",
        "process_madvise process_mrelease process_vm_readv process_vm_writev quotactl",
        "mint/sandbox/test_seccomp.py",
    ),
    Fault(
        "mint/sandbox/guest/frames.py",
        "if length > MAX_FRAME:",
        "if length > 16 * MAX_FRAME:",
        "mint/sandbox/test_frames.py",
    ),
    Fault(
        "mint/sandbox/limits.py",
        "starved = min(starved_seconds(self._pid) - self._already_starved, self._patience)",
        "starved = starved_seconds(self._pid) - self._already_starved",
        "mint/sandbox/test_deadline.py",
    ),
    Fault(
        "mint/sandbox/guest/landlock.py",
        "rules = [(path, READ) for path in readable]",
        "rules = [(path, everything & ~_IOCTL_DEV) for path in readable]",
        "mint/sandbox/test_withheld.py",
    ),
    # checkers
    Fault(
        "mint/tasks/multiple_choice.py",
        "return chosen_option(options, solution) == reference.strip().lower()",
        "return chosen_option(options, solution) is not None",
        "mint/tasks/test_reasoning_checkers.py",
    ),
    Fault(
        "mint/tasks/theorem_answer.py",
        "RELATIVE_TOLERANCE * abs(reference)",
        "RELATIVE_TOLERANCE * reference",
        "mint/tasks/test_reasoning_checkers.py",
    ),
    Fault(
        "mint/tasks/free_form.py",
        "(wanted if recorded else abs(wanted))",
        "abs(wanted)",
        "mint/tasks/test_reasoning_checkers.py",
    ),
    # work
    Fault(
        "core/claim.py",
        "if abs(age) < STALE else None",
        "if age < STALE else None",
        "core/test_shared_disk.py",
    ),
    Fault(
        "core/claim.py",
        "return _started(pid) == started",
        "return True",
        "core/test_shared_disk.py",
    ),
    Fault(
        "work/loop.py",
        "return unit.kind in self._folder.found or not any(self._open[need] for need in unit.needs)",
        "return True",
        "roi/units/test_agenda.py",
    ),
]


def run(source: Path, tests: str) -> tuple[int, str]:
    """The exit code of pytest with the package from `source`, and the name of the first failure."""
    # Those of an environment variable come before the package that is installed for development.
    environment = {**os.environ, "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-m", "not nightly", "-p", "no:cacheprovider"]
    command += [f"tests/{name}" for name in tests.split()]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return done.returncode, failed[0].split(" - ")[0].removeprefix("FAILED ") if failed else ""


def apply(fault: Fault, source: Path) -> None:
    """Write the faulty file below `source`."""
    text = (ROOT / "src" / "histobench" / fault.file).read_text(encoding="utf-8")
    if text.count(fault.old) != 1:
        raise SystemExit(f"{fault.file}: {fault.old!r} occurs {text.count(fault.old)} times; update the list")
    (source / "histobench" / fault.file).write_text(text.replace(fault.old, fault.new), encoding="utf-8")


def main() -> int:
    """0 if every set of tests passes without a fault, and at least 28 of 30 faults are found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--list", action="store_true", help="print the faults and stop")
    parser.add_argument("--only", default="", help="take the faults whose file, text or tests contain this")
    parser.add_argument("--unchecked", action="store_true", help="do not run the tests without a fault first")
    flags = parser.parse_args()
    faults = [fault for fault in FAULTS if flags.only in " ".join(fault)]
    if flags.list:
        for fault in faults:
            print(f"{fault.file}: {fault.old}  ->  {fault.new}  ({fault.tests})")
        return 0
    found = 0
    with tempfile.TemporaryDirectory(prefix="histobench-faults-") as folder:
        source = Path(folder)
        shutil.copytree(ROOT / "src" / "histobench", source / "histobench")
        for tests in {} if flags.unchecked else dict.fromkeys(fault.tests for fault in faults):
            code, failed = run(source, tests)
            if code:
                print(f"these tests fail without any fault: {failed or tests}")
                return 1
        for fault in faults:
            began = time.monotonic()
            apply(fault, source)
            code, failed = run(source, fault.tests)
            shutil.copy(ROOT / "src" / "histobench" / fault.file, source / "histobench" / fault.file)
            found += code == 1
            what = f"found by {failed}" if code == 1 else f"NOT FOUND (exit code {code})"
            print(f"{fault.file}: {fault.old} [{time.monotonic() - began:.0f} s]\n    {what}", flush=True)
    print(f"{found} of {len(faults)} faults were found")
    return 0 if found >= len(faults) - len(faults) // 15 else 1


if __name__ == "__main__":
    sys.exit(main())
