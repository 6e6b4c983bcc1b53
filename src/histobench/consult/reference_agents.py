"""Reference agents without a language model. They act through the same loop, as any agent does."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from histobench.consult.arms import case_of, role_of
from histobench.consult.consultation import AVAILABLE, NOTES_WANTED
from histobench.consult.measurements import read_measurements
from histobench.consult.study import KIND, Lessons, Study
from histobench.consult.tool_text import first_class, neighbour_votes, read_prediction
from histobench.core.errors import HistobenchError, did_you_mean
from histobench.mint.agents.agent import EpisodeAgent, EpisodeKey, Player
from histobench.mint.agents.agent_spec import AgentSpec
from histobench.mint.envs.native_calls import PROPOSE
from histobench.mint.messages.parts import Message, ToolCall, ToolResult, ToolSpec

Floats = NDArray[np.float64]


class PolicyModels:
    def __init__(self, study: Study) -> None:
        self._study = study
        self.n_classes = len(study.facts.classes)
        self._readers: dict[str, Any] = {}
        self._trust: dict[str, Callable[[float], float]] = {}

    @cached_property
    def _val(self) -> Lessons:
        return self._study.lessons("val")

    @cached_property
    def _own(self) -> Any:
        lessons = self._study.lessons("train")
        return _classifier(lessons.measurements, lessons.labels)

    def own(self, measurements: Floats) -> Floats:
        return _spread(self._own, measurements[None], self.n_classes)[0]

    def reader(self, role: str, measurements: Floats, shown: Floats) -> Floats:
        """Return class probabilities from exactly the numbers that agents are shown [c]."""
        if role not in self._readers:
            table = np.concatenate([self._val.measurements, self._val.shown[role]], axis=1)
            self._readers[role] = _classifier(table, self._val.labels)
        return _spread(self._readers[role], np.concatenate([measurements, shown])[None], self.n_classes)[0]

    def tool_is_right(self, role: str, confidence: float) -> float:
        if role not in self._trust:
            said = self._val.shown[role][:, : self.n_classes]
            self._trust[role] = _calibration(said.max(axis=1), said.argmax(axis=1) == self._val.labels)
        return self._trust[role](confidence)

    @cached_property
    def own_is_right(self) -> Callable[[float], float]:
        return _calibration(*self._own_record)

    @cached_property
    def own_accuracy(self) -> float:
        return float(self._own_record[1].mean())

    @cached_property
    def _own_record(self) -> tuple[Floats, NDArray[np.bool_]]:
        said = _spread(self._own, self._val.measurements, self.n_classes)
        return said.max(axis=1), said.argmax(axis=1) == self._val.labels


def _classifier(table: Floats, labels: NDArray[np.int64]) -> Any:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    if len(np.unique(labels)) < 2:
        return int(labels[0]) if len(labels) else 0
    return make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000)).fit(table, labels)


def _spread(model: Any, table: Floats, n_classes: int) -> Floats:
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
    return np.asarray(np.log(inside / (1 - inside)))


#: The learner's prior: as many right and wrong answers of the tool as it acts as if it had seen.
PRIOR = (3.0, 1.0)
#: What an answer counts for after the next one has been seen.
DISCOUNT = 0.9
_BELIEF = re.compile(r'\{"right": ([0-9.eE+-]+), "wrong": ([0-9.eE+-]+)\}')
VOTING = 5


@dataclass(frozen=True)
class Belief:
    """How often the learner thinks the tool is right: a Beta distribution that forgets."""

    right: float = PRIOR[0]
    wrong: float = PRIOR[1]

    @property
    def mean(self) -> float:
        return self.right / (self.right + self.wrong)

    @property
    def text(self) -> str:
        return json.dumps({"right": self.right, "wrong": self.wrong})

    @classmethod
    def of(cls, notes: str) -> Belief:
        found = _BELIEF.search(notes)
        return cls(float(found[1]), float(found[2])) if found else cls()

    def seen(self, *, right: bool) -> Belief:
        return Belief(
            PRIOR[0] + DISCOUNT * (self.right - PRIOR[0]) + right,
            PRIOR[1] + DISCOUNT * (self.wrong - PRIOR[1]) + (not right),
        )


class ToolsShown(NamedTuple):
    """What the encoder tools show: `said` is what `predict` says of each class, `tool` its first class."""

    said: Floats
    votes: Floats
    tool: int


#: A class and how sure the policy is of it.
Choice = tuple[int, float]


def _always(agent: PolicyAgent, shown: ToolsShown) -> Choice:
    return shown.tool, float(shown.said[shown.tool])


def _reader(agent: PolicyAgent, shown: ToolsShown) -> Choice:
    read = agent.models.reader(agent.role, agent.measured, np.concatenate([shown.said, shown.votes]))
    return int(read.argmax()), float(read.max())


def _rational(agent: PolicyAgent, shown: ToolsShown) -> Choice:
    first, confidence = agent.first_choice()
    tool = agent.models.tool_is_right(agent.role, float(shown.said[shown.tool]))
    own = agent.models.own_is_right(confidence)
    return (shown.tool, tool) if tool > own else (first, own)


def _oracle(agent: PolicyAgent, shown: ToolsShown) -> Choice:
    return shown.tool if agent.names[shown.tool] == agent.case.reference else agent.first_choice()[0], 1.0


def _learner(agent: PolicyAgent, shown: ToolsShown) -> Choice:
    belief, own = agent.belief.mean, agent.models.own_accuracy
    return (shown.tool, belief) if belief > own else (agent.first_choice()[0], own)


class Policy(NamedTuple):
    words: str
    choose: Callable[[PolicyAgent, ToolsShown], Choice] | None


POLICIES = {
    "always-trust": Policy("the tool's answer", _always),
    "never-trust": Policy("its first answer, from the measurements; it never asks the tool", None),
    "reader": Policy(
        "a logistic regression on the numbers that agents are shown, fitted on validation regions", _reader
    ),
    "rational": Policy(
        "the tool's answer if its calibrated chance to be right is above that of its own answer", _rational
    ),
    "learner": Policy(
        "the tool's answer if its expected accuracy, updated by outcomes, is higher than its own", _learner
    ),
    "oracle": Policy("the tool's answer if that is right, else its first answer", _oracle),
    "random": Policy("a random class", None),
}


def parse_policy(text: str) -> AgentSpec:
    name = text.partition(":")[2]
    if name not in POLICIES:
        raise HistobenchError(f"unknown policy {name!r}; {did_you_mean(name, POLICIES)}")
    return AgentSpec(KIND, name)


class PolicyPlayer(Player):
    def __init__(self, study: Study, policy: str, models: PolicyModels) -> None:
        self.name = f"{KIND}-{policy}"
        self._study, self._policy, self._models = study, policy, models

    def open(self, key: EpisodeKey) -> EpisodeAgent:
        return PolicyAgent(self._study, key, self._policy, self._models)


class PolicyAgent(EpisodeAgent):
    def __init__(self, study: Study, key: EpisodeKey, policy: str, models: PolicyModels) -> None:
        arm = key.dataset.rpartition("@")[2]
        self.names, self.models, self.role = study.facts.classes, models, role_of(arm)
        self.case = study.by_id[case_of(str(key.task_id))]
        self.measured = np.zeros(0)
        self.belief = Belief()
        self._name, self._choose = policy, POLICIES[policy].choose
        self._guess_key = f"{self.case.id} {arm} {key.repeat}"
        self._turn = 0
        self._tool: int | None = None
        self._final: int | None = None

    def __call__(self, history: tuple[Message, ...], functions: Sequence[ToolSpec] = ()) -> Message:
        last = history[-1]
        results = [part.text for part in last.parts if isinstance(part, ToolResult)]
        self._turn += 1
        if self._turn == 1:
            self.belief = Belief.of(last.content)
            return self._calls(("measure", {}))
        if NOTES_WANTED in last.content:
            return self._calls((PROPOSE, {"notes": self._noted(last.content)}))
        if self._turn == 2:
            self.measured = read_measurements(results[0])
            return self._answer(*self.first_choice("first"))
        if self._turn == 3 and AVAILABLE in last.content and self._choose is not None:
            return self._calls(("predict", {"n": len(self.names)}), ("neighbours", {"k": VOTING}))
        self._final, confidence = self._final_choice(results)
        return self._answer(self._final, confidence)

    def _noted(self, observation: str) -> str:
        """What the learner has learned; other policies note nothing."""
        if self._name != "learner":
            return ""
        followed = self._tool is not None and self._final == self._tool
        if " It is right." in observation and self._tool is not None:
            return self.belief.seen(right=followed).text
        if " It is wrong." in observation and followed:
            return self.belief.seen(right=False).text
        return self.belief.text

    def first_choice(self, when: str = "final") -> Choice:
        if self._name == "random":
            key = f"{when} {self._guess_key}".encode()
            number = int.from_bytes(hashlib.sha256(key).digest()[:8], "big")
            return number % len(self.names), 1 / len(self.names)
        own = self.models.own(self.measured)
        return int(own.argmax()), float(own.max())

    def _final_choice(self, results: list[str]) -> Choice:
        if self._turn == 3 or self._choose is None:
            return self.first_choice()
        prediction, neighbours = results
        self._tool = first_class(prediction, self.names)
        if self._tool is None:
            return self.first_choice()
        said, votes = read_prediction(prediction, self.names), neighbour_votes(neighbours, self.names)
        return self._choose(self, ToolsShown(said, votes, self._tool))

    def _answer(self, label: int, confidence: float) -> Message:
        return self._calls((PROPOSE, {"label": self.names[label], "confidence": round(confidence, 4)}))

    def _calls(self, *calls: tuple[str, dict[str, Any]]) -> Message:
        made = [ToolCall(f"call_{self._turn}_{name}", name, given) for name, given in calls]
        return Message.of("assistant", made)
