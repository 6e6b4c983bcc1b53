"""The zoo for people: rows of the table, the Markdown of the docs, and the page of one encoder."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from histobench.core.errors import HistobenchError
from histobench.roi.encoders.encoder_spec import EncoderSpec
from histobench.roi.encoders.weights import find_weights

GATE = {True: "request", False: "open"}


def rows(specs: Iterable[EncoderSpec], weights: str | None = None) -> list[dict[str, str]]:
    """One row of text per encoder: the table of `histobench models`."""
    return [
        {
            "name": spec.name,
            "dim": str(spec.dim),
            "params": millions(spec),
            "GFLOPs": _gflops(spec) or "-",
            "px": str(spec.size),
            "zero-shot": "yes" if spec.text else "",
            "access": GATE[spec.source.gated],
            "pinned": _pins(spec),
            "weights": "yes" if has_weights(spec, weights) else "",
            "outputs": ", ".join(f"@{name} {variant.dim}" for name, variant in spec.variants.items()),
            "license": spec.license,
        }
        for spec in specs
    ]


def markdown_table(specs: Iterable[EncoderSpec]) -> str:
    """The table of docs/reference/encoders.md, in the order of the zoo."""
    lines = [
        "| name | encoder | dim | params | GFLOPs | px | zero-shot | other outputs | access | license |",
        "|---|---|---:|---:|---:|---:|---|---|---|---|",
    ]
    for spec in specs:
        title = f"[{spec.title}]({spec.source.page})" if spec.source.page else spec.title
        outputs = ", ".join(f"`@{name}` {variant.dim}" for name, variant in spec.variants.items())
        zero_shot = "yes" if spec.text else ""
        lines.append(
            f"| `{spec.name}` | {title} | {spec.dim} | {millions(spec)} | {_gflops(spec)} | {spec.size} | "
            f"{zero_shot} | {outputs} | {GATE[spec.source.gated]} | {spec.license} |"
        )
    return "\n".join(lines)


def describe(spec: EncoderSpec, weights: str | None = None) -> dict[str, Any]:
    """Every fact about one encoder, in reading order, with the steps that bring its weights."""
    transform, source = spec.transform, spec.source
    sources = {}
    if read := spec.facts:
        sources["commercial use"] = f"{read.commercial}: {read.why}" if read.why else read.commercial
        sources["license read in"] = f"{read.license}, {read.date}"
        sources["numbers read in"] = f"{'; '.join(read.build)}, {read.date}"
    facts: dict[str, Any] = {
        "name": spec.full_name,
        "encoder": spec.title,
        "also called": ", ".join(spec.aliases),
        "features": f"{spec.dim} numbers, {spec.pooling}" + (", L2-normalised" if spec.normalised else ""),
        "other outputs": ", ".join(
            f"{spec.name}@{name} ({variant.dim}, {variant.pooling})"
            for name, variant in spec.variants.items()
        ),
        "zero-shot": "yes" if spec.supports_zero_shot else "no",
        "network": f"{spec.arch} ({spec.family})"
        + (f" {json.dumps(dict(spec.kwargs))}" if spec.kwargs else ""),
        "parameters": millions(spec),
        "GFLOPs per image": _gflops(spec),
        "input": f"{'both sides' if transform.squash else 'short side'} to {transform.resize} "
        f"({transform.interpolation}), crop {transform.crop}",
        "mean / std": f"{list(transform.mean)} / {list(transform.std)}",
        "sizes": _sizes(spec),
        "microns per pixel": f"{spec.mpp:g}" if spec.mpp else "",
        "precision": spec.precision,
        "weights": _origin(spec),
        "revision": source.revision or ("not pinned" if source.kind == "hub" else ""),
        "sha256": source.sha256 or ("not pinned" if source.kind in ("hub", "url", "by_hand") else ""),
        "on this machine": _where(spec, weights),
        "license": spec.license,
        **sources,
        "cite": f"{spec.reference} [{spec.citation}]" if spec.citation else "",
        "notes": spec.notes,
        "not confirmed": spec.unconfirmed,
        "traps": "; ".join(f"{key}: {why}" for key, why in spec.traps.items()),
    }
    page = {key: value for key, value in facts.items() if value != ""}
    return page | {"how to get the weights": weights_steps(spec)}


def weights_steps(spec: EncoderSpec) -> list[str]:
    """What a user does to have the weights, as commands where there are any."""
    source = spec.source
    if source.kind == "seed":
        return ["no download: the weights are random numbers from a fixed seed"]
    if source.kind in ("package", "project"):
        return ["no download: they are installed with histobench"]
    table = "or, without internet: copy the file here and give --weights FILE"
    if source.kind == "url":
        return [f"they are downloaded on first use from {source.url}", table]
    if source.kind == "by_hand":
        return [f"download them from {source.url}", "give their path: --weights FILE"]
    pin = f" --revision {source.revision}" if source.revision else ""
    steps = [f"hf download {source.repo} {source.file}{pin}", table]
    if source.gated:
        steps = [f"request access at {source.page}", "hf auth login", *steps]
    return steps


def has_weights(spec: EncoderSpec, weights: str | None = None) -> bool:
    if spec.source.kind in ("seed", "project"):
        return True
    try:
        return find_weights(spec, weights) is not None
    except HistobenchError:
        return False


def millions(spec: EncoderSpec) -> str:
    return f"{spec.cost.params / 1e6:.1f} M" if spec.cost else "-"


def _gflops(spec: EncoderSpec) -> str:
    return f"{spec.cost.gflops:g}" if spec.cost and spec.cost.gflops else ""


def _pins(spec: EncoderSpec) -> str:
    """Which of a published file's two names are fixed: its revision and its content."""
    source = spec.source
    if source.kind in ("seed", "project") or (source.kind != "hub" and source.sha256):
        return "yes"
    found = [name for name, value in (("revision", source.revision), ("sha256", source.sha256)) if value]
    return {0: "not pinned", 1: f"{found[0]} only" if found else "", 2: "yes"}[len(found)]


def _sizes(spec: EncoderSpec) -> str:
    if spec.sizes == "fixed":
        return f"{spec.size} only"
    return f"multiples of {spec.patch}" if spec.sizes == "patch" else "any from 32"


def _origin(spec: EncoderSpec) -> str:
    source = spec.source
    if source.kind == "hub":
        return f"{source.page} {source.file}" + (" (access has to be requested)" if source.gated else "")
    return {
        "url": source.url,
        "package": f"package {source.repo}",
        "project": "part of histobench",
        "seed": "random, seeded",
    }[source.kind]


def _where(spec: EncoderSpec, weights: str | None) -> str:
    if spec.source.kind in ("seed", "project"):
        return "yes"
    try:
        found = find_weights(spec, weights)
    except HistobenchError as error:
        return f"no: {error}"
    return str(found) if found else "no"
