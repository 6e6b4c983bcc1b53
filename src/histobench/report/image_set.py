"""The test images that runs share: named once, however many runs look at them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from histobench.report.payload import packed, write_payload
from histobench.roi.predictions import Predictions


@dataclass(frozen=True)
class ImageSet:
    """Names, labels and groups of test images in one order."""

    dataset: str
    names: tuple[str, ...]
    labels: NDArray[np.int64]
    groups: tuple[str, ...] | None
    classes: tuple[str, ...]

    @classmethod
    def of(cls, dataset: str, predictions: Predictions) -> ImageSet:
        """The images of a run."""
        return cls(
            dataset, predictions.img_names, predictions.labels, predictions.groups, predictions.classes
        )

    @cached_property
    def key(self) -> str:
        """A name that follows from the content alone."""
        text = "\0".join((self.dataset, *self.classes, "", *self.names, "", *(self.groups or ())))
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass"))
        digest.update(self.labels.astype("<i8").tobytes())
        return digest.hexdigest()[:12]

    def write(self, site: Path) -> str:
        """Write the data file `images/<key>` unless it is there, and return the key."""
        if not (site / "data" / "images" / f"{self.key}.js").exists():
            write_payload(site, f"images/{self.key}", self._payload())
        return self.key

    def _payload(self) -> dict[str, Any]:
        groups: dict[str, Any] = {}
        if self.groups is not None and any(self.groups):
            known = sorted(set(self.groups))
            place = {group: k for k, group in enumerate(known)}
            groups = {
                "groupNames": known,
                "groups": packed(np.array([place[group] for group in self.groups], dtype=np.int64)),
            }
        return {
            "dataset": self.dataset,
            "classes": list(self.classes),
            "names": list(self.names),
            "labels": packed(self.labels),
            **groups,
        }
