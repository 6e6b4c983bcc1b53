"""How many cases the next study needs, from a pilot: each registered contrast of one agent."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from histobench.consult.findings import AgentsCompared, StudyFindings
from histobench.consult.study import RegisteredContrast
from histobench.core.errors import HistobenchError
from histobench.statistics.power import PowerEstimate, power_from_predictions
from histobench.statistics.resampling import Counts, sampling_design

Floats = NDArray[np.float64]
SIMULATED = 1000


@dataclass(frozen=True)
class ContrastPlan:
    name: str
    words: str
    cases: int  # of the pilot, on which the contrast is taken
    groups: int
    estimate: PowerEstimate | None
    reason: str = ""


@dataclass(frozen=True)
class CasePlan:
    agent: str
    delta: float
    power: float
    alpha: float
    unit: str  # "cases" or "groups"
    contrasts: tuple[ContrastPlan, ...]


def plan_cases(
    findings: StudyFindings,
    agent: str,
    *,
    delta: float = 0.1,
    power: float = 0.8,
    alpha: float = 0.05,
    seed: int = 0,
) -> CasePlan:
    """Cases needed so that a true contrast of `delta` shows with the chance `power`."""
    comparisons = findings.comparisons(agent)
    played = [each for each in comparisons.values() if each is not None]
    if not played:
        raise HistobenchError(
            f"{agent} has played no arm that a registered contrast needs; the pilot needs strong at least"
        )
    share = alpha / len(played)
    plans = [
        _plan(each, comparisons[each.name], delta=delta, power=power, alpha=share, seed=seed)
        for each in findings.study.contrasts
    ]
    unit = "groups" if any(case.group for case in findings.study.cases) else "cases"
    return CasePlan(agent, delta, power, share, unit, tuple(plans))


def _plan(
    registered: RegisteredContrast,
    comparison: AgentsCompared | None,
    *,
    delta: float,
    power: float,
    alpha: float,
    seed: int,
) -> ContrastPlan:
    if comparison is None:
        return ContrastPlan(registered.name, registered.words, 0, 0, None, "its arms were not played")
    samples = comparison.samples
    design = sampling_design(len(samples), clusters=comparison.design.unit_of[samples])
    cases = len(comparison.runs[0].plays.rows)

    def contrast(counts: Counts) -> Floats:
        spread = np.zeros((len(counts), comparison.design.n_samples), dtype=np.int32)
        spread[:, samples] = counts
        return comparison.value(spread)

    groups, estimate, reason = design.n_units, None, ""
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
            unseen=comparison.unseen_move,
        )
    except ValueError:
        reason = "it does not vary over the cases of the pilot"
        if not len(samples):
            groups, reason = 0, "no case to compare on"
    return ContrastPlan(registered.name, registered.words, cases, groups, estimate, reason)
