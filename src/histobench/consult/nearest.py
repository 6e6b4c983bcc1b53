"""The training regions nearest to a case, never of its own group and never the same picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from histobench.consult.answers import Neighbour

Rows = NDArray[np.float32]


@dataclass(frozen=True)
class Gallery:
    """The training regions of one encoder; `groups` are patients or slides, None or "" where unknown."""

    features: Rows  # [n, d]
    labels: Sequence[str]
    images: Sequence[str]
    groups: Sequence[str | None]

    @cached_property
    def _directions(self) -> Rows:
        return _unit(self.features)

    def nearest(
        self, query: Rows, *, k: int, barred_images: set[str], barred_groups: set[str]
    ) -> list[Neighbour]:
        """The k rows of highest cosine with `query` [d]; the lowest row among equals.

        A picture that is in the training split several times is shown once.
        """
        cosines = self._directions @ _unit(query[None])[0]
        found: list[Neighbour] = []
        shown = set(barred_images)
        for row in np.argsort(-cosines, kind="stable"):
            if self.images[row] in shown or (self.groups[row] or None) in barred_groups:
                continue
            shown.add(self.images[row])
            found.append(Neighbour(self.labels[row], float(cosines[row]), self.images[row]))
            if len(found) == k:
                break
        return found


def _unit(rows: Rows) -> Rows:
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    unit: Rows = (rows / np.maximum(lengths, 1e-12)).astype(np.float32)
    return unit
