"""Facts about the encoders of a results folder: license, cost, speed, citation."""

from __future__ import annotations

import re
from collections import Counter
from functools import lru_cache
from pathlib import Path
from typing import Any

from histobench.core.errors import HistobenchError
from histobench.roi.encoders.own_name import UNCHECKED
from histobench.roi.encoders.registry import find_spec
from histobench.roi.plan.speeds import FILE, Speed, read_speeds

_NOT_COMMERCIAL = re.compile(r"\bNC\b|non-?commercial|research", re.IGNORECASE)
_OPEN = re.compile(r"^(MIT|Apache-2\.0|BSD|GPL|CC0|CC-BY-4\.0)")


def encoder_facts(name: str, *, unchecked: bool = False) -> dict[str, Any]:
    """The facts of one encoder; only its name where the zoo does not know it."""
    facts = dict(_facts(name))
    return {**facts, "title": UNCHECKED} if unchecked else facts


@lru_cache(maxsize=1024)
def _facts(name: str) -> dict[str, Any]:
    try:
        spec = find_spec(name)
    except HistobenchError:  # an output that the encoder does not have
        spec = None
    if spec is None:
        title = name.replace("@elsewhere", ": features computed elsewhere")
        return {"name": name, "title": title, "licence": "", "terms": "unknown"}
    return {
        "name": name,
        "title": spec.title,
        "licence": spec.license,
        "terms": licence_terms(spec.license, spec.facts.commercial if spec.facts else ""),
        "gated": spec.source.gated,
        "page": spec.source.page,
        "dim": spec.dim,
        "size": spec.size,
        "params": spec.cost.params if spec.cost else None,
        "gflops": spec.cost.gflops if spec.cost else None,
        "citation": spec.citation,
        "reference": spec.reference,
        "pathology": spec.pathology,
    }


def licence_terms(licence: str, commercial: str = "") -> str:
    """One of `open`, `non-commercial`, `restricted`, `unknown`; `commercial` is what the zoo knows of it.

    >>> [licence_terms(text) for text in ("MIT", "CC-BY-NC-4.0", "GenBio AI License", "unstated")]
    ['open', 'non-commercial', 'restricted', 'unknown']
    """
    if not licence or licence == "unstated":
        return "unknown"
    if commercial == "unclear":
        return "restricted"
    if _NOT_COMMERCIAL.search(licence):
        return "non-commercial"
    if commercial == "restricted":
        return "non-commercial"
    return "open" if _OPEN.match(licence) and " " not in licence else "restricted"


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
    for path in sorted(results_dir.rglob(FILE)):
        measured += read_speeds(path.parent).items()
    if not measured:
        return {}, ""
    device = Counter(speed.device for _, speed in measured).most_common(1)[0][0]
    best: dict[str, Speed] = {}
    for name, speed in measured:
        if speed.device == device and (name not in best or speed.images > best[name].images):
            best[name] = speed
    return {name: round(speed.images_per_second, 2) for name, speed in best.items()}, device
