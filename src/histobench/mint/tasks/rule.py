"""The scoring rules: which checker decides."""

from __future__ import annotations

from typing import Literal, get_args

from histobench.core.errors import HistobenchError, did_you_mean

#: `strict` is the default; `published` is the benchmark's own checker, bug for bug; `recorded` is `published`
#: with the comparators of the time of the public recordings, which met no negative reference and no option of
#: TheoremQA.
Rule = Literal["strict", "published", "recorded"]
RULES: tuple[str, ...] = get_args(Rule)


def as_rule(name: str) -> Rule:
    """The rule called `name`."""
    if name not in RULES:
        raise HistobenchError(f"unknown scoring rule {name!r}; {did_you_mean(name, RULES)}")
    return name  # type: ignore[return-value]
