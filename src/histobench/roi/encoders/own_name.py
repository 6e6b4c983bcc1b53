"""The name of an encoder in a user's own file, and the one spelling under which its results appear."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from histobench.core.errors import HistobenchError

ALIAS = re.compile(r"[A-Za-z0-9][\w.+-]*")


def names_a_file(name: str) -> bool:
    """Whether an encoder is asked for as `my_file.py:MyEncoder`.

    >>> names_a_file("models/my_file.py:MyEncoder"), names_a_file("uni_v1")
    (True, False)
    """
    return ".py:" in name


def split_alias(name: str) -> tuple[str, str]:
    """The name that the user gives an encoder of a file, and the file and class.

    >>> split_alias("hist=my_file.py:ColourHist"), split_alias("my_file.py:ColourHist")
    (('hist', 'my_file.py:ColourHist'), ('', 'my_file.py:ColourHist'))
    """
    alias, equals, target = name.partition("=")
    if not equals or not names_a_file(target):
        return "", name
    # A folder may be called `lr=0.1`.
    if "/" in alias or Path(name.rpartition(":")[0]).expanduser().is_file():
        return "", name
    if not ALIAS.fullmatch(alias):
        raise HistobenchError(
            f"{name}: {alias!r} cannot be the name of an encoder: it begins with a letter or digit and holds "
            f"no other signs than . _ + -; write for instance own={target}"
        )
    return alias, target


def label_of(name: str) -> str:
    """What an encoder is called in file names, folders and tables.

    >>> label_of("models/my_file.py:Hist"), label_of("own=my_file.py:Hist"), label_of("virchow2@cls")
    ('Hist', 'own', 'virchow2@cls')
    """
    alias, target = split_alias(name)
    return alias or (target.rpartition(":")[2] if names_a_file(target) else name)


def check_labels(names: Iterable[str]) -> None:
    """Raise when two encoders that are asked for together would share one label, and so one file."""
    seen: dict[str, str] = {}
    for name in names:
        # Some file systems do not tell capitals apart.
        other = seen.setdefault(label_of(name).casefold(), name)
        if other != name:
            one, two = sorted((other, name), key=names_a_file)
            raise HistobenchError(
                f"{one} and {two} would both be called {label_of(two)} in files and tables; "
                f"give one a name of its own: {label_of(two)}2={split_alias(two)[1]}"
            )
