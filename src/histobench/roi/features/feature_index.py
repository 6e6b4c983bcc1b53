"""What is in the cache: the feature sets that were written, and the encoders they came from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from histobench.core.atomic import write_json


def record_set(root: Path, name: str, metadata: Mapping[str, Any], path: Path, images: int) -> None:
    """Note that a feature set was written, and where to."""
    keys = ("dataset", "split", "encoder", "size", "precision", "encoder_fingerprint")
    write_json(
        root / "sets" / f"{name}.json",
        {**{key: metadata[key] for key in keys}, "images": images, "file": str(path.resolve())},
    )


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file of the cache, empty when it cannot be read."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
