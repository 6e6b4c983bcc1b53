"""Feature files of a user's own encoders: one of another encoder with the same label is not overwritten."""

from __future__ import annotations

from pathlib import Path

from histobench.core.errors import HistobenchError
from histobench.roi.encoders.base import BasePatchEncoder
from histobench.roi.encoders.own_name import label_of
from histobench.roi.features.store import load


def check_origin(path: Path, encoder: BasePatchEncoder) -> None:
    """Raise when `path` holds the features of another file's class, which is still there to be used."""
    if not encoder.origin or not path.is_file():
        return
    try:
        other = str(load(path).metadata.get("origin", ""))
    except HistobenchError:
        return  # nothing that could be lost
    if other not in ("", encoder.origin) and Path(other.rpartition(":")[0]).is_file():
        label = label_of(encoder.name)
        raise HistobenchError(
            f"{path} holds the features of {other}, which is called {label} as well; give this encoder a "
            f"name of its own ({label}2={encoder.origin}), or write to another folder"
        )
