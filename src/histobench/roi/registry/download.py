"""Files of a dataset: from their hosts or a mirror, checked by size and hash, several at a time."""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import threading
import zipfile
import zlib
from collections.abc import Iterable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

from histobench.core.errors import HistobenchError
from histobench.core.files import check_plain, open_plain
from histobench.core.http import (
    OtherSizeError,
    Progress,
    TransferStoppedError,
    discard,
    expects_page,
    is_page,
    note_of,
    transfer,
)
from histobench.roi.registry.entry import RemoteFile, size_in_words

#: A mirror: a folder or a base address below which `<dataset>/<file>` lies.
MIRROR_VARIABLE = "HISTOBENCH_DATA_MIRROR"
_CHUNK = 1 << 20
#: How files begin whose checksum nobody published: what is something else is not kept.
_BEGINNINGS = {
    ".zip": b"PK",
    ".npz": b"PK",
    ".gz": b"\x1f\x8b",
    ".tgz": b"\x1f\x8b",
    ".h5": b"\x89HDF",
    ".parquet": b"PAR1",
}


@dataclass(frozen=True)
class Fetched:
    """A file that is there and checked; `sha256` and `md5` are of its bytes."""

    path: Path
    bytes: int
    md5: str
    sha256: str
    verified: bool
    accepted: bool = False  # another checksum than the published one, accepted by the user


def fetch_all(
    files: Sequence[RemoteFile],
    folder: Path,
    *,
    dataset: str,
    workers: int = 4,
    progress: Progress | None = None,
    pause: float = 1.0,
    accept: Sequence[str] = (),
) -> list[Fetched]:
    """Fetch files into `folder`, up to `workers` at a time; what is there and right is not fetched again.

    `accept` are checksums (md5 or sha256) that are taken instead of the published ones. The free space of
    the disk is checked before the first byte. The first error stops the others.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _check_space(files, folder, dataset)
    stop = threading.Event()
    with ThreadPoolExecutor(max_workers=max(1, min(workers, len(files)))) as pool:
        jobs = [
            pool.submit(
                fetch, file, folder, dataset=dataset, progress=progress, pause=pause, stop=stop, accept=accept
            )
            for file in files
        ]
        try:
            wait(jobs, return_when=FIRST_EXCEPTION)
        finally:
            # Whoever waits for an error, or has interrupted, does not wait for the other gigabytes as well.
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
    failed = [job.exception() for job in jobs if not job.cancelled() and job.exception()]
    for error in sorted(failed, key=lambda error: isinstance(error, TransferStoppedError)):
        assert error is not None
        raise error
    return [job.result() for job in jobs]


def fetch(
    file: RemoteFile,
    folder: Path,
    *,
    dataset: str,
    progress: Progress | None = None,
    pause: float = 1.0,
    stop: threading.Event | None = None,
    accept: Sequence[str] = (),
) -> Fetched:
    """One file, checked; an interrupted download goes on where it stopped."""
    target = folder / file.name
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.exists():
        return check_file(target, file, keep=True, accept=accept)
    source = _source(file, dataset)
    part = target.with_name(f"{target.name}.part")
    if isinstance(source, Path):
        _copy(source, part, file, progress)
    else:
        _download(source, part, file, progress=progress, pause=pause, stop=stop, accept=accept)
    found = check_file(part, file, keep=False, accept=accept)
    os.replace(part, target)
    note_of(part).unlink(missing_ok=True)
    return replace(found, path=target)


def _download(
    address: str,
    part: Path,
    file: RemoteFile,
    *,
    progress: Progress | None,
    pause: float,
    stop: threading.Event | None,
    accept: Sequence[str],
) -> None:
    """Bring a file to `part`; another size than published is refused, unless a checksum is accepted."""
    size = None if accept else file.bytes
    try:
        transfer(address, part, name=file.name, size=size, progress=progress, pause=pause, stop=stop)
    except OtherSizeError as error:
        raise HistobenchError(f"{error}{_how_to_accept('SHA256 (of the file offered)')}") from error


def _how_to_accept(checksum: str) -> str:
    return f". To use this file as it is: histobench data get ... --accept-checksum {checksum}"


def check_file(path: Path, file: RemoteFile, *, keep: bool, accept: Sequence[str] = ()) -> Fetched:
    """Compare size and checksums with what is published; a wrong file is an error that names both.

    A file with a checksum of `accept` is taken as it is. With `keep` the wrong file stays where it is (it may
    be the user's own); else it is deleted.
    """
    size = path.stat().st_size
    if not file.pinned:
        _check_beginning(path, file, keep=keep)
    md5, sha256 = _hashes(path)
    wrong = [f"{size:,} bytes, but {file.bytes:,} are published"] if file.bytes not in (None, size) else []
    wrong += [
        f"{kind} {got}, but {wanted} is published"
        for kind, wanted, got in (("md5", file.md5, md5), ("sha256", file.sha256, sha256))
        if wanted is not None and got != wanted.lower()
    ]
    if wrong and {md5, sha256} & {checksum.lower() for checksum in accept}:
        return Fetched(path, size, md5, sha256, verified=False, accepted=True)
    if wrong:
        looks = _looks_like(path) if keep else ""
        _discard(path, keep=keep)
        raise HistobenchError(
            f"{file.name}: {wrong[0]}{looks}{_fate(path, keep=keep)}{_how_to_accept(sha256)}"
        )
    return Fetched(path, size, md5, sha256, file.pinned)


def _check_beginning(path: Path, file: RemoteFile, *, keep: bool) -> None:
    """Without a checksum, at least: no web page, and what the name says."""
    with open_plain(path) as handle:
        beginning = handle.read(256)
    wanted = _BEGINNINGS.get(Path(file.name).suffix.lower(), b"")
    if beginning and beginning.startswith(wanted) and (expects_page(file.name) or not is_page(beginning)):
        damage = _damage(path, Path(file.name).suffix.lower())
        if not damage:
            return
        if keep:  # of no use to anybody: the next attempt fetches it again
            aside = path.with_name(f"{path.name}.damaged")
            os.replace(path, aside)
            raise HistobenchError(
                f"{file.name} is damaged ({damage}); it is now {aside}; run again to fetch it"
            )
        discard(path)
        raise HistobenchError(
            f"{file.name}: the downloaded file is damaged ({damage}){_fate(path, keep=keep)}"
        )
    what = (
        "empty"
        if not beginning
        else "a web page"
        if is_page(beginning)
        else f"no {Path(file.name).suffix} file"
    )
    _discard(path, keep=keep)
    raise HistobenchError(f"{file.name}: the downloaded file is {what}{_fate(path, keep=keep)}")


def _damage(path: Path, suffix: str) -> str:
    """What is wrong with an archive, by its own checksums; empty where nothing is known to be."""
    try:
        with open_plain(path) as handle:
            if suffix in (".zip", ".npz"):
                with zipfile.ZipFile(handle) as archive:
                    bad = archive.testzip()
                return f"wrong checksum of {bad}" if bad else ""
            if suffix in (".gz", ".tgz"):
                with gzip.open(handle) as unpacked:
                    while unpacked.read(_CHUNK):
                        pass
            if suffix == ".parquet":
                handle.seek(-4, os.SEEK_END)
                return "" if handle.read(4) == b"PAR1" else "it is cut short"
    except (zipfile.BadZipFile, EOFError, gzip.BadGzipFile, zlib.error, NotImplementedError) as error:
        return str(error)
    except (RuntimeError, ValueError):  # encrypted, or of a kind that only another program reads
        return ""
    return ""


def _fate(path: Path, *, keep: bool) -> str:
    return (
        f"; remove {path} and fetch it again"
        if keep
        else "; nothing was kept; try again, or pin the new file"
    )


def _discard(path: Path, *, keep: bool) -> None:
    if not keep:
        discard(path)


def _hashes(path: Path) -> tuple[str, str]:
    md5, sha256 = hashlib.md5(usedforsecurity=False), hashlib.sha256()
    with open_plain(path) as handle:
        while chunk := handle.read(_CHUNK):
            md5.update(chunk)
            sha256.update(chunk)
    return md5.hexdigest(), sha256.hexdigest()


def _source(file: RemoteFile, dataset: str) -> str | Path:
    mirror = os.environ.get(MIRROR_VARIABLE)
    if mirror and "://" in mirror:
        return f"{mirror.rstrip('/')}/{quote(dataset)}/{quote(file.name)}"
    if mirror:
        return Path(mirror).expanduser() / dataset / file.name
    if file.url is None:
        raise HistobenchError(
            f"{dataset}: {file.name} has no public address; see: histobench data show {dataset}"
        )
    return file.url


def take_from_mirror(
    file: RemoteFile,
    folder: Path,
    *,
    dataset: str,
    progress: Progress | None = None,
    pause: float = 1.0,
    accept: Sequence[str] = (),
) -> None:
    """Put a file that comes by form in place from the mirror, if there is one that has it.

    The name may be a pattern; the names behind it are known of a mirror that is a folder alone.
    """
    mirror = os.environ.get(MIRROR_VARIABLE)
    if not mirror:
        return
    if "://" not in mirror:
        for source in sorted((Path(mirror).expanduser() / dataset).glob(file.name)):
            if source.is_file() and not (folder / source.name).exists():
                part = folder / f"{source.name}.part"
                _copy(source, part, file, progress)
                os.replace(part, folder / source.name)
    elif not any(sign in file.name for sign in "*?["):
        part, address = folder / f"{file.name}.part", str(_source(file, dataset))
        _download(address, part, file, progress=progress, pause=pause, stop=None, accept=accept)
        os.replace(part, folder / file.name)


def _copy(source: Path, part: Path, file: RemoteFile, progress: Progress | None) -> None:
    if not source.is_file():
        raise HistobenchError(f"the mirror has no {source}; unset {MIRROR_VARIABLE}, or put the file there")
    shutil.copyfile(check_plain(source), part)
    if progress:
        progress(file.name, part.stat().st_size, file.bytes)


def _looks_like(path: Path) -> str:
    with open_plain(path) as handle:
        return " (it is a web page)" if is_page(handle.read(256)) else ""


def missing_bytes(files: Iterable[RemoteFile], folder: Path) -> int:
    """How much is still to be fetched, as far as sizes are known."""
    total = 0
    for file in files:
        part = folder / f"{file.name}.part"
        if file.bytes is not None and not (folder / file.name).exists():
            total += max(0, file.bytes - (part.stat().st_size if part.exists() else 0))
    return total


def _check_space(files: Sequence[RemoteFile], folder: Path, dataset: str) -> None:
    needed, free = missing_bytes(files, folder), shutil.disk_usage(folder).free
    if needed > free:
        raise HistobenchError(
            f"{dataset} needs {size_in_words(needed)}, but {folder} has {size_in_words(free)} free;"
            " give another disk with `to`"
        )
