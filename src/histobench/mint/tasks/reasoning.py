"""Reasoning tasks: free-form answers, multiple choice, TheoremQA."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from histobench.mint.tasks import theorem_answer
from histobench.mint.tasks.base import Task
from histobench.mint.tasks.strict_answer import chosen_option, same_text

#: Anyone who writes more has given no answer. Each checker is linear in the text up to here.
MAX_ANSWER_CHARS = 20_000
#: Of the published rule; the strict one has none.
PUBLISHED_TOLERANCE = 0.05


def published_text(reference: str, solution: str, *, recorded: bool = False) -> bool:
    """The benchmark's rule: both are numbers and within 5 %, else the reference occurs in the answer.

    `recorded` leaves out the absolute value in the tolerance, as the runs of 2023 did.
    """
    expected = reference.strip().lower()
    answer = solution.lower().strip()
    try:
        wanted, given = float(expected), float(answer)
    except ValueError:
        return expected in answer
    return abs(wanted - given) <= PUBLISHED_TOLERANCE * (wanted if recorded else abs(wanted))


def parse_options(prompt: str, *, whole: bool = False) -> dict[str, str]:
    """Letter -> text of the options that follow "Options: " in a prompt.

    As the benchmark reads them, what follows a second bracket is lost; `whole` keeps it.

    >>> parse_options("Which? Options: [ 'A ) f(x) = 2' , 'B ) none' ]")
    {'a': 'f(x', 'b': 'none'}
    """
    options: dict[str, str] = {}
    for piece in prompt.split("Options: ")[-1].split(" , "):
        letter, _, rest = piece.strip("[]' ").partition(")")
        content = rest if whole else rest.split(")")[0]
        options[letter.lower().strip()] = content.lower().strip(".").strip()
    return options


def published_option(reference: str, options: Mapping[str, str], solution: str) -> bool:
    """The benchmark's rule, defects included: the reference letter anywhere in the answer is enough."""
    try:
        return _published_option(reference, options, solution)
    except ValueError:  # "²" is a digit but no number: the published checker broke, which was no success
        return False


def _published_option(reference: str, options: Mapping[str, str], solution: str) -> bool:
    letter = reference.strip().lower()
    answer = solution.lower().strip()
    if "a)" in answer or "a )" in answer:
        answer = "a"  # the published loop over the alphabet returns in its first round
    if _matches(letter, answer):
        return True
    correct = options[letter]
    others = list(options.values())
    for text in others:  # the list shrinks under the loop: neighbours of a removed entry are not looked at
        if text in correct:
            others.remove(text)
    if any(_matches(text, answer) or text in answer for text in others):
        return False
    return _matches(correct, answer) or correct in answer


def strict_option(reference: str, options: Mapping[str, str], solution: str) -> bool:
    """The one option that the answer names by letter or by text.

    >>> strict_option("a", {"a": "6", "b": "121"}, "B ) 121")
    False
    >>> strict_option("b", {"a": "6", "b": "121"}, "It is not 6. The answer is B )")
    True
    >>> strict_option("b", {"a": "6", "b": "39"}, r"\\boxed{39}")
    True
    """
    return chosen_option(options, solution) == reference.strip().lower()


def _matches(reference: str, answer: str) -> bool:
    if reference.isdigit() and answer.isdigit():
        return abs(float(reference) - float(answer)) <= 0.05 * float(reference)
    return reference in answer


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
            return same_text(self._reference, solution)
        return published_text(self._reference, solution, recorded=self.rule == "recorded")


class MultipleChoiceTask(Task):
    """A question with lettered options (mmlu)."""

    task_name = "reasoning"

    def __init__(self, id: Any, prompt: str, reference: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._id = id
        self._prompt = prompt
        self._reference = reference.strip().lower()
        self._options = parse_options(prompt)
        self._whole_options = parse_options(prompt, whole=True)
        self.metadata["options"] = self._options

    def success(self, solution: str) -> bool:
        if len(solution) > MAX_ANSWER_CHARS:
            return False
        if self.rule == "strict":
            return strict_option(self._reference, self._whole_options, solution)
        return published_option(self._reference, self._options, solution)


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
