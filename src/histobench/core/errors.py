"""Errors that a user can act on."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Iterable, Iterator


class HistobenchError(Exception):
    """An expected failure: one line that says what is wrong, where, and what to do.

    The command line prints the message without a traceback and exits with code 2.
    Anything else that is raised is a defect of this project.

    Examples
    --------
    >>> import histobench as hb
    >>> try:
    ...     hb.open_results("nowhere")
    ... except hb.HistobenchError as error:
    ...     print("refused")
    refused
    """


class InvalidParameterError(HistobenchError, ValueError):
    """A value that a parameter cannot have; a ValueError as well, as scikit-learn expects."""


class DiskFullError(HistobenchError):
    """There is no room to write: whatever else is tried now fails as well."""


class InterruptedWorkError(KeyboardInterrupt):
    """The user (or the system) has stopped the work; the text says what is kept."""


@contextlib.contextmanager
def needing(message: str) -> Iterator[None]:
    """Import an optional package; `message` is the error where it is missing."""
    try:
        yield
    except ImportError as error:
        raise HistobenchError(message) from error


def error_text(error: Exception) -> str:
    """An error in one line; that of the operating system with its file before the reason.

    >>> error_text(FileNotFoundError(2, "No such file or directory", "plan.yaml"))
    'plan.yaml: No such file or directory'
    """
    if not isinstance(error, OSError) or not error.strerror:
        return str(error)
    return located(str(error.filename or ""), error.strerror)


def located(where: str, text: object) -> str:
    """A message after the place that it is about, if there is one.

    >>> located("bench.yaml", "'encoders' is missing"), located("", "`data` x.csv does not exist")
    ("bench.yaml: 'encoders' is missing", '`data` x.csv does not exist')
    """
    return f"{where}: {text}" if where else str(text)


#: What other libraries call an option.
_SYNONYMS = {"random_state": "seed"}


def did_you_mean(name: str, known: Iterable[str], *, all_if_none: bool = True) -> str:
    """The tail of an error message: the nearest known names; if none is near, all of them when few.

    >>> did_you_mean("uni_v3", ["uni_v1", "uni_v2", "phikon"])
    'did you mean uni_v2, uni_v1?'
    >>> did_you_mean("zzz", ["a", "b"])
    'known: a, b'
    """
    names = sorted(set(known))
    if _SYNONYMS.get(name) in names:
        return f"did you mean {_SYNONYMS[name]}?"
    alike: dict[str, list[str]] = {}  # capitals and hyphens before the name do not matter
    for each in names:
        alike.setdefault(each.lower().lstrip("-"), []).append(each)
    nearest = difflib.get_close_matches(name.lower().lstrip("-"), alike, n=3, cutoff=0.6)
    near = [each for key in nearest for each in alike[key]][:3]
    if near:
        return f"did you mean {', '.join(near)}?"
    if not all_if_none:
        return ""
    if len(names) <= 12:
        return f"known: {', '.join(names)}"
    return f"known: {', '.join(names[:12])}, ... ({len(names)} in all)"
