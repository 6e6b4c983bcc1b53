"""Where the bytes of an image are: a file, or a member of a TAR shard."""

from __future__ import annotations

import functools
import hashlib
import os
import tarfile
from pathlib import Path
from typing import NamedTuple

from histobench.core.errors import HistobenchError


class ImageRef(NamedTuple):  # made and sent to workers by the hundred thousand
    """The bytes of one image; `size` is -1 for "the whole file". `name` is what messages call it."""

    file: str
    name: str
    offset: int = 0
    size: int = -1

    def read(self) -> bytes:
        """The bytes, in one read."""
        with open(self.file, "rb", buffering=0) as handle:
            if self.size < 0:
                return handle.read()
            handle.seek(self.offset)
            return handle.read(self.size)


def locate(path: str | Path) -> ImageRef:
    """The image at `path`; `shard.tar/name.jpg` is the member `name.jpg` of a TAR file."""
    text = str(path)
    if f".tar{os.sep}" not in text and ".tar/" not in text:
        return ImageRef(file=text, name=text)
    archive, member = _split_at_archive(text)
    if archive is None:
        return ImageRef(file=text, name=text)
    place = tar_members(archive).get(member)
    if place is None:
        raise HistobenchError(f"{archive} has no member {member!r}")
    return ImageRef(file=archive, name=text, offset=place[0], size=place[1])


def tar_members(archive: str) -> dict[str, tuple[int, int]]:
    """Offset and size of every regular file in a TAR, without reading their contents."""
    try:
        stat = os.stat(archive)
    except OSError as error:
        raise HistobenchError(f"cannot read the TAR file {archive}: {error.strerror}") from error
    return _members(archive, stat.st_size, stat.st_mtime_ns)


@functools.lru_cache(maxsize=4096)
def _members(archive: str, size: int, changed: int) -> dict[str, tuple[int, int]]:
    try:
        with tarfile.open(archive, "r:") as tar:
            return {item.name: (item.offset_data, item.size) for item in tar if item.isreg()}
    except (OSError, tarfile.TarError) as error:
        raise HistobenchError(f"cannot read the TAR file {archive}: {error}") from error


def digest(data: bytes) -> bytes:
    """The content hash of an image's bytes (sha256)."""
    return hashlib.sha256(data).digest()


def reason_of(error: Exception, ref: ImageRef) -> str:
    """One line that says why an image cannot be used, without its name."""
    if isinstance(error, FileNotFoundError):
        return "the file does not exist"
    if isinstance(error, OSError):
        return f"cannot be read: {error.strerror or error}"
    return str(error).removeprefix(f"{ref.name}: ")


def _split_at_archive(text: str) -> tuple[str | None, str]:
    parts = text.replace(os.sep, "/").split(".tar/")
    for cut in range(1, len(parts)):
        archive = ".tar/".join(parts[:cut]) + ".tar"
        if os.path.isfile(archive):
            return archive, ".tar/".join(parts[cut:])
    return None, text
