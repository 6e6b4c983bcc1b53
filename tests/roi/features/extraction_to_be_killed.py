"""Extraction on the CPU, in the test's process or in a child that the test kills."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from histobench.roi.data.roi_dataset import RoiDataset
from histobench.roi.encoders.registry import create_encoder
from histobench.roi.features.feature_extraction import extract
from histobench.roi.features.inference import shards as loop


def work(cache: Path, folder: Path, dataset: RoiDataset, encoders: Sequence[str]) -> None:
    """Extract features into `folder` with shards of 16 images, so that a small job has several."""
    os.environ["HISTOBENCH_CACHE"] = str(cache)
    loop.CPU_SHARD_IMAGES = 16
    chosen = [create_encoder(name) for name in encoders]
    extract(dataset, chosen, folder, device="cpu", batch_size=8, num_workers=0, on_bad_image="skip")


if arguments := globals().get("arguments"):
    work(*arguments)
