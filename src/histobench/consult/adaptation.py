"""When an agent stops following a tool that has become worse: the change point of each sequence."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from histobench.consult.arms import change_of
from histobench.consult.measures import Plays

Floats = NDArray[np.float64]
#: A drop that chance gives in more sequences than this is not taken for adaptation.
ALPHA = 0.05
SIMULATED = 2000


def followed_before(played: Sequence[Plays], length: int) -> float | None:
    """The share of the tool's wrong answers that the agent followed before the change."""
    early = [_wrong_answers(plays, plays.position < change_of(length))[1] for plays in played]
    followed = np.concatenate([np.zeros(0), *early])
    return float((followed.sum() + 0.5) / (len(followed) + 1)) if len(followed) else None


def cases_until(plays: Plays, before: float, length: int) -> list[int | None]:
    """For each sequence the cases after the change until the agent follows half as many wrong answers."""
    change = change_of(length)
    found: list[int | None] = []
    for number in np.unique(plays.sequence):
        positions, followed = _wrong_answers(plays, (plays.sequence == number) & (plays.position >= change))
        if not len(followed):
            found.append(None)
            continue
        gains = _gains(followed[None], before)[0]
        chance = np.random.default_rng(len(followed)).random((SIMULATED, len(followed))) < before
        highest = _gains(chance.astype(np.float64), before).max(axis=1)
        is_clear = gains.max() > 0 and (highest >= gains.max()).mean() <= ALPHA
        found.append(int(positions[gains.argmax()]) - change if is_clear else None)
    return found


def median_until(cases: Sequence[int | None]) -> float | None:
    """The median of Kaplan and Meier; None where more than half are censored."""
    ordered = sorted(np.inf if each is None else float(each) for each in cases)
    middle = ordered[(len(ordered) - 1) // 2] if ordered else np.inf
    return middle if np.isfinite(middle) else None


def _wrong_answers(plays: Plays, among: NDArray[np.bool_]) -> tuple[NDArray[np.int64], Floats]:
    """The positions of the tool's wrong answers, ascending, and how often the agent followed each."""
    places = np.flatnonzero(among & (plays.tool != plays.reference))
    places = places[np.argsort(plays.position[places], kind="stable")]
    return plays.position[places], (plays.final == plays.tool).mean(axis=0)[places]


def _gains(followed: Floats, before: float) -> Floats:
    """The log-likelihood gained by a drop to at most half of `before` from each answer on [b, n]."""
    n = np.arange(followed.shape[1], 0, -1)
    rate = followed[:, ::-1].cumsum(axis=1)[:, ::-1] / n
    with np.errstate(divide="ignore", invalid="ignore"):
        yes = np.where(rate > 0, rate * np.log(rate / before), 0.0)
        no = np.where(rate < 1, (1 - rate) * np.log((1 - rate) / (1 - before)), 0.0)
    return np.asarray(np.where(rate <= before / 2, n * (yes + no), 0.0))
