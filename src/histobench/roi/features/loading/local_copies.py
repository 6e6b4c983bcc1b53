"""Images copied to this machine's own disk before they are decoded, so that a shared one is read once.

Every process makes copies of its own: some images, as they were hashed, one after the other in a file of a
folder that is removed at the end.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from histobench.core.files import patiently
from histobench.core.folders import is_shared, user_number
from histobench.roi.data.image_ref import ImageRef, digest

#: The folder that a job of Slurm has for itself, the one for what is this machine's own, the system's.
VARIABLES = ("SLURM_TMPDIR", "HISTOBENCH_LOCAL", "TMPDIR")
#: Copies of a process that was killed are removed by the next process after so many seconds.
KEPT = 2 * 24 * 3600.0
#: Bytes that are left free for others.
KEEP_FREE = 1 << 30
#: Images that are read at a time, and by how many threads: small files on a shared disk are mostly waiting.
AT_ONCE, READERS = 64, 16


def copies_base(stage: str) -> Path:
    """Where `stage` puts copies on this machine: `local`, or a folder by its full path."""
    found = (os.environ[name] for name in VARIABLES if os.environ.get(name))
    return Path(next(found, tempfile.gettempdir()) if stage == "local" else stage).expanduser()


class LocalCopies:
    """Copies that one process makes; where there can be none, images are read where they are."""

    def __init__(self, stage: str) -> None:
        self.folder, prefix = copies_base(stage), f"histobench-stage-{user_number()}-"
        #: Why images are read where they are, empty where they are not.
        self.reason = ""
        self._own: Path | None = None
        self._places: dict[bytes, ImageRef] = {}
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if is_shared(self.folder):
                raise OSError("it is on a shared disk itself; `stage` may name a folder of the node's own")
            for left in self.folder.glob(f"{prefix}*"):
                with contextlib.suppress(OSError):  # another process may have just removed it
                    if time.time() - left.lstat().st_mtime > KEPT:
                        shutil.rmtree(left, ignore_errors=True)
            self._own = Path(tempfile.mkdtemp(prefix=prefix, dir=self.folder))
        except OSError as error:
            self.reason = f"{self.folder}: {error.strerror or error}"

    def refs(self, keys: Sequence[bytes], refs: Mapping[bytes, ImageRef]) -> dict[bytes, ImageRef]:
        """Where to read these images from; one that cannot be copied is read where it is."""
        new = [key for key in dict.fromkeys(keys) if key not in self._places]
        if new and self._own and not self.reason:
            path = self._own / f"{uuid.uuid4().hex}.images"
            try:
                self._copy(path, new, refs)
            except OSError as error:
                self.reason = f"{self.folder}: {error.strerror or error}"
                path.unlink(missing_ok=True)
        return {key: self._places.get(key, refs[key]) for key in keys}

    def remove(self) -> None:
        """Remove what this process has copied."""
        if self._own is not None:
            shutil.rmtree(self._own, ignore_errors=True)

    def _copy(self, path: Path, keys: Sequence[bytes], refs: Mapping[bytes, ImageRef]) -> None:
        places: dict[bytes, ImageRef] = {}
        offset = 0
        with path.open("xb") as file:
            for key, data in zip(keys, _contents(keys, refs), strict=True):
                if shutil.disk_usage(self.folder).free < KEEP_FREE + len(data):
                    raise OSError(errno.ENOSPC, "not enough disk space for a copy of the images")
                if data:
                    file.write(data)
                    places[key] = ImageRef(str(path), refs[key].name, offset, len(data), original=refs[key])
                offset += len(data)
        self._places |= places


def _contents(keys: Sequence[bytes], refs: Mapping[bytes, ImageRef]) -> Iterator[bytes]:
    """The bytes of each image in order; empty where it cannot be read, or is another one than it was."""

    def read(key: bytes) -> bytes:
        with contextlib.suppress(OSError):
            data = patiently(refs[key].read)
            return data if digest(data) == key else b""
        return b""

    with ThreadPoolExecutor(READERS) as readers:
        for start in range(0, len(keys), AT_ONCE):
            yield from readers.map(read, keys[start : start + AT_ONCE])
