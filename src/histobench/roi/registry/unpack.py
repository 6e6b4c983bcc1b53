"""Archives made readable: in place where that is possible, else unpacked with care.

Plain TAR and ZIP files are listed and read where they lie. Compressed TARs, TARs in parts and RARs are
unpacked into a folder that appears only when it is whole. Nothing leaves that folder: absolute and parent
paths are refused, links are not made, and an archive that grows beyond all measure is stopped.
"""

from __future__ import annotations

import bz2
import gzip
import io
import itertools
import lzma
import os
import posixpath
import shutil
import subprocess
import tarfile
import tempfile
import time
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from histobench.core.errors import HistobenchError
from histobench.core.files import check_plain, open_plain
from histobench.core.redaction import environment_without_keys

#: Images do not compress: an archive that unpacks to more than this many times its size is a bomb.
MOST_GROWTH = 50
#: Small archives may grow more, for tables and masks compress well.
GROWTH_FREE = 256 << 20
MOST_MEMBERS = 20_000_000
_CHUNK = 1 << 20
#: Seconds by which the clocks of a disk's machine and of this one may differ.
CLOCKS_APART = 300.0
#: What the readers of damaged archives raise.
_DAMAGED = (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile, UnicodeError)


@dataclass(frozen=True)
class Tree:
    """Files that can be read: their names, sorted, below `prefix` (relative to the dataset's folder)."""

    prefix: str
    names: tuple[str, ...]


def open_tree(archives: Sequence[Path], folder: Path) -> Tree:
    """The files of an archive (or of the parts of one) that lies somewhere below `folder`."""
    first = archives[0]
    if first.is_dir():
        return Tree(first.relative_to(folder).as_posix(), _files_below(first))
    name = first.name.lower()
    if name.endswith(".zip"):
        return Tree(first.relative_to(folder).as_posix(), check_zip(first))
    if name.endswith(".tar") and len(archives) == 1:
        return Tree(first.relative_to(folder).as_posix(), _tar_names(first))
    target = folder / "images" / _stem(first)
    if not is_current(target, *archives):
        unpack(archives, target)
    return Tree(target.relative_to(folder).as_posix(), _files_below(target))


def unpack(archives: Sequence[Path], target: Path) -> None:
    """Unpack a TAR (compressed, or in parts) or a RAR into the folder `target`, whole or not at all."""
    staging = target.with_name(f".{target.name}.unpacking")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    limit = MOST_GROWTH * sum(archive.stat().st_size for archive in archives) + GROWTH_FREE
    try:
        if archives[0].name.lower().endswith(".rar"):
            _unrar(archives[0], staging, limit)
        else:
            with _Chain(archives) as chain, _plain(io.BufferedReader(chain, _CHUNK)) as source:
                _write_members(source, staging, archives[0], _Allowance(archives[0].name, limit))
        os.utime(staging)
        shutil.rmtree(target, ignore_errors=True)
        os.replace(staging, target)
    except OSError as error:
        raise HistobenchError(f"cannot unpack {archives[0].name}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def is_current(made: Path, *sources: Path) -> bool:
    """Whether `made` is there and was made after its sources came: another download is unpacked again."""
    if not made.exists():
        return False
    # What seems to be of the future was made before the clock was set back: nothing follows from its time.
    when = made.stat().st_mtime
    return max(path.stat().st_ctime for path in sources) <= when <= time.time() + CLOCKS_APART


def gunzip(source: Path, target: Path) -> Path:
    """The single file inside of a .gz, bounded as archives are; `target` appears when it is whole."""
    if is_current(target, source):
        return target
    limit = MOST_GROWTH * source.stat().st_size + GROWTH_FREE
    staging = target.with_name(f".{target.name}.unpacking")
    try:
        with gzip.open(source, "rb") as packed, staging.open("wb") as plain:
            _copy(cast(IO[bytes], packed), plain, _Allowance(source.name, limit))
        os.replace(staging, target)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise HistobenchError(
            f"{source.name} is damaged or truncated ({error}); remove {source} and fetch it again"
        ) from error
    finally:
        staging.unlink(missing_ok=True)
    return target


def safe_name(name: str, archive: str) -> str:
    """The member's path with plain slashes; an absolute path or one that leaves the folder is an error.

    >>> safe_name("./a/./b.png", "x.tar")
    'a/b.png'
    """
    plain = name.replace("\\", "/")
    normal = posixpath.normpath(plain)
    if (
        plain.startswith("/")
        or normal == ".."
        or normal.startswith("../")
        or "\0" in name
        or (len(normal) > 1 and normal[1] == ":" and normal[0].isalpha())
    ):
        raise HistobenchError(
            f"{archive}: the member {name!r} would be written outside of the folder; refused"
        )
    return normal


class _Allowance:
    """Counts what comes out of an archive and stops it at a limit."""

    def __init__(self, archive: str, limit: int) -> None:
        self._archive, self._left, self._members = archive, limit, MOST_MEMBERS

    def member(self) -> None:
        self._members -= 1
        if self._members < 0:
            raise HistobenchError(f"{self._archive} has more than {MOST_MEMBERS:,} members; refused")

    def take(self, count: int) -> None:
        self._left -= count
        if self._left < 0:
            raise HistobenchError(
                f"{self._archive} unpacks to more than {MOST_GROWTH} times its size; refused as a bomb"
            )


def _plain(source: io.BufferedReader) -> IO[bytes]:
    """The TAR inside of what may be compressed; unlike in `tarfile`, the checksum at its end is compared."""
    beginning = source.peek(6)
    for magic, opened in ((b"\x1f\x8b", gzip.open), (b"BZh", bz2.open), (b"\xfd7zXZ\0", lzma.open)):
        if beginning.startswith(magic):
            return cast(IO[bytes], opened(source, "rb"))
    return source


def _write_members(source: IO[bytes], staging: Path, archive: Path, allowance: _Allowance) -> None:
    """Write the files of a TAR stream below `staging`."""
    try:
        with tarfile.open(fileobj=source, mode="r|") as tar:
            for member in tar:
                tar.members.clear()  # type: ignore[attr-defined]  # a million of them would fill the memory
                allowance.member()
                name = safe_name(member.name, archive.name)
                if member.issym() or member.islnk():
                    _refuse_outward_link(member, archive.name)
                    continue  # what it points at is in the archive anyway
                if not member.isfile():
                    continue  # folders are made as needed; devices and pipes are no images
                data = tar.extractfile(member)
                if data is None:
                    continue
                path = staging / name
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("xb") as target:
                    _copy(data, target, allowance)
        while rest := source.read(_CHUNK):  # up to the checksum
            allowance.take(len(rest))
    except FileExistsError as error:
        raise HistobenchError(f"{archive.name} holds {Path(error.filename).name!r} twice; refused") from error
    except (*_DAMAGED, OSError) as error:
        if isinstance(error, OSError) and error.errno:
            raise  # of the disk; damaged bz2 is an OSError without a number
        raise _damaged(archive, "TAR", error) from error


def _refuse_outward_link(member: tarfile.TarInfo, archive: str) -> None:
    base = posixpath.dirname(member.name) if member.issym() else ""
    try:
        # Joining gives an absolute path where the link has one.
        safe_name(posixpath.join(base, member.linkname), archive)
    except HistobenchError:
        raise HistobenchError(
            f"{archive}: the link {member.name!r} points outside the folder; refused"
        ) from None


def _unrar(archive: Path, staging: Path, limit: int) -> None:
    program = shutil.which("bsdtar")
    if program is None:
        raise HistobenchError(
            f"{archive.name} is a RAR archive; install bsdtar (Debian: libarchive-tools) and run again"
        )
    # As a TAR through a pipe, so that names, links and sizes are checked before anything is written.
    with (
        tempfile.TemporaryFile() as said,
        subprocess.Popen(
            [program, "-cf", "-", "--format=pax", f"@{archive.absolute()}"],
            stdout=subprocess.PIPE,
            stderr=said,
            stdin=subprocess.DEVNULL,
            env={**environment_without_keys(), "LC_ALL": "C.UTF-8"},
        ) as converter,
    ):
        assert converter.stdout is not None
        try:
            _write_members(converter.stdout, staging, archive, _Allowance(archive.name, limit))
        except BaseException:
            converter.kill()
            raise
        if converter.wait():
            said.seek(0)
            raise _damaged(archive, "RAR", said.read(200).decode(errors="replace").strip())


def _damaged(archive: Path, kind: str, reason: object) -> HistobenchError:
    return HistobenchError(
        f"{archive.name} is damaged, truncated or not a {kind} file ({reason});"
        f" remove {archive} and fetch it again"
    )


def _copy(source: IO[bytes], target: IO[bytes], allowance: _Allowance) -> None:
    while chunk := source.read(_CHUNK):
        allowance.take(len(chunk))
        target.write(chunk)


def check_zip(archive: Path) -> tuple[str, ...]:
    """The files in a ZIP, sorted; a name that leads outside or comes twice, and a bomb, are refused."""
    allowance = _Allowance(archive.name, MOST_GROWTH * archive.stat().st_size + GROWTH_FREE)
    names = []
    try:
        with zipfile.ZipFile(check_plain(archive)) as box:
            for item in box.infolist():
                allowance.member()
                allowance.take(item.file_size)
                safe_name(item.filename, archive.name)
                # A link in a ZIP is a file whose content is a path; it is no image.
                if not item.is_dir() and (item.external_attr >> 28) != 0o12:
                    names.append(item.filename)
    except (zipfile.BadZipFile, NotImplementedError, UnicodeError) as error:
        raise _damaged(archive, "ZIP", error) from error
    return _once(names, archive)


def _tar_names(archive: Path) -> tuple[str, ...]:
    try:
        with tarfile.open(check_plain(archive), "r:") as tar:
            members = [item for item in tar if item.isreg()]
    except (tarfile.TarError, EOFError, UnicodeError) as error:
        raise _damaged(archive, "TAR", error) from error
    for item in members:
        safe_name(item.name, archive.name)
        if item.issparse():
            raise HistobenchError(
                f"{archive.name}: {item.name!r} has holes and is not read in place; refused"
            )
    return _once([item.name for item in members], archive)


def _once(names: list[str], archive: Path) -> tuple[str, ...]:
    """The names, sorted; which of two members of one name is meant, nobody can know."""
    names.sort()
    twice = next((one for one, next_one in itertools.pairwise(names) if one == next_one), None)
    if twice is not None:
        raise HistobenchError(f"{archive.name} holds {twice!r} twice; refused")
    return tuple(names)


def _files_below(folder: Path) -> tuple[str, ...]:
    return tuple(
        sorted(
            (Path(parent) / file).relative_to(folder).as_posix()
            for parent, _, files in os.walk(folder)
            for file in files
        )
    )


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
                self._open = open_plain(self._paths.pop(0))
            if count := self._open.readinto(buffer):
                return count
            self._open.close()
            self._open = None
        return 0

    def close(self) -> None:
        if self._open is not None:
            self._open.close()
        super().close()
