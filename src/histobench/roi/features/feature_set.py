"""A feature set: embeddings with their labels and names, and where they came from."""

from __future__ import annotations

import hashlib
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


def fingerprint_of(*sets: FeatureSet) -> str:
    """One name for the features that went in; files of other tools are named by their content."""
    digest = hashlib.sha256()
    for features in sets:
        known = features.metadata.get("fingerprint")
        digest.update(str(known).encode() if known else _content(features))
    return digest.hexdigest()[:16]


def _content(features: FeatureSet) -> bytes:
    digest = hashlib.sha256(features.embeddings.contiguous().numpy().tobytes())
    digest.update(features.labels.numpy().tobytes())
    return digest.digest()
