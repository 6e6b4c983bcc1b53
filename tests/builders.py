"""What many tests build before they test anything."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from hypothesis import settings
from numpy.typing import ArrayLike

from histobench.roi.data.roi_dataset import Reading
from histobench.roi.data.table_reader import ColumnNames, Wanted, read_table
from histobench.roi.data.tables import CsvSheet
from histobench.roi.features.feature_file import FeatureSet

#: A file with an encoder of a user's own.
MEAN_ENCODER = """
import torch
from histobench.roi.encoders.base import BasePatchEncoder
from histobench.roi.encoders.transform import TransformSpec


class Mean(BasePatchEncoder):
    def __init__(self):
        super().__init__()
        self.eval_transforms = TransformSpec(resize=16, crop=16)
        self.embed_dim = 3

    def forward(self, images):
        return images.mean(dim=(2, 3))
"""


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


def examples(whole: int) -> int:
    """How many random examples to draw: all, or the share of a run that leaves tests out."""
    share: float = settings.default.max_examples / settings.get_profile("patient").max_examples
    return max(10, round(whole * share))


def in_a_thread(work: Callable[..., Any]) -> Callable[..., Any]:
    """The same in a thread of its own: this one may hold the event loop of a browser that other tests use."""

    def called(*args: Any, **kwargs: Any) -> Any:
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(work, *args, **kwargs).result()

    return called


def scan_csv(
    path: Path, classes: Sequence[str] | None = None, name: str | None = None, **options: Any
) -> Reading:
    """A CSV as `DatasetSource.read` reads it."""
    named = {kind: options.pop(f"{kind}_column", None) for kind in ("image", "label", "group", "split")}
    more = {key: options.pop(key, None) for key in ("target", "root")}
    wanted = Wanted(classes=classes, name=name, **options)
    return read_table(
        CsvSheet.open(Path(path)), wanted, Path(path).stem, columns=ColumnNames(**named), **more
    )
