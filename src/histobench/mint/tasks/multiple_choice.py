"""Checkers for multiple-choice answers (mmlu)."""

from __future__ import annotations

from collections.abc import Mapping

from histobench.mint.tasks.strict_answer import chosen_option


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


def published(reference: str, options: Mapping[str, str], solution: str) -> bool:
    """The benchmark's rule, defects included: the reference letter anywhere in the answer is enough."""
    try:
        return _published(reference, options, solution)
    except ValueError:  # "²" is a digit but no number: the published checker broke, which was no success
        return False


def _published(reference: str, options: Mapping[str, str], solution: str) -> bool:
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


def strict(reference: str, options: Mapping[str, str], solution: str) -> bool:
    """The one option that the answer names by letter or by text.

    >>> strict("a", {"a": "6", "b": "121"}, "B ) 121")
    False
    >>> strict("b", {"a": "6", "b": "121"}, "It is not 6. The answer is B )")
    True
    >>> strict("b", {"a": "a cat", "b": "a dog"}, "A dog"), strict("b", {"a": "6", "b": "39"}, r"\\boxed{39}")
    (True, True)
    """
    return chosen_option(options, solution) == reference.strip().lower()


def _matches(reference: str, answer: str) -> bool:
    if reference.isdigit() and answer.isdigit():
        return abs(float(reference) - float(answer)) <= 0.05 * float(reference)
    return reference in answer
