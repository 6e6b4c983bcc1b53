"""What `extract.py` measures: encoders with random weights, and files of synthetic tissue."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from histobench.roi.data.demo import CLASSES, render_tile
from histobench.roi.data.roi_dataset import RoiDataset, RoiImage
from histobench.roi.encoders.base import BasePatchEncoder
from histobench.roi.encoders.transform import TransformSpec


@dataclass(frozen=True)
class Case:
    """One encoder at one size; the weights are random, which is all the same to a clock."""

    name: str
    network: str
    size: int
    batch: int
    images: int
    plain_batches: int
    precision: str = "bf16"
    #: Claims of the documentation that this case is measured for.
    goals: tuple[str, ...] = ()
    kwargs: tuple[tuple[str, Any], ...] = ()


GPU_CASES = (
    Case("ViT-L/16@224", "vit_large_patch16_224", 224, 256, 24576, 6, goals=("ceiling", "peak")),
    Case("ViT-L/16@448", "vit_large_patch16_224", 448, 128, 5120, 4, goals=("ceiling", "peak", "plain")),
    Case("ViT-g/14@224", "vit_giant_patch14_dinov2", 224, 256, 8192, 3, goals=("ceiling", "peak")),
    Case("ViT-S/16@224", "vit_small_patch16_224", 224, 512, 32768, 12, goals=("small",)),
    Case("resnet50@224", "resnet50", 224, 512, 16384, 12, goals=("small",)),
)
CPU_CASES = (
    Case("efficientnet-lite0", "tf_efficientnet_lite0", 224, 32, 1536, 3, "fp32", goals=("cpu",)),
    Case("resnet50", "resnet50", 224, 32, 512, 1, "fp32", goals=("cpu",)),
)


class TimmEncoder(BasePatchEncoder):
    """A timm network with random weights, made on the device itself."""

    def __init__(self, case: Case, device: str) -> None:
        super().__init__()
        import timm

        torch.manual_seed(0)
        kwargs = dict(case.kwargs)
        if case.network.startswith("vit"):
            kwargs["img_size"] = case.size
        with torch.device(device):
            self.network = timm.create_model(case.network, num_classes=0, **kwargs)
        self.name = case.name
        self.embed_dim = self.network.num_features
        self.eval_transforms = TransformSpec(resize=case.size, crop=case.size)
        self.identity = {"weights": "random", "network": case.network}
        self.eval().requires_grad_(False)

    def forward(self, images: Tensor) -> Tensor:
        return self.network(images)


def write_images(
    folder: Path, *, count: int, size: int, suffix: str = "jpg", painted: int = 36
) -> RoiDataset:
    """Files of synthetic tissue: a few painted tiles, each copy shifted, mirrored and dimmed."""
    folder.mkdir(parents=True)
    tiles = [render_tile(CLASSES[i % len(CLASSES)], seed=1, index=i, size=size) for i in range(painted)]

    def write(index: int) -> RoiImage:
        rng = np.random.default_rng(index)
        pixels = np.roll(tiles[index % len(tiles)], rng.integers(0, size, 2), axis=(0, 1))
        pixels = pixels[:, ::-1] if index % 2 else pixels
        pixels = np.clip(pixels.astype(np.int16) + rng.integers(-12, 13, 3), 0, 255).astype(np.uint8)
        path = folder / f"{index}.{suffix}"
        Image.fromarray(np.ascontiguousarray(pixels)).save(path, quality=90)
        return RoiImage(path, index % len(CLASSES), path.name, str(path))

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        images = tuple(pool.map(write, range(count)))
    return RoiDataset(f"synthetic-{size}", tuple(CLASSES), {"test": images})
