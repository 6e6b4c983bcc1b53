"""Archives made readable: in place where that is possible, else unpacked with care.

Plain TAR and ZIP files are listed and read where they lie. Compressed TARs, TARs in parts and RARs are
unpacked into a folder that appears only when it is whole. Nothing leaves that folder: absolute and parent
paths are refused, links are not made, and an archive that grows beyond all measure is stopped.
"""

from __future__ import annotations

import gzip
import io
import os
import posixpath
import shutil
import subprocess
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from histobench.core.errors import HistobenchError
from histobench.core.plain_file import open_plain

#: Images do not compress: an archive that unpacks to more than this many times its size is a bomb.
MOST_GROWTH = 50
#: Small archives may grow more, for tables and masks compress well.
GROWTH_FREE = 256 << 20
MOST_MEMBERS = 20_000_000
_CHUNK = 1 << 20


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
        return Tree(first.relative_to(folder).as_posix(), _zip_names(first))
    if name.endswith(".tar") and len(archives) == 1:
        return Tree(first.relative_to(folder).as_posix(), _tar_names(first))
    target = folder / "images" / _stem(first)
    if not target.is_dir():
        unpack(archives, target)
    return Tree(target.relative_to(folder).as_posix(), _files_below(target))


def unpack(archives: Sequence[Path], target: Path) -> None:
    """Unpack a TAR (compressed, or in parts) or a RAR into the new folder `target`, whole or not at all."""
    staging = target.with_name(f".{target.name}.unpacking")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    limit = MOST_GROWTH * sum(archive.stat().st_size for archive in archives) + GROWTH_FREE
    try:
        if archives[0].name.lower().endswith(".rar"):
            _unrar(archives[0], staging, limit)
        else:
            _untar(archives, staging, limit)
        os.replace(staging, target)
    except OSError as error:
        raise HistobenchError(f"cannot unpack {archives[0].name}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def gunzip(source: Path, target: Path) -> Path:
    """The single file inside of a .gz, bounded as archives are; `target` appears when it is whole."""
    if target.exists():
        return target
    limit = MOST_GROWTH * source.stat().st_size + GROWTH_FREE
    staging = target.with_name(f".{target.name}.unpacking")
    try:
        with gzip.open(source, "rb") as packed, staging.open("wb") as plain:
            _copy(cast(IO[bytes], packed), plain, _Allowance(source.name, limit))
        os.replace(staging, target)
    except (OSError, EOFError, zlib.error) as error:
        raise HistobenchError(f"{source.name} is damaged or cut short ({error}); fetch it again") from error
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


def _untar(archives: Sequence[Path], staging: Path, limit: int) -> None:
    allowance = _Allowance(archives[0].name, limit)
    try:
        with (
            _Chain(archives) as source,
            tarfile.open(fileobj=cast(IO[bytes], source), mode="r|*") as tar,
        ):
            for member in tar:
                allowance.member()
                name = safe_name(member.name, archives[0].name)
                if member.issym() or member.islnk():
                    _refuse_outward_link(member, archives[0].name)
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
    except FileExistsError as error:
        raise HistobenchError(
            f"{archives[0].name} holds {Path(error.filename).name} twice; refused"
        ) from error
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, UnicodeError) as error:
        raise HistobenchError(
            f"{archives[0].name} is damaged, cut short or no TAR file ({error}); fetch it again"
        ) from error


def _refuse_outward_link(member: tarfile.TarInfo, archive: str) -> None:
    base = posixpath.dirname(member.name) if member.issym() else ""
    if member.linkname.startswith("/"):
        raise HistobenchError(f"{archive}: the link {member.name!r} leads out of the folder; refused")
    try:
        safe_name(posixpath.join(base, member.linkname), archive)
    except HistobenchError:
        raise HistobenchError(
            f"{archive}: the link {member.name!r} leads out of the folder; refused"
        ) from None


def _unrar(archive: Path, staging: Path, limit: int) -> None:
    program = shutil.which("bsdtar")
    if program is None:
        raise HistobenchError(
            f"{archive.name} is a RAR archive; install bsdtar (Debian: libarchive-tools) and run again"
        )
    listing = subprocess.run([program, "-tf", str(archive)], capture_output=True, text=True, check=False)
    if listing.returncode:
        raise HistobenchError(f"{archive.name} is damaged or no RAR file ({listing.stderr.strip()[:200]})")
    for name in listing.stdout.splitlines():
        safe_name(name, archive.name)
    done = subprocess.run(
        [program, "-xf", str(archive), "-C", str(staging), "--no-same-owner", "--no-same-permissions"],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise HistobenchError(f"{archive.name} cannot be unpacked ({done.stderr.strip()[:200]})")
    allowance = _Allowance(archive.name, limit)
    for path in _walk(staging):
        if path.is_symlink():
            path.unlink()
        else:
            allowance.take(path.stat().st_size)


def _copy(source: IO[bytes], target: IO[bytes], allowance: _Allowance) -> None:
    while chunk := source.read(_CHUNK):
        allowance.take(len(chunk))
        target.write(chunk)


def _zip_names(archive: Path) -> tuple[str, ...]:
    allowance = _Allowance(archive.name, MOST_GROWTH * archive.stat().st_size + GROWTH_FREE)
    names = []
    try:
        with zipfile.ZipFile(archive) as box:
            for item in box.infolist():
                allowance.member()
                allowance.take(item.file_size)
                safe_name(item.filename, archive.name)
                # A link in a ZIP is a file whose content is a path; it is no image.
                if not item.is_dir() and (item.external_attr >> 28) != 0o12:
                    names.append(item.filename)
    except (zipfile.BadZipFile, NotImplementedError) as error:
        raise HistobenchError(
            f"{archive.name} is damaged, cut short or no ZIP file ({error}); fetch it again"
        ) from error
    return tuple(sorted(names))


def _tar_names(archive: Path) -> tuple[str, ...]:
    try:
        with tarfile.open(archive, "r:") as tar:
            members = [item for item in tar if item.isreg()]
    except (tarfile.TarError, EOFError) as error:
        raise HistobenchError(
            f"{archive.name} is damaged, cut short or no TAR file ({error}); fetch it again"
        ) from error
    for item in members:
        safe_name(item.name, archive.name)
    return tuple(sorted(item.name for item in members))


def _files_below(folder: Path) -> tuple[str, ...]:
    return tuple(sorted(path.relative_to(folder).as_posix() for path in _walk(folder)))


def _walk(folder: Path) -> Iterator[Path]:
    for parent, _, files in os.walk(folder):
        for file in files:
            yield Path(parent) / file


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
        self._open: IO[bytes] | None = None

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        parts = []
        while size != 0:
            if self._open is None:
                if not self._paths:
                    break
                self._open = open_plain(self._paths.pop(0))
            part = self._open.read(size if size > 0 else -1)
            if not part:
                self._open.close()
                self._open = None
                continue
            parts.append(part)
            if size > 0:
                size -= len(part)
        return b"".join(parts)

    def close(self) -> None:
        if self._open is not None:
            self._open.close()
        super().close()
