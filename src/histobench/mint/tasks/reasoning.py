"""Reasoning tasks: free-form answers, multiple choice, TheoremQA."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from histobench.mint.tasks import theorem_answer
from histobench.mint.tasks.base import LineTask
from histobench.mint.tasks.strict_answer import chosen_option, same_text

#: Anyone who writes more has given no answer. Each checker is linear in the text up to here.
MAX_ANSWER_CHARS = 20_000
#: Of the published rule; the strict one has none.
PUBLISHED_TOLERANCE = 0.05


def published_text(reference: str, solution: str, *, recorded: bool = False) -> bool:
    """The benchmark's rule: numbers within 5 %, else the reference occurs in it; `recorded`: as in 2023."""
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
    try:
        if any(_matches(text, answer) or text in answer for text in others):
            return False
        return _matches(correct, answer) or correct in answer
    except ValueError:  # "²" is a digit but no number: the published checker broke, which was no success
        return False


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


class AnswerTask(LineTask):
    """A question with an answer that is compared, not run."""

    task_name = "reasoning"

    def success(self, solution: str) -> bool:
        return len(solution) <= MAX_ANSWER_CHARS and self.is_right(solution)

    def is_right(self, solution: str) -> bool:
        """What the rule says of a solution that is not too long."""
        raise NotImplementedError


class ReasoningTask(AnswerTask):
    """A question whose answer is a number or a phrase (gsm8k, math, hotpotqa)."""

    def __init__(self, id: Any, prompt: str, reference: str, **kwargs: Any) -> None:
        super().__init__(id, prompt.strip(), str(reference).strip().lower(), **kwargs)

    def is_right(self, solution: str) -> bool:
        if self.rule == "strict":
            return same_text(self._reference, solution)
        return published_text(self._reference, solution, recorded=self.rule == "recorded")


class MultipleChoiceTask(AnswerTask):
    """A question with lettered options (mmlu)."""

    def __init__(self, id: Any, prompt: str, reference: str, **kwargs: Any) -> None:
        super().__init__(id, prompt, reference.strip().lower(), **kwargs)
        self._options = parse_options(prompt)
        self._whole_options = parse_options(prompt, whole=True)
        self.metadata["options"] = self._options

    def is_right(self, solution: str) -> bool:
        if self.rule == "strict":
            return strict_option(self._reference, self._whole_options, solution)
        return published_option(self._reference, self._options, solution)


class TheoremqaTask(AnswerTask):
    """A question whose answer is a number, a list of numbers, True or False, or an option."""

    INSTRUCTION = "Give your answer as a number, a list of numbers, or True or False. "

    def __init__(
        self, id: Any, prompt: str, reference: Any, answer_type: str = "float", **kwargs: Any
    ) -> None:
        super().__init__(id, self.INSTRUCTION + prompt.strip(), reference, **kwargs)
        self._answer_type = answer_type

    @property
    def bare_prompt(self) -> str:
        return self._prompt.removeprefix(self.INSTRUCTION)

    def is_right(self, solution: str) -> bool:
        if self.rule == "strict":
            return theorem_answer.strict(self._reference, self._answer_type, solution)
        recorded = self.rule == "recorded"
        return theorem_answer.published(self._reference, self._answer_type, solution, recorded=recorded)
