"""The robustness pack from feature sets: by each site column, over the images of all splits."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from histobench.core.errors import HistobenchError
from histobench.roi.data.check import CONFOUNDED, cramers_v
from histobench.roi.data.roi_dataset import SPLITS
from histobench.roi.data.sites import PAIR_COLUMN, is_place
from histobench.roi.evaluation.caveats import origin_caveats
from histobench.roi.evaluation.context import Context, TaskSkippedError, merged
from histobench.roi.features.feature_file import FeatureSet
from histobench.roi.protocols.centering import Centring, row_chunks
from histobench.roi.protocols.knn import distances_to, knn, prototype
from histobench.roi.protocols.linear_probe import fitted_linear_probe, linear_probe, linear_probes_of_parts
from histobench.roi.protocols.neighbours import nearest
from histobench.roi.protocols.outcome import Outcome
from histobench.roi.robustness.leaving_out import Measure, NothingToCompareError
from histobench.roi.robustness.pack import Pack, RobustnessResult, Tissue, measure_robustness
from histobench.roi.robustness.registered_pairs import joined_groups, measure_pairs, register
from histobench.roi.robustness.site_neighbours import Ints
from histobench.roi.robustness.site_probes import FitSites, FitWithout

#: How near to the minimum a linear probe without a unit goes, and neighbours that are listed for all images.
_LOOSE, _MOST_LISTED = 1e-5, 1 << 23
_CHUNK = 1 << 26
NO_SITES = (
    "the features name no site; give the dataset a column such as site, scanner or stain, or `site_regex`, "
    "and extract again"
)


@dataclass(frozen=True)
class RobustnessOptions:
    k: int | None = None
    n_neighbors: int = 20
    max_iteration: int = 1000
    device: str = "cpu"


def run_robustness(context: Context) -> Iterator[RobustnessResult]:
    """The task of an evaluation: every site column of the features."""
    request, options = context.request, context.request.options
    chosen = RobustnessOptions(None, options.n_neighbors, options.max_iteration, context.device)
    features = merged(merged(request.train, request.val), request.test)
    results = list(measure_columns(features, None, chosen, context.classes))
    found = [result for _, result in results if isinstance(result, RobustnessResult)]
    if not found:
        reasons = (f"{column}: {why}" if column else str(why) for column, why in results)
        raise TaskSkippedError("; ".join(reasons))
    yield from found


def site_columns(features: FeatureSet) -> tuple[str, ...]:
    """The columns of a feature set that name places; registered pairs are no place."""
    return tuple(column for column in features.sites if is_place(column))


#: Dataset, encoder and image size: what features of several splits have in common.
FeatureKey = tuple[str, str, str]


def joined_splits(given: Iterable[tuple[str, FeatureSet]]) -> tuple[dict[FeatureKey, FeatureSet], list[str]]:
    """The features of each dataset, encoder and size in one set, and why some named ones were left out."""
    found: dict[FeatureKey, dict[str, FeatureSet]] = {}
    for name, features in given:
        about = features.metadata
        key = (
            str(about.get("dataset") or "dataset"),
            str(about.get("encoder") or Path(name).stem),
            str(about.get("size") or ""),
        )
        split = str(about.get("split") or Path(name).stem.rpartition("_")[2])
        if split in found.setdefault(key, {}):
            raise HistobenchError(f"{name}: the {split} features of {key[1]} on {key[0]} are given twice")
        found[key][split] = features
    joined: dict[FeatureKey, FeatureSet] = {}
    left_out: list[str] = []
    for key, splits in found.items():
        ordered = dict.fromkeys((*(split for split in SPLITS if split in splits), *splits))
        if len({features.embeddings.shape[1] for features in splits.values()}) > 1:
            left_out.append(f"the features of {key[1]} on {key[0]} differ in their dimension")
        else:
            joined[key] = reduce(merged, (splits[split] for split in ordered))
    return joined, left_out


def feature_files(given: Iterable[str | Path]) -> list[Path]:
    files: list[Path] = []
    for item in map(Path, given):
        inside = sorted(item.rglob("*.pt")) if item.is_dir() else [item]
        if not inside:
            raise HistobenchError(f"{item} holds no feature files (.pt)")
        files += inside
    return list(dict.fromkeys(files))


def measure_columns(
    features: FeatureSet,
    columns: Sequence[str] | None,
    options: RobustnessOptions,
    classes: tuple[str, ...] = (),
) -> Iterator[tuple[str, RobustnessResult | HistobenchError]]:
    """Each site column (default: all) with its measures, or the error for which there are none.

    Columns without numbers come last, as results where another column has numbers, else as errors.
    """
    pairs = (PAIR_COLUMN,) if PAIR_COLUMN in features.sites else ()  # after the places
    wanted = columns or (*site_columns(features), *pairs)
    if not wanted:
        yield "", HistobenchError(NO_SITES)
    classes = classes or tuple(map(str, features.metadata.get("classes") or ()))
    classes = classes or tuple(map(str, range(int(features.labels.max()) + 1)))
    found: list[RobustnessResult] = []
    for column in wanted:
        if column not in features.sites:
            known = ", ".join(features.sites) or "none"
            yield column, HistobenchError(f"there is no site column {column!r} (it has: {known})")
            continue
        try:
            result = robustness_by(features, column, classes, options)
        except HistobenchError as error:  # the other columns and encoders are measured all the same
            yield column, error
            continue
        found.append(result)
        if not result.reason:
            yield column, result
    for result in filter(lambda result: result.reason, found):
        yield (
            result.column,
            HistobenchError(result.reason) if all(other.reason for other in found) else result,
        )


def robustness_by(
    features: FeatureSet, column: str, classes: tuple[str, ...], options: RobustnessOptions
) -> RobustnessResult:
    """The pack by one site column, or of registered pairs; images whose site is not known are left out."""
    _check_features(features)
    try:
        if column == PAIR_COLUMN:
            return _registered_pairs(features, classes, options)
        return _by_place(features, column, classes, options)
    except NothingToCompareError as error:
        return _without_numbers(features, column, classes, str(error))


def _without_numbers(
    features: FeatureSet, column: str, classes: tuple[str, ...], reason: str
) -> RobustnessResult:
    values, what = features.sites[column], f"by {column}"
    measures: tuple[str, ...] = ("robustness_index", "croma_median", "site_probe_auroc")
    if column == PAIR_COLUMN:
        values, what, measures = ("",) * len(features), "for registered pairs", ("pair_score",)
    _, tissue, images, _ = _tissue(features, values, classes)
    pack = Pack({name: Measure(None, reason=reason) for name in measures})
    caveat = f"no number {what}: {reason}"
    return RobustnessResult(column, pack, tissue, images, float("nan"), (caveat,), reason)


def _by_place(
    features: FeatureSet, column: str, classes: tuple[str, ...], options: RobustnessOptions
) -> RobustnessResult:
    if len(features.embeddings) > 1 and bool((features.embeddings == features.embeddings[0]).all()):
        raise HistobenchError("all images have the same features; the encoder has collapsed")
    rows, tissue, images, of_groups = _tissue(features, features.sites[column], classes)
    caveats = [*origin_caveats(features), *of_groups]
    if left_out := len(features) - len(rows):
        caveats.append(f"{left_out:,} images have no {column} and are left out")
    confounding = cramers_v(tissue.labels.tolist(), tissue.sites.tolist()) if len(rows) else float("nan")
    if confounding >= CONFOUNDED:
        caveats.append(f"label and {column} are confounded (Cramer's V {confounding:.2f})")
    messages: list[str] = []
    pack = measure_robustness(
        features.embeddings.numpy()[rows],
        tissue,
        protocols(len(classes), options, messages),
        k=options.k,
        at_many_sites={"linear_probe": _linear_probes_at_once(options, messages)},
    )
    pack = _with_names(pack, tissue, [features.img_names[row] for row in rows])
    caveats += [f"at a new site: {text}" for text in dict.fromkeys(messages)]
    return RobustnessResult(column, pack, tissue, images, confounding, tuple(caveats))


def _tissue(
    features: FeatureSet, values: Sequence[str], classes: tuple[str, ...]
) -> tuple[Ints, Tissue, str, tuple[str, ...]]:
    """The images whose site (one of `values`) is known: rows, tissue, digest, and caveats of their groups."""
    rows = np.array([row for row, value in enumerate(values) if value], dtype=np.int64)
    names, sites = np.unique(np.array([values[row] for row in rows], dtype=object), return_inverse=True)
    labels = features.labels.numpy()[rows]
    groups, caveats = _groups(features, rows)
    tissue = Tissue(labels, sites.astype(np.int64), groups, classes, tuple(map(str, names)))
    named = [(features.img_names[row], values[row]) for row in rows]
    return rows, tissue, _digest(named, labels, groups), caveats


def _check_features(features: FeatureSet) -> None:
    finite = features.embeddings.isfinite().all(dim=1)
    if not bool(finite.all()):
        first = features.img_names[int((~finite).nonzero()[0])]
        raise HistobenchError(
            f"the features of {int((~finite).sum()):,} images hold NaN or infinity (the first: {first}); "
            "extract them again, in float32"
        )


def _registered_pairs(
    features: FeatureSet, classes: tuple[str, ...], options: RobustnessOptions
) -> RobustnessResult:
    columns = {name: features.sites[name] for name in site_columns(features)}
    registered = register(features.sites[PAIR_COLUMN], columns)
    rows = registered.rows
    groups, _ = _groups(features, rows)
    caveats = [*origin_caveats(features)]
    if features.groups is None:
        caveats.append("no groups are given: intervals are over places, which may be of the same patient")
    if registered.without_view:
        caveats.append(f"{registered.without_view:,} images lack a site column and are left out")
    if registered.copies:
        caveats.append(
            f"{registered.copies:,} images show a place that another one of their view shows; "
            "the first is used"
        )
    pack = measure_pairs(features.embeddings.numpy()[rows], registered, groups, device=options.device)
    labels = features.labels.numpy()[rows]
    views = tuple(" / ".join(view) for view in registered.views)
    named = [
        (features.img_names[row], features.sites[PAIR_COLUMN][row], views[view])
        for row, view in zip(rows, registered.view, strict=True)
    ]
    joined = joined_groups(registered.place, groups)
    tissue = Tissue(labels, registered.view, joined, classes, views)
    digest = _digest(named, labels, joined)
    return RobustnessResult(PAIR_COLUMN, pack, tissue, digest, float("nan"), tuple(caveats))


def _with_names(pack: Pack, tissue: Tissue, names: list[str]) -> Pack:
    """The worst images by name, class and site instead of by row."""

    def named(row: int) -> dict[str, str]:
        label, site = tissue.classes[tissue.labels[row]], tissue.site_names[tissue.sites[row]]
        return {"image": names[row], "label": label, "site": site}

    def neighbor(found: Mapping[str, Any]) -> dict[str, Any]:
        return {**named(found["row"]), "distance": found["distance"]}

    worst = [
        {
            "margin": each["margin"],
            "image": named(each["row"]),
            "same_site": neighbor(each["same_site"]),
            "same_class": neighbor(each["same_class"]),
        }
        for each in pack.details.get("worst_images", ())
    ]
    return replace(pack, details={**pack.details, "worst_images": worst})


def protocols(n_classes: int, options: RobustnessOptions, messages: list[str]) -> Mapping[str, FitWithout]:
    """The protocols of preset `uni`, each also without one unit of the training images at a time.

    Features stay centred by the mean of all; what protocols say is added to `messages`.
    """

    def by(outcome_of: Callable[..., Outcome], without: Callable[[_Refit], Ints], **more: int) -> FitWithout:
        def fit(
            x: NDArray[np.floating], y: Ints, new: NDArray[np.floating], units: Ints, count: int
        ) -> tuple[Ints, Ints]:
            train, labels, test = torch.from_numpy(x), torch.from_numpy(y), torch.from_numpy(new)
            outcome = outcome_of(train, labels, test, n_classes=n_classes, device=options.device, **more)
            messages.extend(outcome.info.get("warnings", ()))
            left = np.tile(outcome.predicted, (count, 1))
            shown = np.unique(units[units >= 0])
            if len(shown):
                numbers = torch.from_numpy(units), torch.from_numpy(shown)
                left[shown] = without(_Refit(train, labels, test, *numbers, n_classes, options, outcome))
            return outcome.predicted, left

        return fit

    return {
        "linear_probe": by(linear_probe, _linear_probe_without, max_iteration=options.max_iteration),
        "knn": by(knn, _knn_without, n_neighbors=options.n_neighbors),
        "prototype": by(prototype, _prototype_without),
    }


def _linear_probes_at_once(options: RobustnessOptions, messages: list[str]) -> FitSites:
    """The linear probe of `protocols` without each of many sites, fitted together."""

    def fit(
        features: NDArray[np.floating], labels: Ints, trains: NDArray[np.bool_], tests: list[Ints]
    ) -> list[Ints] | None:
        if not all((trains & (labels == label)).any(axis=1).all() for label in np.unique(labels)):
            return None  # another number of classes is another penalty
        x = torch.from_numpy(features)
        how: dict[str, Any] = {"max_iteration": options.max_iteration, "device": options.device}
        present, probes = linear_probes_of_parts(x, torch.from_numpy(labels), torch.from_numpy(trains), **how)
        if any(float(probe.weight.norm()) == 0 or not probe.converged for probe in probes):
            return None  # one by one, with the warning of `linear_probe`
        every = zip(probes, [x[torch.from_numpy(rows)].to(options.device) for rows in tests], strict=True)
        return [present[probe.logits(rows).argmax(dim=1)].cpu().numpy() for probe, rows in every]

    return fit


@dataclass(frozen=True)
class _Refit:
    """A protocol that was trained on `train`, and is to be without each of the units `shown`."""

    train: Tensor
    labels: Tensor
    test: Tensor
    units: Tensor  # of the training images
    shown: Tensor
    n_classes: int
    options: RobustnessOptions
    outcome: Outcome

    def unchanged(self) -> Ints:
        return np.tile(self.outcome.predicted, (len(self.shown), 1))  # [shown, n]


def _linear_probe_without(fit: _Refit) -> Ints:
    left, train, labels, options = fit.unchanged(), fit.train, fit.labels, fit.options
    if fit.outcome.info.get("weight_norm") == 0:
        return left
    how: dict[str, Any] = {"max_iteration": options.max_iteration, "device": options.device}
    how["tolerance"] = _LOOSE
    kept, queries = fit.units[None] != fit.shown[:, None], fit.test.to(options.device)
    shows = torch.stack([(kept & (labels == label)).any(dim=1) for label in labels.unique()])  # [c, shown]
    whole = torch.nonzero(shows.all(dim=0)).flatten()
    if len(whole):
        present, probes = linear_probes_of_parts(train, labels, kept[whole], **how)
        for row, probe in zip(whole.tolist(), probes, strict=True):
            left[row] = present[probe.logits(queries).argmax(dim=1)].cpu().numpy()
    # Without a class the penalty is another one.
    for row in torch.nonzero(~shows.all(dim=0) & (shows.sum(dim=0) > 1)).flatten().tolist():
        classes, probe = fitted_linear_probe(train[kept[row]], labels[kept[row]], **how)
        left[row] = classes[probe.logits(queries).argmax(dim=1)].cpu().numpy()
    return left


def _knn_without(fit: _Refit) -> Ints:
    """Labels [shown, n] by the nearest neighbours without each unit: the next of the list step in."""
    k, left, place = fit.options.n_neighbors, fit.unchanged(), fit.options.device
    train, test = fit.train.to(place), fit.test.to(place)
    largest = int(torch.bincount(fit.units).max())
    width = min(len(train), k + largest, max(8 * k, _MOST_LISTED // max(1, len(test))))
    index = nearest(train, test, k=width, centring=Centring.of(train), ranked=True).index.cpu()
    listed, votes_of = fit.units[index], fit.labels[index]
    for row, unit in enumerate(fit.shown):
        touched = torch.nonzero((listed[:, :k] == unit).any(dim=1)).flatten()
        if not len(touched):
            continue
        kept = listed[touched] != unit
        # Images whose list is too short, and all where too few training images are left, vote with what is.
        kept &= kept.cumsum(dim=1) <= k
        votes = torch.zeros(len(touched), fit.n_classes, dtype=torch.float64)
        votes.scatter_add_(1, votes_of[touched], kept.double())
        left[row, touched.numpy()] = votes.argmax(dim=1).numpy()
    return left


def _prototype_without(fit: _Refit) -> Ints:
    train, test, labels, shown, n_classes = fit.train, fit.test, fit.labels, fit.shown, fit.n_classes
    centring = Centring.of(train)
    place = torch.searchsorted(shown, fit.units)
    sums = torch.zeros(len(shown) * n_classes, train.shape[1], dtype=torch.float64)
    for part in row_chunks(len(train), 24 * train.shape[1], _CHUNK):
        sums.index_add_(0, place[part] * n_classes + labels[part], centring.apply(train[part]))
    counts = torch.bincount(place * n_classes + labels, minlength=len(sums)).reshape(-1, n_classes)
    sums = sums.reshape(len(shown), n_classes, -1)
    counts, sums = counts.sum(dim=0) - counts, sums.sum(dim=0) - sums
    left = np.empty((len(shown), len(test)), dtype=np.int64)
    for part in row_chunks(len(test), 24 * test.shape[1], _CHUNK):
        queries = centring.apply(test[part])
        for row in range(len(shown)):
            distances = distances_to(queries, sums[row] / counts[row].clamp_min(1)[:, None])
            distances[:, counts[row] == 0] = torch.inf
            left[row, part] = distances.argmin(dim=1).numpy()
    return left


def _groups(features: FeatureSet, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Groups as numbers; an image without one is a group of its own."""
    if features.groups is None:
        caveat = "no groups are given: neighbors may be of the same patient, and intervals are over images"
        return np.arange(len(rows)), (caveat,)
    names = [f"g{features.groups[row]}" if features.groups[row] else f"i{row}" for row in rows]
    return np.unique(np.array(names, dtype=object), return_inverse=True)[1].astype(np.int64), ()


def _digest(named: object, labels: NDArray[np.int64], groups: NDArray[np.int64]) -> str:
    numbers = labels.astype("<i8").tobytes() + groups.astype("<i8").tobytes()
    return hashlib.sha256(repr(named).encode("utf-8", "surrogatepass") + numbers).hexdigest()[:16]
