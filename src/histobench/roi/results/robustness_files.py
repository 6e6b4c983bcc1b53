"""The files of the robustness pack: one JSON per site column, and what pairs it with other encoders."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from histobench.core.errors import HistobenchError
from histobench.core.files import atomic_path, files_below, read_plain_text, regular, write_json
from histobench.core.plain_data import parse_json
from histobench.core.text import check_plain_name
from histobench.core.version import __version__
from histobench.roi.results.layout import ROBUSTNESS, RunIdentity
from histobench.roi.robustness.leaving_out import METHOD
from histobench.roi.task_catalogue import ROBUSTNESS as TASK

if TYPE_CHECKING:
    from histobench.roi.robustness.pack import RobustnessResult


@dataclass(frozen=True)
class StoredRobustness:
    """One pack as it was written: plain values, and its measures without each group."""

    path: Path
    content: dict[str, Any]

    @property
    def dataset(self) -> str:
        return str(self.content["additional_info"].get("dataset", ""))

    @property
    def encoder(self) -> str:
        return str(self.content["additional_info"].get("encoder", ""))

    @property
    def column(self) -> str:
        return str(self.content["column"])

    @property
    def images(self) -> str:
        """Names the images and how their intervals were made; packs with the same are paired."""
        return f"{self.content['images']} {self.content.get('interval_method', '')}"

    @property
    def reason(self) -> str:
        """Why there is no number for any encoder on these images; empty where there are some."""
        return str(self.content.get("reason") or "")

    def value(self, measure: str) -> float | None:
        return (self.content["measures"].get(measure) or {}).get("value")

    def left_out(self) -> dict[str, NDArray[np.float64]]:
        """Every measure without each group; empty where the file has gone."""
        path = _left_out_file(self.path)
        if not path.is_file():
            return {}
        try:
            with np.load(regular(path), allow_pickle=False) as box:
                return {name: box[name] for name in box.files}
        except (OSError, ValueError, KeyError) as error:
            raise HistobenchError(f"{path} is damaged; measure robustness again") from error


def write_robustness(results_dir: Path, result: RobustnessResult, *, identity: RunIdentity) -> Path:
    """Write one pack below `results_dir`; the JSON is written last, so a pack that has one is whole."""
    name = check_plain_name(result.column, what="site column")
    path = results_dir / TASK / f"{name}{ROBUSTNESS}"
    tissue, measures = result.tissue, result.pack.measures
    left = {key: measure.left_out for key, measure in measures.items() if measure.left_out is not None}
    with atomic_path(_left_out_file(path)) as temporary, temporary.open("wb") as handle:
        np.savez(handle, **left)  # type: ignore[arg-type]
    counts = np.bincount(tissue.sites, minlength=len(tissue.site_names))
    write_json(
        path,
        {
            "task_name": TASK,
            "column": result.column,
            "measures": {
                key: {
                    "value": measure.value,
                    "low": measure.low,
                    "high": measure.high,
                    **({"reason": measure.reason} if measure.reason else {}),
                }
                for key, measure in measures.items()
            },
            **({"reason": result.reason} if result.reason else {}),
            "details": dict(result.pack.details),
            "label_site_cramers_v": None if np.isnan(result.confounding) else result.confounding,
            "sites": {site: int(count) for site, count in zip(tissue.site_names, counts, strict=True)},
            "classes": list(tissue.classes),
            "num_samples": len(tissue.labels),
            "num_groups": len(np.unique(tissue.groups)),
            "images": result.images,
            "interval_method": METHOD,
            "additional_info": {
                "dataset": identity.dataset,
                "encoder": identity.encoder,
                "preset": identity.preset,
                "seed": identity.seed,
                "fingerprint": identity.fingerprint,
                "size": identity.size,
                "caveats": list(result.caveats),
                "date": datetime.now(UTC).isoformat(timespec="seconds"),
                "version": __version__,
            },
        },
    )
    return path


def load_robustness(results_dir: str | Path) -> list[StoredRobustness]:
    found = []
    for path in files_below(Path(results_dir), ROBUSTNESS):
        if path.name.startswith("."):
            continue
        try:
            content = parse_json(read_plain_text(path))
            stored = StoredRobustness(path, content)
            if not isinstance(content["measures"], dict) or not stored.images:
                raise TypeError("measures are missing")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise HistobenchError(f"{path} is not a robustness file of histobench: {error}") from error
        found.append(stored)
    return found


def _left_out_file(path: Path) -> Path:
    return path.with_name(path.name.removesuffix(".json") + "_left_out.npz")
