"""Robustness for Python users: do features tell the tissue, or the hospital, scanner and stain?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from histobench.api.features import Features, FeatureSplits, TemporaryResults
from histobench.core.errors import HistobenchError
from histobench.core.files import check_writable
from histobench.core.records import checked
from histobench.core.renamed import Renamed, renamed_parameters

if TYPE_CHECKING:
    from histobench.roi.comparison.robustness_tables import RobustnessTable
    from histobench.roi.evaluation.robustness_task import RobustnessOptions
    from histobench.roi.features.feature_file import FeatureSet
    from histobench.roi.robustness.pack import RobustnessResult


@dataclass(frozen=True, repr=False)
class RobustnessTables:
    """Measures of robustness; `robustness` returns one.

    It prints itself as one table per dataset and site column.

    Attributes
    ----------
    tables : tuple of RobustnessTable
        All numbers, as objects.
    skipped : dict of str to str
        Encoders and columns that could not be measured, with the reason.

    Examples
    --------
    >>> import histobench as hb
    >>> hb.RobustnessTables(()).to_frame().columns.tolist()
    ['dataset', 'column', 'encoder', 'measure', 'value', 'low', 'high']
    """

    tables: tuple[RobustnessTable, ...]
    skipped: Mapping[str, str] = field(default_factory=dict)

    frame, left_out = Renamed("to_frame"), Renamed("skipped")

    def to_frame(self) -> pd.DataFrame:
        """Return every measure of every encoder.

        Returns
        -------
        pandas.DataFrame
            One row per number: dataset, column (the site column), encoder, measure, value, low, high (95 %
            interval over groups). More is better except for site_probe_auroc.
        """
        rows = [
            (table.dataset, table.column, pack.encoder, name, *(found.get(key) for key in _NUMBERS))
            for table in self.tables
            for pack in table.packs
            for name, found in pack.content["measures"].items()
        ]
        frame = pd.DataFrame(rows, columns=["dataset", "column", "encoder", "measure", *_NUMBERS])
        return frame.astype(dict.fromkeys(_NUMBERS, float))

    def differences(self) -> pd.DataFrame:
        """Return the paired differences of all encoders.

        Returns
        -------
        pandas.DataFrame
            One row per measure and pair: dataset, column, measure, first, second, difference (first minus
            second), low, high, p, p_holm (corrected over all pairs).
        """
        from dataclasses import asdict

        rows = [
            {"dataset": table.dataset, "column": table.column, **asdict(pair)}
            for table in self.tables
            for pair in table.pairs
        ]
        names = ["dataset", "column", "measure", "first", "second", "difference"]
        return pd.DataFrame(rows, columns=[*names, "low", "high", "p", "p_holm"])

    def __repr__(self) -> str:
        from histobench.roi.comparison.comparison_files import grid_text
        from histobench.roi.comparison.robustness_tables import robustness_grid

        parts = [
            "\n".join([grid_text(replace(grid, notes=())), *(f"  {note}" for note in grid.notes)])
            for grid in map(robustness_grid, self.tables)
        ]
        left = [f"left out: {what}: {reason}" for what, reason in self.skipped.items()]
        return "\n\n".join([*parts, *left])


_NUMBERS = ("value", "low", "high")


@renamed_parameters(seed="")
def robustness(
    features: FeatureSplits | Features | str | Path | Sequence[FeatureSplits | Features | str | Path],
    *,
    columns: str | Sequence[str] | None = None,
    k: int | None = None,
    device: str | None = None,
    results: str | Path | None = None,
) -> RobustnessTables:
    """Measure whether features tell the biology or the site: hospital, scanner or stain.

    The dataset needs a site column (`load_dataset` finds site, scanner, stain, ... by name).
    `histobench robustness` measures the same.

    Parameters
    ----------
    features : FeatureSplits, feature file, folder, or a list of these
        Features of one or more encoders: what `extract` returned, .pt files, or folders of them.
    columns : str or list of str, optional
        Site columns to measure by (default: all of them).
    k : int, optional
        Neighbors of the robustness index (default: chosen from the data).
    device : str, optional
        "cpu", "cuda:0", ... (default: the GPU if there is one).
    results : str or Path, optional
        Also write the measures to this results folder, where `Benchmark.report` finds them.

    Returns
    -------
    RobustnessTables

    Examples
    --------
    >>> import tempfile, histobench as hb
    >>> folder = tempfile.mkdtemp()
    >>> data = hb.demo_dataset(folder, train_per_class=12, test_per_class=12, size=64, sites="crossed")
    >>> measured = hb.robustness(hb.extract(data, "tiny-vl"), columns="scanner")
    >>> frame = measured.to_frame().set_index("measure")
    >>> bool(0 <= frame.loc["robustness_index", "value"] <= 1)
    True
    """
    from histobench.core.devices import resolve_device
    from histobench.roi.comparison.robustness_tables import robustness_tables, summarise
    from histobench.roi.evaluation.robustness_task import RobustnessOptions, joined_splits
    from histobench.roi.results.robustness_files import load_robustness
    from histobench.roi.robustness.pack import RobustnessResult

    options = RobustnessOptions(
        k=None if k is None else checked(int, k, "k", least=1), device=resolve_device(device)
    )
    wanted = None if columns is None else checked(tuple[str, ...], columns, "columns")
    target = None if results is None else check_writable(checked(Path, results, "results"), "results")
    keeper = TemporaryResults()
    folder = target or keeper.folder
    joined, reasons = joined_splits(_given(features))
    left_out = {reason: reason for reason in reasons}
    written = set()
    for name, whole in joined.items():
        for what, found, path in measured(name, whole, wanted, options, folder):
            reason = found.reason if isinstance(found, RobustnessResult) else str(found)
            if reason:
                left_out[what] = reason
            else:
                written.add(path)
    if not written:
        why = "; ".join(f"{what}: {reason}" for what, reason in left_out.items())
        raise HistobenchError(why or "features: none are given")
    if target is not None:
        summarise(target)
    packs = [pack for pack in load_robustness(folder) if pack.path in written]
    return RobustnessTables(tuple(robustness_tables(packs)), left_out)


def measured(
    name: tuple[str, str, str],
    features: FeatureSet,
    columns: Sequence[str] | None,
    options: RobustnessOptions,
    folder: Path,
) -> Iterator[tuple[str, RobustnessResult | HistobenchError, Path | None]]:
    """What is measured of a dataset, encoder and image size, by column, and the file that it is written to.

    A column that fails is the error, without a file.
    """
    from histobench.roi.evaluation.robustness_task import measure_columns
    from histobench.roi.features.feature_file import fingerprint_of
    from histobench.roi.results.layout import RunIdentity
    from histobench.roi.results.robustness_files import write_robustness
    from histobench.roi.robustness.pack import RobustnessResult

    dataset, encoder, size = name
    identity = RunIdentity(
        dataset=dataset, encoder=encoder, preset="uni", fingerprint=fingerprint_of(features), size=size
    )
    place = folder / _file_name(dataset) / _file_name(encoder)
    for column, found in measure_columns(features, columns, options):
        what = ", ".join(filter(None, (f"{encoder} on {dataset}", column)))
        path = (
            write_robustness(place, found, identity=identity) if isinstance(found, RobustnessResult) else None
        )
        yield what, found, path


def _given(features: Any) -> Iterable[tuple[str, FeatureSet]]:
    """Each set of features with a name: its file, or its place in what was given."""
    from histobench.roi.evaluation.robustness_task import feature_files
    from histobench.roi.features.feature_file import load

    for place, item in enumerate(features if isinstance(features, list | tuple) else [features]):
        if isinstance(item, FeatureSplits):
            yield from ((f"features[{place}].{split}", part.features) for split, part in item.sets.items())
        elif isinstance(item, Features):
            yield f"features[{place}]", item.features
        else:
            for path in feature_files([checked(Path, item, f"features[{place}]")]):
                yield str(path), load(path)


def _file_name(name: str) -> str:
    return name.replace("/", "_").replace("\\", "_").replace(":", "_")
