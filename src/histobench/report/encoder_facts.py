"""Facts about the encoders of a results folder: license, cost, speed, citation."""

from __future__ import annotations

import re
from collections import Counter
from functools import lru_cache
from pathlib import Path
from typing import Any

from histobench.report.payload import facts_of
from histobench.roi.comparison.choice import commercial_use
from histobench.roi.encoders.own_name import UNCHECKED
from histobench.roi.encoders.registry import known_spec
from histobench.roi.plan.notes import SPEEDS, Speed, read_speeds

_TERMS = {"allowed": "open", "restricted": "non-commercial", "unclear": "restricted"}


def encoder_facts(name: str, *, unchecked: bool = False) -> dict[str, Any]:
    """The facts of one encoder; only its name where the zoo does not know it."""
    facts = dict(_facts(name))
    return {**facts, "title": UNCHECKED} if unchecked else facts


@lru_cache(maxsize=1024)
def _facts(name: str) -> dict[str, Any]:
    spec = known_spec(name)
    if spec is None:
        title = name.replace("@elsewhere", ": features computed elsewhere")
        return {"name": name, "title": title, "licence": "", "terms": "unknown"}
    use, _ = commercial_use(spec.license, spec.facts)
    return {
        "name": name,
        **facts_of(spec, "title", "dim", "size", "citation", "reference", "pathology"),
        "licence": spec.license,
        "terms": "unknown" if spec.license == "unstated" else _TERMS[use],
        "gated": spec.source.gated,
        "page": spec.source.page,
        "params": spec.cost.params if spec.cost else None,
        "gflops": spec.cost.gflops if spec.cost else None,
    }


def bibtex(facts: dict[str, Any]) -> str | None:
    """A BibTeX entry from the zoo's reference line (authors, title[, venue][,] year).

    >>> facts = {"citation": "chen2024uni", "reference": "Chen et al., Towards a model, Nature Medicine 2024"}
    >>> print(bibtex(facts))
    @article{chen2024uni,
      author = {Chen and others},
      title = {{Towards a model}},
      journal = {Nature Medicine},
      year = {2024}
    }
    """
    match = re.match(r"^(?P<who>.+?),\s(?P<what>.+?),?\s(?P<year>\d{4})$", facts.get("reference") or "")
    if match is None or not facts.get("citation"):
        return None
    title, _, venue = match["what"].rpartition(", ")
    fields = {
        "author": match["who"].replace(" et al.", " and others"),
        "title": f"{{{title or venue}}}",
        "journal": venue if title else "",
        "year": match["year"],
    }
    kind = "article" if title else "misc"
    lines = ",\n".join(f"  {name} = {{{value}}}" for name, value in fields.items() if value)
    return f"@{kind}{{{facts['citation']},\n{lines}\n}}"


def measured_speed(results_dir: Path) -> tuple[dict[str, float], str]:
    """Encoder -> images per second, and the device they were measured on.

    Speeds of different devices do not stand on one axis: the device that measured most encoders is shown.
    """
    measured: list[tuple[str, Speed]] = []
    for path in sorted(results_dir.rglob(SPEEDS)):
        measured += read_speeds(path.parent).items()
    if not measured:
        return {}, ""
    device = Counter(speed.device for _, speed in measured).most_common(1)[0][0]
    best: dict[str, Speed] = {}
    for name, speed in measured:
        if speed.device == device and (name not in best or speed.images > best[name].images):
            best[name] = speed
    return {name: round(speed.images_per_second, 2) for name, speed in best.items()}, device
