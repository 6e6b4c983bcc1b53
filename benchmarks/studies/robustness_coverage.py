"""Do intervals of robustness measures cover the truth, and do equal encoders differ by chance alone?

python benchmarks/studies/robustness_coverage.py --quick  # a minute: few studies, wide margins
python benchmarks/studies/robustness_coverage.py --studies 400 --workers 16  # docs/explanation/robustness.md

A study has patients of two classes at several sites. The features of an image are the sum of its class, its
site (both fixed), its patient and itself (both drawn anew in every study). Two encoders look at the same
patients: part of what is drawn is common to both. The truth of a measure is its mean over other studies of
the same design, so an interval answers: what would other patients of the same sites have given? Intervals
and differences are made by the functions that `histobench robustness` uses.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product
from typing import Any

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import numpy as np  # noqa: E402  (after the number of threads is set)

DIMENSIONS, SCALE, NEIGHBOURS = 64, 8.0, 10
MEASURES = (
    "robustness_index",
    "robustness_index_k11",
    "margin_aware_index",
    "croma_median",
    "croma_worst_tenth",
    "croma_share_below",
    "site_probe_auroc",
    "new_site_linear_probe_mean",
    "new_site_linear_probe_worst",
    "new_site_knn_mean",
    "new_site_knn_worst",
    "new_site_prototype_mean",
    "new_site_prototype_worst",
)


@dataclass(frozen=True)
class Encoder:
    """How far class, site, patient and chance move a feature, in standard deviations of one image."""

    tissue: float
    site: float
    patient: float


@dataclass(frozen=True)
class Cell:
    """A design and two encoders."""

    name: str
    patients: int
    images: int = 12
    sites: int = 2
    mixed: bool = False  # patients have images of both classes
    uneven: bool = False  # a few patients have most of the images
    encoders: tuple[Encoder, Encoder] = (Encoder(0.8, 0.5, 0.6), Encoder(0.8, 0.5, 0.6))

    @property
    def equal(self) -> bool:
        """Whether the two encoders are exchangeable."""
        return self.encoders[0] == self.encoders[1]


_WEAK, _STRONG = Encoder(0.8, 0.3, 0.6), Encoder(0.7, 0.9, 0.6)
_SHARP, _HARD = Encoder(1.4, 0.4, 0.4), Encoder(0.5, 0.5, 0.8)
CELLS = (
    Cell("20 patients", 20),
    Cell("20 patients, both classes each", 20, mixed=True),
    Cell("20 patients, uneven", 20, images=16, uneven=True),
    Cell("20 patients, 4 sites", 20, sites=4, mixed=True),
    Cell("20 patients, unequal encoders", 20, encoders=(_WEAK, _STRONG)),
    Cell("20 patients, sharp encoders", 20, encoders=(_SHARP, _SHARP)),
    Cell("20 patients, patients weigh most", 20, encoders=(Encoder(0.6, 0.4, 1.2),) * 2),
    Cell("40 patients, 4 sites", 40, sites=4),
    Cell("60 patients", 60),
    Cell("60 patients, unequal encoders", 60, encoders=(_WEAK, _STRONG)),
    Cell("60 patients, uneven, 4 sites", 60, sites=4, uneven=True, encoders=(_STRONG, _STRONG)),
    # Classes that are hard to tell, so that accuracy at a new site is far from 1.
    *(
        Cell(f"{patients} patients, {sites} sites, hard", patients, sites=sites, encoders=(_HARD, _HARD))
        for patients, sites in ((20, 4), (20, 8), (40, 4), (40, 8), (60, 4), (60, 8), (60, 24))
    ),
)


def study(cell: Cell, seed: int) -> tuple[list[np.ndarray], np.ndarray, np.ndarray, np.ndarray]:
    """Features of both encoders, labels, sites and patients of one study."""
    fixed = np.random.default_rng(1)
    directions = fixed.normal(size=(2, 2 + cell.sites, DIMENSIONS))
    draw = np.random.default_rng([seed, 77])
    sizes = np.full(cell.patients, cell.images)
    if cell.uneven:
        sizes = np.maximum(2, cell.images * draw.lognormal(-0.4, 0.9, cell.patients)).astype(int)
        sizes = np.minimum(sizes, 6 * cell.images)
    patient = np.repeat(np.arange(cell.patients), sizes)
    site = (patient // (1 if cell.mixed else 2)) % cell.sites
    label = np.arange(len(patient)) % 2 if cell.mixed else patient % 2
    common = draw.normal(size=(2, len(patient), DIMENSIONS))
    features = []
    for place, encoder in enumerate(cell.encoders):
        own = draw.normal(size=(2, len(patient), DIMENSIONS))
        each, image = (common + own) / np.sqrt(2)
        # The patients' part decays over the dimensions, as the spectrum of an encoder's features does.
        decay = 1.5 / np.sqrt(1 + np.arange(DIMENSIONS) / 4)
        x = image + encoder.patient * each[np.unique(patient, return_index=True)[1]][patient] * decay
        x = x + encoder.tissue * directions[place if not cell.equal else 0, label] * decay
        x = x + encoder.site * directions[place if not cell.equal else 0, 2 + site] * decay
        features.append((SCALE * x).astype(np.float32))
    return features, label, site, patient


def values_of(
    x: np.ndarray, label: np.ndarray, site: np.ndarray, patient: np.ndarray, parts: str
) -> dict[str, Any]:
    """The measures of one encoder, without intervals."""
    from histobench.core.errors import HistobenchError
    from histobench.roi.robustness import indices
    from histobench.roi.robustness.site_neighbours import find_neighbours
    from histobench.roi.robustness.site_probes import leave_one_site_out, site_probe

    found: dict[str, Any] = {}
    if parts != "new_sites":
        sizes = indices.candidates_for(len(x))
        near = find_neighbours(x, label, site, patient, k=max(sizes), m=5)
        k, _ = indices.choose_k(near, label, sizes)
        margins = indices.cross_site_margin(near)
        found = {
            "robustness_index": indices.robustness_index(near, label, site, k=k).value,
            "robustness_index_k11": indices.robustness_index(near, label, site, k=11).value,
            "margin_aware_index": indices.margin_aware_index(near, x, label, site, k=k).value,
            "croma_median": margins.median,
            "croma_worst_tenth": margins.tail_mean,
            "croma_share_below": margins.share_below,
        }
        try:
            found["site_probe_auroc"] = site_probe(x, site, patient).auroc
        except HistobenchError:
            found["site_probe_auroc"] = None
    one = np.zeros(len(x), dtype=np.int64)
    for name, fit in _protocols().items() if parts != "neighbours" else ():
        moved = leave_one_site_out(x, label, site, patient, one, fit, refit=False)
        found[f"new_site_{name}_mean"] = moved.mean
        found[f"new_site_{name}_worst"] = moved.worst
    return found


def _protocols() -> dict[str, Any]:
    """The protocols without leaving anything out."""
    import torch

    from histobench.roi.protocols.knn import knn, prototype
    from histobench.roi.protocols.linear_probe import linear_probe

    def by(outcome_of: Any, **more: int) -> Any:
        def fit(x: np.ndarray, y: np.ndarray, new: np.ndarray, units: np.ndarray, count: int) -> Any:
            tensors = (torch.from_numpy(part) for part in (x, y, new))
            predicted = outcome_of(*tensors, n_classes=2, **more).predicted
            return predicted, predicted[None]

        return fit

    return {
        "linear_probe": by(linear_probe),
        "knn": by(knn, n_neighbors=NEIGHBOURS),
        "prototype": by(prototype),
    }


def measured(
    cell: Cell, seed: int, *, intervals: bool, parts: str = "all", encoders: int = 2
) -> dict[str, Any]:
    """Values of both encoders (or of one), and with `intervals` their bounds and those of the difference."""
    import torch

    from histobench.roi.evaluation.robustness_task import RobustnessOptions, protocols
    from histobench.roi.robustness.pack import PackWork, Tissue, measure_robustness
    from histobench.statistics.jackknife import LeaveOneOut, differences

    torch.set_num_threads(1)
    features, label, site, patient = study(cell, seed)
    features = features[:encoders]
    if not intervals:
        alone = [values_of(x, label, site, patient, parts) for x in features]
        return {name: {"values": [each[name] for each in alone]} for name in MEASURES if name in alone[0]}
    tissue = Tissue(label, site, patient, ("a", "b"), tuple(map(str, range(cell.sites))))
    fits = protocols(2, RobustnessOptions(n_neighbors=NEIGHBOURS), []) if parts != "neighbours" else {}
    if parts == "new_sites":
        works = [PackWork(x, tissue) for x in features]
        for (name, fit), work in product(fits.items(), works):
            work.new_site(name, fit)
        packs = [work.measures for work in works]
    else:
        packs = [measure_robustness(x, tissue, fits).measures for x in features]
    found: dict[str, Any] = {}
    for name in MEASURES:
        if name not in packs[0]:
            continue
        both = [measures[name] for measures in packs]
        entry: dict[str, Any] = {
            "values": [each.value for each in both],
            "bounds": [(each.low, each.high) for each in both],
        }
        if encoders == 2 and all(each.left_out is not None for each in both):
            left = np.stack([each.left_out for each in both], axis=1)
            values = np.array([each.value for each in both])
            gap = differences(LeaveOneOut(("a", "b"), values, left))
            entry["gap"] = (float(gap.low[0]), float(gap.high[0]), float(gap.p_value[0]))
        found[name] = entry
    return found


def samples(place: int, draws: int, seed: int) -> Any:
    """Of each study and measure of cell `place`: its name, estimate, interval and true value."""
    from histobench.statistics.intervals import Interval

    cell, first = CELLS[place], seed * 10**6
    one: dict[str, Any] = {"parts": "neighbours", "encoders": 1}
    true = [measured(cell, first + 500_000 + k, intervals=False, **one) for k in range(2 * draws)]
    for k in range(draws):
        for name, entry in measured(cell, first + k, intervals=True, **one).items():
            known = [each[name]["values"][0] for each in true if each[name]["values"][0] is not None]
            if known and entry["values"][0] is not None:
                yield name, entry["values"][0], Interval(*entry["bounds"][0]), float(np.mean(known))


def _task(job: tuple[int, int, bool, str]) -> tuple[int, dict[str, Any]]:
    place, seed, intervals, parts = job
    return place, measured(CELLS[place], seed, intervals=intervals, parts=parts)


def table(
    found: dict[int, list[dict[str, Any]]], truth: dict[int, list[dict[str, Any]]]
) -> list[dict[str, Any]]:
    """Per cell and measure: coverage of single intervals, of differences, and false claims."""
    rows = []
    for place, studies in found.items():
        for name in MEASURES:
            if name not in studies[0]:
                continue
            known = [each[name]["values"] for each in truth[place] if None not in each[name]["values"]]
            if len(known) < len(truth[place]) / 2:
                continue
            mean = np.mean(known, axis=0)
            if CELLS[place].equal:
                mean = np.full(2, mean.mean())
            covered, widths, gaps, claims, missing = [], [], [], [], 0
            for each in studies:
                entry = each[name]
                for value, (low, high) in zip(mean, entry["bounds"], strict=True):
                    if low is None:
                        missing += 1
                    else:
                        covered.append(low <= value <= high)
                        widths.append(high - low)
                if "gap" in entry:
                    low, high, p = entry["gap"]
                    gaps.append(low <= mean[0] - mean[1] <= high)
                    claims.append(p < 0.05)
            rows.append(
                {
                    "cell": CELLS[place].name,
                    "measure": name,
                    "truth": [round(float(value), 3) for value in mean],
                    "coverage": float(np.mean(covered)),
                    "width": float(np.mean(widths)),
                    "difference": float(np.mean(gaps)),
                    "false_claims": float(np.mean(claims)) if CELLS[place].equal else None,
                    "missing": missing / (2 * len(studies)),
                    "studies": len(studies),
                }
            )
    return sorted(rows, key=lambda row: min(row["coverage"], row["difference"]))


def main() -> None:
    """Simulate, and print the worst cells first."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--studies", type=int, default=200, help="studies per cell (default: 200)")
    parser.add_argument(
        "--truth", type=int, help="studies per cell that give the truth (default: 2 x studies)"
    )
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--cells", help="numbers of cells, separated by commas (default: all)")
    parser.add_argument(
        "--parts",
        choices=("all", "neighbours", "new_sites"),
        default="all",
        help="neighbours: all but new sites; new_sites: these alone (default: all)",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="20 studies of the first two cells")
    parser.add_argument("--json", help="also write the rows to this file")
    args = parser.parse_args()
    studies = 20 if args.quick else args.studies
    cells = [0, 1] if args.quick else list(range(len(CELLS)))
    if args.cells:
        cells = [int(place) for place in args.cells.split(",")]
    more = args.truth or 2 * studies
    first = args.seed * 10**6
    jobs = [(place, first + at, True, args.parts) for place in cells for at in range(studies)]
    jobs += [(place, first + 500_000 + at, False, args.parts) for place in cells for at in range(more)]
    found: dict[int, list[dict[str, Any]]] = {place: [] for place in cells}
    truth: dict[int, list[dict[str, Any]]] = {place: [] for place in cells}
    start = time.perf_counter()
    with ProcessPoolExecutor(args.workers) as pool:
        for job, (place, entry) in zip(jobs, pool.map(_task, jobs, chunksize=4), strict=True):
            (found if job[2] else truth)[place].append(entry)
    rows = table(found, truth)
    print("| cell | measure | truth | coverage % | difference % | false claims % | no interval % | width |")
    print("|---|---|---|---|---|---|---|---|")
    for row in rows:
        claims = "" if row["false_claims"] is None else f"{100 * row['false_claims']:.1f}"
        print(
            f"| {row['cell']} | {row['measure']} | {row['truth']} | {100 * row['coverage']:.1f} "
            f"| {100 * row['difference']:.1f} | {claims} | {100 * row['missing']:.0f} | {row['width']:.3f} |"
        )
    print(f"{studies} studies per cell, truth from {more} more; {time.perf_counter() - start:.0f} s")
    if args.json:
        with open(args.json, "w", encoding="utf-8") as handle:
            json.dump(rows, handle, indent=1)


if __name__ == "__main__":
    main()
