"""What many tests build before they test anything."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from numpy.typing import ArrayLike

from histobench.roi.features.feature_file import FeatureSet


def feature_set(
    rows: ArrayLike | torch.Tensor,
    labels: ArrayLike | torch.Tensor,
    *,
    names: str = "{}.png",
    groups: Iterable[object] | None = None,
    sites: dict[str, tuple[str, ...]] | None = None,
    **metadata: Any,
) -> FeatureSet:
    """Features [n, d] of n images; `names` is filled with the number of each, `metadata` is kept as it is."""
    embeddings = torch.as_tensor(rows).float()
    return FeatureSet(
        embeddings,
        torch.as_tensor(labels).long(),
        tuple(names.format(number) for number in range(len(embeddings))),
        None if groups is None else tuple(map(str, groups)),
        metadata,
        sites or {},
    )
