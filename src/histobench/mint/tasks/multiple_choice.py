"""Checkers for multiple-choice answers (mmlu)."""

from __future__ import annotations

import re
from collections.abc import Mapping

from histobench.mint.tasks.free_form import contains_phrase, last_statement, without_tags, words

#: The letter stands at the beginning of an answer, or nowhere.
_BEGINNING = 1000
#: Possessive wherever giving back gains nothing: "The answer is " may be said any number of times.
_LETTER = re.compile(
    r"^\W*+(?:i\s++(?:choose|pick|select)\s++|it\s++is\s++)?"
    r"(?:(?:(?:the|my)\s++)?(?:(?:correct|final|best)\s++)?"
    r"(?:answer|option|choice)(?:\s+(?:is|:))?\s*+:?\s*+)*+"
    r"[(\[\"'*]*+([a-z])(?=$|[)\].:,;\"'*\s])"
    r"(?!(?<=a)[ \t]+(?!because\b|since\b|as\b|is\b)[^\W\d_]{2})"  # "A dog" begins with an article
    r"(?!\W*\s(?:or|and|&)\s\W*(?-i:[A-J])\b)",  # who names two has named none
    re.IGNORECASE,
)
_LISTED = re.compile(r"(?:^|[\n,]|\bor\b|\band\b)\s*\(?([A-J]) ?\)")
#: What LaTeX and Markdown put around a letter.
_WRAPPING = re.compile(r"\\(?:boxed|text|textbf|mathrm)\b|[{}$`]")


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
    """The letter that the answer names decides; without a letter, the one option whose text it gives.

    What is boxed, or follows the last "the answer is", is the answer where there is such a thing.

    >>> strict("a", {"a": "6", "b": "121"}, "B ) 121")
    False
    >>> strict("b", {"a": "6", "b": "121"}, "It is not 6. The answer is B )")
    True
    >>> strict("b", {"a": "a cat", "b": "a dog"}, "A dog"), strict("b", {"a": "6", "b": "39"}, r"\\boxed{39}")
    (True, True)
    """
    letter = reference.strip().lower()
    answer = without_tags(solution)
    stated = last_statement(solution)
    for text in dict.fromkeys((stated, answer)):
        chosen = _chosen(options, text)
        if chosen is not None or text != stated:
            return chosen == letter
        if _letters(text):  # it names several: nothing else in the text makes it clear
            return False
    return False


def _chosen(options: Mapping[str, str], answer: str) -> str | None:
    answer = _WRAPPING.sub(" ", answer).strip()
    by_text = _option_of_text(options, answer)
    letters = _letters(answer)
    named = named_letter(answer) if len(letters) < 2 else None
    # "A dog" begins with an article, not with a letter: a text that is an option in full comes first.
    if by_text and not letters and words(answer) == words(options[by_text]):
        return by_text
    return named if named in options else by_text


def _letters(answer: str) -> set[str]:
    """The letters that an answer names as "A ) ...", one after the other."""
    return {letter.lower() for letter in _LISTED.findall(answer[:_BEGINNING])}


def named_letter(answer: str) -> str | None:
    """The letter of the option that an answer begins with, in whatever it is wrapped.

    >>> named_letter(r"The answer is $\\boxed{\\text{C}}$."), named_letter("B or C")
    ('c', None)
    """
    match = _LETTER.match(_WRAPPING.sub(" ", answer.strip()[:_BEGINNING]).strip())
    return match[1].lower() if match else None


def _option_of_text(options: Mapping[str, str], answer: str) -> str | None:
    said = words(answer)
    found = [letter for letter, text in options.items() if text and contains_phrase(said, words(text))]
    # "red blood cell" contains "blood cell": the longer text is meant.
    longest = max((len(words(options[letter])) for letter in found), default=0)
    found = [letter for letter in found if len(words(options[letter])) == longest]
    if len(found) == 1:
        return found[0]
    exact = [letter for letter, text in options.items() if text == answer.lower().strip(" .")]
    return exact[0] if len(exact) == 1 else None


def _matches(reference: str, answer: str) -> bool:
    if reference.isdigit() and answer.isdigit():
        return abs(float(reference) - float(answer)) <= 0.05 * float(reference)
    return reference in answer
