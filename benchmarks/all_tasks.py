"""All five tasks of one encoder on the reference workload: time and peak memory, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from measure import Row, Seconds, Setup, part
from torch import Tensor
from workload import workload

SECONDS = 20


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
    command = [
        sys.executable,
        str(Path(__file__)),
        setup.workload.name,
        str(len(setup.workload.train)),
        str(setup.workload.train.shape[1]),
        setup.device,
        str(setup.threads),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    report = json.loads(done.stdout.splitlines()[-1])
    spent = Seconds(sum(report["wall"].values()), sum(report["cpu"].values()))
    each = ", ".join(f"{name} {seconds:.1f}" for name, seconds in report["wall"].items())
    name = "All five tasks"
    share = report["peak"] / report["features"]
    return [
        Row(name, "", spent, None, f"< {SECONDS} s", spent.wall < SECONDS, each),
        Row(
            f"{name}: peak memory",
            "",
            spent,
            None,
            "< 3x the features",
            share < 3,
            f"{share:.2f}x: {report['peak'] / 2**20:.0f} MiB above an idle process that has imported torch, "
            f"features ({report['features'] / 2**20:.0f} MiB) included",
        ),
    ]


def peak_memory() -> int:
    """The most bytes this process has held so far.

    Not `getrusage`, whose peak is also that of the process that started this one.
    """
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def main() -> None:
    """Run in the process whose memory is measured."""
    kind, n_train, dim, device, threads = sys.argv[1:]
    torch.set_num_threads(int(threads))
    from histobench.roi.metrics.classification import evaluate
    from histobench.roi.protocols.few_shot import few_shot
    from histobench.roi.protocols.knn import knn
    from histobench.roi.protocols.linear_probe import linear_probe
    from histobench.roi.protocols.prototype import prototype
    from histobench.roi.protocols.zero_shot import zero_shot

    evaluate([[1.0, 0.0], [0.0, 1.0]], [0, 1], classes="ab")
    idle = peak_memory()
    w = workload(kind, n_train=int(n_train), dim=int(dim))
    classes = [f"class {k}" for k in range(w.n_classes)]
    both = (w.train, w.train_labels, w.test)
    jobs = {
        "Linear-Probe": lambda: linear_probe(*both, n_classes=w.n_classes, device=device),
        "KNN": lambda: knn(*both, n_classes=w.n_classes, device=device),
        "Proto": lambda: prototype(*both, n_classes=w.n_classes, device=device),
        "Few-shot": lambda: few_shot(*both, w.test_labels, n_classes=w.n_classes, device=device),
        "Zero-shot": lambda: zero_shot(PromptEncoder(), classes, w.test, device=device),
    }
    wall, cpu = {}, {}
    for name, job in jobs.items():
        start = time.perf_counter(), time.process_time()
        result = job()
        outcomes = [s.outcome for s in result.settings] if name == "Few-shot" else [result]
        for outcome in outcomes:
            evaluate(outcome.probabilities, w.test_labels, classes=classes, predicted=outcome.predicted)
        wall[name], cpu[name] = time.perf_counter() - start[0], time.process_time() - start[1]
    peak = peak_memory() - idle
    print(json.dumps({"wall": wall, "cpu": cpu, "peak": peak, "features": w.bytes}))


if __name__ == "__main__":
    main()
