"""The options of the commands that read results: compare, power, choose, similarity, robustness.

Nothing heavy is imported: help needs only this file.
"""

from __future__ import annotations

import re
from dataclasses import KW_ONLY, fields
from functools import partial
from typing import Any

from histobench.core.errors import HistobenchError, InvalidParameterError
from histobench.core.records import option, record
from histobench.roi.metrics.metric_catalogue import known_metric

WHICH, FILES = "which runs", "output"
LICENSES = ("any", "commercial", "commercial-or-unclear")
MEASURES = ("cka", "neighbors", "errors")
#: A smaller limit on the parameters is a mistake: 400 instead of 400M.
FEWEST_PARAMS = 100_000


#: Options under one heading, and the one that several records have.
_which = partial(option, default=None, group=WHICH)
_statistics = partial(option, default=None, group="statistics")
_metric = partial(
    option,
    "metric, such as accuracy, auroc or f1_score",
    default="balanced_accuracy",
    read=known_metric,
    metavar="METRIC",
)


@record
class ReadsResults:
    """The results folder of a command that reads one."""

    results: str = option(
        "results folder, searched with all its subfolders", default="results", positional=True, kw_only=True
    )


@record
class Selection:
    """Which stored runs are used."""

    _: KW_ONLY
    task: str | None = option("task", default=None, default_text="Linear-Probe if there is one")
    encoders: tuple[str, ...] = option("only these encoders", default=(), metavar="NAME,...")
    setting: str | None = _which("setting of the task, such as 9way_16shot")
    preset: str | None = _which("only runs of this preset")
    dataset: str | None = _which("only this dataset")

    def conditions(self) -> dict[str, Any]:
        """Return what runs must meet, as `select_runs` takes it."""
        return {each.name: getattr(self, each.name) for each in fields(Selection)}


@record
class CompareSettings:
    """How encoders are compared."""

    metric: str = _metric()
    alpha: float = _statistics("error rate of a table", default=0.05, above=0, below=1)
    rope: float = _statistics(
        "over datasets: differences up to this size count as equivalent", default=0.01, least=0, below=1
    )


@record
class CompareOptions(Selection, CompareSettings):
    """Which runs are compared, and how."""

    seed: int | None = _which("only runs with this seed", least=0)
    splits: bool = _which("compare over the train/test splits of run --splits or --folds", default=False)

    def conditions(self) -> dict[str, Any]:
        """Return what runs must meet, as `select_runs` takes it."""
        return {**super().conditions(), "seed": self.seed}


@record
class PowerSettings:
    """Which difference is to be detected, and how surely."""

    metric: str = _metric()
    delta: float = option("difference to detect", default=0.02, above=0)
    power: float = _statistics("probability of detecting it", default=0.8, above=0, below=1)
    alpha: float = _statistics("two-sided error rate", default=0.05, above=0, below=1)
    n_bootstrap: int | None = _statistics("simulated test sets", least=100, default_text="4000")
    seed: int = _statistics("seed of the simulation", default=0, least=0, old=("--random-state",))


@record
class PowerOptions(Selection, PowerSettings):
    """The two encoders, and which difference between them is to be detected."""

    encoders: tuple[str, ...] = option(
        "the two encoders", default=(), default_text="the only two", metavar="A,B", kw_only=True
    )

    def check(self) -> None:
        """Power is of one pair."""
        if self.encoders and len(set(self.encoders)) != 2:
            raise InvalidParameterError(f"`encoders` must name two encoders, not {', '.join(self.encoders)}")


def read_params(text: str) -> Any:
    """Read a number of parameters; what is not one is left as it is."""
    match = re.fullmatch(r"([0-9]*\.?[0-9]+)\s*([kKmMbBgG]?)", text.strip())
    if match is None:
        raise HistobenchError(f"`max_params`: expected a number such as 400M or 1.1B, found {text!r}")
    return round(float(match[1]) * {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9}[match[2].lower()])


@record
class Conditions:
    """What an encoder must meet."""

    license: str = option(
        "commercial: only licenses that clearly allow commercial use",
        default="any",
        choices=LICENSES,
        old=("--licence",),
    )
    max_params: int | None = option(
        "maximum parameters of the image tower, such as 400M", default=None, least=1, read=read_params
    )
    min_robustness: float | None = option(
        "minimum robustness index, such as 0.8", default=None, least=0, most=1
    )

    def check(self) -> None:
        """A number of millions must be written as such."""
        if self.max_params is not None and self.max_params < FEWEST_PARAMS:
            raise InvalidParameterError(
                f"`max_params`: no encoder has as few as {self.max_params} parameters; for millions write "
                f"{self.max_params}M (in Python {self.max_params}_000_000)"
            )

    def words(self) -> str:
        words = []
        if self.license != "any":
            unclear = " or is unclear about it" if self.license != "commercial" else ""
            words.append(f"a license that allows commercial use{unclear}")
        if self.max_params is not None:
            words.append(f"at most {self.max_params / 1e6:.0f}M parameters (image tower)")
        if self.min_robustness is not None:
            words.append(f"a robustness index of at least {self.min_robustness:g}")
        return ", ".join(words) or "none"


@record
class ChooseOptions(Conditions):
    """The conditions, and the runs that are the evidence."""

    patients: bool = _which(
        "compare by predictions of patients (task Patient; method abmil, or the one of --setting)",
        default=False,
    )
    task: str | None = _which("task", default_text="Linear-Probe if there is one")
    setting: str | None = _which("setting of the task, such as 9way_16shot")
    preset: str | None = _which("only runs of this preset")
    metric: str = _metric()


@record
class SimilarityOptions:
    """Which encoders are compared, and by what."""

    dataset: str | None = option("only this dataset", default=None)
    encoders: tuple[str, ...] = option("only these encoders", default=(), metavar="NAME,...")
    k: int = option("neighbors of an image", default=10, least=1)
    measures: tuple[str, ...] = option(
        "measures to compute; neighbors take the most time", default=MEASURES, choices=MEASURES
    )


@record
class RobustnessSettings:
    """How the dependence of features on the site is measured."""

    columns: tuple[str, ...] = option(
        "site columns, or pairs of them",
        default=(),
        default_text="all",
        old=("--column",),
        metavar="NAME,...",
    )
    k: int | None = option(
        "neighbors of the robustness index", default=None, least=1, default_text="automatic"
    )
    seed: int = option("seed of everything random", default=0, least=0)
    device: str | None = option("cpu, cuda:0, ...", default=None, default_text="the GPU if there is one")
