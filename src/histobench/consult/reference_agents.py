"""Reference agents without a language model. They act through the same loop, as any agent does."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from histobench.consult.arms import case_of, role_of
from histobench.consult.consultation import AVAILABLE, NOTES_WANTED
from histobench.consult.measurements import read_measurements
from histobench.consult.study import Case, Study
from histobench.consult.tool_text import first_class, neighbour_votes, read_prediction
from histobench.core.errors import HistobenchError, did_you_mean
from histobench.mint.agents.agent import EpisodeAgent, EpisodeKey, Player
from histobench.mint.agents.agent_spec import AgentSpec
from histobench.mint.envs.native_calls import PROPOSE
from histobench.mint.messages.parts import Message, ToolCall, ToolResult, ToolSpec

Floats = NDArray[np.float64]


class PolicyModels:
    """Fitted on first use; the same study gives the same models."""

    def __init__(self, study: Study) -> None:
        self._study = study
        self.n_classes = len(study.facts.classes)
        self._readers: dict[str, Any] = {}
        self._trust: dict[str, Any] = {}

    def own(self, measurements: Floats) -> Floats:
        """Class probabilities from the measurements alone [c]."""
        return _spread(self._own, measurements[None], self.n_classes)[0]

    def reader(self, role: str, measurements: Floats, shown: Floats) -> Floats:
        """Class probabilities from exactly the numbers that agents are shown [c].

        Fitted on validation regions as the role's encoder shows them: what an arm does to the answers
        afterwards is as unknown to the reader as it is to any agent.
        """
        if role not in self._readers:
            lessons = self._study.lessons("val")
            table = np.concatenate([lessons.measurements, lessons.shown[role]], axis=1)
            self._readers[role] = _classifier(table, lessons.labels)
        row = np.concatenate([measurements, shown])
        return _spread(self._readers[role], row[None], self.n_classes)[0]

    def tool_is_right(self, role: str, confidence: float) -> float:
        """P(T right | the confidence that it states), from validation regions."""
        if role not in self._trust:
            lessons = self._study.lessons("val")
            said = lessons.shown[role][:, : self.n_classes]
            self._trust[role] = _calibration(said.max(axis=1), said.argmax(axis=1) == lessons.labels)
        return float(self._trust[role](confidence))

    @cached_property
    def own_is_right(self) -> Callable[[float], float]:
        """P(the answer from measurements is right | its confidence), from validation regions."""
        return _calibration(*self._own_record)

    @cached_property
    def own_accuracy(self) -> float:
        """How often the answer from measurements is right on validation regions."""
        return float(self._own_record[1].mean())

    @cached_property
    def _own(self) -> Any:
        lessons = self._study.lessons("train")
        return _classifier(lessons.measurements, lessons.labels)

    @cached_property
    def _own_record(self) -> tuple[Floats, NDArray[np.bool_]]:
        """On validation regions: how sure the answer from measurements is, and whether it is right [n]."""
        lessons = self._study.lessons("val")
        said = _spread(self._own, lessons.measurements, self.n_classes)
        return said.max(axis=1), said.argmax(axis=1) == lessons.labels


def _classifier(table: Floats, labels: NDArray[np.int64]) -> Any:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    if len(np.unique(labels)) < 2:
        return int(labels[0]) if len(labels) else 0
    return make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000)).fit(table, labels)


def _spread(model: Any, table: Floats, n_classes: int) -> Floats:
    """Probabilities of all classes; those that the model has not seen have 0."""
    found = np.zeros((len(table), n_classes))
    if isinstance(model, int):
        found[:, model] = 1
    else:
        found[:, model.classes_] = model.predict_proba(table)
    return found


def _calibration(confidence: Floats, right: NDArray[np.bool_]) -> Callable[[float], float]:
    """Logistic regression of being right on the logit of the confidence; a share where none can be had."""
    from sklearn.linear_model import LogisticRegression

    if right.all() or not right.any():
        share = (right.sum() + 1) / (len(right) + 2)
        return lambda confidence: float(share)
    model = LogisticRegression(C=1e3, max_iter=2000).fit(_logit(confidence)[:, None], right)
    return lambda confidence: float(model.predict_proba([[_logit(np.array([confidence]))[0]]])[0, 1])


def _logit(values: Floats) -> Floats:
    inside = np.clip(values, 0.005, 0.995)  # as shown, with two digits
    logits: Floats = np.log(inside / (1 - inside))
    return logits


KIND = "policy"
#: The learner's prior: as many right and wrong answers of the tool as it acts as if it had seen.
PRIOR = (3.0, 1.0)
#: What an answer counts for after the next one has been seen.
DISCOUNT = 0.9
_BELIEF = re.compile(r'\{"right": ([0-9.eE+-]+), "wrong": ([0-9.eE+-]+)\}')
VOTING = 5
#: Between the outputs of two calls in one block of code.
_RULE = "=" * 20
_COUNT_DOWN = re.compile(r"\nYou have \d+ steps left.*\Z", re.DOTALL)


@dataclass(frozen=True)
class Belief:
    """How often the learner thinks the tool is right: a Beta distribution that forgets.

    >>> Belief().seen(right=False).mean < Belief().mean
    True
    >>> Belief.of(Belief(2.5, 1.25).text) == Belief(2.5, 1.25)
    True
    """

    right: float = PRIOR[0]
    wrong: float = PRIOR[1]

    @property
    def mean(self) -> float:
        """The expected accuracy of the tool."""
        return self.right / (self.right + self.wrong)

    @property
    def text(self) -> str:
        """As the learner notes it."""
        return json.dumps({"right": self.right, "wrong": self.wrong})

    @classmethod
    def of(cls, notes: str) -> Belief:
        """From the learner's own notes; the prior where there are none."""
        found = _BELIEF.search(notes)
        return cls(float(found[1]), float(found[2])) if found else cls()

    def seen(self, *, right: bool) -> Belief:
        """After one more answer of the tool; what was seen before counts for less."""
        return Belief(
            PRIOR[0] + DISCOUNT * (self.right - PRIOR[0]) + right,
            PRIOR[1] + DISCOUNT * (self.wrong - PRIOR[1]) + (not right),
        )


@dataclass(frozen=True)
class Seen:
    """All that a policy may go by when it gives its final answer; `said` is what `predict` shows."""

    case: Case
    role: str
    names: Sequence[str]
    models: PolicyModels
    measurements: Floats
    own: Floats
    said: Floats
    votes: Floats
    tool: int
    belief: Belief = Belief()

    @property
    def first(self) -> int:
        """The answer from the measurements."""
        return int(self.own.argmax())


Choice = tuple[int, float]


def _always(seen: Seen) -> Choice:
    return seen.tool, float(seen.said[seen.tool])


def _reader(seen: Seen) -> Choice:
    read = seen.models.reader(seen.role, seen.measurements, np.concatenate([seen.said, seen.votes]))
    return int(read.argmax()), float(read.max())


def _rational(seen: Seen) -> Choice:
    tool = seen.models.tool_is_right(seen.role, float(seen.said[seen.tool]))
    own = seen.models.own_is_right(float(seen.own[seen.first]))
    return (seen.tool, tool) if tool > own else (seen.first, own)


def _oracle(seen: Seen) -> Choice:
    tool_is_right = seen.names[seen.tool] == seen.case.reference
    return (seen.tool, 1.0) if tool_is_right else (seen.first, 1.0)


def _learner(seen: Seen) -> Choice:
    belief = seen.belief.mean
    own = seen.models.own_accuracy
    return (seen.tool, belief) if belief > own else (seen.first, own)


#: name -> final answer; None where the tool is never asked.
POLICIES: dict[str, Callable[[Seen], Choice] | None] = {
    "always-trust": _always,
    "never-trust": None,
    "reader": _reader,
    "rational": _rational,
    "learner": _learner,
    "oracle": _oracle,
    "random": None,
}
#: name -> how it chooses its final answer.
RULES = {
    "always-trust": "the tool's answer",
    "never-trust": "its first answer, from the measurements; it never asks the tool",
    "reader": "a logistic regression on the numbers that agents are shown, fitted on validation regions",
    "rational": "the tool's answer if its calibrated chance to be right is above that of its own answer",
    "learner": "the tool's answer if its expected accuracy, updated by outcomes, is higher than its own",
    "oracle": "the tool's answer if that is right, else its first answer",
    "random": "a random class",
}


def parse_policy(text: str) -> AgentSpec:
    """The specification of `policy:NAME`."""
    name = text.partition(":")[2]
    if name not in POLICIES:
        raise HistobenchError(f"unknown policy {name!r}; {did_you_mean(name, POLICIES)}")
    return AgentSpec(KIND, name)


def policy_name(spec: AgentSpec) -> str:
    """In folders and tables."""
    return f"{KIND}-{spec.target}"


class PolicyPlayer(Player):
    """Plays every case of a study by one rule."""

    def __init__(self, study: Study, policy: str, models: PolicyModels) -> None:
        self.name = f"{KIND}-{policy}"
        self._study, self._policy, self._models = study, policy, models

    def open(self, key: EpisodeKey) -> EpisodeAgent:
        """The dataset of an episode ends with its arm."""
        arm = key.dataset.rpartition("@")[2]
        case = self._study.by_id[case_of(str(key.task_id))]
        return PolicyAgent(self._study, case, arm, self._policy, self._models, key.repeat)


class PolicyAgent(EpisodeAgent):
    """Measures, answers, asks the encoder if it is there, answers again."""

    def __init__(
        self, study: Study, case: Case, arm: str, policy: str, models: PolicyModels, repeat: int
    ) -> None:
        self._names = study.facts.classes
        self._case, self._arm, self._policy, self._models, self._repeat = case, arm, policy, models, repeat
        self._turn = 0
        self._belief = Belief()
        self._tool: int | None = None
        self._final: int | None = None
        self._measured = np.zeros(0)
        self._own = np.zeros(len(self._names))

    def __call__(self, history: tuple[Message, ...], functions: Sequence[ToolSpec] = ()) -> str | Message:
        """The next message, in whichever dialect is spoken."""
        native = bool(functions)
        last = history[-1]
        self._turn += 1
        if self._turn == 1:
            self._belief = Belief.of(last.content)
            return _calls(native, ("measure", {}))
        if NOTES_WANTED in last.content:
            return self._propose(native, {"notes": self._noted(last.content)})
        if self._turn == 2:
            self._measured = read_measurements(_results(last, 1)[0])
            self._own = self._models.own(self._measured)
            return self._answer(native, *self._first_choice())
        if self._turn == 3 and AVAILABLE in last.content and POLICIES[self._policy] is not None:
            asked = ("predict", {"n": len(self._names)}), ("neighbours", {"k": VOTING})
            return _calls(native, *asked)
        self._final, confidence = self._final_choice(last)
        return self._answer(native, self._final, confidence)

    def _noted(self, observation: str) -> str:
        """What the learner has learned; other policies note nothing.

        Where it did not follow the tool and was wrong, the tool may have been right or wrong, too.
        """
        if self._policy != "learner":
            return ""
        followed = self._tool is not None and self._final == self._tool
        if " It is right." in observation and self._tool is not None:
            return self._belief.seen(right=followed).text
        if " It is wrong." in observation and followed:
            return self._belief.seen(right=False).text
        return self._belief.text

    def _first_choice(self) -> Choice:
        if self._policy == "random":
            return self._guess("first")
        return int(self._own.argmax()), float(self._own.max())

    def _final_choice(self, last: Message) -> Choice:
        rule = POLICIES[self._policy]
        if self._policy == "random":
            return self._guess("final")
        if self._turn == 3 or rule is None:
            return self._first_choice()
        prediction, neighbours = _results(last, 2)
        tool = first_class(prediction, self._names)
        if tool is None:
            return self._first_choice()
        self._tool = tool
        return rule(
            Seen(
                self._case,
                role_of(self._arm),
                self._names,
                self._models,
                self._measured,
                self._own,
                said=read_prediction(prediction, self._names),
                votes=neighbour_votes(neighbours, self._names),
                tool=tool,
                belief=self._belief,
            )
        )

    def _guess(self, when: str) -> Choice:
        key = f"{when} {self._case.id} {self._arm} {self._repeat}".encode()
        number = int.from_bytes(hashlib.sha256(key).digest()[:8], "big")
        return number % len(self._names), 1 / len(self._names)

    def _answer(self, native: bool, label: int, confidence: float) -> str | Message:
        return self._propose(native, {"label": self._names[label], "confidence": round(confidence, 4)})

    def _propose(self, native: bool, arguments: dict[str, Any]) -> str | Message:
        if native:
            return Message.of("assistant", [ToolCall(f"call_{self._turn}", PROPOSE, arguments)])
        return f"<solution>{json.dumps(arguments)}</solution>"


def _calls(native: bool, *calls: tuple[str, dict[str, int]]) -> str | Message:
    if native:
        return Message.of("assistant", [ToolCall(f"call_{name}", name, given) for name, given in calls])
    lines = []
    for name, given in calls:
        arguments = ", ".join(f"{key}={value}" for key, value in given.items())
        lines.append(f"print({name}({arguments}))")
    return "<execute>" + f"\nprint({_RULE!r})\n".join(lines) + "</execute>"


def _results(message: Message, count: int) -> list[str]:
    """The answers to the calls of the last turn, in their order."""
    results = [part.text for part in message.parts if isinstance(part, ToolResult)]
    if not results:
        text = _COUNT_DOWN.sub("", message.content.removeprefix("Observation:\n"))
        results = [part.strip() for part in text.split(_RULE)]
    if len(results) < count:
        raise HistobenchError(f"a policy cannot read the answer of its tools: {message.content[:200]!r}")
    return results
