"""The reference workload: features with the shape of CRC-100K, made from a seed.

Real encoders give correlated features with a decaying spectrum, sub-clusters inside a class (patients,
stains) and classes that overlap. A mixture in a small latent space, sent through a random network with one
hidden layer, has all of that; the numbers are for timing and not for judging anything.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Workload:
    """Train and test features with their labels."""

    train: Tensor
    train_labels: Tensor
    test: Tensor
    test_labels: Tensor
    n_classes: int

    @property
    def bytes(self) -> int:
        """The size of all features."""
        return sum(t.numel() * t.element_size() for t in (self.train, self.test))


def reference_workload(
    *, dim: int = 1024, n_train: int = 100_000, n_test: int = 7_180, n_classes: int = 9, seed: int = 0
) -> Workload:
    """Workload W of the speed goals; `dim`, `n_train` and `n_test` scale it."""
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
    return Workload(train, train_labels, test, test_labels, n_classes)
