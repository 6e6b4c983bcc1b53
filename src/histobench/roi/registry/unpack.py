"""Archives made readable: TAR and ZIP files in place, others unpacked, whole or not at all."""

from __future__ import annotations

import gzip
import io
import lzma
import os
import re
import shutil
import subprocess
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from histobench.core.errors import HistobenchError, needing
from histobench.core.files import atomic_path, unpack_tar
from histobench.core.redaction import environment_without_keys

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
    first = place = archives[0]
    name = first.name.lower()
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
            stem = re.split(r"\.tar\.|\.tgz$|\.rar$", first.name, flags=re.IGNORECASE)[0]
            place = folder / "images" / stem
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
            with tarfile.open(fileobj=_Chain(archives), mode="r|*") as tar:
                unpack_tar(tar, staging, archives[0].name)
        os.utime(staging)
        shutil.rmtree(target, ignore_errors=True)
        os.replace(staging, target)
    except OSError as error:
        if error.errno is None:  # damaged bz2
            raise _damaged(archives[0], error) from error
        raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def is_current(made: Path, *sources: Path) -> bool:
    """Return whether `made` is there and newer than its sources: another download is unpacked again."""
    return made.exists() and max(path.stat().st_ctime for path in sources) <= made.stat().st_mtime


def gunzip(source: Path, target: Path) -> Path:
    """Unpack the single file inside of a .gz; `target` appears when it is whole."""
    if not is_current(target, source):
        with gzip.open(source, "rb") as packed, atomic_path(target) as staging, staging.open("wb") as plain:
            try:
                shutil.copyfileobj(packed, plain, 1 << 20)
            except _DAMAGED as error:
                raise _damaged(source, error) from error
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
    return [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]


class _Chain(io.RawIOBase):
    """Several files read as one, for archives that come in parts."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._blocks = (block for path in paths for block in _blocks(path))

    def read(self, size: int = -1) -> bytes:
        return next(self._blocks, b"")


def _blocks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as handle:
        while block := handle.read(1 << 20):
            yield block


def h5py_module() -> Any:
    """The package that reads HDF5, which is an extra."""
    with needing("HDF5 needs h5py; run: pip install 'histobench[features]'"):
        import h5py
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
