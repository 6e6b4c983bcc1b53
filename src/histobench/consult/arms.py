"""The arms: what the encoder tools do in an episode. One arm per episode, the same cases in every arm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from histobench.consult.confidence import at_temperature, temperature_of_mean
from histobench.core.errors import HistobenchError, did_you_mean

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: arm -> what the encoder tools do.
ARMS: dict[str, str] = {
    "none": "stay closed",
    "strong": "the strong encoder",
    "weak": "a weaker encoder",
    "random": "an encoder with random weights",
    "swap": "the strong encoder for half of the cases, then the random one for every second case",
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
DOSES = {"wrong-10": 0.10, "wrong-25": 0.25, "wrong-50": 0.50}
MEANS = {"sure": 0.99, "unsure": 0.40}
#: The confidence of a class that is wrong by design.
WRONG_CONFIDENCE = 0.95
#: How far above chance the least mean confidence lies where .40 is below it.
ABOVE_CHANCE = 0.05
ROLES = ("strong", "weak", "random")


@dataclass(frozen=True)
class ArmPlan:
    """What each case is shown in one arm.

    `role` is the encoder that answers, `source` the case whose answers are shown, `probabilities` what
    `predict` says and `order` its classes from the first to the last, `manipulated` whether the arm did
    something to this very case.
    """

    arm: str
    role: tuple[str, ...]
    source: Ints  # [n]
    probabilities: Floats  # [n, c]
    order: Ints  # [n, c]
    manipulated: NDArray[np.bool_]  # [n]
    #: Place of each case in the order in which an arm that changes over time sees them.
    position: Ints  # [n]

    @property
    def tool_class(self) -> Ints:
        """T: the first class of `predict`."""
        return self.order[:, 0]


def parse_arms(text: str, roles: Sequence[str]) -> list[str]:
    """The arms that a list names; `all` is every arm that these encoders allow.

    >>> parse_arms("none,strong", ["strong"])
    ['none', 'strong']
    """
    if text.strip() == "all":
        return [arm for arm in ARMS if needs(arm) <= set(roles)]
    arms = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    for arm in arms:
        if arm not in ARMS:
            raise HistobenchError(f"unknown arm {arm!r}; {did_you_mean(arm, ARMS)}")
        if missing := needs(arm) - set(roles):
            raise HistobenchError(
                f"the arm {arm} needs a {' and a '.join(sorted(missing))} encoder; "
                "give `encoders` STRONG,WEAK,random-vit"
            )
    if not arms:
        raise HistobenchError("no arm is named; give `arms`, such as `arms` none,strong,weak,random")
    return arms


def needs(arm: str) -> set[str]:
    """The roles of encoders without which an arm cannot be."""
    if arm == "none":
        return set()
    return {"strong", "random"} if arm == "swap" else {arm} if arm in ("weak", "random") else {"strong"}


def plan_arm(arm: str, calibrated: dict[str, Floats], references: Ints, *, seed: int = 0) -> ArmPlan:
    """What an arm shows; `calibrated` has the probabilities [n, c] of each role's probe.

    What is drawn depends on the seed and the number of cases alone, so that the doses of wrong answers are
    nested: a case that is wrong by design in `wrong-10` is so in `wrong-25`, too.
    """
    base = calibrated[arm if arm in ("weak", "random") else "strong"]
    n = len(base)
    everyone, nobody = np.arange(n), np.zeros(n, dtype=bool)
    role = (arm if arm in ("weak", "random") else "strong",) * n
    order = _order(base)
    shown, source, manipulated, position = base, everyone, nobody, everyone
    if arm == "swap":
        position = np.empty(n, dtype=np.int64)
        position[_generator(seed, "swap order").permutation(n)] = everyone
        manipulated = (position >= n - n // 2) & (_generator(seed, "swap lot").random(n) < 0.5)
        shown = np.where(manipulated[:, None], calibrated["random"], base)
        order = _order(shown)
        role = tuple("random" if swapped else "strong" for swapped in manipulated)
    elif arm == "shuffled":
        source = derangement(n, _generator(seed, "shuffled"))
        shown, order, manipulated = base[source], order[source], np.ones(n, dtype=bool)
    elif arm in MEANS:
        mean = max(MEANS[arm], 1 / base.shape[1] + ABOVE_CHANCE)
        shown = at_temperature(base, temperature_of_mean(base, mean))
    elif arm in DOSES:
        lot = _generator(seed, "wrong").permutation(n)
        manipulated = np.isin(everyone, lot[: round(DOSES[arm] * n)])
        shown = np.where(manipulated[:, None], _made_wrong(base, references), base)
        order = np.where(manipulated[:, None], _order(shown), order)
    return ArmPlan(arm, role, source, shown, order, manipulated, position)


def derangement(n: int, generator: np.random.Generator) -> Ints:
    """For each case another one, every case once; a single case has no other.

    The next one in a random circle: no case keeps its own answers, and which it gets does not depend on what
    they are.
    """
    circle = generator.permutation(n)
    source = np.empty(n, dtype=np.int64)
    source[circle] = np.roll(circle, 1)
    return source


def _made_wrong(probabilities: Floats, references: Ints) -> Floats:
    """The likeliest class that is not the reference, made confident; the others share the rest as before."""
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
