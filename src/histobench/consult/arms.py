"""The arms: what the encoder tools do in an episode. One arm per episode, the same cases in every arm."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from histobench.consult.study_plan import ROLES
from histobench.core.errors import HistobenchError, did_you_mean
from histobench.core.text import listed

Floats = NDArray[np.float64]
SMALLEST = 1e-12
_RANGE = (1e-3, 1e3)


def at_temperature(probabilities: Floats, temperature: float) -> Floats:
    """Probabilities [n, c] with their logarithms divided by the temperature."""
    logits = np.log(np.maximum(probabilities, SMALLEST)) / temperature
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def fit_temperature(probabilities: Floats, labels: NDArray[np.int64]) -> float:
    from scipy.optimize import minimize_scalar

    rows = np.arange(len(labels))

    def loss(log_temperature: float) -> float:
        scaled = at_temperature(probabilities, float(np.exp(log_temperature)))
        return float(-np.log(np.maximum(scaled[rows, labels], SMALLEST)).mean())

    found = minimize_scalar(loss, bounds=tuple(np.log(_RANGE)), method="bounded", options={"xatol": 1e-6})
    return float(np.exp(found.x))


def temperature_of_mean(probabilities: Floats, mean: float) -> float:
    """The temperature at which the highest probabilities of all rows have this mean, or come near it."""
    low, high = np.log(_RANGE)
    for _ in range(100):  # the mean falls as the temperature rises
        middle = (low + high) / 2
        above = at_temperature(probabilities, float(np.exp(middle))).max(axis=1).mean() > mean
        low, high = (middle, high) if above else (low, middle)
    return float(np.exp((low + high) / 2))


Ints = NDArray[np.int64]


@dataclass(frozen=True)
class SelectedCases:
    rows: Ints  # [m]
    probability: Floats  # [m]


def select_cases(labels: Ints, wrong: NDArray[np.bool_], *, count: int, seed: int = 0) -> SelectedCases:
    """Select `count` rows: half from the `wrong` ones (all if fewer), as even over classes as possible."""
    generator = np.random.default_rng([seed, len(labels), count])
    right = int((~wrong).sum())
    from_wrong = min(int(wrong.sum()), max(count // 2, count - right))
    parts = [
        *_draw(np.flatnonzero(wrong), labels, from_wrong, generator),
        *_draw(np.flatnonzero(~wrong), labels, min(count - from_wrong, right), generator),
    ]
    rows, probability = (np.concatenate(each) for each in zip(*parts, strict=True))
    order = np.argsort(rows)
    return SelectedCases(rows[order], probability[order])


def even_shares(sizes: Ints, count: int) -> tuple[Ints, Ints]:
    """Return how many of each class are certain, and which classes draw lots for one place more."""
    certain = np.zeros(len(sizes), dtype=np.int64)
    left = min(count, int(sizes.sum()))
    while True:
        waiting = np.flatnonzero(certain < sizes)
        if not len(waiting) or left < len(waiting):
            return certain, waiting
        step = min(int((sizes - certain)[waiting].min()), left // len(waiting))
        certain[waiting] += step
        left -= step * len(waiting)


def _draw(
    pool: Ints, labels: Ints, count: int, generator: np.random.Generator
) -> Iterator[tuple[Ints, Floats]]:
    if not count:
        return
    classes, sizes = np.unique(labels[pool], return_counts=True)
    certain, waiting = even_shares(sizes, count)
    left = min(count, len(pool)) - int(certain.sum())
    expected = certain.astype(np.float64)
    if left:
        expected[waiting] += left / len(waiting)
        certain[generator.choice(waiting, size=left, replace=False)] += 1
    for label, size, places, mean in zip(classes, sizes, certain, expected, strict=True):
        rows = np.sort(generator.choice(pool[labels[pool] == label], size=int(places), replace=False))
        yield rows, np.full(int(places), mean / size)


#: arm -> what the encoder tools do.
ARMS: dict[str, str] = {
    "none": "stay closed",
    "strong": "the strong encoder",
    "weak": "a weaker encoder",
    "random": "an encoder with random weights",
    "sequence": "cases one after the other with a memory; the encoder is replaced after half of them",
    "sequence-same": "the same cases in the same order, the strong encoder throughout",
    "shuffled": "answers that belong to another case",
    "sure": "the strong encoder with confidences sharpened to a mean of .99",
    "unsure": "the strong encoder with confidences flattened to a mean of .40",
    "wrong-10": "the strong encoder, a confident wrong class in 10 % of the cases",
    "wrong-25": "the same in 25 %",
    "wrong-50": "the same in 50 %",
    "disclosed": "the strong encoder with its record on validation regions",
    "expert": "the strong encoder and MINT's expert feedback without the answer",
    "placebo": "the strong encoder and feedback without content",
}
SEQUENCE_ARMS = ("sequence", "sequence-same")
#: What is prepared unless other arms are named: those of the registered contrasts, and each encoder.
DEFAULT_ARMS = ("none", "strong", "weak", "random", *SEQUENCE_ARMS, "sure", "unsure", "wrong-25")
DOSES = {"wrong-10": 0.10, "wrong-25": 0.25, "wrong-50": 0.50}
MEANS = {"sure": 0.99, "unsure": 0.40}
WRONG_CONFIDENCE = 0.95
#: How far above chance the least mean confidence lies where .40 is below it.
ABOVE_CHANCE = 0.05


@dataclass(frozen=True)
class ArmPlan:
    arm: str
    role: str  # of the encoder that answers
    source: Ints  # [n], the case whose answers are shown
    probabilities: Floats  # [n, c], what `predict` says
    order: Ints  # [n, c], its classes from the first to the last
    manipulated: NDArray[np.bool_]  # [n], whether the arm changed the answers of this case

    @property
    def tool_class(self) -> Ints:
        return self.order[:, 0]


def named_arms(text: str, known: Collection[str]) -> list[str]:
    arms = list(dict.fromkeys(listed(text)))
    if not arms:
        raise HistobenchError("no arm is named; give `arms`, such as `arms` none,strong,weak,random")
    for arm in arms:
        if arm not in known:
            raise HistobenchError(f"unknown arm {arm!r}; {did_you_mean(arm, known)}")
    return arms


def parse_arms(text: str, roles: Sequence[str]) -> list[str]:
    """Return the arms that a list names; `default` and `all` leave out what these encoders do not allow."""
    if text.strip() in ("all", "default"):
        offered = ARMS if text.strip() == "all" else DEFAULT_ARMS
        return [arm for arm in offered if needs(arm, roles) <= set(roles)]
    arms = named_arms(text, ARMS)
    for arm in arms:
        if missing := needs(arm, roles) - set(roles):
            raise HistobenchError(
                f"the arm {arm} needs a {' and a '.join(sorted(missing))} encoder; "
                "give `encoders` STRONG,WEAK,random-vit"
            )
    return arms


def needs(arm: str, roles: Sequence[str] = ROLES) -> set[str]:
    if arm == "none":
        return set()
    return {"strong", replacement(roles)} if arm in SEQUENCE_ARMS else {role_of(arm)}


def role_of(arm: str) -> str:
    """The encoder behind an arm's tools at first: its own, or the strong one."""
    return arm if arm in ("weak", "random") else "strong"


def replacement(roles: Sequence[str]) -> str:
    """The encoder that comes after the change: the random one, or else the weak one."""
    return "weak" if "weak" in roles and "random" not in roles else "random"


@dataclass(frozen=True)
class Step:
    sequence: int
    position: int
    case: str
    role: str

    @property
    def id(self) -> str:
        return f"{self.sequence:02d}.{self.position:03d}.{self.case}"


def case_of(episode: str) -> str:
    return episode.rpartition(".")[2]


def draw_sequences(n_cases: int, *, count: int, length: int, seed: int = 0) -> list[Ints]:
    """Draw `count` orders of at most `length` cases; a case comes again only after all have come."""
    generator = _generator(seed, "sequences")
    length = min(length, n_cases)
    orders: list[Ints] = []
    waiting = np.zeros(0, dtype=np.int64)
    for _ in range(count):
        if len(waiting) < length:
            waiting = np.asarray(generator.permutation(n_cases), dtype=np.int64)
        orders.append(waiting[:length])
        waiting = waiting[length:]
    return orders


def steps_of(arm: str, sequences: Sequence[Sequence[str]], replaced_by: str) -> list[Step]:
    def role(position: int, length: int) -> str:
        return replaced_by if arm == "sequence" and position >= change_of(length) else "strong"

    steps = [
        Step(number, position, case, role(position, len(cases)))
        for number, cases in enumerate(sequences)
        for position, case in enumerate(cases)
    ]
    return sorted(steps, key=lambda step: step.position)


def change_of(length: int) -> int:
    return length - length // 2


def random_order(labels: Sequence[str] | Ints, *, seed: int = 0) -> Ints:
    """Return a random order of cases of which every beginning is a sample stratified by class."""
    codes = np.unique(np.asarray(labels), return_inverse=True)[1]
    generator = _generator(seed, "order")
    place = np.empty(len(codes))
    for code in range(int(codes.max(initial=-1)) + 1):
        members = generator.permutation(np.flatnonzero(codes == code))
        place[members] = (np.arange(len(members)) + generator.random()) / len(members)
    return np.argsort(place, kind="stable").astype(np.int64)


def plan_arm(arm: str, calibrated: dict[str, Floats], references: Ints, *, seed: int = 0) -> ArmPlan:
    """What an arm shows; `calibrated` has the probabilities [n, c] of each role's probe.

    What is drawn depends on the seed and the number of cases alone, so that the doses of wrong answers are
    nested: a case that is wrong by design in `wrong-10` is so in `wrong-25`, too.
    """
    base = calibrated[role_of(arm)]
    n = len(base)
    everyone, nothing = np.arange(n), np.zeros(n, dtype=bool)
    order = _order(base)
    shown, source, manipulated = base, everyone, nothing
    if arm == "shuffled":
        source = derangement(n, _generator(seed, "shuffled"))
        shown, order, manipulated = base[source], order[source], np.ones(n, dtype=bool)
    elif arm in MEANS:
        mean = max(MEANS[arm], 1 / base.shape[1] + ABOVE_CHANCE)
        shown = at_temperature(base, temperature_of_mean(base, mean))
    elif arm in DOSES:
        manipulated = np.isin(everyone, _generator(seed, "wrong").permutation(n)[: round(DOSES[arm] * n)])
        shown = np.where(manipulated[:, None], _made_wrong(base, references), base)
        order = np.where(manipulated[:, None], _order(shown), order)
    return ArmPlan(arm, role_of(arm), source, shown, order, manipulated)


def derangement(n: int, generator: np.random.Generator) -> Ints:
    circle = generator.permutation(n)
    source = np.empty(n, dtype=np.int64)
    source[circle] = np.roll(circle, 1)
    return source


def _made_wrong(probabilities: Floats, references: Ints) -> Floats:
    rows = np.arange(len(probabilities))
    others = probabilities.copy()
    others[rows, references] = -1
    chosen = others.argmax(axis=1)
    rest = np.maximum(probabilities, 1e-9)
    rest[rows, chosen] = 0
    made: Floats = (1 - WRONG_CONFIDENCE) * rest / rest.sum(axis=1, keepdims=True)
    made[rows, chosen] = WRONG_CONFIDENCE
    return made


def _order(probabilities: Floats) -> Ints:
    return np.argsort(-probabilities, axis=1, kind="stable")


def _generator(seed: int, purpose: str) -> np.random.Generator:
    return np.random.default_rng([seed, *purpose.encode()])
