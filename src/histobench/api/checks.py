"""Questions around a benchmark: is this machine ready, is the test set large enough, do numbers agree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from histobench.core.records import checked, from_values

if TYPE_CHECKING:
    from histobench.api.benchmark import Benchmark


def doctor(
    encoders: str | Sequence[str] = (), *, weights: str | Path | None = None, online: bool = False
) -> pd.DataFrame:
    """Check that this machine is ready, as `histobench doctor` does.

    Parameters
    ----------
    encoders : str or list of str, default ()
        Encoders whose weights are checked, too.
    weights : str or Path, optional
        Checkpoint, folder of checkpoints, or table like model_weights.json.
    online : bool, default False
        Ask the model hub whether access is granted.

    Returns
    -------
    pandas.DataFrame
        One row per check: verdict (PASS, WARN or FAIL), subject, message, fix.

    Examples
    --------
    >>> import histobench as hb
    >>> set(hb.doctor()["verdict"]) <= {"PASS", "WARN", "FAIL"}
    True
    """
    from histobench.mint.agent_checkup import check_mint
    from histobench.roi.encoders.encoder_checkup import CheckupResult, check_encoders, check_machine

    names = checked(tuple[str, ...], encoders, "encoders") if encoders else ()
    place = None if weights is None else str(checked(Path, weights, "weights"))
    found = [*check_machine(), *(CheckupResult(*line) for line in check_mint())]
    found += check_encoders(names, weights=place, online=checked(bool, online, "online"))
    return pd.DataFrame([asdict(each) for each in found])[["verdict", "subject", "message", "fix"]]


def power(
    results: Benchmark | str | Path,
    *,
    metric: str = "balanced_accuracy",
    delta: float = 0.02,
    power: float = 0.8,
    alpha: float = 0.05,
    n_bootstrap: int | None = None,
    seed: int = 0,
    task: str | None = None,
    encoders: str | Sequence[str] = (),
    setting: str | None = None,
    preset: str | None = None,
    dataset: str | None = None,
) -> pd.DataFrame:
    """Compute the size of a test set that detects a difference between two encoders.

    `histobench power` does the same. The noise of the difference comes from stored predictions of both
    encoders on the same test images.

    Parameters
    ----------
    results : Benchmark, str or Path
        A benchmark or its folder.
    metric : str, default "balanced_accuracy"
        Metric, such as accuracy, auroc or f1_score.
    delta : float, default 0.02
        Difference to detect.
    power : float, default 0.8
        Probability of detecting it.
    alpha : float, default 0.05
        Two-sided error rate.
    n_bootstrap : int, optional
        Simulated test sets (default: 4000).
    seed : int, default 0
        Seed of the simulation.
    task : str, optional
        Task (default: Linear-Probe if there is one).
    encoders : str or list of str, default ()
        The two encoders.
    setting : str, optional
        Setting of the task, such as 9way_16shot.
    preset : str, optional
        Only runs of this preset.
    dataset : str, optional
        Only this dataset.

    Returns
    -------
    pandas.DataFrame
        One row per dataset: the two encoders, the unit (images or groups), units_needed with its range, and
        the difference that the present test set detects.

    Examples
    --------
    >>> import tempfile, numpy as np, histobench as hb
    >>> draw, folder = np.random.default_rng(0), tempfile.mkdtemp()
    >>> y = np.arange(120) % 2
    >>> for encoder, signal in (("a", 1.0), ("b", 0.5)):
    ...     X = draw.normal(size=(120, 8)) + signal * y[:, None]
    ...     _ = hb.evaluate(X[:60], X[60:], y[:60], y[60:], tasks="KNN", encoder=encoder, results=folder)
    >>> int(hb.power(folder, encoders=["a", "b"], delta=0.1, n_bootstrap=200)["present_units"].item())
    60
    """
    given = dict(locals())
    from histobench.api.benchmark import results_folder
    from histobench.roi.comparison.power_of_runs import power_of_results
    from histobench.roi.result_options import PowerOptions

    found = power_of_results(results_folder(results), from_values(PowerOptions, given))
    rows = [{**asdict(each), **asdict(each.estimate)} for each in found]
    return pd.DataFrame(rows).drop(columns="estimate")


def verify(results: Benchmark | str | Path) -> pd.DataFrame:
    """Compare stored results with published ones, as `histobench verify` does.

    Parameters
    ----------
    results : Benchmark, str or Path
        A benchmark or its folder.

    Returns
    -------
    pandas.DataFrame
        One row per published number that could be compared: dataset, encoder, task, setting, metric,
        published, ours, low, high, difference, verdict, because. Empty if there is none.

    Examples
    --------
    >>> import tempfile, numpy as np, histobench as hb
    >>> y, folder = np.arange(60) % 2, tempfile.mkdtemp()
    >>> X = np.random.default_rng(0).normal(size=(60, 8)) + 3 * y[:, None]
    >>> _ = hb.evaluate(X[:40], X[40:], y[:40], y[40:], tasks="KNN", encoder="mine", results=folder)
    >>> len(hb.verify(folder))
    0
    """
    from histobench.api.benchmark import results_folder
    from histobench.roi.published.verify import verify as verified

    columns = ["dataset", "encoder", "task", "setting", "metric"]
    rows = [
        {
            **{name: getattr(each.published, name) for name in columns},
            "published": each.published.value,
            "ours": each.ours.value,
            "low": each.ours.low,
            "high": each.ours.high,
            **{name: getattr(each, name) for name in ("difference", "verdict", "because")},
        }
        for each in verified(results_folder(results))
    ]
    numbers = ["published", "ours", "low", "high", "difference"]
    return pd.DataFrame(rows, columns=[*columns, *numbers, "verdict", "because"])
