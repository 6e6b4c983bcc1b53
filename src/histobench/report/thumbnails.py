"""Small pictures of the test images: those that some run gets wrong first, then some of every class."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from histobench.core.errors import HistobenchError
from histobench.report.image_source import ImageSource
from histobench.report.payload import packed, write_payload
from histobench.report.table import ImageSet, WrongImages

log = logging.getLogger(__name__)
SIDE = 128
#: Most thumbnails of one dataset.
LIMIT = 4000
#: (side and path, size, time of change) -> WebP; kept between the builds of a server.
Cache = dict[tuple[str, int, int], bytes]


def write_thumbnails(
    site: Path,
    folder: str,
    sets: Mapping[str, WrongImages],
    source: ImageSource,
    *,
    cache: Cache,
    workers: int,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[str]:
    """Write `thumbs/<folder>/<number>.webp` and which image has which; returns the sets that have any."""
    wanted: dict[str, int] = {}
    for images in sets.values():
        for place in priority(images.images, images.wrong)[:LIMIT]:
            name = images.images.names[place]
            if len(wanted) < LIMIT and source.path(name) is not None:
                wanted.setdefault(name, len(wanted))
    (site / "thumbs" / folder).mkdir(parents=True, exist_ok=True)
    written: set[str] = set()

    def make(name: str) -> bool:
        path = source.path(name)
        assert path is not None
        content = thumbnail(path, cache)
        if content is not None:
            (site / "thumbs" / folder / f"{wanted[name]}.webp").write_bytes(content)
        return content is not None

    # Threads are enough: Pillow releases the interpreter lock while it decodes, scales and encodes.
    with ThreadPoolExecutor(max(workers, 1)) as pool:
        for done, (name, made) in enumerate(zip(wanted, pool.map(make, wanted), strict=True), start=1):
            if made:
                written.add(name)
            on_progress(done, len(wanted))
    if len(written) < len(wanted):
        log.warning("%d of %d images of %s cannot be read", len(wanted) - len(written), len(wanted), folder)
    shown = []
    for key, images in sets.items():
        numbers = np.array([wanted[n] if n in written else -1 for n in images.images.names], dtype=np.int64)
        if (numbers >= 0).any():
            write_payload(site, f"thumbs/{key}", {"folder": folder, "numbers": packed(numbers)})
            shown.append(key)
    return shown


def thumbnail(path: Path, cache: Cache, *, side: int = SIDE, square: bool = True) -> bytes | None:
    """The image (its middle square) in `side` pixels as WebP; None where it cannot be read."""
    from histobench.roi.data.image import open_rgb
    from histobench.roi.data.image_ref import locate

    try:
        reference = locate(path)
        status = Path(reference.file).stat()
        key = (f"{side}:{path}", status.st_size, status.st_mtime_ns)
        if key in cache:
            return cache[key]
        image = open_rgb(reference.read(), name=str(path))
    except (HistobenchError, OSError):
        return None
    if square:
        least = min(image.size)
        left, top = (image.width - least) // 2, (image.height - least) // 2
        image = image.resize((side, side), box=(left, top, left + least, top + least), reducing_gap=3.0)
    else:
        image.thumbnail((side, side), reducing_gap=3.0)
    buffer = io.BytesIO()
    image.save(buffer, "WEBP", quality=72, method=3)
    cache[key] = buffer.getvalue()
    return cache[key]


class Pictures:
    """Small pictures in one folder of a site, each written once, of at most `most` images.

    `find` gives the file of an image.
    """

    def __init__(
        self,
        site: Path,
        folder: str,
        cache: Cache,
        find: Callable[..., Path | None] = Path,
        *,
        side: int = SIDE,
        square: bool = True,
        most: int = sys.maxsize,
    ) -> None:
        self._site, self._folder, self._cache, self._find = site, folder, cache, find
        self._side, self._square, self._most = side, square, most
        self._known: dict[tuple[str, ...], str] = {}

    def address(self, *image: str) -> str:
        if image not in self._known:
            self._known[image] = ""
            path = self._find(*image) if len(self._known) <= self._most else None
            content = path and thumbnail(path, self._cache, side=self._side, square=self._square)
            if content:
                place = f"thumbs/{self._folder}/{len(self._known) - 1}.webp"
                (self._site / place).parent.mkdir(parents=True, exist_ok=True)
                (self._site / place).write_bytes(content)
                self._known[image] = place
        return self._known[image]


def priority(images: ImageSet, wrong: NDArray[np.bool_]) -> list[int]:
    """All places: a few of every class first, then the images that are wrong, then class by class in turn."""
    labels = images.labels
    turn = np.empty(len(labels), dtype=np.int64)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        turn[members] = np.arange(len(members))
    examples = turn < 8
    return np.lexsort((labels, turn, ~wrong, ~examples)).tolist()
