"""A benchmark for Python users: run it, or open its folder; then tables, comparisons, figures, the report."""

from __future__ import annotations

import html
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pandas as pd

from histobench.core.errors import HistobenchError, InvalidParameterError
from histobench.core.files import check_writable
from histobench.core.records import check_keys, checked, from_values, options_of
from histobench.core.renamed import Renamed, renamed_parameters
from histobench.core.text import count_of

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from torch import nn

    from histobench.api.dataset import Dataset
    from histobench.api.encoder import Encoder
    from histobench.api.mistakes import Mistakes
    from histobench.api.plots import Plots
    from histobench.roi.comparison.choice import Choice
    from histobench.roi.comparison.comparison import Comparison, DatasetTable
    from histobench.roi.comparison.splits_compared import SplitTable
    from histobench.roi.results.stored_run import StoredRun


@renamed_parameters(keep_going="skip_failed")
def run(
    data: Dataset | str | Path | pd.DataFrame | Sequence[Dataset | str | Path | pd.DataFrame],
    encoders: str | Encoder | nn.Module | Sequence[str | Encoder | nn.Module] = (),
    *,
    tasks: str | Sequence[str] | None = None,
    results: str | Path = "results",
    seed: int | None = None,
    device: str | None = None,
    skip_failed: bool = False,
    retry_failed: bool = False,
    **options: Any,
) -> Benchmark:
    """Benchmark encoders on datasets: extract features, evaluate tasks, compute intervals, compare.

    `histobench run` does the same. A run that was interrupted continues when it is called again.

    Parameters
    ----------
    data : Dataset, path, name, DataFrame, or a list of these
        A dataset from `load_dataset`, or anything that `load_dataset` reads.
    encoders : str, Encoder, torch.nn.Module, or a list of these, default ()
        Names from `list_encoders`, `my_file.py:MyEncoder`, or models of this process (`create_encoder`).
        None are needed with `features`.
    tasks : str or list of str, optional
        Linear-Probe, KNN, Proto, Few-shot, Zero-shot (the default of class labels), Retrieval,
        Label-efficiency, Patient, Fine-tune, Robustness, Regression, Survival, Multi-label, Ordinal,
        Segmentation.
    results : str or Path, default "results"
        Folder of the results. It may hold earlier runs.
    seed : int, optional
        Seed of everything random (default: 0, or the seed with which `data` was split).
    device : str, optional
        cpu, cuda:0, mps, or several: cuda:0,cuda:1 (default: the GPU if there is one).
    skip_failed, retry_failed : bool, default False
        Run the other encoders if one cannot be created (`Benchmark.skipped` says why); repeat what failed.
    **options
        Options of a plan; docs/how-to/plan.md and `histobench run --help` explain each of them:
        data: target, target_columns, mask_classes, features (NAME=PATH), combine, splits, folds, repeats;
        encoders: size, weights, allow_revision; recipe: presets, choose_by, n_bootstrap;
        speed: batch_size, num_workers, precision, compile, recheck, no_cache, on_bad_image;
        tasks: n_neighbors, n_shot, n_way, n_iter, cost, class_weight, cox_alpha, l1_ratio, lora_rank,
        lora_alpha, tune_epochs, tune_rates, tune_batch_size, tune_seeds, save_adapters, token_store,
        head_steps.

    Returns
    -------
    Benchmark
        Everything in `results`, with tables, comparisons, figures and the report.

    Examples
    --------
    >>> import tempfile, histobench as hb
    >>> folder = tempfile.mkdtemp()
    >>> data = hb.demo_dataset(f"{folder}/tiles", train_per_class=4, test_per_class=4, size=64)
    >>> bench = hb.run(data, "tiny-vl", tasks="Proto", results=f"{folder}/results")
    >>> bench.encoders, bench.datasets
    (('tiny-vl',), ('synthetic-crc',))
    """
    from histobench.api.dataset import plan_entry, read_for
    from histobench.api.encoder import device_text
    from histobench.api.progress_bar import ProgressBar, log
    from histobench.roi.options import DataOptions, plan_options
    from histobench.roi.plan.plan_file import plan_from
    from histobench.roi.plan.whole_benchmark import run_benchmark
    from histobench.work.engines import Display

    for key in {each.name for each in options_of(DataOptions)} & set(options):
        raise HistobenchError(f"{key}: hb.load_dataset(..., {key}=...) takes it; give what it returns")
    check_keys(options, [*(each.name for each in plan_options()), "data", "encoders", "results"])
    named = _encoder_names(encoders) if encoders or not options.get("features") else []
    values: dict[str, Any] = {**options, "encoders": named}
    if tasks is not None:
        values["tasks"] = checked(tuple[str, ...], tasks, "tasks")
    with read_for(run, "data"):
        several = _datasets(data, options)
    values |= _one_target(several, values)
    drawn = {item.seed for item in several if not isinstance(item, str) and item.seed is not None}
    values |= {
        "seed": _one_seed(drawn, seed) if drawn else seed,
        "device": device_text(device),
        "datasets": [item if isinstance(item, str) else plan_entry(item) for item in several],
        "results": str(check_writable(checked(Path, results, "results").absolute(), "results")),
    }
    with read_for(run, "data"):
        plan = plan_from(values, where="", base=Path("."))
        done = run_benchmark(
            plan, display=Display(progress=ProgressBar()), keep_going=skip_failed, retry_failed=retry_failed
        )
        skipped: dict[str, str] = {}
        for missing in (*done.outcome.failures, *done.outcome.skipped):
            if missing in done.outcome.failures:
                log.warning("FAILED: %s: %s", missing.job, missing.reason)
            skipped.setdefault(missing.job, missing.reason)
        if not done.outcome.has_results:
            raise HistobenchError(
                next((f"{job}: {reason}" for job, reason in skipped.items()), "there was nothing to do")
            )
    return replace(open_results(plan.results), skipped=skipped)


def _one_target(several: Sequence[Dataset | str], values: Mapping[str, Any]) -> dict[str, Any]:
    """The target of a run: that of the datasets that were loaded with one, which must be the same."""
    from histobench.api.dataset import TARGET_OPTIONS, origin_of

    found: dict[str, Any] = {name: values[name] for name in TARGET_OPTIONS if name in values}
    for item in several:
        for name in TARGET_OPTIONS:
            own = None if isinstance(item, str) else origin_of(item).get(name)
            if own is not None and found.setdefault(name, own) != own and list(found[name]) != list(own):
                raise InvalidParameterError(
                    f"{name}: a dataset was loaded with {own!r}, the run is asked for {found[name]!r}"
                )
    return found


def _datasets(data: Any, options: Mapping[str, Any]) -> list[Dataset | str]:
    """The datasets, those that are given as paths or names still as such."""
    from histobench.api.dataset import TARGET_OPTIONS, Dataset, load_dataset

    found: list[Dataset | str] = []
    for item in data if isinstance(data, list | tuple) else [data]:
        if isinstance(item, Dataset):
            found.append(item)
        elif isinstance(item, str | os.PathLike):
            found.append(str(checked(Path, item, "data")))
        else:
            target = {name: options[name] for name in TARGET_OPTIONS if options.get(name)}
            found.append(load_dataset(item, **target))
    if not found:
        raise InvalidParameterError("data: give at least one dataset")
    return found


def results_folder(results: Benchmark | str | Path) -> Path:
    return results.folder if isinstance(results, Benchmark) else checked(Path, results, "results")


def similarity(
    features: Benchmark | str | Path | Mapping[str, ArrayLike],
    *,
    groups: Sequence[str] | None = None,
    errors: Mapping[str, ArrayLike] | None = None,
    k: int = 10,
    measures: Sequence[str] = ("cka", "neighbors", "errors"),
) -> pd.DataFrame:
    """How alike encoders are on the same images: debiased linear CKA, shared neighbors, shared errors.

    Parameters
    ----------
    features : Benchmark, str, Path, or dict of str to array [n, d]
        A benchmark or its folder, or the features of each encoder for the same images in the same order.
    groups : list of str, optional
        Patient or slide of every image, if arrays are given.
    errors : dict of str to array [n], optional
        Whether each encoder misclassifies each image, if arrays are given.
    k : int, default 10
        Neighbors of an image.
    measures : list of str, default all
        Which measures; neighbors take the most time with many images.

    Returns
    -------
    pandas.DataFrame
        One row per pair and measure (cka, neighbors, errors), with 95 % intervals over groups.

    Examples
    --------
    >>> import numpy as np, histobench as hb
    >>> x = np.random.default_rng(0).normal(size=(50, 4))
    >>> table = hb.similarity({"a": x, "b": 2 * x})
    >>> round(float(table["value"][0]), 6)
    1.0
    """
    given = dict(locals())
    from histobench.roi.comparison import similarity as module
    from histobench.roi.result_options import SimilarityOptions

    options = from_values(SimilarityOptions, given)
    if isinstance(features, Mapping):
        found = module.similarity(
            features, groups=groups, errors=errors, k=options.k, measures=options.measures
        )
    else:
        found = module.similarity_of_results(results_folder(features), options)
    return pd.DataFrame([asdict(each) for each in found])


def choose(
    results: Benchmark | str | Path,
    *,
    license: Literal["any", "commercial", "commercial-or-unclear"] = "any",
    max_params: int | None = None,
    min_robustness: float | None = None,
    patients: bool = False,
    task: str | None = None,
    setting: str | None = None,
    preset: str | None = None,
    metric: str = "balanced_accuracy",
) -> Choice:
    """The encoders of a results folder that meet conditions, with the evidence for each.

    Parameters
    ----------
    results : Benchmark, str or Path
        What `run`, `evaluate` or `open_results` returned, or a results folder.
    license : {"any", "commercial", "commercial-or-unclear"}, default "any"
        Commercial: only licenses that clearly allow commercial use.
    max_params : int, optional
        Most parameters of the image tower, such as 400M.
    min_robustness : float, optional
        Least robustness index, such as 0.8.
    patients : bool, default False
        Compare by predictions of patients (the task Patient; abmil unless `setting` names another method).
    task : str, optional
        Task (default: Linear-Probe if there is one).
    setting : str, optional
        Setting of the task, such as 9way_16shot.
    preset : str, optional
        Only runs of this preset.
    metric : str, default "balanced_accuracy"
        Metric, such as accuracy, auroc or f1_score.

    Returns
    -------
    Choice
        Prints itself as a table; `to_frame()` has a row per encoder. Also `candidates`, `excluded`, `best`
        (those that may be the best on every tested dataset), `tested`, `missing` and `paragraph`.

    Examples
    --------
    >>> import tempfile, numpy as np, histobench as hb
    >>> y, folder = np.arange(60) % 2, tempfile.mkdtemp()
    >>> X = np.random.default_rng(0).normal(size=(60, 8)) + 3 * y[:, None]
    >>> for name in ("uni_v1", "resnet50"):
    ...     _ = hb.evaluate(X[:40], X[40:], y[:40], y[40:], tasks="KNN", encoder=name, results=folder)
    >>> [each.name for each in hb.choose(folder, license="commercial").candidates]
    ['resnet50']
    """
    given = dict(locals())
    from histobench.roi.comparison.choice import choose as chosen
    from histobench.roi.result_options import ChooseOptions

    return chosen(results_folder(results), from_values(ChooseOptions, given))


def _encoder_names(encoders: Any) -> list[str]:
    """The names of the encoders; models of this process are registered for the run."""
    from histobench.api.encoder import Encoder, create_encoder
    from histobench.roi.encoders.registry import find_spec, register_encoder

    names = []
    for item in encoders if isinstance(encoders, list | tuple) else [encoders]:
        made = create_encoder(item) if callable(item) else item
        if isinstance(made, Encoder):
            if find_spec(made.name) is None:
                register_encoder(made.name)(lambda module=made.module: module)
            made = made.name
        names.append(made)
    return list(checked(tuple[str, ...], names, "encoders"))


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


def open_results(folder: str | Path) -> Benchmark:
    """Open a results folder that `run`, `evaluate` or the command line wrote.

    Parameters
    ----------
    folder : str or Path
        The results folder; subfolders are searched, too.

    Returns
    -------
    Benchmark

    Examples
    --------
    >>> import tempfile, numpy as np, histobench as hb
    >>> y = np.arange(60) % 2
    >>> X = np.random.default_rng(0).normal(size=(60, 8)) + 3 * y[:, None]
    >>> folder = tempfile.mkdtemp()
    >>> _ = hb.evaluate(X[:40], X[40:], y[:40], y[40:], tasks="KNN", encoder="mine", results=folder)
    >>> hb.open_results(folder).encoders
    ('mine',)
    """
    from histobench.mint.results.stored_episode import FILE as EPISODES
    from histobench.roi.results.reader import load_runs

    place = checked(Path, folder, "folder").absolute()  # the current folder may be another one later
    try:
        return Benchmark(place, tuple(load_runs(place)))
    except HistobenchError:
        if next(place.rglob(EPISODES), None) is not None:
            raise HistobenchError(
                f"folder: {place} holds episodes of agents; open it with hb.mint.open_runs"
            ) from None
        raise


def compare(
    results: Benchmark | str | Path,
    *,
    metric: str = "balanced_accuracy",
    alpha: float = 0.05,
    rope: float = 0.01,
    task: str | None = None,
    encoders: str | Sequence[str] = (),
    setting: str | None = None,
    preset: str | None = None,
    dataset: str | None = None,
    seed: int | None = None,
    splits: bool = False,
) -> ComparisonTable:
    """Rank encoders by one metric and test every pair on the same test images.

    Two encoders differ where the interval of their difference excludes 0. These intervals hold for all pairs
    of the table at once (max-t). `histobench compare` and the report use the same rule.

    Parameters
    ----------
    results : Benchmark, str or Path
        What `run`, `evaluate` or `open_results` returned, or a results folder.
    metric : str, default "balanced_accuracy"
        Metric, such as accuracy, auroc or f1_score.
    alpha : float, default 0.05
        Error rate of a table.
    rope : float, default 0.01
        Over datasets: differences up to this size count as equivalent.
    task : str, optional
        Task (default: Linear-Probe if there is one).
    encoders : str or list of str, default ()
        Only these encoders.
    setting : str, optional
        Setting of the task, such as 9way_16shot.
    preset : str, optional
        Only runs of this preset.
    dataset : str, optional
        Only this dataset.
    seed : int, optional
        Only runs with this seed.
    splits : bool, default False
        Compare over the train/test splits of run `splits` or `folds`.

    Returns
    -------
    ComparisonTable
        Prints itself; `to_frame()` has a row per pair and `ranked()` a row per encoder.

    Examples
    --------
    >>> import tempfile, numpy as np, histobench as hb
    >>> draw, folder = np.random.default_rng(0), tempfile.mkdtemp()
    >>> y = np.arange(120) % 2
    >>> for encoder, signal in (("good", 3), ("poor", 0.2)):
    ...     X = draw.normal(size=(120, 8)) + signal * y[:, None]
    ...     _ = hb.evaluate(X[:60], X[60:], y[:60], y[60:], tasks="KNN", encoder=encoder, results=folder)
    >>> compared = hb.compare(folder)
    >>> compared.to_frame()[["first", "second", "holds"]].values.tolist()
    [['good', 'poor', True]]
    """
    given = dict(locals())
    from histobench.roi.comparison.splits_compared import compare_results
    from histobench.roi.result_options import CompareOptions

    options = from_values(CompareOptions, given)
    folder = results_folder(results)
    if options.splits:
        tables, comparison = compare_results(folder, options)
    else:
        runs = results.runs if isinstance(results, Benchmark) else open_results(folder).runs
        tables, comparison = compare_results(runs, options)
    return ComparisonTable(comparison, tuple(tables))


@dataclass(frozen=True, repr=False, eq=False)
class Benchmark:
    """The runs of a results folder, with tables, comparisons, figures and the report.

    `run`, `evaluate` and `open_results` return one.

    Attributes
    ----------
    folder : Path
        The results folder.
    runs : tuple of StoredRun
        Every evaluated combination of dataset, encoder, preset, task and setting.
    skipped : dict of str to str
        What the call that returned this object could not do, with the reason: an encoder that could not be
        created, a task that could not be run. The same call tries again.
    encoders, datasets : tuple of str
        Names, in the order of the folder.
    plot : Plots
        `plot()` draws the overview; other figures: `leaderboard`, `confusion`, `few_shot`, `embedding`,
        `similarity`.

    Examples
    --------
    >>> import numpy as np, histobench as hb
    >>> y = np.arange(60) % 2
    >>> X = np.random.default_rng(0).normal(size=(60, 8)) + 3 * y[:, None]
    >>> bench = hb.evaluate(X[:40], X[40:], y[:40], y[40:], tasks=["KNN", "Proto"], encoder="mine")
    >>> bench
    Benchmark of 1 encoder (mine) on 1 dataset (data): KNN, Proto
    >>> bench.to_frame().query("metric == 'accuracy'")[["task", "value", "n"]].values.tolist()
    [['KNN', 1.0, 20], ['Proto', 1.0, 20]]
    """

    folder: Path
    runs: tuple[StoredRun, ...]
    skipped: Mapping[str, str] = field(default_factory=dict)
    #: Keeps a temporary folder until this object is no longer used.
    _keeper: object = field(default=None, repr=False)

    # Earlier names.
    table, one, left_out = Renamed("to_frame"), Renamed("get_run"), Renamed("skipped")

    @cached_property
    def encoders(self) -> tuple[str, ...]:
        """The encoders, in the order of the folder."""
        return tuple(dict.fromkeys(run.identity.encoder for run in self.runs))

    @cached_property
    def datasets(self) -> tuple[str, ...]:
        """The datasets, in the order of the folder."""
        return tuple(dict.fromkeys(run.identity.dataset for run in self.runs))

    def to_frame(self) -> pd.DataFrame:
        """Return every number of every run.

        Returns
        -------
        pandas.DataFrame
            One row per number, with the columns dataset, encoder, preset, task, setting, metric, value, low,
            high and n (test images). `low` and `high` are the 95 % interval; they are missing where the test
            set does not allow one (`compare` says why).
        """
        from histobench.roi.comparison.tidy_rows import TABLE_COLUMNS, result_rows

        rows = [row for run in self.runs for row in result_rows(run)]
        frame = pd.DataFrame(rows, columns=list(TABLE_COLUMNS))
        return frame.astype({"value": float, "low": float, "high": float})

    def compare(self, metric: str = "balanced_accuracy", **options: Any) -> ComparisonTable:
        """Rank the encoders by one metric and test every pair.

        Parameters
        ----------
        metric : str, default "balanced_accuracy"
            Metric, such as accuracy, auroc or f1_score.
        **options
            As in `histobench.compare`: task, encoders, dataset, setting, preset, seed, splits, alpha, rope.

        Returns
        -------
        ComparisonTable
        """
        return compare(self, metric=metric, **options)

    def ranking_shift(
        self,
        *,
        metric: str = "balanced_accuracy",
        dataset: str | None = None,
        encoders: str | Sequence[str] | None = None,
        seed: int | None = None,
        alpha: float = 0.05,
    ) -> pd.DataFrame:
        """Compare frozen with fine-tuned encoders, of the task Fine-tune: does the ranking change?

        Parameters
        ----------
        metric : str, default "balanced_accuracy"
            The metric to rank by.
        dataset : str, optional
            Use only this dataset.
        encoders : str or list of str, optional
            Compare only these encoders.
        seed : int, optional
            Use only runs with this seed.
        alpha : float, default 0.05
            Error rate of the whole table.

        Returns
        -------
        pandas.DataFrame
            A row per dataset and encoder: both values, observed and possible ranks, and the difference with
            an interval that holds for all pairs of networks at once.
        """
        given = dict(locals())
        from histobench.roi.comparison.ranking_shift import ranking_shifts
        from histobench.roi.result_options import CompareOptions

        return pd.DataFrame(
            [
                {"dataset": found.dataset, "metric": found.metric, **asdict(shift)}
                for found in ranking_shifts(self.runs, from_values(CompareOptions, given))
                for shift in found.shifts
            ]
        )

    def predictions(
        self,
        encoder: str | None = None,
        task: str | None = None,
        *,
        dataset: str | None = None,
        setting: str | None = None,
        preset: str | None = None,
    ) -> pd.DataFrame:
        """Return the predictions of one run.

        Parameters
        ----------
        encoder, task, dataset, setting, preset : str, optional
            The run, as in `get_run`.

        Returns
        -------
        pandas.DataFrame
            One row per test image: image, label, group, predicted, then one column of probabilities per
            class, in the order of the classes. A column is named after its class, or "probability of label"
            if that name is taken (here by a class called "label").
        """
        from histobench.roi.task_catalogue import CLASS

        found = self.get_run(encoder, task, dataset=dataset, setting=setting, preset=preset)
        if found.target != CLASS:
            target = found.target_predictions
            columns = {
                f"predicted {name}": target.predicted[:, k] for k, name in enumerate(target.predicted_columns)
            }
            truth = {name: target.truth[:, k] for k, name in enumerate(target.columns)}
            groups = target.groups if target.groups is not None else [None] * len(target)
            return pd.DataFrame({"image": target.img_names, "group": groups, **truth, **columns})
        stored = found.predictions
        frame = pd.DataFrame(
            {
                "image": stored.img_names,
                "label": [stored.classes[label] for label in stored.labels],
                "group": stored.groups if stored.groups is not None else [None] * len(stored),
                "predicted": [stored.classes[label] for label in stored.predicted],
            }
        )
        names = [f"probability of {name}" if name in frame else name for name in stored.classes]
        return pd.concat([frame, pd.DataFrame(stored.probabilities, columns=names)], axis=1)

    def get_run(
        self,
        encoder: str | None = None,
        task: str | None = None,
        *,
        dataset: str | None = None,
        setting: str | None = None,
        preset: str | None = None,
    ) -> StoredRun:
        """Return the one stored run that fits.

        Parameters
        ----------
        encoder : str, optional
            The encoder (default: the only one).
        task : str, optional
            The task, in any case (default: Linear-Probe if there is one, else the first; Fine-tune last).
        dataset, setting, preset : str, optional
            Needed where several runs fit; the error names the choices.

        Returns
        -------
        StoredRun
        """
        from histobench.api.plots import one_encoder
        from histobench.roi.comparison.selection import having
        from histobench.roi.task_catalogue import main_task

        encoder = one_encoder(self.encoders, encoder)
        fitting = having(self.runs, "encoder", encoder)
        task = checked(str, task, "task") if task else main_task(run.task for run in fitting)
        fitting = having(fitting, "task", task)
        chosen = {"dataset": dataset, "preset": preset, "setting": setting}
        for what, wanted in chosen.items():
            fitting = having(fitting, what, wanted)
        for what in chosen:
            values = {run.setting if what == "setting" else getattr(run.identity, what) for run in fitting}
            if len(values) > 1:
                raise HistobenchError(f"{what}: choose one of {', '.join(sorted(values))}")
        if len(fitting) > 1:
            raise HistobenchError(f"{len(fitting)} runs of {encoder} fit; open the folder of one of them")
        return fitting[0]

    def mistakes(
        self,
        encoder: str | None = None,
        task: str | None = None,
        *,
        dataset: str | None = None,
        setting: str | None = None,
        preset: str | None = None,
    ) -> Mistakes:
        """Return the test images that an encoder got wrong, the most confident mistakes first.

        Parameters
        ----------
        encoder, task, dataset, setting, preset : str, optional
            The run, as in `get_run`.

        Returns
        -------
        Mistakes
            A table; in a notebook with thumbnails. `to_frame()` gives its DataFrame.
        """
        from histobench.api.mistakes import Mistakes
        from histobench.report.image_source import noted_datasets

        found = self.get_run(encoder, task, dataset=dataset, setting=setting, preset=preset)
        return Mistakes.of(found, noted_datasets(self.folder).get(found.identity.dataset))

    @property
    def plot(self) -> Plots:
        """Figures (matplotlib): `plot()` is the overview; also `leaderboard`, `confusion`, `few_shot`,
        `embedding`, `similarity`.
        """
        from histobench.api.plots import Plots

        return Plots(self)

    def report(
        self,
        folder: str | Path = "site",
        *,
        images: str | Path | Mapping[str, str | Path] | None = None,
        title: str = "",
        thorough: bool = False,
        workers: int = 1,
    ) -> Path:
        """Write the web report, a folder of static pages.

        Parameters
        ----------
        folder : str or Path, default "site"
            Where the pages go.
        images : str, Path, or dict of these by dataset, optional
            Where the test images are (CSV, folder or shards), if they are not where they were.
        title : str, optional
            Title of the pages (default: the name of the results folder).
        thorough : bool, default False
            Check every dataset and draw every map.
        workers : int, default 1
            Processes that share the work. A script that asks for more than one needs
            `if __name__ == "__main__"`.

        Returns
        -------
        Path
            The first page.
        """
        from histobench.report.site import build_site

        place = checked(Path, folder, "folder")
        return build_site(self.folder, place, images=images, title=title, thorough=thorough, workers=workers)

    def __repr__(self) -> str:
        tasks = ", ".join(dict.fromkeys(run.task for run in self.runs))
        place = "" if self._keeper is not None else f" in {self.folder}"
        return (
            f"Benchmark{place} of {_counted(self.encoders, 'encoder')} on "
            f"{_counted(self.datasets, 'dataset')}: {tasks or 'no stored predictions'}"
            + (f"; left out: {', '.join(self.skipped)} (.skipped says why)" if self.skipped else "")
        )

    def _repr_html_(self) -> str:
        from histobench.roi.presets import target_metrics
        from histobench.roi.task_catalogue import CLASS

        main = {}
        for run in self.runs:
            about = run.identity
            metric = (
                "balanced_accuracy" if run.target == CLASS else target_metrics(run.target, about.preset)[0]
            )
            main[about.dataset, about.encoder, about.preset, run.task, run.setting] = metric
        table = self.to_frame()
        runs = table[["dataset", "encoder", "preset", "task", "setting"]].values.tolist()
        table = table[table["metric"] == [main[tuple(run)] for run in runs]].copy()
        table["cell"] = [_cell(*row) for row in table[["value", "low", "high"]].values]
        table["task"] = (table["task"] + " " + table["setting"]).str.strip()
        parts = [f"<p>{html.escape(repr(self))}</p>"]
        for (dataset, preset), rows in table.groupby(["dataset", "preset"], sort=False):
            wide = rows.pivot_table("cell", "encoder", "task", aggfunc="last", sort=False).fillna("")
            metrics = ", ".join(rows["metric"].unique()).replace("_", " ")
            heading = f"{dataset}: {metrics} [95 % interval], preset {preset}"
            parts.append(f"<p>{html.escape(heading)}</p>{wide.to_html()}")
        return "".join(parts)


def _counted(names: Sequence[str], what: str) -> str:
    """How many there are and what they are called."""
    return count_of(len(names), what) + (f" ({', '.join(names)})" if names else "")


def _cell(value: float, low: float, high: float) -> str:
    return f"{value:.3f}" + (f" [{low:.3f}, {high:.3f}]" if low == low and high == high else "")


@dataclass(frozen=True, repr=False)
class ComparisonTable:
    """A comparison of encoders; `compare` returns one.

    It prints itself as tables of text.

    Attributes
    ----------
    comparison : Comparison or None
        All numbers, as objects; None if only repeated folds were compared.
    over_splits : tuple of SplitTable
        Comparisons over repeated folds (`splits=True`), one per dataset and scheme.

    Examples
    --------
    >>> import tempfile, numpy as np, histobench as hb
    >>> draw, folder, y = np.random.default_rng(0), tempfile.mkdtemp(), np.arange(120) % 2
    >>> for name, signal in (("good", 3), ("poor", 0.2)):
    ...     X = draw.normal(size=(120, 8)) + signal * y[:, None]
    ...     _ = hb.evaluate(X[:60], X[60:], y[:60], y[60:], tasks="KNN", encoder=name, results=folder)
    >>> hb.compare(folder).ranked()["encoder"].tolist()
    ['good', 'poor']
    """

    comparison: Comparison | None
    over_splits: tuple[SplitTable, ...] = ()

    frame = Renamed("to_frame")

    def to_frame(self) -> pd.DataFrame:
        """Return all pairs of encoders.

        Returns
        -------
        pandas.DataFrame
            One row per pair: dataset, first, second, difference (first minus second), low, high, p, low
            (max-t), high (max-t), p (max-t), p (Holm), holds. `low`, `high` and `p` treat the pair as the
            only one. Columns with (max-t) hold for all pairs at once; `holds` says whether that interval
            excludes 0. `p (Holm)` is for papers that ask for it and decides nothing. Over repeated folds
            there are no (max-t) columns to fill, and `p (Holm)` decides.
        """
        rows: list[tuple[Any, ...]] = []
        for table in self._tables:
            for pair in table.pairs:
                alone, at_once = pair.interval, pair.simultaneous
                own = (pair.difference, alone.low, alone.high, pair.p_value)
                joint = (at_once.low, at_once.high, pair.p_simultaneous)
                names = (table.dataset, pair.first, pair.second)
                rows.append((*names, *own, *joint, pair.p_adjusted, pair.holds))
        for splits in self.over_splits:
            for each in splits.pairs:
                found = each.difference
                own = (found.mean, found.low, found.high, each.p_value)
                names = (splits.dataset, each.first, each.second)
                rows.append((*names, *own, None, None, None, each.p_adjusted, each.holds))
        columns = ["dataset", "first", "second", "difference", "low", "high", "p"]
        columns += ["low (max-t)", "high (max-t)", "p (max-t)", "p (Holm)", "holds"]
        return pd.DataFrame(rows, columns=columns)

    def ranked(self) -> pd.DataFrame:
        """Return the encoders, best first.

        Returns
        -------
        pandas.DataFrame
            One row per dataset and encoder: dataset, encoder, rank, value, low, high.
        """
        rows = [
            (table.dataset, entry.name, entry.rank, entry.value, entry.interval.low, entry.interval.high)
            for table in self._tables
            for entry in table.entries
        ] + [
            (table.dataset, entry.name, rank, entry.mean.mean, entry.mean.low, entry.mean.high)
            for table in self.over_splits
            for rank, entry in enumerate(table.entries, 1)
        ]
        numbers = ("value", "low", "high")
        frame = pd.DataFrame(rows, columns=["dataset", "encoder", "rank", *numbers])
        return frame.astype(dict.fromkeys(numbers, float))

    @property
    def _tables(self) -> tuple[DatasetTable, ...]:
        return () if self.comparison is None else self.comparison.tables

    def __repr__(self) -> str:
        from histobench.roi.comparison.comparison_files import grid_text
        from histobench.roi.comparison.grids import grids
        from histobench.roi.comparison.splits_compared import split_grid

        tables = [split_grid(table, digits=3) for table in self.over_splits]
        tables += [] if self.comparison is None else grids(self.comparison, digits=3)
        return "\n\n".join(map(grid_text, tables))

    def _repr_html_(self) -> str:
        shown = self.comparison or self.over_splits[0]
        heading = f"{shown.metric}, {shown.task} {shown.setting}".strip()
        frames = (self.ranked(), self.to_frame())
        tables = [frame.to_html(index=False, float_format="%.4f") for frame in frames]
        return f"<p>{html.escape(heading)}</p>{''.join(tables)}"
