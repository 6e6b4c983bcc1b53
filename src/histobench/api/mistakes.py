"""The images that an encoder got wrong, as a table with thumbnails."""

from __future__ import annotations

import base64
import html
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from histobench.core.errors import HistobenchError
from histobench.report.thumbnails import thumbnail
from histobench.roi.data.source import DatasetSource
from histobench.roi.results.stored_run import StoredRun
from histobench.roi.task_catalogue import CLASS

if TYPE_CHECKING:
    import pandas as pd

#: Rows and pixels of what a notebook shows.
_SHOWN, _SIDE = 24, 96


@dataclass(frozen=True, repr=False, eq=False)
class Mistakes:
    """The wrong predictions of one run, the most confident first.

    Attributes
    ----------
    frame : pandas.DataFrame
        One row per wrong image: image, label, predicted, excess (probability of the predicted class minus
        that of the true one), group, path (None if the images are not where they were).
    images : int
        Test images in all.
    """

    frame: pd.DataFrame
    images: int

    @classmethod
    def of(cls, run: StoredRun, source: DatasetSource | None) -> Mistakes:
        """The wrong predictions of a run; `source` says where its images are, if that is known."""
        if run.target != CLASS:
            raise HistobenchError(f"mistakes are of classes; the target of this run is {run.target}")
        stored = run.predictions
        wrong = np.flatnonzero(stored.predicted != stored.labels)
        chosen, true = (stored.probabilities[wrong, of[wrong]] for of in (stored.predicted, stored.labels))
        paths = {} if source is None else _paths(source)
        frame = pd.DataFrame(
            {
                "image": [stored.img_names[row] for row in wrong],
                "label": [stored.classes[stored.labels[row]] for row in wrong],
                "predicted": [stored.classes[stored.predicted[row]] for row in wrong],
                "excess": chosen - true,
                "group": [stored.groups[row] if stored.groups is not None else None for row in wrong],
                "path": [paths.get(stored.img_names[row]) for row in wrong],
            }
        )
        frame = frame.sort_values("excess", ascending=False, kind="stable", ignore_index=True)
        return cls(frame, len(stored))

    def to_frame(self) -> pd.DataFrame:
        """Return one row per wrong image.

        Returns
        -------
        pandas.DataFrame
        """
        return self.frame

    def __len__(self) -> int:
        return len(self.frame)

    def __repr__(self) -> str:
        head = f"{len(self)} of {self.images} test images are wrong"
        return f"{head}\n{self.frame.drop(columns='path').to_string()}" if len(self) else head

    def _repr_html_(self) -> str:
        cells = []
        for row in self.frame.head(_SHOWN).itertuples():
            words = html.escape(f"{row.label} → {row.predicted} ({row.excess:+.2f})")
            content = row.path and thumbnail(Path(str(row.path)), {}, side=_SIDE, square=False)
            data = base64.b64encode(content).decode() if content else ""
            picture = f"<img src='data:image/webp;base64,{data}'>" if data else ""
            cells.append(
                f"<figure style='display:inline-block;margin:4px;width:{_SIDE + 40}px;font-size:11px'>"
                f"{picture}<figcaption>{words}<br>{html.escape(str(row.image))}</figcaption></figure>"
            )
        more = f" The first {_SHOWN}:" if len(self) > _SHOWN else ""
        return f"<p>{len(self)} of {self.images} test images are wrong.{more}</p>{''.join(cells)}"


def _paths(source: DatasetSource) -> dict[str, Path]:
    try:
        splits = source.read().dataset.splits
    except HistobenchError:
        return {}
    return {image.name: image.path for images in splits.values() for image in images}
