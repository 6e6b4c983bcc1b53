"""Every measure of registered pairs of one encoder, with intervals over groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from histobench.core.errors import HistobenchError
from histobench.roi.robustness.intervals import draw_groups
from histobench.roi.robustness.neighbours import Floats, Ints
from histobench.roi.robustness.pack import Measure, Pack, with_interval
from histobench.roi.robustness.pairs import (
    TOP,
    Agreement,
    Match,
    Registration,
    agreement,
    joined_groups,
    matches,
    of_matches,
)

#: Hits of the retrieval that enters the score.
_SCORED = 10
_ONE_GROUP = "no interval: all places hang together by their groups"


def measure_pairs(
    features: NDArray[np.floating],
    registered: Registration,
    groups: Ints,
    *,
    draws: int = 2000,
    seed: int = 0,
    device: str = "cpu",
) -> Pack:
    """The measures over all pairs of views, and over those that differ in one column alone or in several.

    `features` [n, d] and `groups` [n] of the registered images. Each measure is the median over pairs of
    views of the mean over the places that both show.
    """
    found = list(matches(registered))
    if not found:
        raise HistobenchError(
            "no place is shown twice; registered pairs need images of the same place (the same `pair`) that "
            "differ in scanner, stain or another site column"
        )
    owner = joined_groups(registered.place, groups)
    times = draw_groups(owner, draws=draws, seed=seed)
    work = _Work(found, [agreement(features, match, device=device) for match in found], owner, times)
    kinds = sorted({match.kind for match in found})
    for kind in ("", *(kinds if len(kinds) > 1 or len(registered.columns) > 1 else ())):
        chosen = [k for k, match in enumerate(found) if not kind or match.kind == kind]
        work.median(_name("pair_cosine", kind), chosen, lambda each: each.cosine)
        for k in TOP:
            # Among fewer images than k every partner is found, whatever the encoder.
            searched = [at for at in chosen if 2 * len(found[at].rows) - 1 > k]
            work.median(_name(f"pair_top{k}", kind), searched, _found_in(k))
    parts = [
        _name(f"pair_top{_SCORED}", kind) for kind in kinds if _name("pair_cosine", kind) in work.measures
    ]
    work.mean("pair_score", ["pair_cosine", *(parts or [f"pair_top{_SCORED}"])])
    return Pack(work.measures, _details(found, work.agreements, registered))


def _name(measure: str, kind: str) -> str:
    return f"{measure}_other_{kind}" if kind else measure


def _found_in(k: int) -> Callable[[Agreement], Floats]:
    return lambda each: each.found[k]


class _Work:
    """The measures so far."""

    def __init__(
        self, found: Sequence[Match], agreements: Sequence[Agreement], owner: Ints, times: NDArray[np.int64]
    ) -> None:
        self.found, self.agreements, self.owner, self.times = found, agreements, owner, times
        self.measures: dict[str, Measure] = {}

    def median(self, name: str, chosen: Sequence[int], terms_of: Callable[[Agreement], Floats]) -> None:
        """Median over the chosen matches of the mean over places."""
        if not chosen:
            most = max(len(match.rows) for match in self.found)
            self.measures[name] = Measure(
                None, reason=f"two views share at most {most} places; so few are found by any encoder"
            )
            return
        terms = [terms_of(self.agreements[k]) for k in chosen]
        value = float(np.median([each.mean() for each in terms]))
        owners = [self.owner[self.found[k].rows[:, 0]] for k in chosen]
        redrawn = of_matches(terms, owners, self.times.shape[1])
        self.measures[name] = with_interval(value, redrawn, self.times, one_group=_ONE_GROUP)

    def mean(self, name: str, parts: Sequence[str]) -> None:
        """The mean of measures that are all known."""
        found = [self.measures[part] for part in parts]
        values = [each.value for each in found]
        if any(value is None for value in values):
            self.measures[name] = Measure(
                None, reason=next(each.reason for each in found if each.value is None)
            )
            return
        drawn = [each.draws for each in found if each.draws is not None]
        value = float(np.mean([value for value in values if value is not None]))

        def redrawn(_: NDArray[np.int64]) -> Floats:
            result: Floats = np.mean(drawn, axis=0)
            return result

        self.measures[name] = with_interval(value, redrawn, self.times, one_group=_ONE_GROUP)


def _details(
    found: Sequence[Match], agreements: Sequence[Agreement], registered: Registration
) -> Mapping[str, object]:
    names = [" / ".join(view) for view in registered.views]
    kinds = sorted({match.kind for match in found})
    return {
        "places": len(np.unique(registered.place)),
        "view_columns": list(registered.columns),
        "pairs_of_views": {kind: sum(match.kind == kind for match in found) for kind in kinds},
        "pairs": [
            {
                "first": names[match.first],
                "second": names[match.second],
                "other": list(match.differ),
                "places": len(match.rows),
                "cosine": float(each.cosine.mean()),
                **{f"top{k}": float(values.mean()) for k, values in each.found.items()},
            }
            for match, each in zip(found, agreements, strict=True)
        ],
    }
