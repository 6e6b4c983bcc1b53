"""A prepared study: cases, cassette, and what the reference agents learn from."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from histobench.core.errors import HistobenchError, did_you_mean
from histobench.core.files import atomic_path, read_bytes, read_plain_text, write_json, write_text
from histobench.core.plain_data import parse_json, read_json
from histobench.core.renamed import Renamed

if TYPE_CHECKING:
    import pandas as pd

T = TypeVar("T")


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
        return 1 / self.probability


def groups_of(cases: Iterable[Case]) -> list[str]:
    return [f"g{case.group}" if case.group else f"i{case.id}" for case in cases]


def shuffled_options(names: Sequence[str], case_id: str) -> tuple[str, ...]:
    options = sorted(names)
    random.Random(hashlib.sha256(case_id.encode()).digest()).shuffle(options)
    return tuple(options)


@cache
def _records(kind: type[T]) -> Callable[[Any], list[T]]:
    from pydantic import ConfigDict, TypeAdapter

    return TypeAdapter(list[kind], config=ConfigDict(extra="forbid")).validate_python  # type: ignore[valid-type]


FILE = "cassette.parquet"
COLUMNS = ("key", "image", "encoder", "arm", "tool", "arguments", "answer")


@dataclass(frozen=True)
class Recorded:
    """One answer, and what it is the answer to. What is the same in every arm has no encoder and no arm."""

    image: str
    encoder: str
    arm: str
    tool: str
    arguments: str  # canonical JSON
    answer: str

    @property
    def asked(self) -> tuple[str, str, str, str, str]:
        return self.image, self.encoder, self.arm, self.tool, self.arguments

    @property
    def key(self) -> str:
        return hashlib.sha256(json.dumps(self.asked).encode()).hexdigest()


def canonical(arguments: Mapping[str, Any]) -> str:
    return json.dumps(arguments, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


class Cassette:
    def __init__(self, rows: Iterable[Recorded]) -> None:
        self.rows = tuple(rows)
        self._answers = {row.asked: row.answer for row in self.rows}

    def answer(
        self, tool: str, arguments: Mapping[str, Any], *, image: str = "", encoder: str = "", arm: str = ""
    ) -> str:
        asked = image, encoder, arm, tool, canonical(arguments)
        if asked not in self._answers:
            what = f"{tool}({asked[-1]}) for image {image or 'any'} in arm {arm or 'any'}"
            raise HistobenchError(f"no recorded answer of {what}; prepare the study again")
        return self._answers[asked]


def write_cassette(path: Path, rows: Iterable[Recorded]) -> None:
    """Write Parquet, sorted by address: the same answers give the same file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    unique = {row.key: row for row in rows}
    kept = [unique[key] for key in sorted(unique)]
    table = pa.table({name: pa.array([getattr(row, name) for row in kept], pa.string()) for name in COLUMNS})
    with atomic_path(path) as temporary:
        pq.write_table(table, temporary, compression="zstd")


def _rows(path: Path) -> list[dict[str, Any]]:
    import pyarrow.parquet as pq

    try:
        return pq.read_table(path).to_pylist()
    except (OSError, ValueError) as error:
        raise HistobenchError(f"cannot read {path} ({error}); run histobench consult prepare") from error


def read_cassette(path: Path) -> Cassette:
    return Cassette(Recorded(*(row[name] for name in COLUMNS[1:])) for row in _rows(path))


STUDY = "study.json"
CASES = "cases.jsonl"
PICTURES = "pictures.json"
LESSONS = "lessons.parquet"
#: The widest interval of an AUC with which a study is called blind.
MOST_WIDTH = 0.3
RUNS = "runs"
KIND = "policy"
FAMILY = "consult"
#: The key of a task's metadata under which results keep what happened.
RECORD = "consult"
CONTRASTS_FILE = "contrasts.json"
#: Version 1 (histobench 0.2) reported cosines, had the arm `swap`, and no sequences.
VERSION = 2
READABLE = (1, 2)


@dataclass(frozen=True)
class StudyEncoder:
    role: str
    name: str
    fingerprint: str
    temperature: float
    probe_accuracy: float
    knn_accuracy: float
    validation_accuracy: float
    seconds_per_image: float | None = None


@dataclass(frozen=True)
class BlindingCheck:
    """The AUC with which the form of their answers tells two arms apart; `field` alone tells most."""

    first: str
    second: str
    auc: float
    low: float
    high: float
    field: str
    field_auc: float
    groups: int = 0

    @property
    def leaks(self) -> bool:
        return self.low > 0.5

    @property
    def blind(self) -> bool:
        """Whether the arms are shown to look alike: no leak, and an interval that would show one."""
        return not self.leaks and self.high - self.low <= MOST_WIDTH

    @property
    def groups_needed(self) -> int:
        from scipy.special import logit
        from scipy.stats import t

        def width(groups: int) -> float:
            return float(t.ppf(0.995, groups - 1)) / groups**0.5

        have = max(self.groups, 2)
        enough = 2 * logit(0.5 + MOST_WIDTH / 2)
        wanted = (
            width(have) * enough / max(np.ptp(logit(np.clip([self.low, self.high], 0.001, 0.999))), enough)
        )
        return next(groups for groups in range(have, 100_000) if width(groups) <= wanted)

    @property
    def sentence(self) -> str:
        found = f"{self.first} and {self.second}: AUC {self.auc:.2f} [{self.low:.2f}, {self.high:.2f}]"
        if self.leaks:
            return f"{found}: the form of the answers shows which encoder gives them"
        if self.blind:
            return f"{found}, blind (at most {self.high:.2f})"
        need = f"about {self.groups_needed}" if self.groups else "more"
        return f"{found}: too few patients or slides to show that they look alike ({need} needed)"


@dataclass(frozen=True)
class StudyFacts:
    dataset: str
    classes: tuple[str, ...]
    encoders: tuple[StudyEncoder, ...]
    arms: tuple[str, ...]
    seed: int
    organ: str = ""
    region: str = ""
    microns_per_pixel: float | None = None
    #: The classes' own names, where cases call them class A, class B, ...
    true_classes: tuple[str, ...] | None = None
    most_neighbours: int = 10
    cautions: tuple[str, ...] = ()
    #: Cases in the order in which the arms `sequence` and `sequence-same` show them.
    sequences: tuple[tuple[str, ...], ...] = ()
    #: The role of the encoder after the change.
    replaced_by: str = "random"
    blinding: tuple[BlindingCheck, ...] = ()
    version: int = VERSION

    def encoder(self, role: str) -> StudyEncoder | None:
        return next((encoder for encoder in self.encoders if encoder.role == role), None)

    @property
    def legend(self) -> str:
        return "; ".join(f"{encoder.role}: {encoder.name}" for encoder in self.encoders)


@dataclass(frozen=True)
class Lessons:
    """Labelled regions outside the test split, as the tools show them: for reference agents."""

    labels: NDArray[np.int64]  # [n]
    measurements: NDArray[np.float64]  # [n, 10]
    shown: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)  # role -> [n, 2 c]


@dataclass(frozen=True)
class Study:
    """A study; `prepare` and `open_study` return one.

    Attributes
    ----------
    folder : Path
        The folder that `prepare` wrote.
    facts : StudyFacts
        What was prepared: dataset, classes, encoders with their roles, arms, blinding checks, cautions.
    cases : tuple of Case
        The cases in the order in which they are played, with options and selection probabilities.

    Examples
    --------
    >>> import tempfile, histobench as hb
    >>> folder = tempfile.mkdtemp()
    >>> data = hb.demo_dataset(f"{folder}/tiles", train_per_class=6, test_per_class=3, size=64)
    >>> study = hb.consult.prepare(data, "tiny-vl", folder=f"{folder}/study", arms="none,strong", cases=6)
    >>> study.facts.arms, study.to_frame().shape
    (('none', 'strong'), (6, 4))
    """

    folder: Path
    facts: StudyFacts
    cases: tuple[Case, ...]

    def __repr__(self) -> str:
        encoders = ", ".join(f"{encoder.role} {encoder.name}" for encoder in self.facts.encoders)
        return (
            f"Study in {self.folder}: {len(self.cases)} cases of {self.facts.dataset}, "
            f"{len(self.facts.arms)} arms ({', '.join(self.facts.arms)}), encoders: {encoders}"
        )

    frame = Renamed("to_frame")

    def to_frame(self) -> pd.DataFrame:
        """Return one row per case.

        Returns
        -------
        pandas.DataFrame
            case, group (patient or slide), reference (class), probability (of being selected).
        """
        import pandas as pd

        rows = [(case.id, case.group, case.reference, case.probability) for case in self.cases]
        return pd.DataFrame(rows, columns=["case", "group", "reference", "probability"])

    @cached_property
    def cassette(self) -> Cassette:
        return read_cassette(self.folder / FILE)

    @cached_property
    def by_id(self) -> dict[str, Case]:
        return {case.id: case for case in self.cases}

    @cached_property
    def fingerprint(self) -> str:
        digest = hashlib.sha256()
        for name in (CASES, FILE):
            digest.update(read_bytes(self.folder / name))
        if self.facts.sequences:
            digest.update(json.dumps([self.facts.sequences, self.facts.replaced_by]).encode())
        return digest.hexdigest()[:16]

    def pictures(self) -> dict[str, Path]:
        """Return where the pictures of cases and neighbors were when the study was prepared.

        Returns
        -------
        dict of str to Path
            Content hash -> file.
        """
        places = read_json(read_plain_text(self.folder / PICTURES), where=PICTURES)
        return {image: Path(place) for image, place in places.items()}

    @cached_property
    def contrasts(self) -> tuple[RegisteredContrast, ...]:
        path = self.folder / CONTRASTS_FILE
        return read_contrasts(path) if path.exists() else DEFAULT_CONTRASTS

    def lessons(self, part: str) -> Lessons:
        """Return the regions that reference agents are fitted on.

        Parameters
        ----------
        part : {"train", "val"}
            The split.

        Returns
        -------
        Lessons
        """
        rows = [row for row in _rows(self.folder / LESSONS) if row["part"] == part]
        roles = [encoder.role for encoder in self.facts.encoders] if part == "val" else []
        return Lessons(
            np.array([row["label"] for row in rows], dtype=np.int64),
            np.array([row["measurements"] for row in rows], dtype=np.float64).reshape(len(rows), -1),
            {role: np.array([row[role] for row in rows], dtype=np.float64) for role in roles},
        )


@dataclass(frozen=True)
class RegisteredContrast:
    """One comparison that a study makes: a measure in one arm, minus that in another one if there is one."""

    name: str
    measure: Literal["final", "over_tool", "u_right", "u_wrong", "discrimination"]
    arm: str
    against: str = ""
    part: Literal["before", "after"] = "after"
    #: When it was registered, in ISO 8601 (UTC); empty for a study of histobench 0.2, which had no file.
    registered: str = ""

    @property
    def words(self) -> str:
        measure = MEASURED[self.measure]
        late = " (last quarter)" if self.arm.startswith("sequence") else ""
        return f"{measure}{late}: {self.arm}{f' minus {self.against}' if self.against else ''}"

    def problem(self, arms: Sequence[str]) -> str:
        for arm in (self.arm, self.against):
            if arm and arm not in arms:
                return f"the study has no arm {arm!r}; {did_you_mean(arm, arms)}"
        if not self.against and self.measure != "over_tool":
            return f"{self.measure} in {self.arm} needs an arm to compare with: give `against`"
        if self.against and self.against.startswith("sequence") != self.arm.startswith("sequence"):
            return f"{self.arm} and {self.against} do not have the same cases"
        return ""


#: Measures that contrasts can be about -> how tables call them.
MEASURED = {
    "final": "accuracy",
    "over_tool": "final answer minus tool",
    "u_right": "following the tool when it is right (u_right)",
    "u_wrong": "over-reliance (u_wrong)",
    "discrimination": "telling right from wrong (J)",
}
DEFAULT_CONTRASTS = (
    RegisteredContrast("over_tool", "over_tool", "strong"),
    RegisteredContrast("sequence", "discrimination", "sequence", "sequence-same"),
    RegisteredContrast("wrong-25", "u_wrong", "wrong-25", "strong"),
    RegisteredContrast("sure", "u_wrong", "sure", "unsure"),
)


def read_contrasts(path: Path) -> tuple[RegisteredContrast, ...]:
    try:
        found = tuple(_records(RegisteredContrast)(parse_json(read_plain_text(path))))
    except (OSError, ValueError) as error:
        raise HistobenchError(
            f"{path} is not a list of contrasts ({' '.join(str(error).split())}). Write a JSON list such as "
            '[{"name": "dose", "measure": "u_wrong", "arm": "wrong-25", "against": "strong"}].'
        ) from error
    if not found or len({each.name for each in found}) < len(found):
        raise HistobenchError(f"{path}: give at least one contrast, each with its own name")
    return found


def check_contrasts(contrasts: Sequence[RegisteredContrast], arms: Sequence[str]) -> None:
    for each in contrasts:
        if problem := each.problem(arms):
            raise HistobenchError(f"contrast {each.name!r}: {problem}")


def register_contrasts(folder: Path, contrasts: Sequence[RegisteredContrast], arms: Sequence[str]) -> None:
    check_contrasts(contrasts, arms)
    path = folder / CONTRASTS_FILE
    before = read_contrasts(path) if path.exists() else ()
    if taken := {each.name for each in before} & {each.name for each in contrasts}:
        raise HistobenchError(
            f"the study already has a registered contrast {min(taken)!r}; choose another name"
        )
    now = datetime.now(UTC).isoformat(timespec="seconds")
    added = [replace(each, registered=now) for each in contrasts]
    write_json(path, [asdict(each) for each in (*before, *added)])


def open_study(folder: str | Path) -> Study:
    folder = Path(folder)
    if not (folder / STUDY).is_file():
        raise HistobenchError(f"{folder} is not a Consult study; create one with histobench consult prepare")
    place = folder / STUDY
    try:
        record = parse_json(read_plain_text(place))
        if record["version"] not in READABLE:
            raise ValueError(f"version {record['version']}; this histobench reads {READABLE}")
        facts = _records(StudyFacts)([record])[0]
        place = folder / CASES
        lines = filter(str.strip, read_plain_text(place).split("\n"))
        if not (cases := _records(Case)([parse_json(line) for line in lines])):
            raise ValueError("it holds no cases")
        return Study(folder, facts, tuple(cases))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise HistobenchError(
            f"cannot read {place} ({error}); run histobench consult prepare again"
        ) from error


def write_study(
    folder: Path,
    facts: StudyFacts,
    cases: Sequence[Case],
    *,
    recorded: Iterable[Recorded],
    pictures: Mapping[str, str],
    lessons: Mapping[str, Lessons],
    contrasts: Sequence[RegisteredContrast],
) -> Study:
    """Write every file of a study; `study.json` last, because without it the folder is not a study."""
    (folder / STUDY).unlink(missing_ok=True)
    write_cassette(folder / FILE, recorded)
    write_text(folder / CASES, "".join(json.dumps(asdict(case), sort_keys=True) + "\n" for case in cases))
    write_json(folder / PICTURES, pictures)
    _write_lessons(folder / LESSONS, lessons, [encoder.role for encoder in facts.encoders])
    (folder / CONTRASTS_FILE).unlink(missing_ok=True)
    if contrasts:
        register_contrasts(folder, contrasts, facts.arms)
    write_json(folder / STUDY, asdict(facts))
    return open_study(folder)


def _write_lessons(path: Path, parts: Mapping[str, Lessons], roles: Sequence[str]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [
        {
            "part": part,
            "label": int(lessons.labels[row]),
            "measurements": lessons.measurements[row].tolist(),
            **{role: shown[row].tolist() for role, shown in lessons.shown.items()},
        }
        for part, lessons in parts.items()
        for row in range(len(lessons.labels))
    ]
    types = {"part": pa.string(), "label": pa.int64()}
    types |= dict.fromkeys(("measurements", *roles), pa.list_(pa.float64()))
    with atomic_path(path) as temporary:
        pq.write_table(pa.Table.from_pylist(rows, schema=pa.schema(types)), temporary)
