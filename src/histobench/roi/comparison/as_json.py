"""A comparison as plain JSON values."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from histobench.core.statistics.intervals import Interval
from histobench.roi.comparison.comparison import Comparison, DatasetTable, Entry, Pair
from histobench.roi.comparison.dataset_ranking import DatasetRanking


def as_json(comparison: Comparison) -> dict[str, Any]:
    """Everything the comparison knows; missing numbers are null."""
    return {
        "metric": comparison.metric,
        "lower_is_better": comparison.lower_is_better,
        "task": comparison.task,
        "setting": comparison.setting,
        "presets": list(comparison.presets),
        "alpha": comparison.alpha,
        "datasets": [_table(table) for table in comparison.tables],
        "ranking": None if comparison.ranking is None else _ranking(comparison.ranking),
    }


def _table(table: DatasetTable) -> dict[str, Any]:
    return {
        "dataset": table.dataset,
        "num_images": table.n_images,
        "num_groups": table.n_groups,
        "resampled": table.resampled,
        "n_bootstrap": table.n_resamples,
        "test": table.test,
        # What `holds` goes by.
        "correction": f"{'max-t' if table.test == 'jackknife' else 'Holm'} over {len(table.pairs)} pairs",
        "encoders": [_entry(entry) | _standing(table, entry.name) for entry in table.entries],
        "pairs": [_pair(pair) for pair in table.pairs],
        "winner": _winner(table),
        "notes": list(table.notes),
    }


def _standing(table: DatasetTable, name: str) -> dict[str, Any]:
    standings = table.standings
    if standings is None or name not in standings.ranks:
        return {"rank_lower": None, "rank_upper": None, "may_be_best": None}
    low, high = standings.ranks[name]
    return {"rank_lower": low, "rank_upper": high, "may_be_best": name in standings.best.listed()}


def _winner(table: DatasetTable) -> dict[str, Any] | None:
    if table.standings is None:
        return None
    winner = table.standings.winner
    return {
        "encoder": winner.name,
        "measured_value": winner.measured,
        "corrected_value": winner.value,
        **_bounds(winner.interval),
    }


def _entry(entry: Entry) -> dict[str, Any]:
    return {
        "encoder": entry.name,
        "rank": entry.rank,
        "value": entry.value,
        **_bounds(entry.interval),
        "reported_value": entry.reported,
        **({"caveats": list(entry.caveats)} if entry.caveats else {}),
    }


def _pair(pair: Pair) -> dict[str, Any]:
    mcnemar, delong = pair.tests.mcnemar, pair.tests.delong
    return {
        "first": pair.first,
        "second": pair.second,
        "difference": pair.difference,
        **_bounds(pair.interval),
        "p_value": _number(pair.p_value),
        "p_holm": _number(pair.p_adjusted),
        "holds": pair.holds,
        "simultaneous": {**_bounds(pair.simultaneous), "p_value": _number(pair.p_simultaneous)},
        "jackknife": {"p_value": _number(pair.tests.jackknife)},
        "paired_bootstrap": {"p_value": _number(pair.tests.bootstrap)},
        "permutation": {"p_value": _number(pair.tests.permutation)},
        "mcnemar": None
        if mcnemar is None
        else {
            "p_value": mcnemar.p_value,
            "method": mcnemar.method,
            "only_first_correct": mcnemar.only_first,
            "only_second_correct": mcnemar.only_second,
        },
        "delong": {"p_value": None, "reason": pair.tests.no_delong or "the metric is not the AUROC"}
        if delong is None
        else {"p_value": delong.p_value, "auroc_difference": delong.difference, "z": _number(delong.z)},
    }


def _ranking(ranking: DatasetRanking) -> dict[str, Any]:
    counts = ranking.win_tie_loss
    return {
        "datasets": list(ranking.datasets),
        "encoders": [
            {"encoder": name, "mean_rank": rank, "mean_value": value}
            for name, rank, value in zip(ranking.names, ranking.mean_ranks, ranking.mean_values, strict=True)
        ],
        "friedman": {
            "statistic": ranking.friedman.statistic,
            "p_value": ranking.friedman.p_value,
            "iman_davenport_f": _number(ranking.friedman.f_statistic),
            "iman_davenport_p_value": ranking.friedman.f_p_value,
        },
        "nemenyi": {
            "critical_difference": ranking.critical_difference,
            "p_values": [list(row) for row in ranking.nemenyi_p],
            "groups_without_difference": [list(group) for group in ranking.groups],
        },
        "win_tie_loss": {
            "wins": counts.wins.tolist(),
            "ties": counts.ties.tolist(),
            "losses": counts.losses.tolist(),
        },
        "signed_rank": {
            "rope": ranking.rope,
            "pairs": [
                {"first": first, "second": second, **asdict(chances)}
                for i, (first, _) in enumerate(ranking.run_on)
                for j, (second, _) in enumerate(ranking.run_on)
                if i < j and (chances := ranking.chances[i][j]) is not None
            ],
        },
        "left_out": list(ranking.left_out),
        "left_out_datasets": list(ranking.left_out_datasets),
        "run_on": dict(ranking.run_on),
        "notes": list(ranking.notes),
    }


def _bounds(interval: Interval) -> dict[str, Any]:
    bounds: dict[str, Any] = {
        "ci_lower": interval.low,
        "ci_upper": interval.high,
        "ci_method": interval.method,
    }
    return bounds | ({"ci_note": interval.reason} if interval.reason else {})


def _number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
