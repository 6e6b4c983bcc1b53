"""What an encoder says of every region: its calibrated probe, its features, its text tower."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from histobench.consult.arms import at_temperature, fit_temperature
from histobench.consult.measurements import MEASUREMENTS, measure
from histobench.consult.study import StudyEncoder
from histobench.consult.study_plan import StudyPlan
from histobench.consult.tool_text import Neighbour
from histobench.core.errors import HistobenchError
from histobench.roi.data.image_ref import digest, locate
from histobench.roi.data.roi_dataset import RoiDataset, RoiImage
from histobench.roi.encoders.own_name import label_of

if TYPE_CHECKING:
    from histobench.core.progress import Progress
    from histobench.roi.features.feature_file import FeatureSet
    from histobench.roi.protocols.neighbours import NeighbourSearch

Rows = NDArray[np.float32]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
NAME_LENGTH = 16
NEIGHBOURS = 20
#: Test regions that similarities are calibrated on.
MOST_CALIBRATED = 2000
#: Neighbours that are found beyond those asked for, so that barred ones seldom leave too few.
_SPARE = 16


@dataclass(frozen=True)
class Measured:
    rows: Ints
    labels: Ints
    values: Floats  # [n, 10]


@dataclass(frozen=True)
class Regions:
    """The images of a split in the order of its features; a group is "" where it is unknown."""

    labels: Ints
    images: tuple[str, ...]
    groups: tuple[str, ...]
    paths: tuple[Path, ...]

    def take(self, rows: Ints) -> Regions:
        lists = (self.images, self.groups, self.paths)
        return Regions(self.labels[rows], *(tuple(values[row] for row in rows) for values in lists))

    def first_of_each_picture(self) -> Ints:
        return np.sort(np.unique(np.asarray(self.images), return_index=True)[1])

    def origin(self, row: int) -> set[tuple[str, str]]:
        group = self.groups[row]
        return {("image", self.images[row]), *([("group", group)] if group else [])}

    def pixels(self, row: int) -> NDArray[np.uint8]:
        from histobench.roi.data.image import open_rgb

        path = self.paths[row]
        data = locate(path).read()
        if digest(data).hex()[:NAME_LENGTH] != self.images[row]:
            raise HistobenchError(f"{path} has changed since its features were computed; start again")
        return np.asarray(open_rgb(data, name=str(path)))

    def measured(self, per_class: int, *, seed: int) -> Measured:
        generator = np.random.default_rng([seed, len(self.labels), per_class])
        parts = [
            generator.permutation(np.flatnonzero(self.labels == label))[:per_class]
            for label in np.unique(self.labels)
        ]
        rows = np.sort(np.concatenate(parts)) if parts else np.zeros(0, dtype=np.int64)
        values = np.array([measure(self.pixels(int(row))) for row in rows]).reshape(-1, len(MEASUREMENTS))
        return Measured(rows, self.labels[rows], values)


@dataclass(frozen=True)
class Gallery:
    """The training regions of one encoder, in which neighbours are searched."""

    features: Rows  # [n, d]
    regions: Regions
    names: Sequence[str]  # of the classes
    #: The highest cosine of each test region with a training region, ascending.
    calibration: Rows = field(default_factory=lambda: np.zeros(0, dtype=np.float32))

    @cached_property
    def _search(self) -> NeighbourSearch:
        import torch

        from histobench.roi.protocols.centering import Centring
        from histobench.roi.protocols.neighbours import NeighbourSearch

        train = torch.from_numpy(np.ascontiguousarray(self.features))
        return NeighbourSearch(train, Centring.none(train))

    def percentile(self, neighbours: Sequence[Neighbour]) -> float | None:
        """Return the place of the nearest one's similarity among those of all test regions, 0 to 100."""
        known = self.calibration
        if not len(known) or not neighbours:
            return None
        cosine = np.float32(neighbours[0].cosine)
        below, upto = np.searchsorted(known, cosine, "left"), np.searchsorted(known, cosine, "right")
        return float(100 * (below + upto) / 2 / len(known))

    def nearest(
        self, queries: Rows, *, k: int, barred: Sequence[set[tuple[str, str]]]
    ) -> list[list[Neighbour]]:
        """Return the k training regions of highest cosine with each of `queries` [q, d]."""
        import torch

        found: list[list[Neighbour]] = [[] for _ in queries]
        total = len(self.regions.images)
        short, width = list(range(len(queries))), k + _SPARE
        while short:
            width = min(width, total)
            near = self._search.nearest(
                torch.from_numpy(np.ascontiguousarray(queries[short])), k=width, ranked=True
            )
            for query, rows, cosines in zip(short, near.index.tolist(), near.cosine.tolist(), strict=True):
                found[query] = self._shown(zip(rows, cosines, strict=True), k, barred[query])
            short = [query for query in short if len(found[query]) < k and width < total]
            width *= 4
        return found

    def _shown(
        self, ranked: Iterable[tuple[int, float]], k: int, barred: set[tuple[str, str]]
    ) -> list[Neighbour]:
        found: dict[str, Neighbour] = {}
        for row, cosine in ranked:
            image = self.regions.images[row]
            if image not in found and not barred & self.regions.origin(row):
                found[image] = Neighbour(self.names[self.regions.labels[row]], image, cosine)
                if len(found) == k:
                    break
        return list(found.values())


@dataclass(frozen=True)
class EncoderView:
    """One encoder in its role. `test` and `val` are calibrated probabilities of its linear probe [n, c]."""

    facts: StudyEncoder
    test: Floats
    val: Floats
    features: dict[str, Rows]  # of each split
    zero_shot: Floats | None = None
    cautions: tuple[str, ...] = ()

    def gallery(self, regions: dict[str, Regions], names: Sequence[str]) -> Gallery:
        test = regions["test"]
        found = Gallery(self.features["train"], regions["train"], names)
        rows = test.first_of_each_picture()
        if len(rows) > MOST_CALIBRATED:
            rows = np.sort(np.random.default_rng(len(rows)).choice(rows, MOST_CALIBRATED, replace=False))
        near = found.nearest(self.features["test"][rows], k=1, barred=[test.origin(row) for row in rows])
        cosines = np.array([each[0].cosine for each in near if each], dtype=np.float32)
        return replace(found, calibration=np.sort(cosines))


def view_encoders(
    dataset: RoiDataset,
    roles: dict[str, str],
    plan: StudyPlan,
    features: Path,
    *,
    progress: Progress | None = None,
) -> tuple[dict[str, Regions], dict[str, EncoderView]]:
    """Return the regions of train, val and test, and every encoder's view of them."""
    from histobench.roi.encoders.registry import EncoderRecipe
    from histobench.roi.features.feature_extraction import extract
    from histobench.roi.features.feature_file import load

    for split in ("train", "test"):
        if not dataset.splits.get(split):
            raise HistobenchError(f"{dataset.name} has no {split} images; give `split` 0.7/0.1/0.2")
    made = extract(
        dataset,
        [EncoderRecipe(name, plan.size, weights=plan.weights) for name in roles.values()],
        features,
        progress=progress,
        **asdict(plan.settings),
    )
    sets = {(each.asked, each.split): load(each.path) for each in made}
    parts = {name: [each for each in made if each.asked == name] for name in roles.values()}
    seconds = {
        name: of[0].forward_seconds / sum(each.images for each in of)  # seconds are those of all splits
        for name, of in parts.items()
        if all(each.computed == each.images for each in of)
    }
    regions = _regions(dataset)
    fit = None
    if "val" not in regions:
        fit, rest = _held_out(regions["train"], plan.seed)
        whole = regions["train"]
        regions = {"train": whole.take(fit), "val": whole.take(rest), "test": regions["test"]}
    views = {}
    for role, name in roles.items():
        arrays = {
            split: sets[name, split].embeddings.float().numpy()
            for split in ("train", "val", "test")
            if (name, split) in sets
        }
        if fit is not None:
            arrays["val"], arrays["train"] = arrays["train"][rest], arrays["train"][fit]
        views[role] = _view(role, name, arrays, regions, sets[name, "test"], dataset, plan, seconds.get(name))
    return regions, views


def _regions(dataset: RoiDataset) -> dict[str, Regions]:
    known: dict[Path, str] = {}

    def name_of(image: RoiImage) -> str:
        if image.path not in known:
            known[image.path] = digest(locate(image.path).read()).hex()[:NAME_LENGTH]
        return known[image.path]

    return {
        split: Regions(
            np.array([image.label for image in images], dtype=np.int64),
            tuple(name_of(image) for image in images),
            tuple("" if image.group is None else str(image.group) for image in images),
            tuple(image.path for image in images),
        )
        for split, images in dataset.splits.items()
        if images
    }


def _held_out(train: Regions, seed: int) -> tuple[Ints, Ints]:
    from histobench.roi.protocols.linear_probe import held_out

    fit, rest = held_out(train.labels, list(train.groups) if any(train.groups) else None, seed=seed)
    if not len(rest):
        raise HistobenchError(
            "the tool's confidence is fitted on validation images, but every class has one group (or image) "
            "to train on; give a validation split"
        )
    return fit, rest


def _view(
    role: str,
    name: str,
    arrays: dict[str, Rows],
    regions: dict[str, Regions],
    test_set: FeatureSet,
    dataset: RoiDataset,
    plan: StudyPlan,
    seconds: float | None,
) -> EncoderView:
    import torch

    from histobench.roi.protocols.knn import knn
    from histobench.roi.protocols.linear_probe import linear_probe

    train, val, test = (
        torch.from_numpy(np.ascontiguousarray(arrays[split])) for split in ("train", "val", "test")
    )
    labels = torch.from_numpy(regions["train"].labels)
    n_classes = len(dataset.classes)
    outcome = linear_probe(train, labels, torch.cat([val, test]), n_classes=n_classes)
    on_val, on_test = outcome.probabilities[: len(val)], outcome.probabilities[len(val) :]
    temperature = fit_temperature(on_val, regions["val"].labels)
    votes = knn(train, labels, test, n_classes=n_classes, n_neighbors=min(NEIGHBOURS, len(train)))
    facts = StudyEncoder(
        role=role,
        name=label_of(name),
        fingerprint=str(test_set.metadata["encoder_fingerprint"]),
        temperature=temperature,
        probe_accuracy=float((on_test.argmax(1) == regions["test"].labels).mean()),
        knn_accuracy=float((votes.predicted == regions["test"].labels).mean()),
        validation_accuracy=float((on_val.argmax(1) == regions["val"].labels).mean()),
        seconds_per_image=seconds,
    )
    return EncoderView(
        facts,
        at_temperature(on_test, temperature),
        at_temperature(on_val, temperature),
        arrays,
        _zero_shot(test_set, dataset, plan),
        tuple(f"{name}: {text}" for text in outcome.info.get("warnings", ())),
    )


def _zero_shot(test_set: FeatureSet, dataset: RoiDataset, plan: StudyPlan) -> Floats | None:
    from histobench.roi.evaluation.context import Context, TaskSkippedError
    from histobench.roi.evaluation.evaluation_request import EvaluationRequest
    from histobench.roi.evaluation.zero_shot_task import zero_shot_outcome
    from histobench.roi.options import Options

    if plan.prompts is None:
        return None
    options = Options(zeroshot_prompt_file=plan.prompts)
    request: Any = EvaluationRequest(
        ("zero_shot",), test_set, test_set, Path(), weights=plan.weights, options=options
    )
    try:
        return zero_shot_outcome(Context(request, tuple(dataset.classes), "cpu")).probabilities
    except TaskSkippedError:
        return None
