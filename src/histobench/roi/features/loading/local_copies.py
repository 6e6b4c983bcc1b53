"""Images copied to this machine's own disk before they are decoded, so that a shared one is read once.

A copy is one file: the bytes of some images one after the other, as they were hashed, and behind them how
many each has. It is named by the hashes of its images, so that others find it, and made
under another name, so that it is whole or absent. It is compared with the hashes before it is used.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import struct
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from histobench.core.claim import exclusive
from histobench.core.files import open_plain, patiently
from histobench.core.folders import is_shared, make_private, user_number
from histobench.roi.data.image_ref import ImageRef, digest

#: The folder that a job of Slurm has for itself, the one for what is this machine's own, the system's.
VARIABLES = ("SLURM_TMPDIR", "HISTOBENCH_LOCAL", "TMPDIR")
#: A copy that no one has used for so many seconds is removed by the next who makes one.
KEPT = 2 * 24 * 3600.0
#: Bytes that are left free for others.
KEEP_FREE = 1 << 30
#: Images that are read at a time, and by how many threads: small files on a shared disk are mostly waiting.
AT_ONCE, READERS = 64, 16
_ENDING = ".images"


def copies_folder(stage: str) -> Path:
    """Where `stage` puts copies on this machine: `local`, or a folder by its full path."""
    found = (os.environ[name] for name in VARIABLES if os.environ.get(name))
    base = next(found, tempfile.gettempdir()) if stage == "local" else stage
    return Path(base).expanduser() / f"histobench-{user_number()}" / "stage"


class LocalCopies:
    """Copies that one process makes or uses; where there can be none, images are read where they are."""

    def __init__(self, stage: str) -> None:
        self.folder = copies_folder(stage)
        #: Why images are read where they are, empty where they are not.
        self.reason = ""
        self._used: set[Path] = set()
        try:
            self._open()
        except OSError as error:
            self.reason = f"{self.folder}: {error.strerror or error}"

    def refs(self, keys: Sequence[bytes], refs: Mapping[bytes, ImageRef]) -> dict[bytes, ImageRef]:
        """Where to read these images from; one that cannot be copied is read where it is."""
        places = {key: refs[key] for key in keys}
        if self.reason or not places:
            return places
        keys = list(places)
        path = self.folder / f"{hashlib.sha256(b''.join(keys)).hexdigest()}{_ENDING}"
        try:
            if path not in self._used or not path.exists():  # another run may have removed it
                with exclusive(path.with_suffix(".lock")):
                    if not _is_intact(path, keys):
                        self._copy(path, keys, refs)
                self._used.add(path)
            os.utime(path)
            sizes = _sizes(path, len(keys))
        except OSError as error:
            sizes = None
            self.reason = f"{self.folder}: {error.strerror or error}"
        offset = 0
        for key, size in zip(keys, sizes or (), strict=False):
            if size:
                places[key] = ImageRef(str(path), refs[key].name, offset, size, original=refs[key])
            offset += size
        return places

    def remove(self) -> None:
        """Remove what this process has used."""
        for path in self._used:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
        self._used.clear()

    def _open(self) -> None:
        """The folder, for no one else's eyes, without what was forgotten in it."""
        with contextlib.suppress(FileExistsError):
            self.folder.parent.parent.mkdir(parents=True)
        for folder in (self.folder.parent, self.folder):
            make_private(folder)
        if is_shared(self.folder):
            self.reason = (
                f"{self.folder} is on a shared disk itself; `stage` may name a folder of the node's own"
            )
            return
        for path in self.folder.iterdir():
            with contextlib.suppress(OSError):
                if _is_ours(path.name) and time.time() - path.lstat().st_mtime > KEPT:
                    path.unlink()

    def _copy(self, path: Path, keys: Sequence[bytes], refs: Mapping[bytes, ImageRef]) -> None:
        """Write the images that are what they were when they were hashed; of others nothing."""
        for left in path.parent.glob(f".{path.name}.*"):  # of one that was killed: this one has the claim
            left.unlink(missing_ok=True)
        temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
        try:
            with temporary.open("xb") as file:
                sizes = []
                for data in _contents(keys, refs):
                    if shutil.disk_usage(self.folder).free < KEEP_FREE + len(data):
                        raise OSError(errno.ENOSPC, "not enough disk space for a copy of the images")
                    file.write(data)
                    sizes.append(len(data))
                file.write(_numbers(len(sizes)).pack(*sizes))
            os.replace(temporary, path)  # not flushed: a reader compares it with the hashes
        finally:
            temporary.unlink(missing_ok=True)


def _is_ours(name: str) -> bool:
    """Whether a file is a copy, one that is being made, or the claim of its maker."""
    return name.endswith((_ENDING, ".lock")) or (name.startswith(".") and f"{_ENDING}." in name)


def _contents(keys: Sequence[bytes], refs: Mapping[bytes, ImageRef]) -> Iterator[bytes]:
    """The bytes of each image in order; empty where it cannot be read, or is another one than it was."""

    def read(key: bytes) -> bytes:
        try:
            data = patiently(refs[key].read)
        except OSError:
            return b""
        return data if digest(data) == key else b""

    with ThreadPoolExecutor(READERS) as readers:
        for start in range(0, len(keys), AT_ONCE):
            yield from readers.map(read, keys[start : start + AT_ONCE])


def _is_intact(path: Path, keys: Sequence[bytes]) -> bool:
    """Whether a copy is there, whole, and has the bytes that were hashed."""
    sizes = _sizes(path, len(keys))
    if sizes is None:
        return False
    with open_plain(path) as file:
        return all(not size or digest(file.read(size)) == key for key, size in zip(keys, sizes, strict=True))


def _sizes(path: Path, count: int) -> tuple[int, ...] | None:
    """How many bytes each image of a copy has; None where there is no such file, or not the whole of it."""
    numbers = _numbers(count)
    try:
        with open_plain(path) as file:
            whole = os.fstat(file.fileno()).st_size
            if whole < numbers.size:
                return None
            file.seek(whole - numbers.size)
            sizes: tuple[int, ...] = numbers.unpack(file.read(numbers.size))
    except FileNotFoundError:
        return None
    return sizes if sum(sizes) + numbers.size == whole else None


def _numbers(count: int) -> struct.Struct:
    return struct.Struct(f"<{count}Q")
