"""Targets: what is predicted where it is not one class per image."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from histobench.core.errors import HistobenchError
from histobench.roi.task_catalogue import CLASS, MASK, MULTILABEL, ORDINAL, SURVIVAL, TARGETS, a_target

#: A column with more different levels than this may be a measurement.
_MOST_LEVELS = 20
_YES_OR_NO = {"0": 0.0, "1": 1.0, "0.0": 0.0, "1.0": 1.0, "false": 0.0, "true": 1.0}


#: Classes of masks with a meaning of their own, in any case.
IGNORE = "ignore"


@dataclass(frozen=True)
class TargetColumns:
    """The kind of a target, and the columns of the table that hold it."""

    kind: str
    names: tuple[str, ...]
    codes: tuple[tuple[int, str], ...] = ()

    @property
    def width(self) -> int:
        """Numbers of one image; masks are files."""
        return 0 if self.kind == MASK else len(self.names)

    @classmethod
    def asked(cls, kind: str, columns: Sequence[str]) -> TargetColumns | None:
        """What `target` and `target_columns` ask for; None for classes."""
        if kind == CLASS:
            if columns:
                raise HistobenchError(f"`target_columns` needs `target`: one of {', '.join(TARGETS)}")
            return None
        usual = TARGETS[kind].columns
        names = tuple(dict.fromkeys(name.strip().lower() for name in columns)) or usual
        if kind == MULTILABEL and len(names) < 2:
            raise HistobenchError(
                "`target` multilabel needs `target_columns`: two or more columns of 0 and 1"
            )
        if kind not in (MULTILABEL, "regression") and len(names) != len(usual):
            what = " and ".join(usual)
            raise HistobenchError(f"`target_columns`: {a_target(kind)} needs {len(usual)} ({what})")
        return cls(kind, names)

    def row(self, cells: Sequence[str]) -> tuple[float, ...]:
        """The target of one image from its cells; an error says which of them is wrong."""
        return tuple(self._number(name, cell) for name, cell in zip(self.names, cells, strict=True))

    def _number(self, name: str, cell: str) -> float:
        if not cell.strip():
            raise HistobenchError(f"no {name}")
        try:
            number = float(cell)
        except ValueError:
            number = math.nan
        if self.kind == MULTILABEL or (self.kind == SURVIVAL and name == self.names[1]):
            if cell.strip().lower() not in _YES_OR_NO:
                zero = "0 (censored)" if self.kind == SURVIVAL else "0"
                raise HistobenchError(f"{name} {cell!r} is not {zero} or 1 (`target` {self.kind})")
            return _YES_OR_NO[cell.strip().lower()]
        if not math.isfinite(number):
            point = "; write decimals with a point" if "," in cell else ""
            raise HistobenchError(f"{name} {cell!r} is not a number (`target` {self.kind}){point}")
        if self.kind == ORDINAL and not number.is_integer():
            raise HistobenchError(f"{name} {cell!r} is not a whole number (`target` {self.kind})")
        if self.kind == SURVIVAL and number < 0:
            raise HistobenchError(f"{name} {cell!r} is below 0 (`target` {self.kind})")
        return number

    def problem(self, values: NDArray[np.float64]) -> str:
        """What is wrong with a target [n, columns] as a whole, in one line; empty where nothing is."""
        if self.kind == SURVIVAL and len(values) and not values[:, 1].any():
            return f"{self.names[1]} is 0 everywhere: without any event there is nothing to learn"
        if self.kind == ORDINAL and len(levels := np.unique(values)) > _MOST_LEVELS:
            return f"{self.names[0]} has {len(levels)} levels and looks continuous: give `target` regression"
        checked = self.names[:1] if self.kind == SURVIVAL else self.names
        for name, column in zip(checked, values.T, strict=False):
            if len(column) and (column == column[0]).all():
                return f"{name} is {column[0]:g} everywhere: there is nothing to predict"
        return ""


@dataclass(frozen=True, eq=False)
class Target:
    """The target of every image of a feature set."""

    columns: TargetColumns
    values: NDArray[np.float64]  # [n, columns]

    @classmethod
    def of(cls, columns: TargetColumns | None, rows: Sequence[Sequence[float]]) -> Target | None:
        """The target of the images of a dataset, row by row; None for a dataset of classes."""
        return None if columns is None else cls(columns, np.array(rows, dtype=np.float64))

    @property
    def kind(self) -> str:
        return self.columns.kind

    @property
    def names(self) -> tuple[str, ...]:
        return self.columns.names

    def take(self, rows: NDArray[np.int64]) -> Target:
        return Target(self.columns, self.values[rows])

    def joined(self, other: Target) -> Target:
        return Target(self.columns, np.concatenate([self.values, other.values]))
