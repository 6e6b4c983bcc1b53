"""A feature set: embeddings with their labels and names, and where they came from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class FeatureSet:
    """The embeddings of one split of one dataset by one encoder.

    `metadata` holds plain JSON values: dataset, encoder, split, size, fingerprint, transform, precision,
    classes, projected (whether the embeddings already live in the shared image-text space), versions.
    Files of other tools may lack any of them. `groups` are patients or slides; `sites` are named columns
    beside them, such as hospital, scanner and stain.
    """

    embeddings: Tensor  # [n, d] float32
    labels: Tensor  # [n] int64
    img_names: tuple[str, ...]
    groups: tuple[str, ...] | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    sites: dict[str, tuple[str, ...]] = field(default_factory=dict)  # column -> [n], "" where not known

    def __len__(self) -> int:
        return int(self.embeddings.shape[0])
