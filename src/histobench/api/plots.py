"""Figures of a benchmark as matplotlib axes; matplotlib is imported when one is drawn."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from histobench.core.errors import HistobenchError, InvalidParameterError, did_you_mean, needing
from histobench.core.records import checked
from histobench.core.renamed import renamed_parameters
from histobench.roi.metrics.metric_catalogue import chance_level
from histobench.roi.presets import target_metrics
from histobench.roi.task_catalogue import CLASS, FEW_SHOT


class Plots:
    """The figures of a benchmark: `bench.plot()` is the overview; methods take `ax` and return the axes."""

    def __init__(self, bench: Any) -> None:
        self._bench = bench  # a Benchmark, whose file imports this one

    def __call__(self, *, metric: str = "balanced_accuracy") -> Any:
        """Draw the overview: one leaderboard per dataset and task.

        Parameters
        ----------
        metric : str, default "balanced_accuracy"
            The metric; runs of targets that are not classes have their own.

        Returns
        -------
        matplotlib.figure.Figure
        """
        runs = {}
        # Of several settings the last is drawn, with the most shots.
        for run in sorted(self._bench.runs, key=lambda run: [*map(int, re.findall(r"\d+", run.setting))]):
            own = metric if run.target == CLASS else target_metrics(run.target, run.identity.preset)[0]
            runs[run.identity.dataset, run.identity.preset, run.task] = (run.setting, own)
        if not runs:
            raise HistobenchError(f"there are no stored predictions in {self._bench.folder}")
        drawn = _axes(None).figure
        drawn.clear()
        drawn.set_size_inches(8, (0.3 * max(2, len(self._bench.encoders)) + 0.9) * len(runs))
        panels = drawn.subplots(len(runs), 1, squeeze=False, sharex=True)[:, 0]
        for axes, ((dataset, preset, task), (setting, own)) in zip(panels, runs.items(), strict=True):
            options = {"dataset": dataset, "preset": preset, "setting": setting or None}
            self.leaderboard(metric=own, task=task, ax=axes, **options)
            axes.set_title(f"{dataset}: {task} {setting}".strip())
            axes.set_ylim(-0.6, len(axes.get_yticks()) - 0.4)
            if axes is not panels[-1]:
                axes.set_xlabel("")
        return drawn

    def leaderboard(
        self,
        *,
        metric: str = "balanced_accuracy",
        task: str | None = None,
        dataset: str | None = None,
        setting: str | None = None,
        preset: str | None = None,
        ax: Any = None,
    ) -> Any:
        """Draw the encoders by a metric, best on top, with their intervals.

        Parameters
        ----------
        metric : str, default "balanced_accuracy"
            The metric.
        task, dataset, setting, preset : str, optional
            Which runs, as in `Benchmark.compare`.
        ax : matplotlib axes, optional
            Where to draw (default: a new figure).

        Returns
        -------
        matplotlib.axes.Axes
        """
        ranked = self._bench.compare(
            metric=metric, task=task, dataset=dataset, setting=setting, preset=preset
        ).ranked()
        if dataset is None and ranked["dataset"].nunique() > 1:
            raise HistobenchError(f"dataset: choose one of {', '.join(ranked['dataset'].unique())}")
        axes = _axes(ax)
        shown = ranked.dropna(subset=["value"]).iloc[::-1]
        places = np.arange(len(shown))
        axes.hlines(places, shown["low"], shown["high"], color="0.6", linewidth=2, zorder=1)
        axes.scatter(shown["value"], places, zorder=2)
        axes.set_yticks(places, shown["encoder"])
        axes.set_xlabel(metric.replace("_", " "))
        title = str(shown["dataset"].iloc[0]) if len(shown) else ""
        axes.set_title(title)
        for run in self._bench.runs:
            if run.target == CLASS and run.identity.dataset == title:
                way = re.match(r"(\d+)way", setting or "")
                classes = int(way[1]) if way else len(run.predictions.classes)
                if _draw_chance(chance_level(metric, classes), axes.get_xlim(), axes.axvline):
                    axes.set_xlabel(f"{axes.get_xlabel()} (dashed: chance)")
                break
        return axes

    @renamed_parameters(normalise="normalize")
    def confusion(
        self,
        encoder: str | None = None,
        task: str | None = None,
        *,
        dataset: str | None = None,
        setting: str | None = None,
        preset: str | None = None,
        normalize: bool = True,
        ax: Any = None,
    ) -> Any:
        """Draw the confusion matrix of one run.

        Parameters
        ----------
        encoder, task, dataset, setting, preset : str, optional
            The run, as in `Benchmark.get_run`.
        normalize : bool, default True
            Show shares of the true class instead of counts.
        ax : matplotlib axes, optional
            Where to draw (default: a new figure).

        Returns
        -------
        matplotlib.axes.Axes
        """
        from sklearn.metrics import confusion_matrix

        normalize = checked(bool, normalize, "normalize")
        found = self._bench.get_run(encoder, task, dataset=dataset, setting=setting, preset=preset)
        stored = found.predictions
        matrix = confusion_matrix(
            stored.labels,
            stored.predicted,
            labels=range(len(stored.classes)),
            normalize="true" if normalize else None,
        )
        axes = _axes(ax)
        axes.imshow(matrix, cmap="Blues", vmin=0)
        _write_cells(axes, matrix, stored.classes, dark=matrix.max() / 2, digits=2 if normalize else 0)
        axes.set_xlabel("predicted")
        axes.set_ylabel("true")
        axes.set_title(f"{found.identity.encoder}, {found.task}")
        return axes

    def few_shot(
        self,
        *,
        metric: str = "balanced_accuracy",
        dataset: str | None = None,
        preset: str | None = None,
        ax: Any = None,
    ) -> Any:
        """Draw a metric over the number of shots, one line per encoder, with all classes.

        Parameters
        ----------
        metric : str, default "balanced_accuracy"
            The metric.
        dataset, preset : str, optional
            Needed where there are several.
        ax : matplotlib axes, optional
            Where to draw (default: a new figure).

        Returns
        -------
        matplotlib.axes.Axes
        """
        table = self._bench.to_frame()
        table = table[table["task"] == FEW_SHOT].copy()
        if table.empty:
            raise HistobenchError(f"there are no few-shot results; run with tasks=[{FEW_SHOT!r}]")
        for column, wanted in (("dataset", dataset), ("preset", preset), ("metric", metric)):
            known = list(map(str, table[column].unique()))
            if wanted is not None and wanted not in known:
                raise HistobenchError(
                    f"{column}: there are no few-shot results of {wanted!r}; {did_you_mean(wanted, known)}"
                )
            if wanted is None and len(known) > 1:
                raise HistobenchError(f"{column}: choose one of {', '.join(known)}")
            table = table if wanted is None else table[table[column] == wanted]
        if table.duplicated(["encoder", "setting"]).any():
            raise HistobenchError("several runs of one encoder and setting; open the folder of one of them")
        table[["way", "shot"]] = table["setting"].str.extract(r"(\d+)way_(\d+)shot").astype(int)
        table = table[table["way"] == table["way"].max()].sort_values("shot")
        axes = _axes(ax)
        for encoder, lines in table.groupby("encoder", sort=False):
            (line,) = axes.plot(lines["shot"], lines["value"], marker="o", label=encoder)
            axes.fill_between(lines["shot"], lines["low"], lines["high"], color=line.get_color(), alpha=0.15)
        axes.set_xscale("log", base=2)
        axes.set_xlabel("shots per class")
        axes.set_ylabel(metric.replace("_", " "))
        axes.set_title(f"{table['dataset'].iloc[0]}, {table['way'].iloc[0]} classes")
        _draw_chance(chance_level(metric, int(table["way"].iloc[0])), axes.get_ylim(), axes.axhline)
        axes.legend()
        return axes

    def embedding(
        self, encoder: str | None = None, *, dataset: str | None = None, split: str = "test", ax: Any = None
    ) -> Any:
        """Draw the first two principal components of the features in the results folder.

        Parameters
        ----------
        encoder : str, optional
            Whose features (default: the only one).
        dataset : str, optional
            Needed where there are several.
        split : {"train", "val", "test"}, default "test"
            Which images.
        ax : matplotlib axes, optional
            Where to draw (default: a new figure).

        Returns
        -------
        matplotlib.axes.Axes
        """
        from sklearn.decomposition import PCA

        from histobench.roi.comparison.selection import having
        from histobench.roi.data.roi_dataset import SPLITS
        from histobench.roi.features.feature_file import load

        encoder = one_encoder(self._bench.encoders, encoder)
        having(having(self._bench.runs, "encoder", encoder), "dataset", dataset)
        checked(str, split, "split", choices=SPLITS)
        found = [
            path
            for path in sorted(self._bench.folder.rglob(f"*_{split}.pt"))
            if f"Model_[{encoder.replace('/', '_')}]" in path.name
            and (dataset is None or f"Dataset_[{dataset}]" in path.name)
        ]
        if not found:
            raise HistobenchError(
                f"no {split} features of {encoder} are in {self._bench.folder}: hb.run keeps them there, "
                "hb.evaluate does not"
            )
        if len(found) > 1:
            raise HistobenchError(
                f"{len(found)} files of {split} features of {encoder} are in {self._bench.folder}; "
                + ("name a `dataset`" if dataset is None else "open a folder that holds one of them")
            )
        features = load(found[0])
        points = PCA(2, random_state=0).fit_transform(features.embeddings.numpy())
        labels = features.labels.numpy()
        names = list(features.metadata.get("classes") or range(labels.max() + 1))
        axes = _axes(ax)
        for label, name in enumerate(names):
            rows = labels == label
            if rows.any():
                axes.scatter(points[rows, 0], points[rows, 1], s=12, label=str(name))
        axes.set_xlabel("first component")
        axes.set_ylabel("second component")
        axes.set_title(encoder)
        axes.legend(fontsize="small")
        return axes

    def similarity(
        self, measure: str = "cka", *, dataset: str | None = None, k: int = 10, ax: Any = None
    ) -> Any:
        """Draw how alike the encoders are on the test images, similar ones side by side.

        Parameters
        ----------
        measure : {"cka", "neighbors", "errors"}, default "cka"
            Debiased linear CKA, shared nearest neighbors, or agreement of errors.
        dataset : str, optional
            Needed where there are several.
        k : int, default 10
            Neighbors of an image.
        ax : matplotlib axes, optional
            Where to draw (default: a new figure).

        Returns
        -------
        matplotlib.axes.Axes
        """
        from histobench.roi.comparison.similarity import similarity_of_results
        from histobench.roi.comparison.similarity_table import HEADINGS, clustered
        from histobench.roi.result_options import MEASURES, SimilarityOptions

        checked(str, measure, "measure", choices=MEASURES)
        found = similarity_of_results(
            self._bench.folder, SimilarityOptions(dataset=dataset, k=k, measures=(measure,))
        )
        known = list(dict.fromkeys(each.dataset for each in found))
        if len(known) > 1:
            raise HistobenchError(f"dataset: choose one of {', '.join(known)}")
        if not found:
            raise HistobenchError(f"{measure}: no value of two encoders in {self._bench.folder}")
        names, _ = clustered(found, dataset=known[0], measure=measure)
        values = np.eye(len(names))
        for each in found:
            places = names.index(each.first), names.index(each.second)
            values[places] = values[places[::-1]] = np.nan if each.value is None else each.value
        axes = _axes(ax)
        axes.imshow(values, cmap="Purples", vmin=0, vmax=1)
        _write_cells(axes, values, names, dark=0.5, digits=2)
        axes.set_title(f"{known[0]}: {HEADINGS[measure]}")
        return axes


def _write_cells(
    axes: Any, values: NDArray[np.float64], names: Sequence[str], *, dark: float, digits: int
) -> None:
    """Write the known values of a square matrix into its picture, in white above `dark`, with the names."""
    for (row, column), value in np.ndenumerate(values):
        if np.isfinite(value):
            color = "white" if value > dark else "black"
            axes.text(column, row, f"{value:.{digits}f}", ha="center", va="center", color=color)
    axes.set_xticks(range(len(names)), names, rotation=45, ha="right")
    axes.set_yticks(range(len(names)), names)


def _draw_chance(level: float | None, limits: tuple[float, float], draw: Callable[..., Any]) -> bool:
    """Draw a dashed line at chance, unless it would press the values together."""
    near = level is not None and level >= limits[0] - (limits[1] - limits[0]) / 2
    if near:
        draw(level, color="0.6", linestyle="--", linewidth=1, zorder=0, label="chance")
    return near


def _axes(ax: Any) -> Any:
    if ax is not None:
        if not hasattr(ax, "plot"):
            raise InvalidParameterError(f"ax: expected matplotlib axes, found {type(ax).__name__}")
        return ax
    with needing("figures need matplotlib: pip install 'histobench[plot]'"):
        import matplotlib.pyplot as plt
    return plt.subplots(layout="constrained")[1]


def one_encoder(encoders: Sequence[str], encoder: str | None) -> str:
    """Return the encoder that was named, or the only one."""
    if encoder is None and len(encoders) != 1:
        raise HistobenchError(f"encoder: choose one of {', '.join(encoders)}")
    return encoders[0] if encoder is None else checked(str, encoder, "encoder")
