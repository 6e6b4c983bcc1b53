"""How many cases the next study needs, from a pilot: each registered contrast of one agent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from histobench.consult.findings import CONTRASTS, Findings, groups_of
from histobench.core.errors import HistobenchError
from histobench.core.statistics.power import PowerEstimate, power_from_predictions
from histobench.core.statistics.resampling import Counts, sampling_design

Floats = NDArray[np.float64]
#: Simulated studies of one size.
SIMULATED = 1000


@dataclass(frozen=True)
class ContrastPlan:
    """What a pilot says about one contrast; `estimate` is None where there is nothing to plan with."""

    name: str
    cases: int  # of the pilot, on which the contrast is taken
    groups: int
    estimate: PowerEstimate | None
    reason: str = ""


@dataclass(frozen=True)
class CasePlan:
    """All contrasts of one agent at one size of difference; `alpha` is each contrast's own share."""

    agent: str
    delta: float
    power: float
    alpha: float
    unit: str  # "cases" or "groups"
    contrasts: tuple[ContrastPlan, ...]


def plan_cases(
    findings: Findings,
    agent: str,
    *,
    delta: float = 0.1,
    power: float = 0.8,
    alpha: float = 0.05,
    seed: int = 0,
) -> CasePlan:
    """Cases needed so that a true contrast of `delta` shows with the chance `power`.

    The selection of cases and the sizes of groups are taken to stay as in the pilot. Holm's correction asks
    the first of m contrasts for alpha / m, so that is what every contrast is planned with: with more cases
    than that none of them fails for the correction.
    """
    functions = findings.contrast_functions(agent)
    played = {name: part for name, part in functions.items() if part is not None}
    if not played:
        raise HistobenchError(
            f"{agent} has played no arm that a registered contrast needs; the pilot needs strong at least"
        )
    share = alpha / len(played)
    plans = []
    for name in CONTRASTS:
        part = functions[name]
        if part is None:
            plans.append(ContrastPlan(name, 0, 0, None, "its arms were not played"))
        else:
            plans.append(_plan(findings, agent, name, part, delta=delta, power=power, alpha=share, seed=seed))
    unit = "groups" if any(case.group for case in findings.study.cases) else "cases"
    return CasePlan(agent, delta, power, share, unit, tuple(plans))


def _plan(
    findings: Findings,
    agent: str,
    name: str,
    part: Callable[[Counts], Floats],
    *,
    delta: float,
    power: float,
    alpha: float,
    seed: int,
) -> ContrastPlan:
    rows = findings.contrast_rows(agent, name)
    groups = groups_of(findings.study)
    design = sampling_design(len(rows), clusters=[groups[row] for row in rows])

    def contrast(counts: Counts) -> Floats:
        spread = np.zeros((len(counts), len(groups)), dtype=np.int32)
        spread[:, rows] = counts
        return part(spread)

    try:
        estimate = power_from_predictions(
            contrast,
            lambda counts: np.zeros(len(counts)),
            design,
            delta=delta,
            power=power,
            alpha=alpha,
            n_resamples=SIMULATED,
            seed=seed,
        )
    except ValueError:
        reason = "no case to compare on" if not len(rows) else "it does not vary over the cases of the pilot"
        return ContrastPlan(name, len(rows), design.n_units if len(rows) else 0, None, reason)
    return ContrastPlan(name, len(rows), design.n_units, estimate)
