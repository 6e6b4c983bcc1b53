"""YAML and JSON files of users: read, or refused in one line that names the place."""

from __future__ import annotations

import json
from typing import Any

from histobench.core.errors import HistobenchError


def read_yaml(text: str, *, where: str, loader: Any = None) -> Any:
    """The plain values of a YAML text; `where` begins every error."""
    import yaml

    try:
        return yaml.load(text, Loader=loader or yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{where}:{mark.line + 1}" if mark else where
        raise HistobenchError(
            f"{place}: not valid YAML: {_short(getattr(error, 'problem', None) or error)}"
        ) from error
    except (ValueError, OverflowError, TypeError, RecursionError) as error:  # dates, nesting
        raise HistobenchError(f"{where} holds a value that cannot be read: {_short(error)}") from error


def parse_json(text: str | bytes, **options: Any) -> Any:
    """As `json.loads`, but what is nested too deep to be read is a ValueError like all that is no JSON."""
    try:
        return json.loads(text, **options)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def read_json(text: str, *, where: str) -> Any:
    """The plain values of a JSON text; `where` begins every error."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise HistobenchError(f"{where}:{error.lineno}: not valid JSON: {error.msg}") from error
    except (ValueError, RecursionError) as error:  # a number of more digits than Python reads; nesting
        raise HistobenchError(f"{where} holds a value that cannot be read: {_short(error)}") from error


def _short(error: object) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= 160 else f"{text[:160]}..."
