"""All five tasks of one encoder: time and memory by threads and device, each in a process of its own.

    python benchmarks/speed/all_tasks.py --threads 1 2 4 8 16 --devices cpu cuda  # five minutes on 16 cores
    python benchmarks/speed/all_tasks.py --threads 2 --train 20000 --episodes 10

Few-shot is all ways and shots. Beside it, for the fewest and the most threads and for a GPU: the linear probe
against torch's L-BFGS and KNN against a plain product, on features of every size up to `--train`. Episode
metrics must be the same bits whatever the number of threads, and those of a GPU within 1e-5 of them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measure import Machine, Row, Seconds, Setup, part
from numpy.typing import NDArray
from torch import Tensor
from workload import SIZES, Workload, workload

#: Seconds for all five tasks at 100,000 x 7,180 x 1,024: by threads on the CPU, and on a GPU.
GOALS = {"2": 20.0, "16": 6.0, "cuda": 2.0}
MEMORY = 3.0  # times the features


class PromptEncoder:
    """A text tower that is a table: one direction per prompt, as a model would give."""

    def run_zero_shot(self, texts: Sequence[str], image_features: Tensor, device: str) -> Tensor:
        g = torch.Generator().manual_seed(len(texts))
        directions = torch.randn(len(texts), image_features.shape[1], generator=g).to(device)
        images = torch.nn.functional.normalize(image_features.to(device), dim=1)
        return torch.softmax(100 * images @ torch.nn.functional.normalize(directions, dim=1).T, dim=1)


@part("all tasks")
def run(setup: Setup) -> list[Row]:
    """Linear-Probe, KNN, Proto, Few-shot (ways 2 to 9, shots 1 to 256, 100 episodes) and Zero-shot."""
    w = setup.workload
    report = in_a_process(
        {
            "kind": w.name,
            "train": len(w.train),
            "dim": w.train.shape[1],
            "device": setup.device,
            "threads": setup.threads,
            "episodes": 10 if setup.quick else 100,
        }
    )
    spent = Seconds(sum(report["wall"].values()), sum(report["cpu"].values()))
    each = ", ".join(f"{name} {seconds:.1f}" for name, seconds in report["wall"].items())
    name = "All five tasks"
    goal = GOALS.get(setup.device if setup.device != "cpu" else str(setup.threads), 20.0)
    share = report["peak"] / report["features"]
    return [
        Row(name, "", spent, None, f"< {goal:g} s", spent.wall < goal, each),
        Row(
            f"{name}: peak memory",
            "",
            spent,
            None,
            f"< {MEMORY:g}x the features",
            share < MEMORY,
            f"{share:.2f}x: {report['peak'] / 2**20:.0f} MiB above an idle process that has imported torch, "
            f"features ({report['features'] / 2**20:.0f} MiB) included",
        ),
    ]


def in_a_process(job: dict[str, Any]) -> dict[str, Any]:
    """What `measure_here` gives in a new process."""
    command = [sys.executable, str(Path(__file__)), "--one", json.dumps(job)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return report


def peak_memory() -> int:
    """The most bytes this process has held so far.

    Not `getrusage`, whose peak is also that of the process that started this one.
    """
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def start_device(device: str) -> None:
    """Load what any use of a GPU loads: it is memory of the libraries, and not of the tasks."""
    for dtype in (torch.float32, torch.float64):
        x = torch.rand(64, 64, device=device, dtype=dtype)
        torch.sort(x @ x).values.cumsum(1).sum().item()


def measure_here(job: dict[str, Any]) -> dict[str, Any]:
    """Run in the process whose memory is measured."""
    torch.set_num_threads(job["threads"])
    from few_shot import all_settings

    from histobench.roi.evaluation.zero_shot_task import zero_shot
    from histobench.roi.metrics.classification import evaluate
    from histobench.roi.protocols.knn import knn, prototype
    from histobench.roi.protocols.linear_probe import linear_probe
    from histobench.roi.protocols.outcome import Outcome

    def outcome_of(probabilities: NDArray[np.float64]) -> Outcome:
        return Outcome(probabilities, probabilities.argmax(axis=1), {})

    device = job["device"]
    evaluate([[1.0, 0.0], [0.0, 1.0]], [0, 1], classes="ab")
    if device != "cpu":
        start_device(device)
    idle = peak_memory()
    w = workload(job["kind"], n_train=job["train"], dim=job["dim"])
    classes = [f"class {k}" for k in range(w.n_classes)]
    both = (w.train, w.train_labels, w.test)
    common = {"n_classes": w.n_classes, "device": device}
    jobs = {
        "Linear-Probe": lambda: linear_probe(*both, **common),
        "KNN": lambda: knn(*both, **common),
        "Proto": lambda: prototype(*both, **common),
        "Few-shot": lambda: all_settings(w, n_iter=job["episodes"], device=device),
        "Zero-shot": lambda: outcome_of(zero_shot(PromptEncoder(), classes, w.test, device=device)),
    }
    wall, cpu, metrics = {}, {}, {}

    def measure(name: str) -> tuple[Any, float, float]:
        start = time.perf_counter(), time.process_time()
        result = jobs[name]()
        outcomes = [s.outcome for s in result] if name == "Few-shot" else [result]
        for outcome in outcomes:
            evaluate(outcome.probabilities, w.test_labels, classes=classes, predicted=outcome.predicted)
        return result, time.perf_counter() - start[0], time.process_time() - start[1]

    for name in jobs:
        result, wall[name], cpu[name] = measure(name)
        if name == "Few-shot":
            metrics = {f"{s.way}-{s.shot}": np.stack(list(s.episode_metrics.values())) for s in result}
    report = {"wall": wall, "cpu": cpu, "peak": peak_memory() - idle, "features": w.bytes}
    if device != "cpu":
        report["on device"] = torch.cuda.max_memory_allocated(device)
        # As for the second encoder of a run: the kernels are loaded.
        report["again"] = sum(measure(name)[1] for name in jobs)
    if job.get("metrics"):
        np.savez(job["metrics"], **metrics)
    if job.get("ratios"):
        report["ratios"] = [ratios(w, size, device) for size in SIZES if size <= len(w.train)]
    return report


def ratios(w: Workload, size: int, device: str) -> dict[str, float]:
    """How many times faster than torch's L-BFGS and than a plain product, on the first rows."""
    from knn import plain
    from linear_probe import torch_lbfgs
    from measure import race

    from histobench.roi.protocols.knn import knn
    from histobench.roi.protocols.softmax_regression import Penalty, fit_softmax

    test = min(len(w.test), size // 2)
    small = Workload(
        w.train[:size].to(device),
        w.train_labels[:size].to(device),
        w.test[:test].to(device),
        w.test_labels[:test].to(device),
        w.n_classes,
        w.name,
    )
    x, y, c = small.train, small.train_labels, w.n_classes
    penalty = Penalty("norm", 0.5 / (x.shape[1] * c / 100))
    probe = race(
        lambda: fit_softmax(x, y, n_classes=c, penalty=penalty),
        lambda: torch_lbfgs(small, penalty.strength, device),
        device=device,
    )
    search = race(
        lambda: knn(x, y, small.test, n_classes=c, device=device),
        lambda: plain(small, device),
        device=device,
    )
    report = {"train": float(size)}
    for name, (ours, theirs, *_) in (("linear probe", probe), ("knn", search)):
        report |= {name: ours.wall, f"{name}, clock": theirs.wall / ours.wall}
        report[f"{name}, CPU time"] = theirs.cpu / ours.cpu
    return report


def described(report: dict[str, Any], where: str, same: str) -> str:
    """One line of the table of tasks."""
    total = sum(report["wall"].values())
    each = " | ".join(f"{seconds:.2f}" for seconds in report["wall"].values())
    memory = f"{report['peak'] / report['features']:.2f}x"
    if "on device" in report:
        memory += f", on the GPU {report['on device'] / report['features']:.2f}x"
    cpu = sum(report["cpu"].values())
    if "again" in report:
        where += f" (again: {report['again']:.2f} s)"
    return f"| {where} | {total:.2f} | {cpu:.1f} | {each} | {memory} | {same} |"


def compared(first: Path, second: Path) -> str:
    """How far the metrics of all episodes are from each other."""
    with np.load(first) as a, np.load(second) as b:
        if all(a[name].tobytes() == b[name].tobytes() for name in a.files):
            return "the same bits"
        gaps = [np.nanmax(np.abs(a[name] - b[name])) for name in a.files]
    return f"within {max(gaps):.0e}"


def main() -> int:
    """Measure every number of threads and every device, and print two tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--devices", nargs="+", default=["cpu"])
    parser.add_argument("--kind", default="hard")
    parser.add_argument("--train", type=int, default=100_000)
    parser.add_argument("--dim", type=int, default=1024)
    parser.add_argument("--episodes", type=int, default=100)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure_here(json.loads(args.one))))
        return 0
    runs = [("cpu", threads) for threads in args.threads if "cpu" in args.devices]
    runs += [(device, max(args.threads)) for device in args.devices if device != "cpu"]
    print(f"{Machine(max(args.threads), args.devices[-1]).describe()}; {args.kind} {args.train:,} rows\n")
    print(
        "| where | all (s) | processor (s) | Linear-Probe | KNN | Proto | Few-shot | Zero-shot | "
        "peak memory / features | episode metrics |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|---:|---|---|")
    lines = []
    with tempfile.TemporaryDirectory(prefix="tasks-") as place:
        first = None
        for number, (device, threads) in enumerate(runs):
            kept = Path(place) / f"{number}.npz"
            where = f"{threads} threads" if device == "cpu" else device
            report = in_a_process(
                {
                    "kind": args.kind,
                    "train": args.train,
                    "dim": args.dim,
                    "device": device,
                    "threads": threads,
                    "episodes": args.episodes,
                    "metrics": str(kept),
                    "ratios": device != "cpu" or threads in (min(args.threads), max(args.threads)),
                }
            )
            first = first or kept
            print(described(report, where, compared(first, kept)), flush=True)
            for found in report.get("ratios", ()):
                cells = [
                    f"{found[name]:.3f} | {found[f'{name}, clock']:.2f}x | {found[f'{name}, CPU time']:.2f}x"
                    for name in ("linear probe", "knn")
                ]
                lines.append(f"| {where} | {found['train']:,.0f} | {' | '.join(cells)} |")
    print(
        "\nLinear probe against torch's L-BFGS, KNN against a plain product:\n\n"
        "| where | rows | probe (s) | by the clock | by CPU time | KNN (s) | by the clock | by CPU time |\n"
        "|---|---:|---:|---:|---:|---:|---:|---:|"
    )
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
