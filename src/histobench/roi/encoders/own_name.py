"""The name of an encoder in a user's own file."""

from __future__ import annotations


def names_a_file(name: str) -> bool:
    """Whether an encoder is asked for as `my_file.py:MyEncoder`.

    >>> names_a_file("models/my_file.py:MyEncoder"), names_a_file("uni_v1")
    (True, False)
    """
    return ".py:" in name
