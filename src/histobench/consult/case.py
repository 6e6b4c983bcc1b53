"""A case: one test region, the options, its reference, and what each arm's tool says about it."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from histobench.core.atomic import write_text
from histobench.core.errors import HistobenchError
from histobench.core.plain_data import parse_json
from histobench.core.plain_file import read_plain_text


@dataclass(frozen=True)
class ToolView:
    """What an arm's encoder tools are for one case; `label` is T, the first class of `predict`."""

    encoder: str
    label: str
    confidence: float
    manipulated: bool = False
    position: int = 0
    zero_shot: bool = False


@dataclass(frozen=True)
class Case:
    """`id` is the hash of the picture's content, `probability` the chance with which it was selected."""

    id: str
    dataset: str
    group: str | None
    options: tuple[str, ...]
    reference: str
    probability: float
    arms: dict[str, ToolView] = field(default_factory=dict)

    @property
    def weight(self) -> float:
        """The inverse of the selection probability."""
        return 1 / self.probability


def shuffled_options(names: Sequence[str], case_id: str) -> tuple[str, ...]:
    """The options in an order that the id alone decides.

    >>> sorted(shuffled_options(["a", "b", "c"], "0f")) == ["a", "b", "c"]
    True
    """
    options = sorted(names)
    random.Random(hashlib.sha256(case_id.encode()).digest()).shuffle(options)
    return tuple(options)


def write_cases(path: Path, cases: Iterable[Case]) -> None:
    """One JSON object per line."""
    write_text(path, "".join(json.dumps(asdict(case), sort_keys=True) + "\n" for case in cases))


def read_cases(path: Path) -> list[Case]:
    """The cases of a file that `write_cases` wrote."""
    cases = []
    try:
        lines = read_plain_text(path).split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise HistobenchError(
            f"cannot read the cases {path}: {error}; run histobench consult prepare"
        ) from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = parse_json(line)
            arms = {arm: ToolView(**view) for arm, view in record.pop("arms").items()}
            cases.append(Case(**{**record, "options": tuple(record["options"])}, arms=arms))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise HistobenchError(f"{path}:{number}: no case ({error}); prepare the study again") from error
    return cases
