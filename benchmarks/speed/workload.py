"""Features to measure on, made from a seed or by a real network.

`easy`: a mixture in a small latent space sent through a random network, as encoders give it: correlated, a
decaying spectrum, sub-clusters inside a class. Its classes are well apart.
`hard`: nine Gaussian classes whose means are 0.12 standard deviations apart in a dimension, so that all
training images are nearly equally near: a balanced accuracy of about .58, as on a hard clinical task.
`real`: efficientnet-lite0 on drawn tiles, made once and kept in the cache folder.
`golden`: efficientnet-lite0 on real histology images, as stored beside the checkout; small.
The numbers are for timing and not for judging anything.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

KINDS = ("easy", "hard", "real", "golden")
SIZES = (2_000, 20_000, 100_000)
#: Drawn tiles with features; `real` has no more training images than this.
REAL_TRAIN, REAL_TEST = 20_000, 7_180
_CLASSES = 9
_GOLDEN = Path(__file__).parents[3] / "shared" / "golden" / "roi"


@dataclass(frozen=True)
class Workload:
    """Train and test features with their labels."""

    train: Tensor
    train_labels: Tensor
    test: Tensor
    test_labels: Tensor
    n_classes: int
    name: str = "easy"

    @property
    def bytes(self) -> int:
        """The size of all features."""
        return sum(t.numel() * t.element_size() for t in (self.train, self.test))

    @property
    def label(self) -> str:
        """As tables show it: `hard 20,000 x 7,180 x 1,024`."""
        return f"{self.name} {len(self.train):,} x {len(self.test):,} x {self.train.shape[1]:,}"


def workload(kind: str, *, n_train: int = 100_000, n_test: int | None = None, dim: int = 1024) -> Workload:
    """A workload of some kind and size; `dim` is the network's own for `real` and `golden`."""
    n_test = min(7_180, n_train // 2) if n_test is None else n_test
    if kind == "easy":
        return easy(dim=dim, n_train=n_train, n_test=n_test)
    if kind == "hard":
        return hard(dim=dim, n_train=n_train, n_test=n_test)
    if kind == "real":
        return real(n_train=n_train, n_test=n_test)
    return golden()


def easy(
    *, dim: int = 1024, n_train: int = 100_000, n_test: int = 7_180, n_classes: int = _CLASSES, seed: int = 0
) -> Workload:
    """Classes that a network keeps apart."""
    latent, clusters = 64, 12
    g = torch.Generator().manual_seed(seed)
    centres = (
        torch.randn(n_classes, 1, latent, generator=g) * 0.35
        + torch.randn(n_classes, clusters, latent, generator=g) * 0.5
    )
    hidden = torch.randn(latent, dim, generator=g) / latent**0.5
    spectrum = torch.arange(1, dim + 1, dtype=torch.float32) ** -0.5
    mixing = torch.randn(dim, dim, generator=g) / dim**0.5 * spectrum[:, None] * 8
    offset = torch.randn(dim, generator=g) * 0.5

    def split(n: int) -> tuple[Tensor, Tensor]:
        labels = torch.arange(n) % n_classes
        labels = labels[torch.randperm(n, generator=g)]
        cluster = torch.randint(clusters, (n,), generator=g)
        features = torch.empty(n, dim)
        for start in range(0, n, 8192):
            part = slice(start, start + 8192)
            z = centres[labels[part], cluster[part]] + 0.75 * torch.randn(
                len(labels[part]), latent, generator=g
            )
            h = torch.nn.functional.gelu(z @ hidden)
            features[part] = h @ mixing + offset + 0.05 * torch.randn(h.shape, generator=g)
        return features, labels

    train, train_labels = split(n_train)
    test, test_labels = split(n_test)
    return Workload(train, train_labels, test, test_labels, n_classes, "easy")


def hard(
    *, dim: int = 1024, n_train: int = 20_000, n_test: int = 7_180, n_classes: int = _CLASSES, seed: int = 0
) -> Workload:
    """Gaussian classes that overlap, every direction of the noise alike."""
    g = torch.Generator().manual_seed(seed)
    means = 0.12 / 2**0.5 * torch.randn(n_classes, dim, generator=g)

    def split(n: int) -> tuple[Tensor, Tensor]:
        labels = torch.randint(n_classes, (n,), generator=g)
        features = torch.randn(n, dim, generator=g)
        for start in range(0, n, 8192):  # at once it would be the features a second time
            part = slice(start, start + 8192)
            features[part] += means[labels[part]]
        return features, labels

    return Workload(*split(n_train), *split(n_test), n_classes, "hard")


def real(*, n_train: int = REAL_TRAIN, n_test: int = REAL_TEST) -> Workload:
    """Features of a real network on drawn tiles, 1,280 dimensions."""
    stored = np.load(_real_features(), allow_pickle=False)
    train, test = min(n_train, REAL_TRAIN), min(n_test, REAL_TEST)
    features = torch.from_numpy(stored["features"].astype(np.float32))
    labels = torch.from_numpy(stored["labels"].astype(np.int64))
    rows = slice(REAL_TRAIN, REAL_TRAIN + test)
    return Workload(features[:train], labels[:train], features[rows], labels[rows], _CLASSES, "real")


def _real_features() -> Path:
    """The file of the features of all drawn tiles, made where it is not there yet."""
    from histobench.core.folders import cache_dir

    path = cache_dir() / "benchmarks" / "efficientnet-lite0-drawn-tiles.npz"
    if not path.is_file():
        subprocess.run([sys.executable, str(Path(__file__).with_name("drawn_features.py")), path], check=True)
    return path


def golden(name: str = "lc25000") -> Workload:
    """Features of a real network on real images, 1,280 dimensions."""
    stored = np.load(_GOLDEN / f"{name}_efficientnet-lite0.npz", allow_pickle=False)
    parts = [
        torch.from_numpy(stored[f"{split}_{what}"].astype(kind))
        for split in ("train", "test")
        for what, kind in (("embeddings", np.float32), ("labels", np.int64))
    ]
    return Workload(*parts, int(stored["train_labels"].max()) + 1, "golden")


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """That many processes beside this one that compute without a pause."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
        for other in others:
            other.wait()
