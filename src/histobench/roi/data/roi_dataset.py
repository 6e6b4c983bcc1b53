"""What a dataset is once it has been read: images with labels, in named splits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from histobench.core.errors import HistobenchError
from histobench.roi.data.image_table import RoiImage as RoiImage
from histobench.roi.data.image_table import groups_of
from histobench.roi.data.targets import TargetColumns

SPLITS = ("train", "val", "test")


@dataclass(frozen=True)
class RoiDataset:
    """A named set of splits over one list of classes; the class id is the position in `classes`."""

    name: str
    classes: tuple[str, ...]
    splits: Mapping[str, Sequence[RoiImage]]
    target: TargetColumns | None = None
    #: How the files were understood: which columns or folders were taken for what, in a line each.
    notes: tuple[str, ...] = field(default=(), compare=False)
    #: How features of another tool become one row per patient or sample: "tiles", "slides", or not at all.
    pool: str = ""

    @property
    def has_groups(self) -> bool:
        return all(group is not None for images in self.splits.values() for group in groups_of(images))


SHOWN = 20


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong, and where: "file.csv:12", or a path. `kind` is one of `check.KINDS`."""

    origin: str
    message: str
    kind: str = "row"
    #: Problems with the same text here are one problem, reported once.
    same: str = ""

    def __str__(self) -> str:
        return f"{self.origin}: {self.message}"


@dataclass(frozen=True)
class Reading:
    """A dataset as far as it could be read, with what stood in the way and what was left out."""

    dataset: RoiDataset
    problems: tuple[Problem, ...] = ()
    warnings: tuple[Problem, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "problems", _told_once(self.problems))

    def checked(self) -> RoiDataset:
        """The dataset, or an error that lists every problem."""
        if self.problems:
            raise HistobenchError(listing(self.problems))
        return self.dataset


def _told_once(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """Of problems that are the same the first, with the number of the others."""
    problems = tuple(problems)
    counts = Counter(problem.same for problem in problems)
    distinct = dict[object, Problem]()
    for place, problem in enumerate(problems):
        more = counts[problem.same] - 1 if problem.same else 0
        message = f"{problem.message} (and {more} more like it)" if more else problem.message
        distinct.setdefault(problem.same or place, replace(problem, message=message, same=""))
    return tuple(distinct.values())


def listing(problems: Iterable[object], *, shown: int = SHOWN) -> str:
    """One line per problem; after the first `shown` only their number."""
    lines: Sequence[str] = [str(problem) for problem in problems]
    text = list(lines[:shown])
    if len(lines) > shown:
        text.append(f"... and {len(lines) - shown} more ({len(lines)} problems in all)")
    return "\n  ".join(text)
