"""The loader of feature extraction against torch's DataLoader doing the same work, on the machine it runs on.

    python benchmarks/speed/loader.py                              # loading alone, 1 and 2 workers
    python benchmarks/speed/loader.py --workers 16 --network vit_small_patch16_224 --batch 512 --images 16384

Both sides open, check and decode the same files with the same functions to uint8, keep their workers between
rounds, and hand batches of one size to the same user: nothing, or a network that runs on the GPU meanwhile,
with page-locked memory on both sides. They take turns; the best of the rounds counts, the first of each (in
which workers start) never does. "CPU" is the processor time of one image in all processes of that side.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from extract_cases import Case, TimmEncoder, write_images
from torch import Tensor

from histobench.roi.data.image import open_rgb
from histobench.roi.data.image_ref import ImageRef, digest, locate
from histobench.roi.data.plain_jpeg import decode_into
from histobench.roi.encoders.transform import TransformSpec
from histobench.roi.features.inference.forward import Forward, pin
from histobench.roi.features.loading.job import DecodeJob, perform
from histobench.roi.features.loading.loader import Loader, LoadRequest, open_pool

SPEC = TransformSpec(resize=224, crop=224)


@dataclass(frozen=True)
class Files:
    """One kind of files: `share` of the images asked for are written, since large ones take longer."""

    name: str
    size: int
    suffix: str
    share: float = 1.0
    painted: int = 36


KINDS = (
    Files("JPEG 224", 224, "jpg"),
    Files("PNG 224", 224, "png"),
    Files("JPEG 1000", 1000, "jpg", 0.125, 4),
)


class Images(torch.utils.data.Dataset[Tensor]):
    """One image decoded as a worker of ours decodes it, for a DataLoader."""

    def __init__(self, refs: Sequence[ImageRef], keys: Sequence[bytes]) -> None:
        self.refs, self.keys = refs, keys

    def __len__(self) -> int:
        return len(self.refs)

    def __getitem__(self, index: int) -> Tensor:
        rows = np.zeros((1, SPEC.crop, SPEC.crop, 3), np.uint8)
        [outcome] = perform(DecodeJob(0, 0, (self.refs[index],), (self.keys[index],)), [[rows]], [SPEC])
        assert outcome is None, outcome
        return torch.from_numpy(rows[0])


#: Gives the batches of one round: pixels, and what to call when they have been used.
Round = Callable[[], Iterator[tuple[Tensor, Callable[[], None]]]]


@contextmanager
def ours(refs: Sequence[ImageRef], keys: Sequence[bytes], workers: int, batch: int, device: str) -> Any:
    """The loader of the product."""
    with closing(open_pool(workers)) as pool, ExitStack() as locked:
        loader = Loader(
            pool,
            [SPEC],
            [(SPEC.crop, SPEC.crop, 3)],
            batch=batch,
            on_written=lambda ring: locked.enter_context(pin(ring, device)),
        )
        requests = [
            LoadRequest(tuple(refs[at : at + batch]), tuple(keys[at : at + batch]))
            for at in range(0, len(refs), batch)
        ]

        def batches() -> Iterator[tuple[Tensor, Callable[[], None]]]:
            for item in loader.batches(requests):
                assert not item.failures, item.failures
                pixels = torch.from_numpy(item.pixels[0])[: item.count]
                yield pixels, lambda item=item: loader.release(item)

        yield batches, lambda: [worker.process.pid for worker in pool._workers]


@contextmanager
def torchs(refs: Sequence[ImageRef], keys: Sequence[bytes], workers: int, batch: int, device: str) -> Any:
    """torch's DataLoader: persistent workers, page-locked memory where there is a GPU."""
    loader = torch.utils.data.DataLoader(
        Images(refs, keys),
        batch_size=batch,
        num_workers=workers,
        persistent_workers=True,
        pin_memory=device != "cpu",
    )

    def batches() -> Iterator[tuple[Tensor, Callable[[], None]]]:
        for pixels in loader:
            yield pixels, lambda: None

    yield batches, lambda: [process.pid for process in loader._iterator._workers]  # type: ignore[union-attr]
    loader._iterator = None  # its workers end with it


def use(batches: Round, forward: Forward | None) -> int:
    """Go through a round, with the network two batches behind; how many images it was."""
    count = 0
    flying: deque[Any] = deque()

    def land() -> None:
        pending, release = flying.popleft()
        assert forward is not None
        forward.finish(pending)
        release()

    for pixels, release in batches():
        count += len(pixels)
        if forward is None:
            release()
            continue
        flying.append((forward.start(pixels, len(pixels)), release))
        while flying and (len(flying) > 2 or flying[0][0].is_ready):
            land()
    while flying:
        land()
    return count


def processor_seconds(pids: Sequence[int]) -> float:
    """Processor time of this process and of those workers so far."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    total = own.ru_utime + own.ru_stime
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


def compare(
    refs: Sequence[ImageRef],
    keys: Sequence[bytes],
    *,
    workers: int,
    batch: int,
    rounds: int,
    device: str,
    forward: Forward | None,
) -> dict[str, float]:
    """Images per second and processor time of both sides, in turns."""
    best: dict[str, float] = {}
    cpu: dict[str, float] = {}
    with (
        ours(refs, keys, workers, batch, device) as first,
        torchs(refs, keys, workers, batch, device) as second,
    ):
        for number in range(rounds + 1):
            for name, (batches, pids) in (("ours", first), ("theirs", second)):
                if number == 0:
                    use(batches, forward)
                    continue
                busy, began = processor_seconds(pids()), time.perf_counter()
                count = use(batches, forward)
                best[name] = max(best.get(name, 0.0), count / (time.perf_counter() - began))
                used = (processor_seconds(pids()) - busy) / count
                cpu[name] = min(cpu.get(name, used), used)
    return {
        "workers": workers,
        "batch": batch,
        "ours_images_s": best["ours"],
        "dataloader_images_s": best["theirs"],
        "ratio": best["ours"] / best["theirs"],
        "ours_cpu_us": 1e6 * cpu["ours"],
        "dataloader_cpu_us": 1e6 * cpu["theirs"],
        "ratio_cpu": cpu["theirs"] / cpu["ours"],
    }


def network(name: str, device: str, batch: int) -> Forward:
    """A timm network of random weights, compiled, in bf16, after its first batches."""
    case = Case(name, name, SPEC.crop, batch, 0, 0)
    forward = Forward(TimmEncoder(case, device), device=device, precision=case.precision, batch=batch)
    forward.fold()
    forward.compile()
    for _ in range(3):
        pixels = torch.zeros((batch, SPEC.crop, SPEC.crop, 3), dtype=torch.uint8)
        forward.finish(forward.start(pixels, batch))
    return forward


def profile(refs: Sequence[ImageRef], keys: Sequence[bytes]) -> dict[str, float]:
    """Microseconds of processor time that one worker takes for an image, step by step, nothing beside it."""
    row = np.zeros((1, SPEC.crop, SPEC.crop, 3), np.uint8)
    jobs = [DecodeJob(0, 0, (ref,), (key,)) for ref, key in zip(refs, keys, strict=True)]
    files = [ref.read() for ref in refs]
    steps: dict[str, Callable[[int], object]] = {
        "read": lambda at: refs[at].read(),
        "hash": lambda at: digest(files[at]),
        "decode straight into the batch": lambda at: decode_into(files[at], row[0]),
        "decode and crop by Pillow": lambda at: SPEC.crop_pixels(open_rgb(files[at])),
        "all": lambda at: perform(jobs[at], [[row]], [SPEC]),
    }
    took = {}
    for name, step in steps.items():
        step(0)  # what is done once is not meant
        began = time.process_time()
        for at in range(len(refs)):
            step(at)
        took[name] = 1e6 * (time.process_time() - began) / len(refs)
    return took


def markdown(rows: list[dict[str, Any]]) -> str:
    """The table of docs/benchmarks.md."""
    head = [
        "files",
        "used by",
        "workers",
        "ours",
        "DataLoader",
        "ratio",
        "CPU, ours",
        "CPU, DataLoader",
        "ratio",
    ]
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    for row in rows:
        cells = [
            row["files"],
            row["used_by"],
            str(row["workers"]),
            f"{row['ours_images_s']:,.0f}/s",
            f"{row['dataloader_images_s']:,.0f}/s",
            f"{row['ratio']:.2f}x",
            f"{row['ours_cpu_us']:,.0f} us",
            f"{row['dataloader_cpu_us']:,.0f} us",
            f"{row['ratio_cpu']:.2f}x",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> int:
    """Write images, compare, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", nargs="+", choices=[kind.name for kind in KINDS])
    parser.add_argument("--workers", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--images", type=int, default=2048)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--network", help="a timm network on the GPU that uses the batches")
    parser.add_argument("--profile", action="store_true", help="also what a worker does, step by step")
    parser.add_argument("--folder", help="where the images go (default: a temporary folder)")
    parser.add_argument("--json", help="also write the numbers here")
    args = parser.parse_args()
    torch.set_num_threads(1)
    device = "cuda:0" if torch.cuda.is_available() else "cpu"
    forward = network(args.network, device, args.batch) if args.network else None
    folder = Path(tempfile.mkdtemp(prefix="histobench-loader-", dir=args.folder))
    print(f"load {os.getloadavg()[0]:.1f} on {len(os.sched_getaffinity(0))} cores, torch {torch.__version__}")
    rows: list[dict[str, Any]] = []
    try:
        for kind in KINDS:
            if args.files and kind.name not in args.files:
                continue
            count = max(args.batch, int(args.images * kind.share))
            place = folder / kind.name
            dataset = write_images(
                place, count=count, size=kind.size, suffix=kind.suffix, painted=kind.painted
            )
            refs = [locate(image.path) for image in dataset.splits["test"]]
            keys = [digest(ref.read()) for ref in refs]
            if args.profile:
                took = profile(refs[:2048], keys[:2048])
                print(kind.name, *(f"{name} {us:.0f} us;" for name, us in took.items()), flush=True)
            for workers in args.workers:
                row = compare(
                    refs,
                    keys,
                    workers=workers,
                    batch=args.batch,
                    rounds=args.rounds,
                    device=device,
                    forward=forward,
                )
                rows.append({"files": kind.name, "used_by": args.network or "nothing", **row})
                print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
            shutil.rmtree(place)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if args.json:
        Path(args.json).write_text(json.dumps(rows, indent=1))
    print(markdown(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
