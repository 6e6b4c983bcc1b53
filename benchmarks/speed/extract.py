"""Feature extraction against the plain loop it replaces, with images on disk, in one run.

    python benchmarks/speed/extract.py                 # GPU cases where there is a GPU, else the CPU cases
    python benchmarks/speed/extract.py --cpu
    python benchmarks/speed/extract.py --cases ViT-L/16@448 --json out.json

Per case it measures, in this order and in one process:
  ceiling    the same network, compiled and in the same precision, on pixels that are already on the device
             (on a GPU)
  histobench the whole pipeline from files to shards on disk: hashing, decoding, the network, writing, with
             the networks compiled and the workers started (a real run hashes while it builds the networks)
  by units   the same without hashing, eight shards at a time as a cluster's workers do it (on a GPU)
  plain loop a DataLoader with float batches, fp32, no compilation, no overlap (the loop of HistoROIBench)
On a GPU also the peak of a bf16 matrix product, against which the network's own rate is given.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import PIL
import torch
from extract_cases import CPU_CASES, GPU_CASES, Case, TimmEncoder, write_images
from PIL import Image
from torch import Tensor

from histobench.core.progress import Silent
from histobench.roi.data.image_ref import ImageRef, locate
from histobench.roi.data.plain_jpeg import agreeing_codec
from histobench.roi.data.roi_dataset import RoiDataset, RoiImage
from histobench.roi.encoders.base import BasePatchEncoder
from histobench.roi.encoders.transform import TransformSpec
from histobench.roi.features.cache.content_hashes import take_inventory
from histobench.roi.features.cache.row_cache import RowCache
from histobench.roi.features.feature_extraction import TRIAL_IMAGES
from histobench.roi.features.fingerprint import describe_encoder
from histobench.roi.features.inference.device_runner import DeviceRunner, EncoderState, make_ready
from histobench.roi.features.inference.shards import Shard, plan_shards, shard_size
from histobench.roi.features.loading.loader import Hashing, Pool, open_pool, useful_workers
from histobench.roi.options import Settings
from histobench.roi.units.extraction import SHARDS_PER_UNIT

#: The documented defaults of the plain loop.
PLAIN_BATCH, PLAIN_WORKERS = 256, 8


def matmul_peak(device: str, size: int = 8192) -> float:
    """TFLOP/s of a large bf16 matrix product on random data."""
    a, b = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    seconds = timed(lambda: a @ b, device, repeats=20)
    return 2 * size**3 / seconds / 1e12


def timed(work: Callable[[], object], device: str, *, repeats: int) -> float:
    """Median seconds of a piece of work, after two to warm up."""
    for _ in range(2):
        work()
    times = []
    for _ in range(repeats):
        synchronize(device)
        began = time.perf_counter()
        work()
        synchronize(device)
        times.append(time.perf_counter() - began)
    return float(np.median(times))


def cpu_seconds() -> float:
    """CPU time of this process and of the workers it has ended."""
    return sum(
        usage.ru_utime + usage.ru_stime
        for usage in (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    )


def synchronize(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def tera_per_image(encoder: BasePatchEncoder, device: str, size: int) -> float:
    """TFLOP of one image (a multiplication and an addition are two), counted by PyTorch."""
    from torch.utils.flop_counter import FlopCounterMode

    counter = FlopCounterMode(display=False)
    with torch.no_grad(), counter:
        encoder(torch.zeros(1, 3, size, size, device=device))
    return counter.get_total_flops() / 1e12


def measure_ceiling(runner: DeviceRunner, case: Case, seconds: float) -> float:
    """Images per second of the ready network on pixels that are on the device already."""
    forward = runner.forward(0)
    shape = (forward.batch, case.size, case.size, 3)
    pixels = torch.randint(0, 256, shape, dtype=torch.uint8, device=runner.device)
    once = timed(lambda: forward.on_device(pixels), runner.device, repeats=2)
    repeats = max(3, min(60, int(seconds / once)))
    return forward.batch / timed(lambda: forward.on_device(pixels), runner.device, repeats=repeats)


def measure_pipeline(
    case: Case, dataset: RoiDataset, device: str, cache: Path, compile: str
) -> dict[str, Any]:
    """Files to shards: hashing, decoding, copying, the network, writing."""
    settings = Settings(device, case.batch, PLAIN_WORKERS, case.precision, compile)
    encoder = TimmEncoder(case, device)
    flops = tera_per_image(encoder, device, case.size)
    on_cpu = not device.startswith("cuda")
    asked = PLAIN_WORKERS if on_cpu else 64
    pool = open_pool(useful_workers(asked, on_cpu=on_cpu), polite=on_cpu)
    try:
        description = describe_encoder(encoder, precision=case.precision, numerics="fast")
        state = EncoderState(encoder, case.precision, RowCache(cache, description), {}, "jobs/benchmark")
        began = time.perf_counter()
        # As a run does it, low precision is tried on some of the images first.
        sample = [locate(image.path) for image in dataset.splits["test"][:TRIAL_IMAGES]]
        forward = make_ready(state, settings, device, case.images, sample)
        runner = DeviceRunner({0: state}, device, pool)
        ceiling = 0.0
        if on_cpu:  # the first image compiles the network, for a whole batch
            forward.finish(forward.start(torch.zeros(1, case.size, case.size, 3, dtype=torch.uint8), 1))
        else:
            ceiling = measure_ceiling(runner, case, seconds=4.0)
        warm_up(pool, dataset)
        ready = time.perf_counter() - began
        forward.seconds = 0.0
        began = time.perf_counter()
        busy = cpu_seconds()
        inventory = take_inventory(dataset, pool, cache)
        hashed = time.perf_counter() - began
        units = plan_shards([inventory.refs.distinct], shard_size(case.batch, on_cpu=on_cpu))
        runner.run(units, inventory.refs, stop_at_bad=True, progress=Silent())
        inventory.close()
        wall = time.perf_counter() - began
        forward_share = forward.seconds / wall
        by_unit = 0.0 if on_cpu else measure_units(runner, state, units, inventory.refs)
    finally:
        pool.close()
    busy = cpu_seconds() - busy
    return {
        "cpu_ms_per_image": 1e3 * busy / len(inventory.refs),
        "workers": pool.workers,
        "batch": forward.batch,
        "compiled": forward.compiled,
        "ready_s": ready,
        "ceiling_images_s": ceiling,
        "images": len(inventory.refs),
        "wall_s": wall,
        "hash_s": hashed,
        "images_s": len(inventory.refs) / wall,
        "images_s_without_hashing": len(inventory.refs) / (wall - hashed),
        "unit_loop_images_s": by_unit,
        "forward_share": forward_share,
        "tflop_per_image": flops,
        "least_cosine": (state.record.get("exactness") or {}).get("least_cosine_to_plain_fp32"),
    }


def warm_up(pool: Pool, dataset: RoiDataset) -> None:
    """Have the workers started and at their first job, as they are in a run by the time its network is."""
    hashing = Hashing(pool)
    hashing.put([locate(image.path) for image in dataset.splits["test"][:1]] * 64 * pool.workers)
    hashing.results()


def measure_units(
    runner: DeviceRunner,
    state: EncoderState,
    units: Sequence[Shard],
    refs: Mapping[bytes, ImageRef],
) -> float:
    """Images per second when the shards come in units of a cluster's work, a few at a time."""
    state.cache.discard("again")
    size = SHARDS_PER_UNIT["cuda"]
    began = time.perf_counter()
    for start in range(0, len(units), size):
        state.cache.refresh()
        runner.run(units[start : start + size], refs, stop_at_bad=False, progress=Silent())
    return len(refs) / (time.perf_counter() - began)


class PlainImages(torch.utils.data.Dataset[Tensor]):
    """One float tensor per image: resize, crop, to tensor, normalise, all in the loading worker."""

    def __init__(self, images: tuple[RoiImage, ...], spec: TransformSpec) -> None:
        from torchvision import transforms

        self.paths = [str(image.path) for image in images]
        self.transform = transforms.Compose(
            [
                transforms.Resize(spec.resize, interpolation=transforms.InterpolationMode.BICUBIC),
                transforms.CenterCrop(spec.crop),
                transforms.ToTensor(),
                transforms.Normalize(spec.mean, spec.std),
            ]
        )

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Tensor:
        return self.transform(Image.open(self.paths[index]).convert("RGB"))


def measure_plain(case: Case, dataset: RoiDataset, device: str) -> dict[str, Any]:
    """The loop that is replaced; the first batch warms up and is not counted."""
    encoder = TimmEncoder(case, device)
    images = dataset.splits["test"]
    while len(images) < 2 * PLAIN_BATCH:  # at least one batch to warm up and one to time
        images = images + images
    images = images[: PLAIN_BATCH * (case.plain_batches + 1)]
    loader = torch.utils.data.DataLoader(
        PlainImages(images, encoder.eval_transforms),  # type: ignore[arg-type]
        batch_size=PLAIN_BATCH,
        num_workers=PLAIN_WORKERS,
    )
    features = []
    done, began, busy = 0, 0.0, 0.0
    with torch.no_grad():
        for step, batch in enumerate(loader):
            features.append(encoder(batch.to(device)).cpu().numpy())
            if step == 0:
                began, busy = time.perf_counter(), cpu_seconds()
            else:
                done += len(batch)
    np.concatenate(features)
    wall = time.perf_counter() - began
    del loader  # its workers end, so that their time can be read
    busy = cpu_seconds() - busy
    return {
        "cpu_ms_per_image": 1e3 * busy / done,
        "images": done,
        "wall_s": wall,
        "images_s": done / wall,
        "workers": PLAIN_WORKERS,
    }


def run_case(
    case: Case, dataset: RoiDataset, device: str, folder: Path, compile: str, peak: float
) -> dict[str, Any]:
    """All measurements of a case; one that fails is reported and does not take the others with it."""
    result: dict[str, Any] = {"case": case.name, "goals": list(case.goals), "precision": case.precision}
    for name, work in (
        (
            "pipeline",
            lambda: measure_pipeline(case, dataset, device, folder / "cache" / case.network, compile),
        ),
        ("plain", lambda: measure_plain(case, dataset, device)),
    ):
        try:
            result[name] = work()
        except Exception as error:
            traceback.print_exc()
            result[name] = {"error": f"{type(error).__name__}: {error}"}
        if device.startswith("cuda"):
            torch.cuda.empty_cache()
    ours, plain = result["pipeline"], result["plain"]
    if "images_s" in ours:
        if peak:
            ours["share_of_ceiling"] = ours["images_s"] / ours["ceiling_images_s"]
            ours["network_tflops"] = ours["ceiling_images_s"] * ours["tflop_per_image"]
            ours["share_of_peak"] = ours["network_tflops"] / peak
            ours["unit_loop_share"] = ours["unit_loop_images_s"] / ours["images_s_without_hashing"]
        if "images_s" in plain:
            result["speed_up"] = ours["images_s"] / plain["images_s"]
    if "images_s" in ours:
        result["bound_by"] = "loading" if ours.get("share_of_ceiling", 1.0) < 0.85 else "the network"
    return result


def markdown(results: list[dict[str, Any]], peak: float) -> str:
    """The table of docs/benchmarks.md."""
    head = ["case", "plain loop", "histobench", "speed-up", "cosine"]
    if peak:
        head[4:4] = ["ceiling", f"network (peak {peak:.0f} TFLOP/s)", "of ceiling", "bound by", "by units"]
    else:
        head.insert(4, "forward / wall")
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    for item in results:
        ours, plain = item["pipeline"], item["plain"]

        def number(source: dict[str, Any], key: str, form: str) -> str:
            value = source.get(key)
            return "-" if value is None else form.format(value)

        cells = [
            item["case"],
            number(plain, "images_s", "{:.1f}/s"),
            number(ours, "images_s", "{:.1f}/s"),
            number(item, "speed_up", "{:.2f}x"),
            number(ours, "least_cosine", "{:.6f}"),
        ]
        if peak:
            text = number(ours, "network_tflops", "{:.0f} TFLOP/s")
            cells[4:4] = [
                number(ours, "ceiling_images_s", "{:.1f}/s"),
                f"{text} ({number(ours, 'share_of_peak', '{:.0%}')})",
                number(ours, "share_of_ceiling", "{:.0%}"),
                item.get("bound_by", "-"),
                number(ours, "unit_loop_share", "{:.0%}"),
            ]
        else:
            cells.insert(4, number(ours, "forward_share", "{:.0%}"))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def cases_of(args: argparse.Namespace, device: str) -> Iterator[Case]:
    for case in GPU_CASES if device.startswith("cuda") else CPU_CASES:
        if not args.cases or case.name in args.cases:
            yield replace(case, images=max(int(case.images * args.scale), case.batch))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cpu", action="store_true", help="the CPU cases, even where there is a GPU")
    parser.add_argument("--cases", nargs="*", help="only these cases")
    parser.add_argument("--compile", choices=("on", "off"), default="on")
    parser.add_argument("--scale", type=float, default=1.0, help="more or fewer images")
    parser.add_argument("--budget", type=float, default=430.0, help="seconds after which no case is begun")
    parser.add_argument("--threads", type=int, help="threads of the network on a CPU")
    parser.add_argument("--folder", help="where the images go (default: a temporary folder)")
    parser.add_argument("--json", help="also write the numbers here")
    args = parser.parse_args()
    device = "cpu" if args.cpu or not torch.cuda.is_available() else "cuda:0"
    if args.threads:
        torch.set_num_threads(args.threads)
    began = time.perf_counter()
    folder = Path(tempfile.mkdtemp(prefix="histobench-bench-", dir=args.folder))
    report: dict[str, Any] = {
        "device": torch.cuda.get_device_name(0)
        if device != "cpu"
        else platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "pillow": PIL.__version__,
        "plain_jpeg": "straight into the batch" if agreeing_codec() else "by Pillow",
        "cases": [],
    }
    datasets: dict[int, RoiDataset] = {}
    try:
        peak = matmul_peak(device) if device != "cpu" else 0.0
        report["bf16_matmul_peak_tflops"] = peak
        cases = list(cases_of(args, device))
        for case in cases:
            if time.perf_counter() - began > args.budget:
                report.setdefault("not_begun", []).append(case.name)
                continue
            if case.size not in datasets:
                count = max(item.images for item in cases if item.size == case.size)
                datasets[case.size] = write_images(folder / str(case.size), count=count, size=case.size)
            images = datasets[case.size].splits["test"][: case.images]
            dataset = replace(datasets[case.size], splits={"test": images})
            result = run_case(case, dataset, device, folder, args.compile, peak)
            result["image_kilobytes"] = sum(image.path.stat().st_size for image in images) / len(images) / 1e3
            report["cases"].append(result)
            print(json.dumps(result), file=sys.stderr, flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    report["seconds"] = time.perf_counter() - began
    text = json.dumps(report, indent=1)
    if args.json:
        Path(args.json).write_text(text)
    print(text)
    print(markdown(report["cases"], report["bf16_matmul_peak_tflops"]))
    return 1 if failed_parts(report["cases"]) else 0


def failed_parts(cases: list[dict[str, Any]]) -> list[str]:
    """Print and return the measurements that did not run; without any case that is an error, too."""
    failed = [
        f"{case['case']}, {part}: {case[part]['error']}"
        for case in cases
        for part in ("pipeline", "plain")
        if "error" in case[part]
    ]
    failed += [] if cases else ["no case was measured"]
    for line in failed:
        print(f"FAILED: {line}", file=sys.stderr)
    return failed


if __name__ == "__main__":
    sys.exit(main())
