"""The pictures of conversations: what agents were shown, small enough for a page."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path

from histobench.core.errors import HistobenchError

FOLDER = "talk"
SIDE = 448


class TalkPictures:
    """Writes pictures into a site, each once."""

    def __init__(self, site: Path) -> None:
        self._folder = site / "thumbs" / FOLDER
        self._known: dict[Path, str] = {}

    def address(self, path: Path) -> str:
        """The address of a picture from the site's page on; empty where it cannot be read."""
        if path not in self._known:
            self._known[path] = self._write(path)
        return self._known[path]

    def _write(self, path: Path) -> str:
        from histobench.roi.data.image import open_rgb
        from histobench.roi.data.image_ref import locate

        try:
            data = locate(path).read()
            picture = open_rgb(data, name=path.name)
        except (HistobenchError, OSError):
            return ""
        picture.thumbnail((SIDE, SIDE), reducing_gap=3.0)
        buffer = io.BytesIO()
        picture.save(buffer, "WEBP", quality=80, method=3)
        name = f"{hashlib.sha256(data).hexdigest()[:20]}.webp"
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / name).write_bytes(buffer.getvalue())
        return f"thumbs/{FOLDER}/{name}"
