"""The published numbers of the package, read and checked."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files


@dataclass(frozen=True)
class PublishedValue:
    """One number of one source: what was measured, on what, with which recipe."""

    dataset: str
    encoder: str
    task: str
    preset: str
    metric: str
    value: float
    source: str
    url: str
    setting: str = ""
    unsure: str = ""

    @property
    def rounding(self) -> float:
        """Half a unit of the last of three digits, which is what the sources print."""
        return 0.0005


@lru_cache(maxsize=1)
def published_values() -> tuple[PublishedValue, ...]:
    """Every number of `results.yaml`."""
    import yaml

    text = files(__package__).joinpath("results.yaml").read_text(encoding="utf-8")
    found = []
    for table in yaml.safe_load(text):
        for encoder, row in table["values"].items():
            for dataset, value in zip(table["datasets"], row, strict=True):
                if value is not None:
                    found.append(
                        PublishedValue(
                            dataset=dataset,
                            encoder=encoder,
                            task=table["task"],
                            preset=table["preset"],
                            metric=table["metric"],
                            value=float(value),
                            source=table["source"],
                            url=table["url"],
                            setting=table.get("setting", ""),
                            unsure=table.get("unsure", ""),
                        )
                    )
    return tuple(found)
