"""Checkers for free-form answers: a number or a phrase (gsm8k, math, hotpotqa)."""

from __future__ import annotations

from histobench.mint.tasks import strict_answer

#: Of the published rule; the strict one has none.
PUBLISHED_TOLERANCE = 0.05


def published(reference: str, solution: str, *, recorded: bool = False) -> bool:
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


def strict(reference: str, solution: str) -> bool:
    """Numbers exactly, decimals to the places of the reference, words by the exact match of HotpotQA.

    >>> strict("10.0", "$10 units"), strict("1110", "1080"), strict("0.63", "0.634"), strict("0.63", "0.64")
    (True, False, True, False)
    >>> strict("the late 12th century", "12 apples"), strict("no", "No."), strict("Venice", "It is Venice.")
    (False, True, True)
    """
    return strict_answer.same_text(reference, solution)
