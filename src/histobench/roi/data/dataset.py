"""What a dataset is once it has been read: images with labels, in named splits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from histobench.roi.data.sites import Sites

SPLITS = ("train", "val", "test")


@dataclass(frozen=True)
class RoiImage:
    """One labelled tissue region. `origin` is where it was listed, for error messages ("file.csv:12").

    `group` is the patient or slide; `sites` are named columns beside it, such as hospital and scanner.
    """

    path: Path
    label: int
    name: str
    origin: str
    group: str | None = None
    sites: Sites = ()


@dataclass(frozen=True)
class RoiDataset:
    """A named set of splits over one list of classes; the class id is the position in `classes`."""

    name: str
    classes: tuple[str, ...]
    splits: Mapping[str, tuple[RoiImage, ...]]

    @property
    def has_groups(self) -> bool:
        """Whether every image names the patient or slide it comes from."""
        return all(image.group is not None for images in self.splits.values() for image in images)
