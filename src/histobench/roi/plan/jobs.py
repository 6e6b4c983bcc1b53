"""A plan broken into jobs, with an estimate of what they cost."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from histobench.core.plain_name import check_plain_name
from histobench.roi.data.dataset import RoiDataset
from histobench.roi.encoders.own_name import label_of
from histobench.roi.options import DatasetEntry, Plan

#: Floating-point operations per second of a typical device, for the estimate of a dry run.
TYPICAL_FLOPS = {"cuda": 120e12, "cpu": 0.08e12, "mps": 4e12}
BYTES_PER_VALUE = 4


@dataclass(frozen=True)
class ExtractionJob:
    """One encoder over one dataset."""

    dataset: DatasetEntry
    encoder: str
    images: int
    seconds: float | None  # None: nothing is known of the encoder's cost
    megabytes: float | None


def results_folder(plan: Plan, dataset: str, encoder: str, preset: str) -> Path:
    """Where the results of one combination go.

    >>> from histobench.roi.options import Plan
    >>> results_folder(Plan((), (), Path("r")), "crc", "virchow2@cls", "uni").as_posix()
    'r/crc/virchow2@cls/uni'
    """
    safe = label_of(encoder).replace("/", "_").replace("\\", "_").replace(":", "_")
    return plan.results / dataset / check_plain_name(safe, what="encoder") / preset


def features_folder(plan: Plan, entry: DatasetEntry) -> Path:
    """Where the feature files of a dataset go; each division by another seed has files of its own.

    >>> from histobench.roi.options import DatasetEntry, Plan
    >>> divided = DatasetEntry("d", Path("d"), split="0.8/0.2")
    >>> features_folder(Plan((divided,), (), Path("r"), seed=3), divided).as_posix()
    'r/features/seed-3'
    """
    folder = plan.results / "features"
    return folder / f"seed-{plan.seed}" if entry.split and plan.seed else folder


def extraction_jobs(plan: Plan, datasets: dict[str, RoiDataset], device: str) -> list[ExtractionJob]:
    """Every extraction of the plan, in order, with what it would cost on a typical device of this kind."""
    return [
        _job(plan, entry, encoder, sum(map(len, datasets[entry.name].splits.values())), device)
        for entry in plan.datasets
        for encoder in plan.encoders
    ]


def _job(plan: Plan, entry: DatasetEntry, encoder: str, images: int, device: str) -> ExtractionJob:
    from histobench.core.errors import HistobenchError
    from histobench.roi.encoders.registry import get_spec

    try:
        spec = get_spec(encoder)
        sized = spec.with_size(plan.size)
    except HistobenchError:  # the user's own encoder: nothing is known before it is built
        return ExtractionJob(entry, encoder, images, None, None)
    megabytes = images * spec.dim * BYTES_PER_VALUE / 1e6
    if spec.cost is None:
        return ExtractionJob(entry, encoder, images, None, megabytes)
    # The cost is known at the encoder's own size and grows at least with the number of pixels.
    gigaflops = spec.cost.gflops * (sized.transform.crop / spec.transform.crop) ** 2
    speed = TYPICAL_FLOPS.get(device.split(":")[0], TYPICAL_FLOPS["cpu"])
    seconds = images * gigaflops * 1e9 / speed
    return ExtractionJob(entry, encoder, images, seconds, megabytes)
