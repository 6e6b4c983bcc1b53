"""A case in an arm as a task of the MINT loop, and the environment it is played in."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from histobench.consult.answer import Answer, read_answer
from histobench.consult.case import Case
from histobench.consult.desk import Desk, EncoderTool, desk_tools
from histobench.consult.prompt import consult_prompt, first_noted
from histobench.consult.study import Study
from histobench.mint.envs.action import Action
from histobench.mint.envs.general_env import GeneralEnv
from histobench.mint.envs.native_calls import PROPOSE
from histobench.mint.envs.state import Budget
from histobench.mint.envs.turn_loop import ActionOutcome
from histobench.mint.messages.images import load_image
from histobench.mint.messages.parts import Message, Text, ToolResult, ToolSpec
from histobench.mint.tasks.base import Task
from histobench.mint.tools.base import Tool
from histobench.roi.data.image_ref import locate

FAMILY = "consult"
#: The key of a task's metadata under which results keep what happened.
RECORD = "consult"
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


class ConsultTask(Task):
    """One case in one arm. `picture` is given where agents see the region."""

    task_name = FAMILY
    task_type = FAMILY

    def __init__(self, study: Study, case: Case, arm: str, picture: Path | None = None) -> None:
        super().__init__()
        self.study, self.case, self.arm, self.picture = study, case, arm, picture
        self._id, self._reference = case.id, case.reference
        self.record: dict[str, Any] = {}

    @property
    def prompt(self) -> str:
        """The question, for experts and recordings; what agents read is the environment's own."""
        return f"Which diagnosis is right? Options: {'; '.join(self.case.options)}"

    def in_context_example(self, use_tool: bool = True, with_feedback: bool = False) -> str:
        """None: a worked example would show how much to trust the tool."""
        return ""

    def extract_answer(self, solution: str) -> str | None:
        """The label of an answer."""
        return read_answer(solution, self.case.options).label

    def open_environment(self, tools: Sequence[Tool], **settings: Any) -> ConsultEnv:
        """A desk of its own for every episode."""
        desk = Desk(self.case, self.arm, self.study.facts, self.study.cassette)
        return ConsultEnv(self, desk, [*desk_tools(desk, self.picture), *tools], **settings)

    def to_dict(self) -> dict[str, Any]:
        """The `task` object of a line of `results.jsonl`, with what happened."""
        return {**super().to_dict(), "metadata": {RECORD: self.record}}


class ConsultEnv(GeneralEnv):
    """A first answer, then the encoder tools open (but for the arm `none`), then a final answer."""

    proposal = PROPOSAL

    def __init__(self, task: ConsultTask, desk: Desk, tools: Sequence[Tool], **settings: Any) -> None:
        super().__init__(task, tools, **settings)
        self._case_task = task
        self._desk = desk
        self._answers: list[Answer] = []
        self._prompt_hash = ""
        self._note()

    def own_prompt(self, budget: Budget, *, native: bool) -> str | Message:
        """The first message; with the picture where agents see it."""
        task = self._case_task
        sees = task.picture is not None
        text = consult_prompt(task.case, task.study.facts, self.tools, budget, native=native, sees=sees)
        self._prompt_hash = hashlib.sha256(text.encode()).hexdigest()
        self._note()
        return (
            Message.of("user", [Text(text), load_image(locate(task.picture).read())])
            if task.picture
            else text
        )

    def outcome(self, action: Action) -> ActionOutcome:
        """An answer that cannot be parsed is an answer: it has the place of one."""
        if action.kind == "proposal_unparsable":
            said = self.check("").observation or ""
            results = tuple(ToolResult(each.call.id, each.call.name, said) for each in action.calls)
            outcome = ActionOutcome(said, results=results)
        else:
            outcome = super().outcome(action)
        self._note()
        return outcome

    def check(self, solution: str) -> ActionOutcome:
        """Note the answer; nobody is told whether it is right."""
        answer = read_answer(solution, self._case_task.case.options)
        self._answers.append(answer)
        if len(self._answers) > 1:
            return ActionOutcome(success=answer.label == self._case_task.case.reference)
        self._desk.opened = True
        open_tools = [tool for tool in self.tools if isinstance(tool, EncoderTool) and tool.is_open()]
        return ActionOutcome(first_noted(open_tools, answer.problem))

    def _note(self) -> None:
        """Keep what happened where results find it."""
        case, desk = self._case_task.case, self._desk
        answers = [answer.as_record() for answer in self._answers]
        view = desk.view
        self._case_task.record = {
            "arm": desk.arm,
            "group": case.group,
            "probability": case.probability,
            "options": list(case.options),
            "tool": None if view is None else asdict(view),
            "first": answers[0] if answers else None,
            "final": answers[1] if len(answers) > 1 else None,
            "asked": "predict" in desk.calls,
            "calls": list(desk.calls),
            "prompt": self._prompt_hash,
        }
