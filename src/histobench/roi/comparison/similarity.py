"""How alike encoders are on the same images: linear CKA, shared nearest neighbors, shared errors.

Every measure has an interval by the jackknife over groups (patients or slides), or over blocks of images
where there are no groups. CKA and neighbors are computed exactly, in blocks of rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from histobench.core.errors import HistobenchError
from histobench.roi.comparison.grids import Grid
from histobench.roi.features.feature_file import FeatureSet, load
from histobench.statistics.jackknife import t_quantile

#: Groups above this number are left out several at a time: the jackknife of blocks.
MOST_BLOCKS = 200
MEASURES = ("cka", "neighbors", "errors")
#: Feature sets up to this many numbers are multiplied in double precision.
DOUBLE = 20_000_000
#: Products of rows that are in memory at a time.
PRODUCTS = 2**25

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Similarity:
    """One measure of two encoders, with its 95% interval over groups."""

    dataset: str
    measure: str  # cka, neighbors or errors
    first: str
    second: str
    value: float | None
    low: float | None = None
    high: float | None = None
    reason: str = ""


def similarity(
    features: Mapping[str, ArrayLike],
    *,
    groups: Sequence[str] | None = None,
    errors: Mapping[str, ArrayLike] | None = None,
    k: int = 10,
    dataset: str = "",
) -> list[Similarity]:
    """Every measure of every pair of encoders.

    Parameters
    ----------
    features : encoder -> features [n, d] of the same images in the same order
    groups : patient or slide [n]
    errors : encoder -> whether the prediction of an image is wrong [n]; the agreement of errors needs it
    k : neighbors of an image
    """
    rows = {name: torch.as_tensor(np.asarray(values)) for name, values in features.items()}
    if len(rows) < 2:
        raise HistobenchError("similarity needs the features of two encoders or more")
    counts = {name: len(values) for name, values in rows.items()}
    count = next(iter(counts.values()))
    if len(set(counts.values())) > 1 or any(values.ndim != 2 for values in rows.values()):
        raise HistobenchError(
            f"similarity needs features [images, dimension] of the same images; found {counts}"
        )
    if count < 5:
        raise HistobenchError(f"similarity needs 5 images or more, not {count}")
    blocks = blocks_of(groups, count)
    k = min(k, count - 1)
    near = {name: neighbors_of(values, k) for name, values in rows.items()}
    found = []
    own = {name: cka_terms(values, values, blocks) for name, values in rows.items()}
    for first, second in combinations(rows, 2):
        cross = cka_terms(rows[first], rows[second], blocks)
        values = _ratio(cross, own[first], own[second])
        found.append(_with_interval(dataset, "cka", first, second, values[0], values[1:], blocks))
        shared = shared_neighbors(near[first], near[second])
        found.append(_of_means(dataset, "neighbors", first, second, shared, blocks))
        if errors is not None and first in errors and second in errors:
            wrong = np.asarray(errors[first], dtype=bool), np.asarray(errors[second], dtype=bool)
            found.append(_kappa(dataset, first, second, *wrong, blocks))
    return found


# Blocks of the jackknife


def blocks_of(groups: Sequence[str] | None, count: int) -> NDArray[np.int64]:
    """The block [n] of every image: its group, or several of them; an image without a group is its own."""
    names: list[str] = [f"\0{row}" for row in range(count)]
    if groups is not None:
        if len(groups) != count:
            raise HistobenchError(f"groups: {len(groups)} for {count} images")
        names = [str(group) or names[row] for row, group in enumerate(groups)]
    _, codes = np.unique(np.asarray(names), return_inverse=True)
    number = int(codes.max()) + 1
    if number > MOST_BLOCKS:
        order = np.random.default_rng(0).permutation(number) % MOST_BLOCKS
        codes = order[codes]
    return codes.astype(np.int64)


def _with_interval(
    dataset: str,
    measure: str,
    first: str,
    second: str,
    value: float,
    without: Floats,
    blocks: NDArray[np.int64],
) -> Similarity:
    number = int(blocks.max()) + 1
    if not math.isfinite(value):
        return Similarity(dataset, measure, first, second, None, reason="not defined: no spread")
    if number < 3 or not np.isfinite(without).all():
        return Similarity(dataset, measure, first, second, value, reason=f"{number} groups: no interval")
    error = math.sqrt((number - 1) / number * float(((without - without.mean()) ** 2).sum()))
    reach = t_quantile(number - 1) * error
    return Similarity(
        dataset, measure, first, second, value, max(value - reach, -1.0), min(value + reach, 1.0)
    )


# Debiased linear CKA (Kornblith et al. 2019) with the unbiased HSIC of Song et al. 2012


def debiased_cka(first: ArrayLike, second: ArrayLike) -> float:
    """Linear CKA of features [n, p] and [n, q] with the unbiased estimator of HSIC.

    >>> draw = np.random.default_rng(0)
    >>> x = draw.normal(size=(50, 4))
    >>> turn = np.linalg.qr(draw.normal(size=(4, 4)))[0]
    >>> round(debiased_cka(x, 3 * x @ turn + 1), 6)
    1.0
    """
    one, two = (torch.as_tensor(np.asarray(values)) for values in (first, second))
    blocks = np.zeros(len(one), dtype=np.int64)
    terms = [cka_terms(*pair, blocks)[0] for pair in ((one, two), (one, one), (two, two))]
    return float(terms[0] / math.sqrt(terms[1] * terms[2]))


def cka_terms(first: Tensor, second: Tensor, blocks: NDArray[np.int64]) -> Floats:
    """Unbiased HSIC of all images, then without each block: [1 + blocks].

    With K = X X' and L = Y Y', both with zero diagonals, HSIC is
    (tr(KL) + 1'K1 1'L1 / ((n-1)(n-2)) - 2/(n-2) 1'KL1) / (n(n-3)). No matrix of n x n is made: all three
    terms follow from X'Y and sums over rows.
    """
    exact = max(first.numel(), second.numel()) <= DOUBLE
    kind = torch.float64 if exact else torch.float32
    x, y = (_centered(rows, kind) for rows in (first, second))
    number = int(blocks.max()) + 1
    places = [torch.from_numpy(np.flatnonzero(blocks == block)) for block in range(number)]
    cross = torch.zeros(x.shape[1], y.shape[1], dtype=kind)
    for place in places:
        cross += x[place].T @ y[place]
    sum_x, sum_y = x.sum(0, dtype=torch.float64), y.sum(0, dtype=torch.float64)
    square_x, square_y = ((rows.double() ** 2).sum(1) if exact else _squares(rows) for rows in (x, y))
    u = (x @ sum_x.to(kind)).double() - square_x
    v = (y @ sum_y.to(kind)).double() - square_y
    y_u, x_v = (y.T @ u.to(kind)).double(), (x.T @ v.to(kind)).double()
    total = {
        "n": float(len(x)),
        "trace": float((cross.double() ** 2).sum() - (square_x * square_y).sum()),
        "k": float(sum_x @ sum_x - square_x.sum()),
        "l": float(sum_y @ sum_y - square_y.sum()),
        "kl": float(u @ v),
    }
    found = [_hsic(**total)]
    for place in places if number > 1 else ():
        gone_x, gone_y = x[place], y[place]
        s_x, s_y = gone_x.sum(0, dtype=torch.float64), gone_y.sum(0, dtype=torch.float64)
        left = (cross - gone_x.T @ gone_y).double()
        both = square_x * square_y
        u_gone = u[place] - (gone_x @ s_x.to(kind)).double()
        v_gone = v[place] - (gone_y @ s_y.to(kind)).double()
        everyone = u @ v - y_u @ s_y - x_v @ s_x + s_x @ (cross.double() @ s_y)
        rest_x, rest_y = sum_x - s_x, sum_y - s_y
        found.append(
            _hsic(
                n=float(len(x) - len(place)),
                trace=float((left**2).sum() - both.sum() + both[place].sum()),
                k=float(rest_x @ rest_x - square_x.sum() + square_x[place].sum()),
                l=float(rest_y @ rest_y - square_y.sum() + square_y[place].sum()),
                kl=float(everyone - u_gone @ v_gone),
            )
        )
    return np.asarray(found)


def _hsic(*, n: float, trace: float, k: float, l: float, kl: float) -> float:  # noqa: E741
    if n < 4:
        return math.nan
    return (trace + k * l / ((n - 1) * (n - 2)) - 2 / (n - 2) * kl) / (n * (n - 3))


def _centered(rows: Tensor, kind: torch.dtype) -> Tensor:
    """Centered and of unit spread; neither changes CKA, both keep rounding small."""
    rows = rows.to(kind)
    rows = rows - rows.mean(0)
    return rows / rows.pow(2).mean().sqrt().clamp_min(1e-30)


def _squares(rows: Tensor) -> Tensor:
    return torch.cat([(part.double() ** 2).sum(1) for part in rows.split(65_536)])


def _ratio(cross: Floats, first: Floats, second: Floats) -> Floats:
    with np.errstate(invalid="ignore", divide="ignore"):
        return cross / np.sqrt(first * second)


# Shared neighbors


def neighbors_of(rows: Tensor, k: int) -> NDArray[np.int64]:
    """The k images [n, k] with the largest cosine to each image, itself left out."""
    unit = torch.nn.functional.normalize(rows.float() - rows.float().mean(0), dim=1)
    step = max(1, PRODUCTS // len(unit))
    found = []
    for start in range(0, len(unit), step):
        products = unit[start : start + step] @ unit.T
        own = torch.arange(len(products))
        products[own, own + start] = -torch.inf
        found.append(products.topk(k, dim=1).indices)
    near: NDArray[np.int64] = torch.cat(found).numpy()
    return near


def shared_neighbors(first: NDArray[np.int64], second: NDArray[np.int64]) -> Floats:
    """The share [n] of the k neighbors that two spaces have in common."""
    merged = np.sort(np.concatenate([first, second], axis=1), axis=1)
    return (merged[:, 1:] == merged[:, :-1]).sum(axis=1) / first.shape[1]


def _of_means(
    dataset: str, measure: str, first: str, second: str, values: Floats, blocks: NDArray[np.int64]
) -> Similarity:
    sums, counts = np.bincount(blocks, values), np.bincount(blocks)
    with np.errstate(invalid="ignore", divide="ignore"):
        without = (values.sum() - sums) / (len(values) - counts)
    return _with_interval(dataset, measure, first, second, float(values.mean()), without, blocks)


# Shared errors


def _kappa(
    dataset: str,
    first: str,
    second: str,
    wrong: NDArray[np.bool_],
    other: NDArray[np.bool_],
    blocks: NDArray[np.int64],
) -> Similarity:
    """Cohen's kappa of being wrong: 1 where both err on the same images, 0 as by chance."""
    cells = np.stack(
        [np.bincount(blocks, part) for part in (wrong & other, wrong, other, np.ones(len(wrong)))]
    )
    total = cells.sum(axis=1)
    without = _kappa_of(total[:, None] - cells)
    return _with_interval(dataset, "errors", first, second, float(_kappa_of(total)), without, blocks)


def _kappa_of(cells: Floats) -> Floats:
    both, one, two, n = cells
    with np.errstate(invalid="ignore", divide="ignore"):
        agreed = (both + (n - one - two + both)) / n
        chance = (one * two + (n - one) * (n - two)) / n**2
        return (agreed - chance) / (1 - chance)


# From a results folder


def similarity_of_results(
    results: Path, *, dataset: str | None = None, encoders: Sequence[str] | None = None, k: int = 10
) -> list[Similarity]:
    """Every pair of encoders of a results folder, on the test images of each dataset."""
    sets: dict[str, dict[str, Path]] = {}
    for path in sorted((results / "features").rglob("*_test.pt")):
        name, _, rest = path.name.removeprefix("Dataset_[").partition("]_Model_[")
        encoder = rest.partition("]_Size_[")[0]
        if (dataset is None or name == dataset) and (not encoders or encoder in encoders):
            sets.setdefault(name, {}).setdefault(encoder, path)
    sets = {name: files for name, files in sets.items() if len(files) > 1}
    if not sets:
        raise HistobenchError(
            f"{results}/features has no dataset with the features of two encoders (of those asked for)"
        )
    wrong = _errors(results)
    found: list[Similarity] = []
    for name, files in sets.items():
        loaded = {encoder: load(path) for encoder, path in files.items()}
        kept, order = _same_images(name, loaded)
        first = next(iter(kept.values()))
        errors = {
            encoder: np.asarray([by_image[image] for image in order])
            for encoder, by_image in wrong.get(name, {}).items()
            if encoder in kept and all(image in by_image for image in order)
        }
        features = {encoder: each.embeddings.numpy() for encoder, each in kept.items()}
        found += similarity(features, groups=first.groups, errors=errors, k=k, dataset=name)
    return found


def _same_images(dataset: str, loaded: dict[str, FeatureSet]) -> tuple[dict[str, FeatureSet], list[str]]:
    order = list(next(iter(loaded.values())).img_names)
    for encoder, each in loaded.items():
        if list(each.img_names) != order:
            raise HistobenchError(f"{dataset}: the features of {encoder} are of other images than the others")
    return loaded, order


def _errors(results: Path) -> dict[str, dict[str, dict[str, bool]]]:
    """Dataset -> encoder -> image -> whether the linear probe (or the first task found) is wrong."""
    from histobench.roi.comparison.selection import by_task
    from histobench.roi.results.reader import load_runs
    from histobench.roi.task_catalogue import CLASS, LINEAR_PROBE

    try:
        tasks = by_task(load_runs(results))
    except HistobenchError:
        return {}
    found: dict[str, dict[str, dict[str, bool]]] = {}
    ranked: Callable[[tuple[str, str, str, int]], bool] = lambda key: key[0] != LINEAR_PROBE  # noqa: E731
    for key in sorted(tasks, key=ranked):
        for run in tasks[key]:
            of_dataset = found.setdefault(run.identity.dataset, {})
            if run.identity.encoder not in of_dataset and run.target == CLASS:
                said = run.predictions
                wrong = (said.predicted != said.labels).tolist()
                of_dataset[run.identity.encoder] = dict(zip(said.img_names, wrong, strict=True))
    return found


HEADINGS = {"cka": "CKA", "neighbors": "shared neighbors", "errors": "shared errors (kappa)"}


def similarity_grid(found: Sequence[Similarity], *, digits: int = 3) -> list[Grid]:
    """One table per dataset: a row for each pair, the most alike first."""
    grids = []
    for dataset in dict.fromkeys(each.dataset for each in found):
        pairs: dict[tuple[str, str], dict[str, Similarity]] = {}
        for each in found:
            if each.dataset == dataset:
                pairs.setdefault((each.first, each.second), {})[each.measure] = each
        ranked = sorted(pairs.items(), key=lambda item: -(item[1]["cka"].value or -1.0))
        rows = tuple(
            (" / ".join(names), *(_cell(measures.get(measure), digits) for measure in MEASURES))
            for names, measures in ranked
        )
        grids.append(
            Grid(
                f"{dataset}: how alike encoders are on the test images",
                ("encoders", *HEADINGS.values()),
                rows,
                ("1: the same; 0: as by chance. 95% intervals by the jackknife over groups of images",),
            )
        )
    return grids


def _cell(each: Similarity | None, digits: int) -> str:
    if each is None or each.value is None:
        return "-"
    text = f"{each.value:.{digits}f}"
    return text if each.low is None else f"{text} [{each.low:.{digits}f}, {each.high:.{digits}f}]"
