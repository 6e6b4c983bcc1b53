"""Archives made readable: in place where that is possible, else unpacked.

Plain TAR and ZIP files are listed and read in place. Compressed TARs, TARs in parts and RARs are unpacked
into a folder that appears only when it is complete; paths that leave it are refused, links are not made. How
far an archive grows is not limited: downloads are compared with published checksums.
"""

from __future__ import annotations

import gzip
import io
import lzma
import os
import shutil
import subprocess
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from histobench.core.errors import HistobenchError
from histobench.core.files import unpack_tar
from histobench.core.redaction import environment_without_keys

#: What the readers of damaged archives raise.
_DAMAGED = (
    *(tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile),
    *(UnicodeError, NotImplementedError),
)


@dataclass(frozen=True)
class Tree:
    """Files that can be read: their names, sorted, below `prefix` (relative to the dataset's folder)."""

    prefix: str
    names: tuple[str, ...]


def open_tree(archives: Sequence[Path], folder: Path) -> Tree:
    """List the files of an archive (or of the parts of one) below `folder`."""
    first = archives[0]
    name = first.name.lower()
    place = first
    try:
        if first.is_dir():
            names = _files_below(first)
        elif name.endswith(".zip"):
            with zipfile.ZipFile(first) as box:
                # A link in a ZIP is a file whose content is a path.
                found = [item for item in box.infolist() if (item.external_attr >> 28) != 0o12]
                names = [item.filename for item in found if not item.is_dir()]
        elif name.endswith(".tar") and len(archives) == 1:
            with tarfile.open(first, "r:") as tar:
                names = [item.name for item in tar if item.isreg()]
        else:
            place = folder / "images" / _stem(first)
            if not is_current(place, *archives):
                unpack(archives, place)
            names = _files_below(place)
    except _DAMAGED as error:
        raise _damaged(first, error) from error
    return Tree(place.relative_to(folder).as_posix(), tuple(sorted(names)))


def unpack(archives: Sequence[Path], target: Path) -> None:
    """Unpack a TAR (compressed, or in parts) or a RAR into the folder `target`, whole or not at all."""
    staging = target.with_name(f".{target.name}.unpacking")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    try:
        if archives[0].name.lower().endswith(".rar"):
            _unrar(archives[0], staging)
        else:
            source = io.BufferedReader(_Chain(archives), 1 << 20)
            with source, tarfile.open(fileobj=source, mode="r|*") as tar:
                unpack_tar(tar, staging, archives[0].name)
        os.utime(staging)
        shutil.rmtree(target, ignore_errors=True)
        os.replace(staging, target)
    except OSError as error:
        if error.errno is None:  # damaged bz2
            raise _damaged(archives[0], error) from error
        raise HistobenchError(f"cannot unpack {archives[0].name}: {error.strerror}") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def is_current(made: Path, *sources: Path) -> bool:
    """Return whether `made` is there and newer than its sources: another download is unpacked again."""
    return made.exists() and max(path.stat().st_ctime for path in sources) <= made.stat().st_mtime


def gunzip(source: Path, target: Path) -> Path:
    """Unpack the single file inside of a .gz; `target` appears when it is whole."""
    if is_current(target, source):
        return target
    staging = target.with_name(f".{target.name}.unpacking")
    try:
        with gzip.open(source, "rb") as packed, staging.open("wb") as plain:
            shutil.copyfileobj(packed, plain, 1 << 20)
        os.replace(staging, target)
    except _DAMAGED as error:
        raise _damaged(source, error) from error
    finally:
        staging.unlink(missing_ok=True)
    return target


def _unrar(archive: Path, staging: Path) -> None:
    program = shutil.which("bsdtar")
    if program is None:
        raise HistobenchError(
            f"{archive.name} is a RAR archive; install bsdtar (Debian: libarchive-tools) and run again"
        )
    done = subprocess.run(
        [program, "-xf", str(archive.absolute()), "-C", str(staging)],
        capture_output=True,
        stdin=subprocess.DEVNULL,
        env={**environment_without_keys(), "LC_ALL": "C.UTF-8"},
    )
    if done.returncode:
        raise _damaged(archive, done.stderr[:200].decode(errors="replace").strip())


def _damaged(archive: Path, reason: object) -> HistobenchError:
    return HistobenchError(
        f"{archive.name} is damaged, truncated or of another kind ({reason}); "
        f"remove {archive} and fetch it again"
    )


def _files_below(folder: Path) -> list[str]:
    return [
        (Path(parent) / file).relative_to(folder).as_posix()
        for parent, _, files in os.walk(folder)
        for file in files
    ]


def _stem(archive: Path) -> str:
    name = archive.name
    for ending in (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".rar"):
        if name.lower().endswith(ending):
            return name[: -len(ending)]
    return name.split(".tar.")[0]


class _Chain(io.RawIOBase):
    """Several files read as one, for archives that come in parts."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = list(paths)
        self._open: io.BufferedReader | None = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while self._open is not None or self._paths:
            if self._open is None:
                self._open = self._paths.pop(0).open("rb")
            if count := self._open.readinto(buffer):
                return count
            self._open.close()
            self._open = None
        return 0

    def close(self) -> None:
        if self._open is not None:
            self._open.close()
        super().close()


# HDF5 and Parquet, and images put into a TAR.


def h5py_module() -> Any:
    """The package that reads HDF5, which is an extra."""
    try:
        import h5py
    except ModuleNotFoundError:
        raise HistobenchError("HDF5 needs h5py; run: pip install 'histobench[features]'") from None
    return h5py


def batches(path: Path) -> Iterator[Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        if path.suffix == ".parquet":
            with pq.ParquetFile(path) as file:
                yield from file.iter_batches(batch_size=256)
            return
        with pa.memory_map(str(path)) as source:
            try:
                yield from pa.ipc.open_stream(source)
            except pa.ArrowInvalid:
                reader = pa.ipc.open_file(source)
                yield from (reader.get_batch(index) for index in range(reader.num_record_batches))
    except (pa.ArrowException, OSError) as error:
        raise HistobenchError(f"{path} cannot be read: {str(error).splitlines()[0]}") from error


def add_member(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    """Put a file into an archive."""
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content))


def suffix_of(content: bytes) -> str:
    kinds = {b"\x89PNG": ".png", b"\xff\xd8": ".jpg", b"RIFF": ".webp", b"II*": ".tif", b"MM\0*": ".tif"}
    return next((suffix for head, suffix in kinds.items() if content.startswith(head)), ".png")
