"""Reasoning tasks: free-form answers, multiple choice, TheoremQA."""

from __future__ import annotations

from typing import Any

from histobench.mint.tasks import free_form, multiple_choice, theorem_answer
from histobench.mint.tasks.base import Task

#: Anyone who writes more has given no answer. Each checker is linear in the text up to here.
MAX_ANSWER_CHARS = 20_000


class ReasoningTask(Task):
    """A question whose answer is a number or a phrase (gsm8k, math, hotpotqa)."""

    task_name = "reasoning"

    def __init__(self, id: Any, prompt: str, reference: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._id = id
        self._prompt = prompt.strip()
        self._reference = str(reference).strip().lower()

    def success(self, solution: str) -> bool:
        if len(solution) > MAX_ANSWER_CHARS:
            return False
        if self.rule == "strict":
            return free_form.strict(self._reference, solution)
        return free_form.published(self._reference, solution, recorded=self.rule == "recorded")


class MultipleChoiceTask(Task):
    """A question with lettered options (mmlu)."""

    task_name = "reasoning"

    def __init__(self, id: Any, prompt: str, reference: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._id = id
        self._prompt = prompt
        self._reference = reference.strip().lower()
        self._options = multiple_choice.parse_options(prompt)
        self._whole_options = multiple_choice.parse_options(prompt, whole=True)
        self.metadata["options"] = self._options

    def success(self, solution: str) -> bool:
        if len(solution) > MAX_ANSWER_CHARS:
            return False
        if self.rule == "strict":
            return multiple_choice.strict(self._reference, self._whole_options, solution)
        return multiple_choice.published(self._reference, self._options, solution)


class TheoremqaTask(Task):
    """A question whose answer is a number, a list of numbers, True or False, or an option."""

    task_name = "reasoning"
    INSTRUCTION = "Give your answer as a number, a list of numbers, or True or False. "

    def __init__(
        self, id: Any, prompt: str, reference: Any, answer_type: str = "float", **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self._id = id
        self._question = prompt.strip()
        self._prompt = self.INSTRUCTION + self._question
        self._reference = reference
        self._answer_type = answer_type

    @property
    def bare_prompt(self) -> str:
        return self._question

    def success(self, solution: str) -> bool:
        if len(solution) > MAX_ANSWER_CHARS:
            return False
        if self.rule == "strict":
            return theorem_answer.strict(self._reference, self._answer_type, solution)
        recorded = self.rule == "recorded"
        return theorem_answer.published(self._reference, self._answer_type, solution, recorded=recorded)
