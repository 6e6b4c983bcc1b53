"""What a study found: measures with intervals, the registered contrasts, sequences, and who beats the reader.

Everything is paired by case, or by position in a sequence. Intervals leave out a group or sequence at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from functools import cached_property, reduce
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from histobench.consult.adaptation import cases_until, followed_before, median_until
from histobench.consult.arms import DOSES, SEQUENCE_ARMS, change_of, role_of
from histobench.consult.measures import (
    DIFFERENCES,
    MEASURES,
    MeasuredRun,
    Plays,
    area_under_risk_coverage,
    calibration_error,
    per_correct,
    read_plays,
)
from histobench.consult.study import RUNS, RegisteredContrast, Study, groups_of, open_study
from histobench.core.errors import HistobenchError, did_you_mean
from histobench.statistics.intervals import Interval
from histobench.statistics.jackknife import (
    SHARE_OF_UNSEEN,
    UNIT_RANGE,
    LeaveOneOut,
    bounds,
    bunch,
    leave_one_out,
    pair_t,
    t_p_value,
)
from histobench.statistics.power import effective_number
from histobench.statistics.resampling import Counts, SamplingDesign, sampling_design
from histobench.statistics.tests import holm

Floats = NDArray[np.float64]
POLICY = "policy-"
READER = f"{POLICY}reader"
METHOD = "jackknife over groups"
#: Bunches of answers that an agent may lose to a good tool without the study showing it.
_UNSEEN_LOSSES = 2.5
LEVEL = 0.95
RELIANCE_BINS = 5
#: No contrast is tested with fewer groups (or sequences), or fewer effective cases with a wrong tool.
LEAST_GROUPS = 8
LEAST_WRONG = 10.0
COMPARED = ("final", "balanced", "u_right", "u_wrong", "discrimination", "brier")
SEQUENCE_MEASURES = ("u_right", "u_wrong", "discrimination")


def is_policy(agent: str) -> bool:
    return agent.startswith(POLICY)


@dataclass(frozen=True)
class Estimate:
    value: float | None
    interval: Interval


@dataclass(frozen=True)
class Line:
    """One agent in one arm; `effective` cases: what weighted ones are worth, in all and with a wrong tool."""

    agent: str
    arm: str
    cases: int
    repeats: int
    estimates: dict[str, Estimate]
    plain: dict[str, float | None] = field(default_factory=dict)
    effective: float = 0.0
    effective_wrong: float = 0.0


@dataclass(frozen=True)
class RelianceBin:
    confidence: float
    cases: int
    accepted: Estimate


@dataclass(frozen=True)
class Contrast:
    """A registered comparison of one agent.

    `adjusted` is Holm's over those that were registered before the agent played and could be tested;
    without a p-value `reason` says why. `wrong` is the effective number of cases with a wrong tool.
    """

    agent: str
    name: str
    words: str
    registered: str
    in_advance: bool
    value: float | None = None
    interval: Interval | None = None
    p_value: float | None = None
    adjusted: float | None = None
    groups: int = 0
    effective: float = 0.0
    wrong: float = 0.0
    reason: str = ""


@dataclass(frozen=True)
class SequencePart:
    part: str  # "before" or "after"
    measure: str
    changed: Estimate
    same: Estimate | None = None
    difference: Estimate | None = None


@dataclass(frozen=True)
class SequenceFindings:
    """One agent in the sequence arms.

    `cases_until` has, for each sequence, how many cases after the change the agent stopped following the
    tool (at most half as many wrong answers as before); None where no clear drop is seen (censored). `median`
    is Kaplan and Meier's; `false_alarms` is the share of sequences without a change with such a drop.
    """

    agent: str
    length: int
    change: int
    sequences: int
    parts: tuple[SequencePart, ...]
    cases_until: tuple[int | None, ...]
    median: float | None
    false_alarms: float | None


_READER = "policy-reader, a logistic regression on the numbers that the tools show,"


@dataclass(frozen=True)
class ReaderVerdict:
    agent: str
    arm: str
    difference: float
    interval: Interval
    asked: float  # share of cases in which the tool's prediction was asked for

    @property
    def beats(self) -> bool:
        return self.interval.low is not None and self.interval.low > 0

    @property
    def sentence(self) -> str:
        low, high = self.interval.low, self.interval.high
        within = "" if low is None or high is None else f", 95% interval {low:+.3f} to {high:+.3f}"
        size = f"{self.difference:+.3f}{within}"
        if self.beats:
            return f"{self.agent} beats {_READER} in arm {self.arm} ({size})."
        text = f"{self.agent} is not shown to beat {_READER} in arm {self.arm} ({size})."
        if self.asked < 0.5:  # an agent that never asked the tool has not judged it
            text += f" It asked for the tool's prediction in {100 * self.asked:.0f}% of cases."
        return text


@dataclass(frozen=True)
class AgentsDifference:
    arm: str
    measure: str
    estimate: Estimate
    p_value: float | None
    adjusted: float | None = None


Tested = TypeVar("Tested", Contrast, AgentsDifference)


class Basis(NamedTuple):
    """How much a share rests on; `bunch` is the part of its cases that may turn together, unseen."""

    units: int
    effective_units: float
    effective: float
    bunch: float


@dataclass(frozen=True)
class AgentsCompared:
    """A measure of one run, or of the first of two runs minus that of the second."""

    measure: str
    runs: tuple[MeasuredRun, ...]
    design: SamplingDesign
    known: LeaveOneOut | None = None

    def value(self, counts: Counts) -> Floats:
        first, *others = (run(counts)[self.measure] for run in self.runs)
        return first - others[0] if others else first

    @property
    def is_difference(self) -> bool:
        return len(self.runs) > 1 or self.measure in DIFFERENCES

    @property
    def samples(self) -> NDArray[np.intp]:
        return np.unique(self.runs[0].plays.sample)

    @property
    def wrong(self) -> float:
        return min(run.effective("u_wrong") for run in self.runs)

    @property
    def groups(self) -> int:
        return len(np.unique(self.design.unit_of[self.samples]))

    @cached_property
    def bases(self) -> list[Basis]:
        return [
            _basis(run.plays.sample, weight, self.design)
            for run in self.runs
            for weight in run.among(self.measure)
        ]

    @cached_property
    def basis(self) -> Basis:
        units, effective_units, effective, bunches = zip(*self.bases, strict=True)
        return Basis(min(units), min(effective_units), min(effective), max(bunches))

    @property
    def _moves(self) -> Floats:
        moves = np.array([[basis.bunch] for basis in self.bases])
        if len(self.runs) > 1:
            return moves * SHARE_OF_UNSEEN**0.5
        return moves * (_UNSEEN_LOSSES if self.measure == "over_tool" else 1.0)

    @property
    def unseen_move(self) -> float:
        """What its interval adds to its standard error, as the root of a sum of squares."""
        return float((self._moves**2).sum()) ** 0.5

    @cached_property
    def left_out(self) -> LeaveOneOut:
        """Its values without each unit, with the unseen moves of every share that it is made of."""
        found = self.known or leave_one_out(lambda counts: {"value": self.value(counts)}, self.design)
        signs = -1.0 if self.is_difference else -np.sign(found.values - 0.5)
        freedom = max(self.basis.effective_units - 1, 1.0)
        size = max(self.basis.effective, 1.0)
        return replace(found, unseen=signs * self._moves, size=size, freedom=freedom)

    @cached_property
    def estimate(self) -> Estimate:
        if self.measure == "closure":
            whole = np.ones((1, self.design.n_samples), dtype=np.int32)
            return Estimate(_finite(self.value(whole)[0]), _without("a ratio of two differences"))
        return Estimate(_finite(self.left_out.values[0]), self._interval())

    def _interval(self) -> Interval:
        units = self.basis.units
        if not np.isfinite(self.left_out.values[0]):
            return _without("no case to estimate it from")
        if units < 2:
            return _without(f"{units} groups have cases for it, 2 are needed")
        within = (-np.inf, np.inf) if self.is_difference else UNIT_RANGE
        (low,), (high,) = bounds(self.left_out, within, level=LEVEL)
        if self.is_difference:
            low, high = np.clip([low, high], -1.0, 1.0)
        n_valid, why = len(self.left_out.left_out), "it is undefined without one of the groups"
        return Interval.of(low, high, level=LEVEL, method=METHOD, n_valid=n_valid, why_none=why)

    @property
    def p_value(self) -> float | None:
        """Of "no difference": below 0.05 exactly where the interval excludes 0."""
        if self._interval().low is None:
            return None
        found = self.left_out
        error = np.sqrt(found.variance + found.unseen_variance)
        return float(t_p_value(pair_t(found.values, error), found.degrees)[0])


class StudyFindings:
    def __init__(self, study: Study, plays: Mapping[tuple[str, str], Plays]) -> None:
        self.study, self.plays = study, plays
        self.weights = np.array([case.weight for case in study.cases])
        self.design = sampling_design(len(study.cases), clusters=groups_of(study.cases))
        longest = max((int(each.sequence.max(initial=-1)) for each in plays.values()), default=-1)
        self._sequences = sampling_design(longest + 1)
        self.runs = {key: MeasuredRun(each, self.weights) for key, each in plays.items()}

    @property
    def agents(self) -> list[str]:
        return sorted({agent for agent, _ in self.plays}, key=lambda name: (is_policy(name), name))

    @property
    def units_played(self) -> int:
        rows = np.concatenate([np.zeros(0, np.int64), *(plays.rows for plays in self.plays.values())])
        return len(np.unique(self.design.unit_of[rows]))

    @property
    def has_sequences(self) -> bool:
        return any(arm in SEQUENCE_ARMS for _, arm in self.plays)

    def check_agent(self, name: str) -> str:
        if name not in self.agents:
            raise HistobenchError(f"no runs of {name!r}; {did_you_mean(name, self.agents)}")
        return name

    def lines(self) -> list[Line]:
        arms = list(self.study.facts.arms)
        arms += sorted({arm for _, arm in self.plays} - set(arms))
        return [self._line(agent, arm) for agent in self.agents for arm in arms if (agent, arm) in self.plays]

    def contrasts(self, agent: str) -> list[Contrast]:
        """Those that the study registered; Holm's correction is over those registered before play."""
        found = [self._contrast(agent, registered) for registered in self.study.contrasts]
        return _with_holm(found, [each.p_value if each.in_advance else None for each in found])

    def comparisons(self, agent: str) -> dict[str, AgentsCompared | None]:
        return {each.name: self._registered(agent, each) for each in self.study.contrasts}

    def compare(
        self, measure: str, one: tuple[str, str], other: tuple[str, str]
    ) -> tuple[Estimate, float | None]:
        compared = self._compared(measure, self.plays[one], self.plays[other])
        return compared.estimate, compared.p_value

    def agents_compared(self, one: str, other: str, *, arm: str | None = None) -> list[AgentsDifference]:
        """Two agents on the same cases, in all shared arms or in one; Holm's correction is over all rows."""
        names = [self.check_agent(name) for name in (one, other)]
        shared = [each for each in self.study.facts.arms if all((name, each) in self.plays for name in names)]
        arms = [each for each in shared if arm in (None, each)]
        if not arms:
            raise HistobenchError(f"no arm that both have played; shared: {', '.join(shared) or 'none'}")
        found = [
            AgentsDifference(each, measure, *self.compare(measure, (one, each), (other, each)))
            for each in arms
            for measure in COMPARED
        ]
        found = [row for row in found if row.estimate.value is not None]
        return _with_holm(found, [row.p_value for row in found])

    def against_reader(self) -> list[ReaderVerdict]:
        verdicts = []
        for agent, arm in self.plays:
            if is_policy(agent) or arm == "none" or (READER, arm) not in self.plays:
                continue
            estimate, _ = self.compare("final", (agent, arm), (READER, arm))
            if estimate.value is not None:
                asked = self._value(agent, arm, "asked") or 0.0
                verdicts.append(ReaderVerdict(agent, arm, estimate.value, estimate.interval, asked))
        return verdicts

    def sequences(self, agent: str) -> SequenceFindings | None:
        if (agent, "sequence") not in self.plays:
            return None
        changed, same = self.plays[agent, "sequence"], self.plays.get((agent, "sequence-same"))
        both = [changed] if same is None else [changed, same]
        length = max(map(len, self.study.facts.sequences))
        parts = []
        for part in ("before", "after"):
            quarters = [_quarter(plays, part, length) for plays in both]
            for measure in SEQUENCE_MEASURES:
                found = [self._compared(measure, each).estimate for each in quarters]
                if same is not None:
                    found.append(self._compared(measure, *quarters).estimate)
                parts.append(SequencePart(part, measure, *found))
        before = followed_before(both, length)
        until, *alarms = ([] if before is None else cases_until(plays, before, length) for plays in both)
        return SequenceFindings(
            agent,
            length,
            change_of(length),
            len(until),
            tuple(parts),
            tuple(until),
            median_until(until),
            float(np.mean([each is not None for each in alarms[0]])) if alarms and alarms[0] else None,
        )

    def dose_slope(self, agent: str) -> float | None:
        doses = {"strong": 0.0} | DOSES
        known = [(dose, self._value(agent, arm, "u_wrong")) for arm, dose in doses.items()]
        known = [each for each in known if each[1] is not None]
        if len(known) < 2:
            return None
        x, y = np.array(known).T
        return float(np.polyfit(x, y, 1)[0])

    def usefulness(self, agent: str) -> dict[str, float | None]:
        """Kendall's tau of the accuracy an agent reaches with each encoder and the encoders' own."""
        from scipy.stats import kendalltau

        known = [
            (value, encoder.probe_accuracy, encoder.knn_accuracy)
            for encoder in self.study.facts.encoders
            if (value := self._value(agent, encoder.role, "final")) is not None
        ]
        if len(known) < 3:  # of two, the order is right or wrong
            return {"encoders": float(len(known)), "probe": None, "knn": None}
        agents, *own = np.array(known).T
        probe, knn = (_finite(kendalltau(agents, each).statistic) for each in own)
        return {"encoders": float(len(known)), "probe": probe, "knn": knn}

    def reliance(self, agent: str, arm: str) -> dict[str, list[RelianceBin]]:
        """How often the tool is followed where it is `right` and `wrong`, by its stated confidence."""
        plays = self.plays[agent, arm]
        weight = self.weights[plays.rows]
        place = np.clip(np.ceil(plays.tool_confidence * RELIANCE_BINS) - 1, 0, RELIANCE_BINS - 1)
        right = plays.tool == plays.reference
        found: dict[str, list[RelianceBin]] = {"right": [], "wrong": []}
        for kind, among in (("right", right), ("wrong", ~right)):
            for number in range(RELIANCE_BINS):
                here = among & (place == number)
                if here.any():
                    confidence = float(weight[here] @ plays.tool_confidence[here] / weight[here].sum())
                    accepted = self._compared(f"u_{kind}", plays.take(here)).estimate
                    found[kind].append(RelianceBin(confidence, int(here.sum()), accepted))
        return found

    def as_json(self) -> dict[str, Any]:
        agents = self.agents
        return {
            "study": asdict(self.study.facts),
            "lines": [asdict(line) for line in self.lines()],
            "contrasts": [asdict(contrast) for agent in agents for contrast in self.contrasts(agent)],
            "sequences": [asdict(found) for agent in agents if (found := self.sequences(agent))],
            "against_reader": [
                {**asdict(verdict), "beats": verdict.beats} for verdict in self.against_reader()
            ],
            "usefulness": {agent: self.usefulness(agent) for agent in agents},
            "dose_slope": {agent: self.dose_slope(agent) for agent in agents},
        }

    def _line(self, agent: str, arm: str) -> Line:
        plays, run = self.plays[agent, arm], self.runs[agent, arm]
        design = self._design(plays)
        found = leave_one_out(run, design)
        estimates = {
            name: AgentsCompared(name, (run,), design, found.columns([name])).estimate for name in MEASURES
        }
        if arm not in ("none", *SEQUENCE_ARMS) and (agent, "none") in self.plays:
            estimates["over_none"] = self.compare("final", (agent, arm), (agent, "none"))[0]
        encoder = self.study.facts.encoder(role_of(arm)) if arm != "none" else None
        seconds = None if encoder is None else encoder.seconds_per_image
        loss = self._value(f"{POLICY}rational", arm, "regret") if arm != "none" else None
        used = {
            "dollars": plays.cost,
            "tokens": plays.tokens,
            "calls": plays.calls,
            "device_seconds": np.full(plays.final.shape, np.nan if seconds is None else seconds),
        }
        plain = {
            "aurc": area_under_risk_coverage(plays, self.weights),
            "ece": calibration_error(plays, self.weights),
            **{f"{name}_per_correct": per_correct(plays, self.weights, each) for name, each in used.items()},
            "discrimination_loss": None if loss is None else -loss,
        }
        effective = run.effective("final"), run.effective("u_wrong")
        return Line(agent, arm, len(plays.rows), len(plays.final), estimates, plain, *effective)

    def _contrast(self, agent: str, registered: RegisteredContrast) -> Contrast:
        started = min(
            (plays.started for (who, _), plays in self.plays.items() if who == agent and plays.started > 0),
            default=float("inf"),
        )
        when = datetime.fromisoformat(registered.registered).timestamp() if registered.registered else 0.0
        made = Contrast(agent, registered.name, registered.words, registered.registered, when <= started)
        compared = self._registered(agent, registered)
        if compared is None:
            return replace(made, reason="its arms were not played")
        estimate, units = compared.estimate, compared.groups
        what = "sequences" if registered.arm in SEQUENCE_ARMS else "groups"
        p_value, reason = None, ""
        if estimate.value is None:
            reason = "no case to compare on"
        elif units < LEAST_GROUPS:
            reason = f"no test: {units} {what}, {LEAST_GROUPS} are needed"
        elif compared.wrong < LEAST_WRONG:
            cases = f"{compared.wrong:.1f} effective cases with a wrong tool"
            reason = f"no test: {cases}, {LEAST_WRONG:.0f} are needed"
        elif (p_value := compared.p_value) is None:
            reason = estimate.interval.reason or "no interval"
        return replace(
            made,
            value=estimate.value,
            interval=estimate.interval,
            p_value=p_value,
            groups=units,
            effective=compared.basis.effective,
            wrong=compared.wrong,
            reason=reason,
        )

    def _registered(self, agent: str, registered: RegisteredContrast) -> AgentsCompared | None:
        arms = [arm for arm in (registered.arm, registered.against) if arm]
        played = [self.plays[agent, arm] for arm in arms if (agent, arm) in self.plays]
        if len(played) < len(arms):
            return None
        if registered.arm in SEQUENCE_ARMS:
            length = max(map(len, self.study.facts.sequences))
            played = [_quarter(plays, registered.part, length) for plays in played]
        return self._compared(registered.measure, *played)

    def _compared(self, measure: str, *played: Plays) -> AgentsCompared:
        shared = reduce(np.intersect1d, (plays.keys for plays in played))
        runs = (MeasuredRun(plays.take(np.isin(plays.keys, shared)), self.weights) for plays in played)
        return AgentsCompared(measure, tuple(runs), self._design(played[0]))

    def _design(self, plays: Plays) -> SamplingDesign:
        return self._sequences if plays.arm in SEQUENCE_ARMS else self.design

    def _value(self, agent: str, arm: str, measure: str) -> float | None:
        run = self.runs.get((agent, arm))
        return None if run is None else _finite(run.estimate()[measure])


def findings_of(folder: str | Path, *, runs: str | Path | None = None) -> StudyFindings:
    study = open_study(folder)
    return StudyFindings(study, read_plays(study, runs or study.folder / RUNS))


def _with_holm(rows: Sequence[Tested], p_values: Sequence[float | None]) -> list[Tested]:
    return [
        row if np.isnan(p) else replace(row, adjusted=float(p))
        for row, p in zip(rows, holm([np.nan if p is None else p for p in p_values]), strict=True)
    ]


def _basis(sample: NDArray[np.int64], weight: Floats, design: SamplingDesign) -> Basis:
    if not (weight > 0).any():
        return Basis(0, 0.0, 0.0, 0.0)
    unit = design.unit_of[sample]
    sizes = np.bincount(unit[weight > 0], minlength=design.n_units)
    totals = np.bincount(unit, weight, minlength=design.n_units)
    effective = effective_number(weight)
    return Basis(int((sizes > 0).sum()), effective_number(totals), effective, bunch(sizes) / effective)


def _without(reason: str) -> Interval:
    return Interval(None, None, LEVEL, METHOD, reason=reason)


def _quarter(plays: Plays, part: str, length: int) -> Plays:
    end = change_of(length) if part == "before" else length
    return plays.take((plays.position >= end - length // 4) & (plays.position < end))


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
