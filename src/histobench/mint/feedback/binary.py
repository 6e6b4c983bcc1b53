"""Feedback reduced to one bit."""

from __future__ import annotations

GOOD = "This is GOOD."
BAD = "This is BAD."


def one_bit(text: str) -> str:
    """The verdict in the first sentence; empty when there is none.

    >>> one_bit("This is GOOD. Now submit."), one_bit("Hm. This is BAD.")
    ('This is GOOD.', '')
    """
    sentence = text.split(".")[0]
    if "GOOD" in sentence:
        return GOOD
    return BAD if "BAD" in sentence else ""
