"""How alike encoders are on the same images: linear CKA, shared nearest neighbors, shared errors.

Every measure has an interval by the jackknife over groups (patients or slides), or over blocks of images.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from histobench.core.errors import HistobenchError
from histobench.core.threads import spread
from histobench.roi.comparison.selection import by_task
from histobench.roi.comparison.similarity_table import Similarity
from histobench.roi.features.feature_file import load
from histobench.roi.protocols.centering import Centring
from histobench.roi.protocols.neighbours import nearest
from histobench.roi.result_options import MEASURES, SimilarityOptions
from histobench.roi.results.reader import load_runs
from histobench.roi.task_catalogue import CLASS, LINEAR_PROBE
from histobench.statistics.jackknife import Floats, t_quantile

#: Groups above this number are left out several at a time: the jackknife of blocks.
MOST_BLOCKS = 200
#: Feature sets up to this many numbers are multiplied in double precision.
DOUBLE = 20_000_000
#: Numbers of the blocks' products that are kept instead of being computed twice.
KEPT = 2**29


def similarity(
    features: Mapping[str, ArrayLike],
    *,
    groups: Sequence[str] | None = None,
    errors: Mapping[str, ArrayLike] | None = None,
    k: int = 10,
    dataset: str = "",
    measures: Sequence[str] = MEASURES,
) -> list[Similarity]:
    """Every measure of every pair of encoders, from features [n, d] of the same images in the same order.

    `errors` says whether the prediction of an image is wrong [n]; the agreement of errors needs it.
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
    near = {name: neighbors_of(values, k) for name, values in rows.items() if "neighbors" in measures}
    exact = max(values.numel() for values in rows.values()) <= DOUBLE
    ready = {name: _Rows(values, blocks, exact=exact) for name, values in rows.items() if "cka" in measures}
    room = _Room()
    own = {name: _hsic_terms(values, values, room) for name, values in ready.items()}
    found = []
    number = int(blocks.max()) + 1
    for first, second in combinations(rows, 2):
        values: dict[str, Floats] = {}  # of all images, then without each block
        if ready:
            # Debiased linear CKA (Kornblith et al. 2019).
            with np.errstate(invalid="ignore", divide="ignore"):
                both = _hsic_terms(ready[first], ready[second], room)
                values["cka"] = both / np.sqrt(own[first] * own[second])
        if near:
            merged = np.sort(np.concatenate([near[first], near[second]], axis=1), axis=1)
            values["neighbors"] = _means((merged[:, 1:] == merged[:, :-1]).sum(axis=1) / k, blocks)
        if "errors" in measures and errors is not None and first in errors and second in errors:
            wrong = np.asarray(errors[first], dtype=bool), np.asarray(errors[second], dtype=bool)
            values["errors"] = _kappa(*wrong, blocks)
        for measure, each in values.items():
            found.append(_with_interval(Similarity(dataset, measure, first, second, None), each, number))
    return found


def blocks_of(groups: Sequence[str] | None, count: int) -> NDArray[np.int64]:
    names: list[str] = [f"\0{row}" for row in range(count)]
    if groups is not None:
        if len(groups) != count:
            raise HistobenchError(f"groups: {len(groups)} for {count} images")
        names = [str(group) or names[row] for row, group in enumerate(groups)]
    _, codes = np.unique(np.asarray(names), return_inverse=True)
    number = int(codes.max()) + 1
    if number > MOST_BLOCKS:
        codes = (np.random.default_rng(0).permutation(number) % MOST_BLOCKS)[codes]
    return codes.astype(np.int64)


def _with_interval(pair: Similarity, values: Floats, number: int) -> Similarity:
    """The pair with its value and interval from those of all images, then without each block."""
    value, without = float(values[0]), values[1:]
    if not math.isfinite(value):
        return replace(pair, reason="not defined: no spread")
    if number < 3 or not np.isfinite(without).all():
        return replace(pair, value=value, reason=f"{number} groups: no interval")
    error = math.sqrt((number - 1) / number * float(((without - without.mean()) ** 2).sum()))
    reach = float(t_quantile(number - 1)) * error
    return replace(pair, value=value, low=max(value - reach, -1.0), high=min(value + reach, 1.0))


class _Rows:
    """What every product with the features of one encoder needs, computed once: rows sorted by block."""

    def __init__(self, rows: Tensor, blocks: NDArray[np.int64], *, exact: bool) -> None:
        self.kind = torch.float64 if exact else torch.float32
        order = np.argsort(blocks, kind="stable")
        self.sizes = np.bincount(blocks).tolist()
        # Centered and of unit spread: neither changes CKA, both keep rounding small.
        rows = rows.to(self.kind) - rows.to(self.kind).mean(0)
        self.x = (rows / rows.pow(2).mean().sqrt().clamp_min(1e-30))[torch.from_numpy(order)]
        self.square = torch.cat([(part.double() ** 2).sum(1) for part in self.x.split(65_536)])
        #: Sums of rows, of all images and of each block.
        self.sum = self.x.sum(0, dtype=torch.float64)
        parts = self.x.split(self.sizes)
        self.sums = torch.stack([part.sum(0, dtype=torch.float64) for part in parts])
        #: K1 without the diagonal, of all images and of those of the block.
        self.u = (self.x @ self.sum.to(self.kind)).double() - self.square
        inside = [part @ total.to(self.kind) for part, total in zip(parts, self.sums, strict=True)]
        self.inside = torch.cat(inside).double()

    def per_block(self, values: Tensor) -> Tensor:
        return torch.stack([part.sum() for part in values.split(self.sizes)])


def _hsic_terms(a: _Rows, b: _Rows, room: _Room) -> Floats:
    """Unbiased HSIC (Song et al. 2012) of all images, then without each block: [1 + blocks].

    With K = X X' and L = Y Y', both with zero diagonals, HSIC is
    (tr(KL) + 1'K1 1'L1 / ((n-1)(n-2)) - 2/(n-2) 1'KL1) / (n(n-3)); all three terms follow from X'Y and sums
    over rows. Without a block, C = X'Y loses the block's product P, and |C - P|^2 = |C|^2 - 2 C.P + |P|^2.
    """
    cross, dots, norms = _products(a, b, room)
    both = a.square * b.square
    y_u, x_v = ((rows.x.T @ u.to(rows.kind)).double() for rows, u in ((b, a.u), (a, b.u)))
    trace = (cross**2).sum() - both.sum()
    kl = a.u @ b.u
    k, l = (rows.sum @ rows.sum - rows.square.sum() for rows in (a, b))  # noqa: E741
    count = float(len(a.x))
    found = [_hsic(n=count, trace=float(trace), k=float(k), l=float(l), kl=float(kl))]
    if len(a.sizes) == 1:
        return np.asarray(found)
    left = {
        "n": count - torch.tensor(a.sizes, dtype=torch.float64),
        "trace": trace - 2 * dots + norms + a.per_block(both),
        "k": ((a.sum - a.sums) ** 2).sum(1) - a.square.sum() + a.per_block(a.square),
        "l": ((b.sum - b.sums) ** 2).sum(1) - b.square.sum() + b.per_block(b.square),
        "kl": kl - b.sums @ y_u - a.sums @ x_v + (a.sums @ cross * b.sums).sum(1)
        - a.per_block((a.u - a.inside) * (b.u - b.inside)),
    }  # fmt: skip
    rows = torch.stack(list(left.values()), 1).tolist()
    found += [_hsic(**dict(zip(left, row, strict=True))) for row in rows]
    return np.asarray(found)


def _products(a: _Rows, b: _Rows, room: _Room) -> tuple[Tensor, Tensor, Tensor]:
    """X'Y [p, q], and for the product P of each block its dot with X'Y and its squared norm: [blocks]."""
    shape = a.x.shape[1], b.x.shape[1]
    pairs = list(zip(a.x.split(a.sizes), b.x.split(b.sizes), strict=True))
    if len(pairs) * shape[0] * shape[1] <= KEPT:
        each = room.get(len(pairs), *shape, dtype=a.x.dtype)

        def product_of(block: int) -> Tensor:
            x, y = pairs[block]
            return torch.linalg.vector_norm(torch.mm(x.T, y, out=each[block])) ** 2

        norms = torch.stack(spread(product_of, range(len(pairs))))
        cross = each.sum(0)
        return cross.double(), (each.flatten(1) @ cross.flatten()).double(), norms.double()
    cross = a.x.T @ b.x

    def dot_and_norm(block: int) -> Tensor:
        x, y = pairs[block]
        product = x.T @ y
        return torch.stack([(values * product).sum(dtype=torch.float64) for values in (cross, product)])

    dots, norms = torch.stack(spread(dot_and_norm, range(len(pairs)))).unbind(1)
    return cross.double(), dots, norms


class _Room:
    """Memory for the products of a pair, used again for the next: to get new memory takes longer."""

    def __init__(self) -> None:
        self.values: Tensor | None = None

    def get(self, *shape: int, dtype: torch.dtype) -> Tensor:
        count = math.prod(shape)
        if self.values is None or len(self.values) < count or self.values.dtype != dtype:
            self.values = torch.empty(count, dtype=dtype)
        return self.values[:count].view(shape)


def _hsic(*, n: float, trace: float, k: float, l: float, kl: float) -> float:  # noqa: E741
    if n < 4:
        return math.nan
    return (trace + k * l / ((n - 1) * (n - 2)) - 2 / (n - 2) * kl) / (n * (n - 3))


def neighbors_of(rows: Tensor, k: int) -> NDArray[np.int64]:
    """The k images [n, k] with the largest cosine to each image, itself left out."""
    near = nearest(rows, rows, k=k + 1, centring=Centring.none(rows)).index.sort(dim=1).values
    own = near == torch.arange(len(near))[:, None]
    own[~own.any(1), -1] = True  # an image with more than k copies before it
    return near[~own].view(len(near), k).numpy()


def _means(values: Floats, blocks: NDArray[np.int64]) -> Floats:
    sums, counts = np.bincount(blocks, values), np.bincount(blocks)
    with np.errstate(invalid="ignore", divide="ignore"):
        without = (values.sum() - sums) / (len(values) - counts)
    return np.append(values.mean(), without)


def _kappa(wrong: NDArray[np.bool_], other: NDArray[np.bool_], blocks: NDArray[np.int64]) -> Floats:
    """Cohen's kappa of being wrong: 1 where both err on the same images, 0 as by chance."""
    parts = wrong & other, wrong, other, np.ones(len(wrong))
    cells = np.stack([np.bincount(blocks, part) for part in parts])
    total = cells.sum(axis=1)
    return np.append(_kappa_of(total), _kappa_of(total[:, None] - cells))


def _kappa_of(cells: Floats) -> Floats:
    both, one, two, n = cells
    with np.errstate(invalid="ignore", divide="ignore"):
        agreed = (both + (n - one - two + both)) / n
        chance = (one * two + (n - one) * (n - two)) / n**2
        return (agreed - chance) / (1 - chance)


def similarity_of_results(results: Path, options: SimilarityOptions) -> list[Similarity]:
    dataset, encoders = options.dataset, options.encoders
    sets: dict[str, dict[str, Path]] = {}
    for path in sorted((results / "features").rglob("*_test.pt")):
        name, _, rest = path.name.removeprefix("Dataset_[").partition("]_Model_[")
        encoder = rest.partition("]_Size_[")[0]
        if dataset in (None, name) and (not encoders or encoder in encoders):
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
        first = next(iter(loaded.values()))
        order = list(first.img_names)
        for encoder, each in loaded.items():
            if list(each.img_names) != order:
                raise HistobenchError(
                    f"{name}: the features of {encoder} are of other images than the others"
                )
        errors = {
            encoder: np.asarray([by_image[image] for image in order])
            for encoder, by_image in wrong.get(name, {}).items()
            if encoder in loaded and all(image in by_image for image in order)
        }
        features = {encoder: each.embeddings.numpy() for encoder, each in loaded.items()}
        more: dict[str, Any] = {"k": options.k, "measures": options.measures, "dataset": name}
        found += similarity(features, groups=first.groups, errors=errors, **more)
    return found


def _errors(results: Path) -> dict[str, dict[str, dict[str, bool]]]:
    """Dataset -> encoder -> image -> whether the linear probe (or the first task found) is wrong."""
    try:
        tasks = by_task(load_runs(results))
    except (HistobenchError, OSError):
        return {}
    found: dict[str, dict[str, dict[str, bool]]] = {}
    for key in sorted(tasks, key=lambda key: key[0] != LINEAR_PROBE):
        for run in tasks[key]:
            of_dataset = found.setdefault(run.identity.dataset, {})
            if run.identity.encoder not in of_dataset and run.target == CLASS:
                said = run.predictions
                wrong = (said.predicted != said.labels).tolist()
                of_dataset[run.identity.encoder] = dict(zip(said.img_names, wrong, strict=True))
    return found
