"""How fast a network could be on one core, and where its time goes: why resnet50 gains no more on a CPU.

    python benchmarks/network_profile.py              # resnet50, processor time of one thread

Prints the rate of a plain matrix product, the time that the network's operations would take at that rate,
the time that the plain network and ours (fused, channels last, not compiled) take, and the operations of the
latter.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from extract import tera_per_image
from extract_cases import CPU_CASES, TimmEncoder
from measure import processor
from torch.profiler import ProfilerActivity, profile

from histobench.roi.features.inference.forward import Forward

REPEATS = 5


def seconds(work: Callable[[], object]) -> float:
    """The least processor time of some repeats, after one to warm up."""
    times = []
    for _ in range(REPEATS + 1):
        began = time.process_time()
        work()
        times.append(time.process_time() - began)
    return min(times[1:])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--case", choices=[case.name for case in CPU_CASES], default="resnet50")
    parser.add_argument("--batches", nargs="+", type=int, default=[8, 32])
    args = parser.parse_args()
    torch.set_num_threads(1)
    case = next(case for case in CPU_CASES if case.name == args.case)
    print(f"{case.name} on one core of {processor()}, torch {torch.__version__}")
    a, b = torch.randn(2, 1024, 1024)
    rate = 2 * 1024**3 / seconds(lambda: a @ b)
    flops = 1e12 * tera_per_image(TimmEncoder(case, "cpu"), "cpu", case.size)
    print(f"matrix product: {rate / 1e9:.1f} GFLOP/s; an image is {flops / 1e9:.2f} GFLOP")
    print(f"at that rate an image takes {1e3 * flops / rate:.0f} ms")
    with torch.inference_mode():
        plain = TimmEncoder(case, "cpu")
        for batch in args.batches:
            images = torch.randn(batch, 3, case.size, case.size)
            took = seconds(lambda images=images: plain(images)) / batch
            print(f"plain network, batches of {batch}: {1e3 * took:.0f} ms an image")
        forward = Forward(TimmEncoder(case, "cpu"), device="cpu", precision="fp32", batch=min(args.batches))
        forward.fold()
        pixels = torch.randint(0, 256, (min(args.batches), case.size, case.size, 3), dtype=torch.uint8)
        took = seconds(lambda: forward.on_device(pixels)) / len(pixels)
        print(f"ours, batches of {len(pixels)}: {1e3 * took:.0f} ms an image")
        with profile(activities=[ProfilerActivity.CPU]) as seen:
            forward.on_device(pixels)
    operations = sorted(seen.key_averages(), key=lambda event: -event.self_cpu_time_total)
    total = sum(event.self_cpu_time_total for event in operations)
    for event in operations[:6]:
        print(f"  {event.self_cpu_time_total / total:6.1%}  {event.key}, {event.count} calls")


if __name__ == "__main__":
    main()
