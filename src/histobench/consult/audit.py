"""The leak audit: what a study must not give away, found out from its files alone."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from histobench.consult.study import Case, Cassette

_IMAGE = re.compile(r"\bimage ([0-9a-f]+)$", re.MULTILINE)
#: Shorter names stand in numbers and words by chance.
_SHORTEST = 5


def leaks(
    cases: Iterable[Case],
    cassette: Cassette,
    *,
    group_of: Mapping[str, set[str]],
    names_of: Mapping[str, str],
) -> list[str]:
    """What is wrong, in words; empty if nothing is.

    `group_of` has the patients or slides of every training picture (one picture may lie in several),
    `names_of` the file name of every case.
    """
    by_id = {case.id: case for case in cases}
    problems = []
    for row in cassette.rows:
        case = by_id.get(row.image)
        if case is None:
            if row.image:
                problems.append(f"an answer about {row.image}, which is no case")
            continue
        for image in _IMAGE.findall(row.answer) if row.tool == "neighbours" else ():
            if image == case.id:
                problems.append(f"{case.id} is its own neighbour in arm {row.arm}")
            if case.group and case.group in group_of.get(image, set()):
                problems.append(f"a neighbour of {case.id} in arm {row.arm} is of its own group {case.group}")
        for what, secret in (("file name", names_of.get(case.id, "")), ("group", case.group or "")):
            if len(secret) >= _SHORTEST and secret in row.answer:
                problems.append(f"{row.tool} of {case.id} tells its {what}")
    return problems
