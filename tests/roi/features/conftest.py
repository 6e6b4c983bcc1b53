"""Small images, small encoders, and a cache of each test's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from histobench.roi.data.roi_dataset import RoiDataset, RoiImage

#: A user's encoder file; tests that start processes name it, the others import it.
ENCODER_FILE = '''
import torch
from torch import nn
from histobench.roi.encoders.base import BasePatchEncoder
from histobench.roi.encoders.transform import TransformSpec


class Tiny(BasePatchEncoder):
    """A convolutional network that is over in no time."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.eval_transforms = TransformSpec(resize=32, crop=28)
        self.embed_dim = 12
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU(),
            nn.Conv2d(8, 16, 3, stride=2), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU(),
            nn.Conv2d(16, 12, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        )

    def forward(self, images):
        return self.body(images)


class Wide(Tiny):
    """Other weights, the same pixels."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(4)
        for parameter in self.body.parameters():
            nn.init.normal_(parameter, std=0.2)


class Large(Tiny):
    """Other pixels."""

    def __init__(self):
        super().__init__()
        self.eval_transforms = TransformSpec(resize=48, crop=48, interpolation="bilinear", mean=(0.5,) * 3)


class Floats(Tiny):
    """A transform of its own, which is no TransformSpec."""

    def __init__(self):
        super().__init__()
        spec = self.eval_transforms
        self.eval_transforms = lambda image: spec(image)


class Delicate(Tiny):
    """Small differences of large numbers: nothing is left of them in sixteen bits."""

    def forward(self, images):
        means = torch.nn.functional.linear(images.mean((2, 3)), torch.eye(3), torch.full((3,), 1000.0))
        return (means - 1000.0).repeat(1, 4)


class Slow(Tiny):
    """Leaves time to be killed."""

    def forward(self, images):
        import time

        time.sleep(0.02)
        return self.body(images)
'''


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test has its own cache."""
    monkeypatch.setenv("HISTOBENCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small networks are slower on several threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def encoder_file(tmp_path: Path) -> Path:
    """A file with encoders: Tiny, Wide, Large, Floats, Slow."""
    path = tmp_path / "own_encoders.py"
    path.write_text(ENCODER_FILE)
    return path


@pytest.fixture
def make_dataset(tmp_path: Path) -> Callable[..., RoiDataset]:
    """Write `train` and `test` random images of varied shapes and formats and give the dataset."""

    def make(train: int = 20, test: int = 10, *, seed: int = 0, folder: str = "images") -> RoiDataset:
        rng = np.random.default_rng(seed)
        (tmp_path / folder).mkdir(exist_ok=True)
        images: dict[str, list[RoiImage]] = {"train": [], "test": []}
        for index in range(train + test):
            split = "train" if index < train else "test"
            height, width = rng.integers(30, 60, size=2)
            pixels = rng.integers(0, 256, size=(height, width, 3), dtype=np.uint8)
            path = tmp_path / folder / f"{split}-{index}.{('png', 'jpg', 'tif')[index % 3]}"
            Image.fromarray(pixels).save(path)
            images[split].append(
                RoiImage(path, index % 3, path.name, f"list.csv:{index + 2}", group=f"patient-{index % 5}")
            )
        return RoiDataset("demo", ("a", "b", "c"), {split: tuple(items) for split, items in images.items()})

    return make
