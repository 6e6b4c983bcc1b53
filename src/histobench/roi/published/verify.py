"""Compare stored results with published ones: reproduced, different, or not comparable and why."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from functools import lru_cache
from importlib.resources import files
from pathlib import Path

from histobench.core.errors import HistobenchError
from histobench.roi.comparison.stored_intervals import shown_intervals
from histobench.roi.results.reader import load_runs, results_files
from histobench.roi.results.robustness_files import load_robustness
from histobench.roi.task_catalogue import ROBUSTNESS


@dataclass(frozen=True)
class PublishedValue:
    """One number of one source; `unsure` could not be confirmed, `known` is a difference of the recipe.

    `apart` is a reason for which ours can never be compared with it.
    """

    dataset: str
    encoder: str
    value: float
    n_images: int | None
    task: str
    preset: str
    metric: str
    source: str
    url: str
    setting: str = ""
    unsure: str = ""
    known: str = ""
    apart: str = ""


_OF_TABLE = [each.name for each in fields(PublishedValue)][4:]


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
                    said = {name: table[name] for name in _OF_TABLE if name in table}
                    for name in ("unsure", "apart"):  # of the whole table, or of a dataset and an encoder
                        if isinstance(reasons := table.get(name, ""), dict):
                            said[name] = "; ".join(reasons[of] for of in (dataset, encoder) if of in reasons)
                    found.append(PublishedValue(dataset, encoder, float(value), images, **said))
    return tuple(found)


#: Half a unit of the last of three digits, which is what the sources print.
ROUNDING = 0.0005
REPRODUCED, DIFFERS, NOT_COMPARABLE = "reproduced", "differs", "not comparable"


@dataclass(frozen=True)
class OurValue:
    """One stored number of ours with its 95 % interval, where there is one."""

    dataset: str
    encoder: str
    task: str
    preset: str
    setting: str
    metric: str
    value: float
    low: float | None
    high: float | None
    size: str
    caveats: tuple[str, ...]
    path: Path
    no_interval: str = ""  # why there is none
    n_images: int | None = None  # test images, or all images of a robustness index


@dataclass(frozen=True)
class Verification:
    """A published number and the nearest of ours; `because` says why the two cannot be compared."""

    published: PublishedValue
    ours: OurValue
    verdict: str
    because: str = ""

    @property
    def difference(self) -> float:
        return self.ours.value - self.published.value

    @property
    def compared_on(self) -> str:
        ours, theirs = self.ours.n_images, self.published.n_images
        mine = "unknown number of images" if ours is None else f"{ours:,} images"
        said = "number not published" if theirs is None else f"published: {theirs:,}"
        return f"{self.ours.dataset}: {mine} ({said})"


def verify(results_dir: str | Path) -> list[Verification]:
    """Verdicts on every published number of which a results folder has the encoder, dataset and task.

    Where none of ours can be compared, the one with the fewest differences is shown.
    """
    ours = list(stored_values(Path(results_dir)))
    verdicts = []
    for published in published_values():
        near = [judge(published, value) for value in ours if _is_near(published, value)]
        compared = [verdict for verdict in near if verdict.verdict != NOT_COMPARABLE]
        # Each result that can be compared counts: one that agrees does not hide one that does not.
        few = sorted(near, key=lambda verdict: (verdict.because.count(";"), str(verdict.ours.path)))
        verdicts += compared or few[:1]
    return verdicts


def stored_values(results_dir: Path) -> Iterable[OurValue]:
    """Every number below a results folder that a published one could stand beside."""
    if not results_dir.is_dir():
        raise HistobenchError(f"no results folder at {results_dir}")
    wanted = {published.metric for published in published_values()}
    for run in load_runs(results_dir) if results_files(results_dir) else ():
        bounds = shown_intervals(run)["metrics"]
        for metric in wanted & set(run.metrics):
            value, found = run.metrics[metric], bounds.get(metric) or {}
            if value is not None:
                yield OurValue(
                    dataset=run.identity.dataset,
                    encoder=run.identity.encoder,
                    task=run.task,
                    preset=run.identity.preset,
                    setting=run.setting,
                    metric=metric,
                    value=value,
                    low=found.get("ci_lower"),
                    high=found.get("ci_upper"),
                    no_interval=str(found.get("reason") or ""),
                    size=run.identity.size,
                    caveats=run.caveats,
                    path=run.path,
                    n_images=run.num_samples,
                )
    for pack in load_robustness(results_dir):
        info = pack.content["additional_info"]
        for metric in wanted & set(pack.content["measures"]):
            found = pack.content["measures"][metric]
            if found["value"] is not None:
                yield OurValue(
                    dataset=pack.dataset,
                    encoder=pack.encoder,
                    task=ROBUSTNESS,
                    preset=str(info.get("preset", "")),
                    setting="",
                    metric=metric,
                    value=found["value"],
                    low=found["low"],
                    high=found["high"],
                    size=str(info.get("size", "")),
                    caveats=tuple(info.get("caveats", ())),
                    path=pack.path,
                    n_images=int(pack.content["num_samples"]),
                )


def judge(published: PublishedValue, ours: OurValue) -> Verification:
    """The verdict on one published number and one of ours for the same encoder, dataset and task."""
    apart = _apart(published, ours)
    if apart:
        return Verification(published, ours, NOT_COMPARABLE, "; ".join(apart))
    if ours.low is None or ours.high is None:
        return Verification(published, ours, NOT_COMPARABLE, ours.no_interval or "our value has no interval")
    inside = ours.low - ROUNDING <= published.value <= ours.high + ROUNDING
    return Verification(published, ours, REPRODUCED if inside else DIFFERS)


def _is_near(published: PublishedValue, ours: OurValue) -> bool:
    """Same task, metric and base names of dataset and encoder: near enough to say what is different."""
    return (
        _base(published.dataset) == _base(ours.dataset)
        and _base(published.encoder) == _base(ours.encoder)
        and (published.task, published.metric) == (ours.task, ours.metric)
    )


def _apart(published: PublishedValue, ours: OurValue) -> list[str]:
    from histobench.roi.encoders.registry import get_spec

    found = []
    # Names are given by people; the number of images tells whether they are the published ones.
    if published.n_images and ours.n_images and published.n_images != ours.n_images:
        found.append(f"another number of images (theirs {published.n_images:,}, ours {ours.n_images:,})")
    compared = (
        ("split", published.dataset, ours.dataset),
        ("encoder variant", published.encoder, ours.encoder),
        ("preset", published.preset, ours.preset),
        ("setting", published.setting, ours.setting),
    )
    found += [
        f"another {what} (theirs {theirs or 'none'}, ours {mine or 'none'})"
        for what, theirs, mine in compared
        if theirs.lower() != mine.lower() and (theirs or what != "preset")  # zero-shot has no preset
    ]
    if published.apart:
        found.insert(0, published.apart)
    expected = str(get_spec(published.encoder).transform.crop)
    if ours.size and ours.size != expected:
        found.append(f"another image size (the encoder's own is {expected}, ours {ours.size})")
    return found


def _base(name: str) -> str:
    return name.lower().partition("@")[0]
