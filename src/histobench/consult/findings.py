"""What a study found: measures with intervals, the pre-registered contrasts, and who beats the reader."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from histobench.consult.arms import DOSES
from histobench.consult.measures import (
    Evaluation,
    Plays,
    area_under_risk_coverage,
    calibration_error,
    per_correct,
    swap_noticed,
)
from histobench.consult.study import Study
from histobench.core.statistics.intervals import Interval, percentile_interval
from histobench.core.statistics.multiplicity import holm
from histobench.core.statistics.paired import bootstrap_p_value
from histobench.core.statistics.resampling import Counts, SamplingDesign, draw_counts, sampling_design

Floats = NDArray[np.float64]
POLICY = "policy-"
READER = f"{POLICY}reader"
RATIONAL = f"{POLICY}rational"
RESAMPLES = 2000
#: Bins of equal width of the confidence that the tool states.
RELIANCE_BINS = 5


def is_policy(agent: str) -> bool:
    """Whether an agent, by the name in tables, is a rule of histobench's own and no model or person.

    >>> is_policy("policy-reader"), is_policy("gpt-4o-mini")
    (True, False)
    """
    return agent.startswith(POLICY)


@dataclass(frozen=True)
class Estimate:
    """A value with its interval; None where there is nothing to estimate from."""

    value: float | None
    interval: Interval


@dataclass(frozen=True)
class Line:
    """One agent in one arm."""

    agent: str
    arm: str
    cases: int
    repeats: int
    estimates: dict[str, Estimate]
    plain: dict[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True)
class RelianceBin:
    """Cases whose tool states about the same confidence: how many, and how often the agent follows it."""

    confidence: float
    cases: int
    accepted: Estimate


@dataclass(frozen=True)
class Contrast:
    """A pre-registered comparison of one agent; `adjusted` is Holm's over those that could be made."""

    agent: str
    name: str
    value: float | None
    interval: Interval | None
    p_value: float | None
    adjusted: float | None
    reason: str = ""


@dataclass(frozen=True)
class ReaderVerdict:
    """An agent against the logistic regression that reads the same numbers."""

    agent: str
    arm: str
    difference: float
    interval: Interval
    asked: float  # share of cases in which the tool's prediction was asked for

    @property
    def beats(self) -> bool:
        """Whether the agent added something."""
        return self.interval.low is not None and self.interval.low > 0

    @property
    def sentence(self) -> str:
        """For the table."""
        low, high = self.interval.low, self.interval.high
        bounds = "" if low is None or high is None else f", 95 % interval {low:+.3f} to {high:+.3f}"
        size = f"{self.difference:+.3f}{bounds}"
        if self.beats:
            return f"{self.agent} beats the reader in arm {self.arm} ({size})."
        return (
            f"{self.agent} does not beat the reader in arm {self.arm} ({size}): it has added nothing to "
            f"what a logistic regression reads from the same numbers.{self._silence}"
        )

    @property
    def _silence(self) -> str:
        """Who does not follow a tool that it never asked has not judged it."""
        return (
            ""
            if self.asked >= 0.5
            else f" It asked for the tool's prediction in {100 * self.asked:.0f} % of cases."
        )


CONTRASTS: dict[str, str] = {
    "over_tool": "final answer minus tool in strong",
    "swap": "J after the swap minus J in strong",
    "wrong-25": "u_wrong in wrong-25 minus in strong",
    "sure": "u_wrong in sure minus in unsure",
}

#: The two arms of each contrast.
CONTRAST_ARMS: dict[str, tuple[str, str]] = {
    "over_tool": ("strong", "strong"),
    "swap": ("swap", "strong"),
    "wrong-25": ("wrong-25", "strong"),
    "sure": ("sure", "unsure"),
}


class Findings:
    """Everything from the same resamples of whole groups, so that all comparisons are paired."""

    def __init__(
        self,
        study: Study,
        plays: Mapping[tuple[str, str], Plays],
        *,
        n_resamples: int = RESAMPLES,
        seed: int = 0,
        level: float = 0.95,
    ) -> None:
        self.study, self.plays, self._level = study, plays, level
        self.weights = np.array([case.weight for case in study.cases])
        self.design = design_of(study)
        self.counts: Counts = draw_counts(self.design, n_resamples, np.random.default_rng(seed))
        self.whole = np.ones((1, len(study.cases)), dtype=np.int32)
        self._evaluations: dict[tuple[str, str], Evaluation] = {}

    @property
    def agents(self) -> list[str]:
        """Reference agents last."""
        return sorted({agent for agent, _ in self.plays}, key=lambda name: (is_policy(name), name))

    def lines(self) -> list[Line]:
        """Every agent in every arm, in the order of the study's arms."""
        order = {arm: place for place, arm in enumerate(self.study.facts.arms)}
        keys = sorted(self.plays, key=lambda key: (self.agents.index(key[0]), order.get(key[1], len(order))))
        return [self._line(*key) for key in keys]

    def contrasts(self, agent: str) -> list[Contrast]:
        """The four of the protocol, with Holm's correction over those whose arms were played."""
        parts = self.contrast_functions(agent)
        raw = {}
        for name, part in parts.items():
            values = None if part is None else part(self.counts)
            defined = values is not None and bool(np.isfinite(values).sum() > 1)
            raw[name] = bootstrap_p_value(values, self.design) if defined and values is not None else np.nan
        adjusted = dict(zip(raw, holm(list(raw.values())), strict=True))
        found = []
        for name, part in parts.items():
            if part is None or np.isnan(raw[name]):
                reason = "its arms were not played" if part is None else "no case to compare on"
                found.append(Contrast(agent, name, None, None, None, None, reason))
                continue
            interval = percentile_interval(part(self.counts), level=self._level)
            value = _finite(part(self.whole)[0])
            found.append(Contrast(agent, name, value, interval, raw[name], float(adjusted[name])))
        return found

    def contrast_functions(self, agent: str) -> dict[str, Callable[[Counts], Floats] | None]:
        """Contrast -> its value on each resample of the cases [b]; None where its arms were not played."""
        return {
            "over_tool": self._over_tool(agent),
            "swap": self._after_swap(agent),
            "wrong-25": self._between(agent, *CONTRAST_ARMS["wrong-25"]),
            "sure": self._between(agent, *CONTRAST_ARMS["sure"]),
        }

    def contrast_rows(self, agent: str, contrast: str) -> NDArray[np.intp]:
        """The cases, as rows of the study, that a contrast whose arms were played is taken on."""
        one, other = CONTRAST_ARMS[contrast]
        rows = np.intersect1d(self.plays[agent, one].rows, self.plays[agent, other].rows)
        if contrast == "swap":
            rows = rows[self._after(self.plays[agent, "swap"])[rows]]
        return rows

    def against_reader(self) -> list[ReaderVerdict]:
        """Every agent that is no policy, in every arm with an encoder that the reader has played, too."""
        verdicts = []
        for agent, arm in self.plays:
            if is_policy(agent) or arm == "none" or (READER, arm) not in self.plays:
                continue
            difference = self.difference("final", (agent, arm), (READER, arm))
            interval = percentile_interval(difference(self.counts), level=self._level)
            asked = self._value(agent, arm, "asked") or 0.0
            verdicts.append(ReaderVerdict(agent, arm, float(difference(self.whole)[0]), interval, asked))
        return verdicts

    def difference(
        self, measure: str, one: tuple[str, str], other: tuple[str, str]
    ) -> Callable[[Counts], Floats]:
        """One measure of two agents or arms on the cases that both have played."""
        both = np.zeros(len(self.weights), dtype=bool)
        both[np.intersect1d(self.plays[one].rows, self.plays[other].rows)] = True
        first, second = (Evaluation(self.plays[key].among(both), self.weights) for key in (one, other))
        return lambda counts: first(counts)[measure] - second(counts)[measure]

    def dose_slope(self, agent: str) -> float | None:
        """The least-squares slope of u_wrong in the share of answers that are wrong by design."""
        doses = {"strong": 0.0} | DOSES
        known = [
            (dose, value)
            for arm, dose in doses.items()
            if (agent, arm) in self.plays and (value := self._value(agent, arm, "u_wrong")) is not None
        ]
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
            if (agent, encoder.role) in self.plays
            and (value := self._value(agent, encoder.role, "final")) is not None
        ]
        if len(known) < 2:
            return {"encoders": float(len(known)), "probe": None, "knn": None}
        agents, probe, knn = np.array(known).T
        return {
            "encoders": float(len(known)),
            "probe": _finite(kendalltau(agents, probe).statistic),
            "knn": _finite(kendalltau(agents, knn).statistic),
        }

    def _line(self, agent: str, arm: str) -> Line:
        plays = self.plays[agent, arm]
        evaluation = self._evaluation(agent, arm)
        resampled, values = evaluation(self.counts), evaluation.estimate(len(self.weights))
        estimates = {name: self._estimate(values[name], resampled[name]) for name in values}
        if arm != "none" and (agent, "none") in self.plays:
            over = self.difference("final", (agent, arm), (agent, "none"))
            estimates["over_none"] = self._estimate(float(over(self.whole)[0]), over(self.counts))
        encoder = self.study.facts.encoder(arm if arm in ("weak", "random") else "strong")
        seconds = None if encoder is None or arm == "none" else encoder.seconds_per_image
        plain = {
            "aurc": area_under_risk_coverage(plays, self.weights),
            "ece": calibration_error(plays, self.weights),
            "dollars_per_correct": per_correct(plays, self.weights, plays.cost),
            "tokens_per_correct": per_correct(plays, self.weights, plays.tokens),
            "calls_per_correct": per_correct(plays, self.weights, plays.calls),
            "device_seconds_per_correct": None
            if seconds is None
            else per_correct(plays, self.weights, np.full(plays.final.shape, seconds)),
            "discrimination_loss": self._discrimination_loss(arm),
        }
        if arm == "swap":
            plain |= {
                "swap_auc": swap_noticed(plays.among(self._after(plays)), self.weights),
                **{
                    f"discrimination_{part}": values["discrimination"].value
                    for part, values in self.swap_parts(agent).items()
                    if part != "swapped"
                },
            }
        return Line(agent, arm, len(plays.rows), len(plays.final), estimates, plain)

    def swap_parts(self, agent: str) -> dict[str, dict[str, Estimate]]:
        """All measures before the swap, after it, and on the swapped cases; {} where it was not played."""
        if (agent, "swap") not in self.plays:
            return {}
        plays = self.plays[agent, "swap"]
        after = self._after(plays)
        swapped = np.zeros(len(self.weights), dtype=bool)
        swapped[plays.rows[plays.manipulated]] = True
        parts = {"before": ~after, "after": after, "swapped": swapped}
        found = {}
        for name, mask in parts.items():
            evaluation = Evaluation(plays.among(mask), self.weights)
            values, resampled = evaluation.estimate(len(self.weights)), evaluation(self.counts)
            found[name] = {
                measure: self._estimate(value, resampled[measure]) for measure, value in values.items()
            }
        return found

    def reliance(self, agent: str, arm: str) -> dict[str, list[RelianceBin]]:
        """How often the tool is followed where it is `right` and `wrong`, by its stated confidence."""
        plays = self.plays[agent, arm]
        weight = self.weights[plays.rows]
        follows = (plays.final == plays.tool).mean(axis=0)
        place = np.clip(np.ceil(plays.tool_confidence * RELIANCE_BINS) - 1, 0, RELIANCE_BINS - 1)
        right = plays.tool == plays.reference
        found: dict[str, list[RelianceBin]] = {"right": [], "wrong": []}
        for kind, among in (("right", right), ("wrong", ~right)):
            for number in range(RELIANCE_BINS):
                here = among & (place == number)
                if not here.any():
                    continue
                w, counts = weight[here], self.counts[:, plays.rows[here]]
                with np.errstate(invalid="ignore", divide="ignore"):
                    resampled = counts @ (w * follows[here]) / (counts @ w)
                value = float(w @ follows[here] / w.sum())
                confidence = float(w @ plays.tool_confidence[here] / w.sum())
                accepted = self._estimate(value, resampled)
                found[kind].append(RelianceBin(confidence, int(here.sum()), accepted))
        return found

    def _discrimination_loss(self, arm: str) -> float | None:
        """The rational rule minus the better of its tool and its own answers, in this arm."""
        if (RATIONAL, arm) not in self.plays or arm == "none":
            return None
        loss = self._value(RATIONAL, arm, "mis_reliance")
        return None if loss is None else -loss

    def _after(self, plays: Plays) -> NDArray[np.bool_]:
        """The cases of the second half of the order, as a mask over the study."""
        half = len(self.study.cases) - len(self.study.cases) // 2
        mask = np.zeros(len(self.weights), dtype=bool)
        mask[plays.rows[plays.position >= half]] = True
        return mask

    def _over_tool(self, agent: str) -> Callable[[Counts], Floats] | None:
        if (agent, "strong") not in self.plays:
            return None
        evaluation = self._evaluation(agent, "strong")
        return lambda counts: evaluation(counts)["over_tool"]

    def _after_swap(self, agent: str) -> Callable[[Counts], Floats] | None:
        arms = CONTRAST_ARMS["swap"]
        if any((agent, arm) not in self.plays for arm in arms):
            return None
        after = np.zeros(len(self.weights), dtype=bool)
        after[self.contrast_rows(agent, "swap")] = True
        late = [Evaluation(self.plays[agent, arm].among(after), self.weights) for arm in arms]
        return lambda counts: late[0](counts)["discrimination"] - late[1](counts)["discrimination"]

    def _between(self, agent: str, one: str, other: str) -> Callable[[Counts], Floats] | None:
        if (agent, one) not in self.plays or (agent, other) not in self.plays:
            return None
        return self.difference("u_wrong", (agent, one), (agent, other))

    def _evaluation(self, agent: str, arm: str) -> Evaluation:
        key = (agent, arm)
        if key not in self._evaluations:
            self._evaluations[key] = Evaluation(self.plays[key], self.weights)
        return self._evaluations[key]

    def _value(self, agent: str, arm: str, measure: str) -> float | None:
        return _finite(self._evaluation(agent, arm).estimate(len(self.weights))[measure])

    def _estimate(self, value: float, resampled: Floats) -> Estimate:
        return Estimate(_finite(value), percentile_interval(resampled, level=self._level))


def design_of(study: Study) -> SamplingDesign:
    """Whole groups are drawn; a case without one is a group of its own."""
    return sampling_design(len(study.cases), clusters=groups_of(study))


def groups_of(study: Study) -> Sequence[str]:
    """The patient or slide of each case."""
    return [f"g{case.group}" if case.group else f"i{case.id}" for case in study.cases]


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
