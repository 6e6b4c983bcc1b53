"""Files of a dataset: from their hosts, checked by size and hash, several at a time."""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from pathlib import Path

from histobench.core.errors import HistobenchError
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
from histobench.roi.registry.dataset_entry import RemoteFile, size_in_words

_CHUNK = 1 << 20
_AT_ONCE = 4


@dataclass(frozen=True)
class Fetched:
    """A file that is there and checked; `sha256` and `md5` are of its bytes."""

    path: Path
    bytes: int
    md5: str
    sha256: str
    verified: bool
    accepted: bool = False  # another checksum than the published one, accepted by the user


@dataclass(frozen=True)
class Fetcher:
    """Brings files into a folder; `accept` are checksums that are taken instead of the published ones."""

    folder: Path
    dataset: str
    progress: Progress | None = None
    pause: float = 1.0
    accept: Sequence[str] = ()
    stop: threading.Event = field(default_factory=threading.Event)

    def fetch_all(self, files: Sequence[RemoteFile]) -> list[Fetched]:
        """Fetch files, some at a time; the first error stops the others."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._check_space(files)
        with ThreadPoolExecutor(max_workers=max(1, min(_AT_ONCE, len(files)))) as pool:
            jobs = [pool.submit(self.fetch, file) for file in files]
            try:
                wait(jobs, return_when=FIRST_EXCEPTION)
            finally:
                # Anyone who waits for an error, or has interrupted, does not wait for the other gigabytes.
                self.stop.set()
                pool.shutdown(wait=False, cancel_futures=True)
        failed = [error for job in jobs if not job.cancelled() and (error := job.exception())]
        if failed:  # rather than the files that were stopped for it
            raise min(failed, key=lambda error: isinstance(error, TransferStoppedError))
        return [job.result() for job in jobs]

    def fetch(self, file: RemoteFile) -> Fetched:
        """One file, checked; an interrupted download goes on where it stopped."""
        target = self.folder / file.name
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.exists():
            return self.check(target, file, keep=True)
        part = target.with_name(f"{target.name}.part")
        self._bring(part, file)
        found = self.check(part, file, keep=False)
        os.replace(part, target)
        note_of(part).unlink(missing_ok=True)
        return replace(found, path=target)

    def check(self, path: Path, file: RemoteFile, *, keep: bool) -> Fetched:
        """Compare size and checksums with what is published; with `keep` a wrong file is not deleted."""
        size, (md5, sha256) = path.stat().st_size, _hashes(path)
        with open(path, "rb") as handle:
            page = is_page(handle.read(256)) and not expects_page(file.name)
        wrong = []
        if file.bytes not in (None, size):
            wrong.append(f"{size:,} bytes, but {file.bytes:,} are published")
        wrong += [
            f"{kind} {got}, but {wanted} is published"
            for kind, wanted, got in (("md5", file.md5, md5), ("sha256", file.sha256, sha256))
            if wanted is not None and got != wanted.lower()
        ]
        if wrong and {md5, sha256} & {checksum.lower() for checksum in self.accept}:
            return Fetched(path, size, md5, sha256, verified=False, accepted=True)
        if not wrong and (file.pinned or not page):
            return Fetched(path, size, md5, sha256, file.pinned)
        what = "; ".join([*wrong[:1], *(["it is a web page"] if page else [])])
        advice = _how_to_accept(sha256) if wrong else ""
        after = f"remove {path} and fetch it again" if keep else "nothing was kept; try again"
        if not keep:
            discard(path)
        raise HistobenchError(f"{file.name}: {what}; {after}{advice}")

    def _bring(self, part: Path, file: RemoteFile) -> None:
        """Bring a file to `part`; another size than published is refused, unless a checksum is accepted."""
        if file.url is None:
            raise HistobenchError(
                f"{self.dataset}: {file.name} has no public address; see: histobench data show {self.dataset}"
            )
        try:
            transfer(
                file.url,
                part,
                name=file.name,
                size=None if self.accept else file.bytes,
                progress=self.progress,
                pause=self.pause,
                stop=self.stop,
            )
        except OtherSizeError as error:
            raise HistobenchError(f"{error}{_how_to_accept('SHA256 (of the file offered)')}") from error

    def _check_space(self, files: Sequence[RemoteFile]) -> None:
        needed, free = missing_bytes(files, self.folder), shutil.disk_usage(self.folder).free
        if needed > free:
            raise HistobenchError(
                f"{self.dataset} needs {size_in_words(needed)}, but {self.folder} has "
                f"{size_in_words(free)} free; give another disk with `to`"
            )


def _how_to_accept(checksum: str) -> str:
    return f". To use this file as it is: histobench data get ... --accept-checksum {checksum}"


def _hashes(path: Path) -> tuple[str, str]:
    md5, sha256 = hashlib.md5(usedforsecurity=False), hashlib.sha256()
    with open(path, "rb") as handle:
        while chunk := handle.read(_CHUNK):
            md5.update(chunk)
            sha256.update(chunk)
    return md5.hexdigest(), sha256.hexdigest()


def missing_bytes(files: Iterable[RemoteFile], folder: Path) -> int:
    """How much is still to be fetched, as far as sizes are known."""
    total = 0
    for file in files:
        part = folder / f"{file.name}.part"
        if file.bytes is not None and not (folder / file.name).exists():
            total += max(0, file.bytes - (part.stat().st_size if part.exists() else 0))
    return total
