"""A benchmark for Python users: run it, or open its folder; then tables, comparisons, figures, the report."""

from __future__ import annotations

import html
import os
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from histobench.core.errors import HistobenchError, did_you_mean
from histobench.core.parameters import (
    InvalidParameterError,
    file_path,
    folder_path,
    positive_number,
    renamed,
    text,
    texts,
    whole_number,
)

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import ArrayLike

    from histobench.api.dataset import Dataset
    from histobench.api.plots import Plots
    from histobench.roi.comparison.choice import Choice
    from histobench.roi.comparison.comparison import Comparison
    from histobench.roi.options import Plan
    from histobench.roi.results.stored_run import StoredRun


def run(
    data: Dataset | str | Path | pd.DataFrame | Sequence[Dataset | str | Path | pd.DataFrame],
    encoders: str | Sequence[str] = (),
    *,
    tasks: str | Sequence[str] | None = None,
    results: str | Path = "results",
    keep_going: bool = False,
    **settings: Any,
) -> Benchmark:
    """Datasets x encoders x tasks, from images to ranked tables; what was done before is not done again.

    The same files as `histobench run` writes. A DataFrame is read as by `load_dataset`, which also splits,
    groups and names. An encoder that is unknown or has no weights is an error before any work; with
    `keep_going` the others are run. `settings` are those of a plan file: `presets`, `seed`, `size`, `device`,
    `weights`, `precision`, `n_shot`, `n_iter`, `n_neighbors`, `n_bootstrap`, `features` (computed by another
    tool), `combine` (encoders side by side), ...
    """
    from histobench.api.progress_bar import ProgressBar, log
    from histobench.roi.plan.benchmark import run_benchmark
    from histobench.roi.work.engines.local import Display

    if "datasets" in settings:
        raise InvalidParameterError("datasets: these are `data` here; give all of them there, as a list")
    values: dict[str, Any] = {
        "encoders": _encoder_names(encoders) if encoders or not settings.get("features") else []
    }
    if tasks is not None:
        values["tasks"] = texts(tasks, "tasks")
    several = _datasets(data)
    drawn = {item.seed for item in several if not isinstance(item, str) and item.seed is not None}
    values = {
        **({"seed": _one_seed(drawn, settings.get("seed"))} if drawn else {}),
        **values,
        "datasets": [item if isinstance(item, str) else dict(item.source) for item in several],
        "results": str(folder_path(results, "results").absolute()),
        **settings,
    }
    with ExitStack() as told:
        tables = [item.table for item in several if not isinstance(item, str) and item.table is not None]
        for table in tables:
            told.enter_context(table.told_in_rows("data"))
        plan = _plan(values)
        done = run_benchmark(plan, display=Display(progress=ProgressBar()), keep_going=keep_going)
        left_out: dict[str, str] = {}
        for missing in (*done.outcome.failures, *done.outcome.skipped):
            reason = missing.reason
            for table in tables:
                reason = table.in_rows(reason)
            if missing in done.outcome.failures:
                log.warning("FAILED: %s: %s", missing.job, reason)
            left_out.setdefault(missing.job, reason)
        if not done.outcome.has_results:
            raise HistobenchError(
                next((f"{job}: {reason}" for job, reason in left_out.items()), "there was nothing to do")
            )
    return replace(open_results(plan.results), left_out=left_out)


def _plan(values: dict[str, Any]) -> Plan:
    """The plan of a run; what is wrong with it is wrong with a parameter."""
    from histobench.api.encoder import device_text
    from histobench.roi.plan.schema import plan_from

    where = "histobench.run"
    try:
        return plan_from({**values, "device": device_text(values.get("device"))}, where=where, base=Path("."))
    except HistobenchError as error:
        raise InvalidParameterError(str(error).removeprefix(f"{where}: ")) from error


def _datasets(data: Any) -> list[Dataset | str]:
    """The datasets, those that are given as paths or names still as such."""
    from histobench.api.dataset import Dataset, load_dataset

    several = [data] if isinstance(data, str | os.PathLike | Dataset) or hasattr(data, "columns") else data
    # Of a column of a DataFrame (which can become a frame) its values would be taken for datasets.
    if not isinstance(several, Iterable) or isinstance(several, Mapping | bytes) or hasattr(data, "to_frame"):
        raise InvalidParameterError(
            "data: expected a dataset of load_dataset, a path, a name or a DataFrame, or a list of them, "
            f"found {reprlib.repr(data)}"
        )
    found: list[Dataset | str] = []
    for item in several:
        if isinstance(item, str | os.PathLike):
            found.append(str(file_path(item, "data")))
        else:
            with renamed(source="data"):
                found.append(item if isinstance(item, Dataset) else load_dataset(item))
    if not found:
        raise InvalidParameterError("data: give at least one dataset")
    return found


def similarity(
    features: str | Path | Mapping[str, ArrayLike],
    *,
    groups: Sequence[str] | None = None,
    errors: Mapping[str, ArrayLike] | None = None,
    k: int = 10,
) -> pd.DataFrame:
    """How alike encoders are on the same images: debiased linear CKA, shared neighbors, shared errors.

    Parameters
    ----------
    features : a results folder, or encoder -> features [n, d] of the same images in the same order
    groups : patient or slide of every image, where arrays are given
    errors : encoder -> whether each image is misclassified, where arrays are given
    k : neighbors of an image

    Returns
    -------
    DataFrame : a row for each pair and measure (cka, neighbors, errors), with 95% intervals over groups

    Examples
    --------
    >>> import numpy as np
    >>> x = np.random.default_rng(0).normal(size=(50, 4))
    >>> table = similarity({"a": x, "b": 2 * x})
    >>> round(float(table["value"][0]), 6)
    1.0
    """
    from dataclasses import asdict

    import pandas

    from histobench.roi.comparison import similarity as measures

    size = whole_number(k, "k", least=1)
    if isinstance(features, Mapping):
        found = measures.similarity(features, groups=groups, errors=errors, k=size)
    else:
        found = measures.similarity_of_results(folder_path(features, "features"), k=size)
    return pandas.DataFrame([asdict(each) for each in found])


def choose(
    results: str | Path,
    *,
    license: str = "any",
    max_params: int | None = None,
    min_robustness: float | None = None,
    task: str | None = None,
    metric: str = "balanced_accuracy",
) -> Choice:
    """The encoders of a results folder that meet conditions, with the evidence for each.

    Parameters
    ----------
    results : a results folder
    license : "commercial": only licenses that allow commercial use
    max_params : most parameters of the network
    min_robustness : least robustness index, in every table of the task Robustness
    task, metric : what the encoders are compared by (default: the linear probe, balanced accuracy)

    Returns
    -------
    Choice : `candidates`, `excluded`, `best` (those that the data do not tell apart) and `paragraph`
    """
    from histobench.roi.comparison.choice import Conditions
    from histobench.roi.comparison.choice import choose as chosen

    conditions = Conditions(license, max_params, min_robustness)
    return chosen(folder_path(results, "results"), conditions, task=task, metric=metric)


def _encoder_names(encoders: Any) -> list[str]:
    """The names of the encoders, which a run makes by itself wherever its work is done."""
    from histobench.api.encoder import Encoder

    several = encoders if isinstance(encoders, list | tuple) else [encoders]
    for item in several:
        if isinstance(item, Encoder):
            raise InvalidParameterError(
                f"encoders: expected names, found an Encoder; a run makes its encoders itself: give "
                f"{item.name!r} as text, or evaluate this one with hb.extract and hb.evaluate"
            )
    return texts(encoders, "encoders")


def _one_seed(drawn: set[int], asked: int | None) -> int:
    """The seed that datasets were split with; a run with another one would split them anew, unseen."""
    seeds = drawn if asked is None else {*drawn, asked}
    if len(seeds) > 1:
        raise HistobenchError(
            f"seed: datasets were split with {', '.join(map(str, sorted(drawn)))}"
            + ("" if asked is None else f", the run is asked for {asked}")
            + "; load them with the seed of the run"
        )
    return seeds.pop()


def open_results(folder: str | Path, *, keeper: object = None) -> Benchmark:
    """The benchmark in an existing results folder, however it was made.

    `keeper` is held as long as the benchmark is (a temporary folder, for results that were not asked for).
    """
    from histobench.mint.results.stored_episode import FILE as EPISODES
    from histobench.roi.results.reader import load_runs

    place = file_path(folder, "folder").absolute()  # the current folder may be another one later
    try:
        return Benchmark(place, tuple(load_runs(place)), keeper)
    except HistobenchError:
        if next(place.rglob(EPISODES), None) is not None:
            raise HistobenchError(
                f"folder: {place} holds episodes of agents; open it with hb.mint.open_runs"
            ) from None
        raise


@dataclass(frozen=True, repr=False, eq=False)
class Benchmark:
    """Stored runs and what can be made of them.

    `left_out` says what was asked for and is not there, with the reason: an encoder that could not be made, a
    task that could not be run. It is known to the call that was asked; a later one tries again.
    """

    folder: Path
    runs: tuple[StoredRun, ...]
    keeper: object = None
    left_out: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def encoders(self) -> tuple[str, ...]:
        """The encoders, in the order of the folder."""
        return tuple(dict.fromkeys(run.identity.encoder for run in self.runs))

    @cached_property
    def datasets(self) -> tuple[str, ...]:
        """The datasets."""
        return tuple(dict.fromkeys(run.identity.dataset for run in self.runs))

    def table(self) -> pd.DataFrame:
        """One row per number: dataset, encoder, preset, task, setting, metric, value, low, high, n.

        `low` and `high` are the 95 % interval that `compare` and the report show; they are missing where the
        test set allows none (`compare` says why).
        """
        import pandas as pd

        from histobench.roi.comparison.tidy_rows import TABLE_COLUMNS, result_rows

        rows = [row for run in self.runs for row in result_rows(run)]
        frame = pd.DataFrame(rows, columns=list(TABLE_COLUMNS))
        return frame.astype({"value": float, "low": float, "high": float})

    def compare(
        self,
        *,
        metric: str = "balanced_accuracy",
        task: str | None = None,
        dataset: str | None = None,
        setting: str | None = None,
        preset: str | None = None,
        encoders: str | Sequence[str] | None = None,
        alpha: float = 0.05,
    ) -> ComparisonTable:
        """All pairs of encoders on the same images: difference, interval, p-values, and whether it holds.

        A difference holds where its interval for all pairs at once (max-t) excludes 0; that is the rule of
        `histobench compare` and of the report, too.
        """
        from histobench.roi.comparison.comparison import CompareSettings, compare_runs
        from histobench.roi.comparison.selection import select_runs

        chosen = select_runs(
            self.runs,
            task=_choice(task, "task"),
            dataset=_choice(dataset, "dataset"),
            setting=_choice(setting, "setting"),
            preset=_choice(preset, "preset"),
            encoders=None if encoders is None else texts(encoders, "encoders"),
        )
        level = positive_number(alpha, "alpha")
        return ComparisonTable(compare_runs(chosen, CompareSettings(text(metric, "metric"), level)))

    def predictions(
        self,
        encoder: str,
        task: str,
        *,
        dataset: str | None = None,
        setting: str | None = None,
        preset: str | None = None,
    ) -> pd.DataFrame:
        """One row per test image: image, label, group, predicted, and a column of probabilities per class.

        The columns of probabilities are the last ones, in the order of the classes. Each is called as its
        class; where that name is taken (a class called "label"), it is `probability of label`.
        """
        import pandas as pd

        found = self.one(encoder, task, dataset=dataset, setting=setting, preset=preset)
        stored = found.predictions
        frame = pd.DataFrame(
            {
                "image": stored.img_names,
                "label": [stored.classes[label] for label in stored.labels],
                "group": stored.groups if stored.groups is not None else [None] * len(stored),
                "predicted": [stored.classes[label] for label in stored.predicted],
            }
        )
        columns = _free_names(stored.classes, frame.columns)
        return pd.concat([frame, pd.DataFrame(stored.probabilities, columns=columns)], axis=1)

    def one(
        self,
        encoder: str,
        task: str,
        *,
        dataset: str | None = None,
        setting: str | None = None,
        preset: str | None = None,
    ) -> StoredRun:
        """The one run that fits; an ambiguous or unknown choice is refused with the choices."""
        from histobench.roi.comparison.selection import having

        fitting = having(self.runs, "encoder", text(encoder, "encoder"))
        fitting = having(fitting, "task", text(task, "task"))
        for what, wanted in (("dataset", dataset), ("preset", preset), ("setting", setting)):
            fitting = having(fitting, what, _choice(wanted, what))
        if len(fitting) > 1:
            for what, values in (
                ("dataset", {run.identity.dataset for run in fitting}),
                ("preset", {run.identity.preset for run in fitting}),
                ("setting", {run.setting for run in fitting}),
            ):
                if len(values) > 1:
                    raise HistobenchError(f"{what}: choose one of {', '.join(sorted(values))}")
            raise HistobenchError(f"{len(fitting)} runs of {encoder} fit; open the folder of one of them")
        return fitting[0]

    @property
    def plot(self) -> Plots:
        """Figures: `leaderboard`, `confusion`, `few_shot`, `embedding`; each gives matplotlib axes."""
        from histobench.api.plots import Plots

        return Plots(self)

    def report(self, folder: str | Path, **options: Any) -> Path:
        """Write the web report and return the path of its first page."""
        from histobench.report.site import build_site

        known = list(signature(build_site).parameters)[2:]
        for option in options:
            if option not in known:
                raise HistobenchError(f"report has no option {option!r}; {did_you_mean(option, known)}")
        file_path(folder, "folder")
        return build_site(self.folder, folder, **options)

    def __repr__(self) -> str:
        tasks = ", ".join(dict.fromkeys(run.task for run in self.runs))
        return (
            f"Benchmark in {self.folder}: {len(self.datasets)} datasets, {len(self.encoders)} encoders"
            f" ({', '.join(self.encoders)}), {tasks}"
            + (f"; left out: {', '.join(self.left_out)} (.left_out says why)" if self.left_out else "")
        )

    def _repr_html_(self) -> str:
        table = self.table().query("metric == 'balanced_accuracy'")
        return f"<p>{html.escape(repr(self))}</p>{table.to_html(index=False, float_format='%.3f')}"


def _choice(value: Any, parameter: str) -> str | None:
    """What runs are chosen by: a text, or None for whatever there is."""
    return None if value is None else text(value, parameter)


def _free_names(wanted: Sequence[str], taken: Iterable[str]) -> list[str]:
    """A column name for each class: its own, or `probability of ...` where a column is called so already.

    >>> _free_names(["label", "tumour"], ["image", "label"])
    ['probability of label', 'tumour']
    """
    used = {*taken, *wanted}
    found: list[str] = []
    for place, name in enumerate(wanted):
        free = name not in taken and name not in wanted[:place]
        while not free:
            name = f"probability of {name}"
            free = name not in used
        used.add(name)
        found.append(name)
    return found


@dataclass(frozen=True, repr=False)
class ComparisonTable:
    """A comparison that prints itself; `.frame()` has all pairs, `.ranked()` the encoders."""

    comparison: Comparison

    def frame(self) -> pd.DataFrame:
        """All pairs, a row each.

        `low`, `high` and `p` are those of the pair as if it were the only one; with (max-t) they are for all
        pairs of the table at once, and `holds` says whether that interval excludes 0. `p (Holm)` is `p`
        corrected by another procedure, for papers that ask for it; nothing is decided by it.
        """
        import pandas as pd

        rows = [
            (
                table.dataset,
                pair.first,
                pair.second,
                pair.difference,
                pair.interval.low,
                pair.interval.high,
                pair.p_value,
                pair.simultaneous.low,
                pair.simultaneous.high,
                pair.p_simultaneous,
                pair.p_adjusted,
                pair.holds,
            )
            for table in self.comparison.tables
            for pair in table.pairs
        ]
        columns = ["dataset", "first", "second", "difference", "low", "high", "p"]
        columns += ["low (max-t)", "high (max-t)", "p (max-t)", "p (Holm)", "holds"]
        return pd.DataFrame(rows, columns=columns)

    def ranked(self) -> pd.DataFrame:
        """The encoders, best first: dataset, encoder, rank, value, low, high."""
        import pandas as pd

        rows = [
            (table.dataset, entry.name, entry.rank, entry.value, entry.interval.low, entry.interval.high)
            for table in self.comparison.tables
            for entry in table.entries
        ]
        return pd.DataFrame(rows, columns=["dataset", "encoder", "rank", "value", "low", "high"])

    def __repr__(self) -> str:
        from histobench.roi.comparison.comparison_files import markdown

        return markdown(self.comparison)

    def _repr_html_(self) -> str:
        heading = f"{self.comparison.metric}, {self.comparison.task} {self.comparison.setting}".strip()
        tables = (frame.to_html(index=False, float_format="%.4f") for frame in (self.ranked(), self.frame()))
        return f"<p>{html.escape(heading)}</p>{''.join(tables)}"
