"""The registry file, read once: look a dataset up, or filter them all."""

from __future__ import annotations

import functools
from importlib import resources

import yaml

from histobench.core.errors import HistobenchError, did_you_mean
from histobench.roi.registry.entry import PublicDataset, parse_entry


@functools.cache
def all_datasets() -> dict[str, PublicDataset]:
    """Every public dataset by name."""
    text = resources.files("histobench.roi.registry").joinpath("datasets.yaml").read_text(encoding="utf-8")
    return {name: parse_entry(name, raw) for name, raw in yaml.safe_load(text).items()}


def find(name: str) -> tuple[PublicDataset, str | None]:
    """The dataset and, for `bach@eva`, the published split.

    >>> find("bach@eva")[0].organ
    'breast'
    """
    base, _, split = name.partition("@")
    datasets = all_datasets()
    if base not in datasets:
        raise HistobenchError(f"no public dataset is called {base!r}; {did_you_mean(base, datasets)}")
    if split:
        datasets[base].split(split)
    return datasets[base], split or None


def is_name(text: str) -> bool:
    """Whether `text` names a public dataset, with or without a published split."""
    return text.partition("@")[0] in all_datasets()


def select(
    *, organ: str | None = None, licence: str | None = None, site: bool = False, open_only: bool = False
) -> list[PublicDataset]:
    """The datasets of an organ, with a licence (compared by its beginning), with sites, openly downloadable.

    >>> [entry.name for entry in select(organ="lymph node", licence="CC0", site=True, open_only=True)][:1]
    ['camelyon17-wilds']
    """
    return [
        entry
        for entry in all_datasets().values()
        if (organ is None or organ.lower() in entry.organ.lower())
        and (licence is None or entry.licence.lower().startswith(licence.lower()))
        and (not site or "site" in entry.site_columns)
        and (not open_only or entry.access == "open")
    ]
