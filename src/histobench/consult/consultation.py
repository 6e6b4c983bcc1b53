"""A case in an arm as a task of the MINT loop, and the environment it is played in."""

from __future__ import annotations

import hashlib
import json
import math
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from histobench.consult.arms import Step
from histobench.consult.study import FAMILY, RECORD, Case, Cassette, Study, StudyFacts, ToolView
from histobench.core.plain_data import parse_json
from histobench.mint.envs.action import Action
from histobench.mint.envs.general_env import GeneralEnv
from histobench.mint.envs.native_calls import PROPOSE
from histobench.mint.envs.turn_loop import ActionOutcome, Budget
from histobench.mint.messages.parts import Message, Text, ToolResult, ToolSpec, load_image
from histobench.mint.runs.episode_run import EpisodeStoppedError
from histobench.mint.tasks.base import Task
from histobench.mint.tools.base import IllustratedText, Tool, ToolArgumentError
from histobench.roi.data.image_ref import locate

DEFER = "defer"
_FENCE = re.compile(r"^```[a-zA-Z]*\s*|\s*```$")
#: So much of an answer is read: a label, a number and a sentence around them.
_READ_CHARS = 2000


@dataclass(frozen=True)
class CaseAnswer:
    label: str | None = None
    confidence: float | None = None
    defer: bool = False
    problem: str = ""


def read_answer(text: str, options: Sequence[str]) -> CaseAnswer:
    """Read the answer in a solution: JSON with `label` and `confidence`, or the label alone."""
    text = _FENCE.sub("", text.strip()[:_READ_CHARS]).strip()
    said, confidence = _as_json(text), None
    if isinstance(said, dict):
        confidence = _confidence(said.get("confidence"))
        said = next((said[name] for name in ("label", "solution", "answer") if name in said), "")
    if not isinstance(said, str):
        return CaseAnswer(confidence=confidence, problem="the label is not text")
    bare = said.strip().strip("\"'.").strip()
    if bare.casefold() == DEFER:
        return CaseAnswer(confidence=confidence, defer=True)
    label = _option(said.strip(), options) or _option(bare, options)
    if label is None:
        return CaseAnswer(confidence=confidence, problem="it names none of the options, or several")
    return CaseAnswer(label, confidence)


def _as_json(text: str) -> Any:
    start, end = text.find("{"), text.rfind("}")
    for part in (text, text[start : end + 1] if 0 <= start < end else ""):
        try:
            return parse_json(part)
        except ValueError:
            continue
    return text


def _option(said: str, options: Sequence[str]) -> str | None:
    said = said.casefold()
    for option in options:
        if said == option.casefold():
            return option
    named = [each for each in options if re.search(rf"(?<!\w){re.escape(each.casefold())}(?!\w)", said)]
    # "loose stroma" names "stroma", too: the longer one is meant.
    longest = [option for option in named if not any(option != other and option in other for other in named)]
    return longest[0] if len(longest) == 1 else None


def _confidence(value: Any) -> float | None:
    """A share of 1; percentages are understood, other numbers are none."""
    try:
        number = float(str(value).strip().removesuffix("%"))
    except ValueError:
        return None
    if str(value).strip().endswith("%") or 1 < number <= 100:
        number /= 100
    return number if math.isfinite(number) and 0 <= number <= 1 else None


MOST_CALLS = 6
SPENT = f"No calls are left: all {MOST_CALLS} have been made. Give your answer."


@dataclass
class Desk:
    case: Case
    arm: str
    facts: StudyFacts
    cassette: Cassette
    opened: bool = False  # whether the encoder tools are open
    calls: list[str] = field(default_factory=list)
    #: The arm whose answers are shown, where it is another one: an encoder's own, in a sequence.
    shown: str = ""

    @property
    def view(self) -> ToolView | None:
        return self.case.arms.get(self.shown or self.arm)

    def ask(self, tool: str, arguments: dict[str, Any] | None = None, **asked: str) -> str:
        return self.count(tool) or self.cassette.answer(tool, arguments or {}, **asked)

    def count(self, tool: str) -> str:
        if len(self.calls) >= MOST_CALLS:
            return SPENT
        self.calls.append(tool)
        return ""


class CaseTool(Tool):
    def __init__(self, desk: Desk) -> None:
        self.desk = desk


class EncoderTool(CaseTool):
    def is_open(self) -> bool:
        return self.desk.opened and self.desk.view is not None

    def ask(self, **arguments: Any) -> str:
        desk = self.desk
        assert desk.view is not None
        asked = {"image": desk.case.id, "encoder": desk.view.encoder, "arm": desk.shown or desk.arm}
        return desk.ask(self.name, arguments, **asked)

    def __call__(self) -> str:
        return self.ask()


class MeasureTool(CaseTool):
    name = "measure"
    signature = "measure() -> str"
    description = "Classical image analysis of the region: stains, share of tissue, nuclei, texture."

    def __call__(self) -> str:
        return self.desk.ask(self.name, image=self.desk.case.id)


class Typical(CaseTool):
    name = "typical"
    signature = "typical(label: str) -> str"
    description = "Mean, sd and 5-95 % of each measurement over training regions of a diagnosis."

    def __call__(self, label: str) -> str:
        if label not in self.desk.case.options:
            raise ToolArgumentError(f"{label!r} is not an option; known: {', '.join(self.desk.case.options)}")
        return self.desk.ask(self.name, {"label": label})


class Predict(EncoderTool):
    name = "predict"
    signature = "predict(n: int = 3) -> str"
    description = "The n most probable diagnoses by a classifier on the image encoder, with probabilities."

    def __call__(self, n: int = 3) -> str:
        return self.ask(n=min(_positive("n", n), len(self.desk.facts.classes)))


class NeighboursTool(EncoderTool):
    name = "neighbours"
    signature = "neighbours(k: int = 5) -> str"
    description = "The k training regions that the image encoder finds most similar, with their diagnoses."

    def __call__(self, k: int = 5) -> str:
        return self.ask(k=min(_positive("k", k), self.desk.facts.most_neighbours))


class ZeroShot(EncoderTool):
    name = "zero_shot"
    signature = "zero_shot() -> str"
    description = "Scores of the diagnoses by comparing the region with their descriptions, without training."

    def is_open(self) -> bool:
        return super().is_open() and self.desk.view is not None and self.desk.view.zero_shot


class TrackRecord(EncoderTool):
    name = "track_record"
    signature = "track_record() -> str"
    description = "How often the classifier was right on validation regions when it said what it says here."

    def is_open(self) -> bool:
        return super().is_open() and self.desk.arm == "disclosed"


class Look(CaseTool):
    name = "look"
    signature = "look(box: list[float]) -> str"
    description = "Shows the part [left, top, right, bottom] of the region, as shares of its sides (0 to 1)."

    def __init__(self, desk: Desk, picture: Path) -> None:
        super().__init__(desk)
        self._picture = picture

    def __call__(self, box: list[float]) -> str:
        return self.desk.count(self.name) or _crop(self._picture, box)


def desk_tools(desk: Desk, picture: Path | None = None) -> list[Tool]:
    look = [Look(desk, picture)] if picture is not None else []
    of_encoder = [kind(desk) for kind in (Predict, NeighboursTool, ZeroShot, TrackRecord)]
    return [MeasureTool(desk), Typical(desk), *look, *of_encoder]


def _positive(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ToolArgumentError(f"{name} must be a whole number of at least 1, not {value!r}")
    return value


def _crop(picture: Path, box: list[float]) -> str:
    import io

    from histobench.roi.data.image import open_rgb

    try:
        left, top, right, bottom = (float(side) for side in box)
    except (TypeError, ValueError):
        raise ToolArgumentError(f"box must be [left, top, right, bottom], not {box!r}") from None
    if not (0 <= left < right <= 1 and 0 <= top < bottom <= 1):
        raise ToolArgumentError("box must be shares with 0 <= left < right <= 1 and 0 <= top < bottom <= 1")
    whole = open_rgb(locate(picture).read(), name=picture.name)
    width, height = whole.size
    edges = (int(left * width), int(top * height), -int(-right * width // 1), -int(-bottom * height // 1))
    part, buffer = whole.crop(edges), io.BytesIO()
    part.save(buffer, "PNG")
    return IllustratedText(f"a crop of {part.width} x {part.height} pixels", [load_image(buffer.getvalue())])


TEMPLATES = Path(__file__).parent / "templates"
AVAILABLE = "An image encoder is now available"


def consult_prompt(
    case: Case,
    facts: StudyFacts,
    tools: Sequence[Tool],
    budget: Budget,
    *,
    native: bool,
    sees: bool = False,
    handed: Handed | None = None,
) -> str:
    """Write instructions, functions, budget and case; nothing in it depends on the arm."""
    about = [f"Organ: {facts.organ}."] if facts.organ else []
    about.append(f"The region is {facts.region}.")
    if facts.microns_per_pixel:
        about.append(f"One pixel is {facts.microns_per_pixel:g} microns wide.")
    about.append("It is shown below." if sees else "You do not see it; the functions tell you about it.")
    return _template("prompt").format(
        region=facts.region,
        how_to_act=_template("act_native" if native else "act_text"),
        open_tools=_listed(tools, encoder=False),
        encoder_tools=_listed(tools, encoder=True),
        turns=budget.max_steps,
        answers=budget.max_propose_solution - (handed is not None),
        and_notes=" and 1 for your notes" if handed else "",
        told=TOLD if handed and handed.outcomes else NOT_TOLD,
        memory=_memory(handed) if handed else "",
        calls=MOST_CALLS,
        case=" ".join(about),
        options="\n".join(f"- {option}" for option in case.options),
    )


def first_noted(open_tools: Sequence[Tool], problem: str) -> str:
    noted = f"Your first answer cannot be read: {problem}." if problem else "Your first answer is noted."
    if not open_tools:
        return f"{noted} No image encoder is available for this region. Give your final answer."
    names = ", ".join(tool.signature.partition(" ->")[0] for tool in open_tools)
    return f"{noted} {AVAILABLE}: {names}. You may ask it, then give your final answer."


def _memory(handed: Handed) -> str:
    record = ""
    if handed.outcomes and handed.right:
        last = "right" if handed.right[-1] else "wrong"
        record = f" Of your {len(handed.right)} final answers so far {sum(handed.right)} were right"
        record += f", and the last one was {last}."
    return _template("memory").format(
        number=handed.step.position + 1,
        total=handed.length,
        tokens=NOTES_TOKENS,
        record=record,
        notes=handed.notes or "(none)",
    )


def _template(name: str) -> str:
    return (TEMPLATES / f"{name}.txt").read_text(encoding="utf-8").removesuffix("\n")


def _listed(tools: Sequence[Tool], *, encoder: bool) -> str:
    return "\n".join(
        f"- {tool.signature}: {tool.description}"
        for tool in tools
        if isinstance(tool, EncoderTool) is encoder
    )


#: Of an agent's notes; tokens are counted as four characters each, whatever the model.
NOTES_TOKENS = 300
_NOTES_CHARS = 4 * NOTES_TOKENS
NOT_TOLD = "You are not told whether they are right."
TOLD = "You are told afterwards whether your final answer is right."
NOTES_WANTED = "Write your notes for the next cases"


@dataclass(frozen=True)
class Kept:
    notes: str
    right: bool


@dataclass(frozen=True)
class Handed:
    step: Step
    length: int
    notes: str = ""
    right: tuple[bool, ...] = ()
    outcomes: bool = False  # whether it learns what was right


class SequenceMemory:
    """Hands notes from one case of a sequence to the next, whichever threads play them."""

    def __init__(
        self,
        lengths: Sequence[int],
        kept: Mapping[tuple[int, int], Kept] | None = None,
        *,
        outcomes: bool = False,
    ) -> None:
        self._lengths, self._outcomes = lengths, outcomes
        #: Sequence and position -> what the case left; None where it was lost.
        self._ended: dict[tuple[int, int], Kept | None] = dict(kept or {})
        self._changed = threading.Condition()

    def recall(self, step: Step) -> Handed:
        number, position = step.sequence, step.position
        with self._changed:
            self._ended.pop((number, position), None)
            self._changed.wait_for(lambda: position == 0 or (number, position - 1) in self._ended)
            earlier = [self._ended.get((number, place)) for place in range(position)]
        kept = [each for each in earlier if each is not None]
        if len(kept) < len(earlier):
            self.end(step, None)
            raise EpisodeStoppedError
        notes, right = kept[-1].notes if kept else "", tuple(each.right for each in kept)
        return Handed(step, self._lengths[number], notes, right, self._outcomes)

    def end(self, step: Step, kept: Kept | None) -> None:
        with self._changed:
            self._ended[step.sequence, step.position] = kept
            self._changed.notify_all()


def read_notes(solution: str) -> str:
    """The notes in a solution, cut to their length: an entry `notes` of JSON, or the text itself."""
    said = _as_json(solution.strip()) if len(solution) < 10 * _NOTES_CHARS else solution
    if isinstance(said, dict):
        said = said.get("notes", said.get("solution", ""))
        said = said if isinstance(said, str) else json.dumps(said)
    return (said if isinstance(said, str) else solution).strip()[:_NOTES_CHARS]


PROPOSAL = ToolSpec(
    PROPOSE,
    'Gives your answer: the label in the exact words of the options (or "defer") and how sure you are. '
    "The first call is your first answer, the second your final one.",
    {
        "type": "object",
        "properties": {"label": {"type": "string"}, "confidence": {"type": "number"}},
        "required": ["label"],
        "additionalProperties": False,
    },
)


SEQUENCE_PROPOSAL = ToolSpec(
    PROPOSE,
    f"{PROPOSAL.description} The third call gives your notes.",
    {
        **PROPOSAL.parameters,
        "properties": {**PROPOSAL.parameters["properties"], "notes": {"type": "string"}},
        "required": [],
    },
)


class ConsultTask(Task):
    """One case in one arm; `picture` where agents see the region, `step` and `memory` in a sequence."""

    task_name = FAMILY
    task_type = FAMILY

    def __init__(
        self,
        study: Study,
        case: Case,
        arm: str,
        picture: Path | None = None,
        *,
        step: Step | None = None,
        memory: SequenceMemory | None = None,
    ) -> None:
        super().__init__()
        self.study, self.case, self.arm, self.picture = study, case, arm, picture
        self.step, self.memory = step, memory
        self._id, self._reference = step.id if step else case.id, case.reference
        self.record: dict[str, Any] = {}

    @property
    def prompt(self) -> str:
        return f"Which diagnosis is right? Options: {'; '.join(self.case.options)}"

    def in_context_example(self, use_tool: bool = True, with_feedback: bool = False) -> str:
        return ""

    def extract_answer(self, solution: str) -> str | None:
        return read_answer(solution, self.case.options).label

    def open_environment(self, tools: Sequence[Tool], **settings: Any) -> ConsultEnv:
        shown = self.step.role if self.step else ""
        desk = Desk(self.case, self.arm, self.study.facts, self.study.cassette, shown=shown)
        handed = self.memory.recall(self.step) if self.memory and self.step else None
        try:
            return ConsultEnv(self, desk, [*desk_tools(desk, self.picture), *tools], handed, **settings)
        except BaseException:
            if self.memory and self.step:
                self.memory.end(self.step, None)
            raise

    def to_dict(self) -> dict[str, Any]:
        return {**super().to_dict(), "metadata": {RECORD: self.record}}


class ConsultEnv(GeneralEnv):
    """A first answer, then the encoder tools open (but for the arm `none`), then a final answer."""

    proposal = PROPOSAL

    def __init__(
        self,
        task: ConsultTask,
        desk: Desk,
        tools: Sequence[Tool],
        handed: Handed | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(task, tools, **settings)
        self._case_task, self._desk, self._handed = task, desk, handed
        self._notes: str | None = None
        if handed is not None:
            self.proposal = SEQUENCE_PROPOSAL
        self._answers: list[CaseAnswer] = []
        self._prompt_hash = ""
        self._note()

    def own_prompt(self, budget: Budget, *, native: bool) -> str | Message:
        task = self._case_task
        sees = task.picture is not None
        text = consult_prompt(
            task.case, task.study.facts, self.tools, budget, native=native, sees=sees, handed=self._handed
        )
        self._prompt_hash = hashlib.sha256(text.encode()).hexdigest()
        self._note()
        if task.picture is None:
            return text
        return Message.of("user", [Text(text), load_image(locate(task.picture).read())])

    def outcome(self, action: Action) -> ActionOutcome:
        if action.kind == "proposal_unparsable":
            said = self.check("").observation or ""
            results = tuple(ToolResult(each.call.id, each.call.name, said) for each in action.calls)
            outcome = ActionOutcome(said, results=results)
        else:
            outcome = super().outcome(action)
        self._note()
        return outcome

    def check(self, solution: str) -> ActionOutcome:
        """Note the answer; it is not revealed whether it is right, but for sequences with outcomes."""
        if len(self._answers) > 1:
            self._notes = read_notes(solution)
            return ActionOutcome(success=self._right)
        answer = read_answer(solution, self._case_task.case.options)
        self._answers.append(answer)
        if len(self._answers) == 1:
            self._desk.opened = True
            open_tools = [tool for tool in self.tools if isinstance(tool, EncoderTool) and tool.is_open()]
            return ActionOutcome(first_noted(open_tools, answer.problem))
        if self._handed is None:
            return ActionOutcome(success=self._right)
        outcome = f" It is {'right' if self._right else 'wrong'}." if self._handed.outcomes else ""
        return ActionOutcome(
            f"Your final answer is noted.{outcome} {NOTES_WANTED}, at most {NOTES_TOKENS} tokens, as "
            'your next solution: {"notes": "..."}. They replace your notes so far.'
        )

    @property
    def _right(self) -> bool:
        return len(self._answers) > 1 and self._answers[1].label == self._case_task.case.reference

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        task = self._case_task
        if self._handed is None or task.memory is None:
            return
        notes = self._handed.notes if self._notes is None else self._notes
        task.memory.end(self._handed.step, None if any(error) else Kept(notes, self._right))

    def _note(self) -> None:
        case, desk = self._case_task.case, self._desk
        answers = list(map(asdict, self._answers))
        self._case_task.record = {
            "arm": desk.arm,
            "group": case.group,
            "probability": case.probability,
            "options": list(case.options),
            "tool": asdict(desk.view) if desk.view else None,
            "first": answers[0] if answers else None,
            "final": answers[1] if len(answers) > 1 else None,
            "asked": "predict" in desk.calls,
            "calls": list(desk.calls),
            "prompt": self._prompt_hash,
        }
        if self._handed is not None:
            step = self._handed.step
            self._case_task.record |= {
                "sequence": step.sequence,
                "position": step.position,
                "role": step.role,
                "outcomes": self._handed.outcomes,
                "notes": self._handed.notes if self._notes is None else self._notes,
            }
