"""A prepared study: cases, cassette, and what the reference agents learn from."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from histobench.consult.case import Case, read_cases
from histobench.consult.cassette import FILE, Cassette, read_cassette, read_prepared
from histobench.core.atomic import atomic_path, write_json
from histobench.core.errors import HistobenchError
from histobench.core.plain_data import parse_json
from histobench.core.plain_file import HAND_WRITTEN, read_plain, read_plain_text

STUDY = "study.json"
CASES = "cases.jsonl"
PICTURES = "pictures.json"
LESSONS = "lessons.parquet"
#: The folder in which agents' episodes lie.
RUNS = "runs"
VERSION = 1


@dataclass(frozen=True)
class EncoderFacts:
    """An encoder in its role: how it was fitted, and how good it is alone on all test regions."""

    role: str
    name: str
    fingerprint: str
    temperature: float
    probe_accuracy: float
    knn_accuracy: float
    validation_accuracy: float
    seconds_per_image: float | None = None


@dataclass(frozen=True)
class StudyFacts:
    """What `study.json` says."""

    dataset: str
    classes: tuple[str, ...]
    encoders: tuple[EncoderFacts, ...]
    arms: tuple[str, ...]
    seed: int
    organ: str = ""
    region: str = ""
    microns_per_pixel: float | None = None
    #: The classes' own names, where cases call them class A, class B, ...
    true_classes: tuple[str, ...] | None = None
    most_neighbours: int = 10
    cautions: tuple[str, ...] = ()
    version: int = VERSION

    def encoder(self, role: str) -> EncoderFacts | None:
        """The encoder in a role."""
        return next((encoder for encoder in self.encoders if encoder.role == role), None)


@dataclass(frozen=True)
class Lessons:
    """Labelled regions outside the test split, as the tools show them: what reference agents are fitted on.

    `shown` has, for each role, what `predict` says of each class beside the votes of five neighbours.
    """

    labels: NDArray[np.int64]  # [n]
    measurements: NDArray[np.float64]  # [n, 10]
    shown: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)  # role -> [n, 2 c]


@dataclass(frozen=True)
class Study:
    """A folder that `consult prepare` wrote."""

    folder: Path
    facts: StudyFacts
    cases: tuple[Case, ...]

    @cached_property
    def cassette(self) -> Cassette:
        """The answers."""
        return read_cassette(self.folder / FILE)

    @cached_property
    def by_id(self) -> dict[str, Case]:
        """Case by its id."""
        return {case.id: case for case in self.cases}

    @cached_property
    def fingerprint(self) -> str:
        """What runs on this study depend on."""
        digest = hashlib.sha256()
        for name in (CASES, FILE):
            digest.update(read_plain(self.folder / name))
        return digest.hexdigest()[:16]

    def pictures(self) -> dict[str, Path]:
        """Where the pictures of cases and neighbours were when the study was prepared, by content hash."""
        path = self.folder / PICTURES
        try:
            found = parse_json(read_plain_text(path))
            return {str(image): Path(place) for image, place in found.items()}
        except (OSError, ValueError, AttributeError, TypeError) as error:
            raise HistobenchError(f"cannot read {path}: {error}; prepare the study again") from error

    def lessons(self, part: str) -> Lessons:
        """The `train` or `val` regions that reference agents are fitted on."""
        table = read_prepared(self.folder / LESSONS, "lessons")
        rows = [row for row in table.to_pylist() if row["part"] == part]
        roles = [encoder.role for encoder in self.facts.encoders] if part == "val" else []
        return Lessons(
            np.array([row["label"] for row in rows], dtype=np.int64),
            np.array([row["measurements"] for row in rows], dtype=np.float64).reshape(len(rows), -1),
            {role: np.array([row[role] for row in rows], dtype=np.float64) for role in roles},
        )


def open_study(folder: str | Path) -> Study:
    """The study in a folder."""
    folder = Path(folder)
    path = folder / STUDY
    try:
        record: dict[str, Any] = parse_json(read_plain_text(path, limit=HAND_WRITTEN))
        if record["version"] != VERSION:
            raise HistobenchError(f"{path} is of version {record['version']}, this one reads {VERSION}")
        encoders = tuple(EncoderFacts(**encoder) for encoder in record.pop("encoders"))
        lists = ("classes", "arms", "true_classes", "cautions")
        plain: dict[str, Any] = {
            name: tuple(value) if name in lists and value is not None else value
            for name, value in record.items()
        }
        facts = StudyFacts(encoders=encoders, **plain)
    except OSError as error:
        raise HistobenchError(
            f"{folder} holds no study ({error.strerror or error}); run histobench consult prepare"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise HistobenchError(f"{path} is no study ({error!r}); prepare it again") from error
    return Study(folder, facts, tuple(read_cases(folder / CASES)))


def write_facts(folder: Path, facts: StudyFacts) -> None:
    """`study.json`; written last, so that a folder without it is not a study."""
    write_json(folder / STUDY, asdict(facts))


def write_lessons(folder: Path, parts: Mapping[str, Lessons], roles: Sequence[str]) -> None:
    """The regions of both parts in one table."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [
        {
            "part": part,
            "label": int(lessons.labels[row]),
            "measurements": lessons.measurements[row].tolist(),
            **{role: lessons.shown[role][row].tolist() if role in lessons.shown else None for role in roles},
        }
        for part, lessons in parts.items()
        for row in range(len(lessons.labels))
    ]
    lists = pa.list_(pa.float64())
    schema = pa.schema(
        [
            ("part", pa.string()),
            ("label", pa.int64()),
            ("measurements", lists),
            *((role, lists) for role in roles),
        ]
    )
    with atomic_path(folder / LESSONS) as temporary:
        pq.write_table(pa.Table.from_pylist(rows, schema=schema), temporary)
