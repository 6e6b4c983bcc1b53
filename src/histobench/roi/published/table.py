"""The published numbers of the package, read and checked."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files


@dataclass(frozen=True)
class PublishedValue:
    """One number of one source: what was measured, on what, with which recipe.

    `unsure` is what could not be confirmed, `known` a difference of the recipe that is told with every
    comparison, and `apart` a reason for which ours can never be compared with it. `n_images` is the number of
    images behind the value, None where the source does not say.
    """

    dataset: str
    encoder: str
    task: str
    preset: str
    metric: str
    value: float
    source: str
    url: str
    n_images: int | None
    setting: str = ""
    unsure: str = ""
    known: str = ""
    apart: str = ""

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
            for dataset, images, value in zip(table["datasets"], table["images"], row, strict=True):
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
                            n_images=images,
                            setting=table.get("setting", ""),
                            unsure=_said(table.get("unsure", ""), dataset, encoder),
                            known=table.get("known", ""),
                            apart=_said(table.get("apart", ""), dataset, encoder),
                        )
                    )
    return tuple(found)


def _said(said: str | dict[str, str], dataset: str, encoder: str) -> str:
    """The reason of the whole table, or those of the dataset and of the encoder."""
    if isinstance(said, str):
        return said
    return "; ".join(said[name] for name in (dataset, encoder) if name in said)
