"""Files over HTTP: resumed after a break, checked by size and hash, several at a time."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from histobench.core.errors import HistobenchError
from histobench.core.plain_data import parse_json
from histobench.core.plain_file import check_plain, open_plain, read_plain_text
from histobench.roi.registry.entry import RemoteFile

if TYPE_CHECKING:
    import httpx

#: A mirror: a folder or a base address below which `<dataset>/<file>` lies.
MIRROR_VARIABLE = "HISTOBENCH_DATA_MIRROR"
_CHUNK = 1 << 20
_ATTEMPTS = 6
_PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
_TOKENS = (("huggingface.co", ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")), ("zenodo.org", ("ZENODO_TOKEN",)))
#: Called with a file's name, the bytes that are there, and how many there will be (None: not known).
Progress = Callable[[str, int, int | None], None]


@dataclass(frozen=True)
class Fetched:
    """A file that is there and checked; `sha256` and `md5` are of its bytes."""

    path: Path
    bytes: int
    md5: str
    sha256: str
    verified: bool


def fetch_all(
    files: Sequence[RemoteFile],
    folder: Path,
    *,
    dataset: str,
    workers: int = 4,
    progress: Progress | None = None,
    pause: float = 1.0,
) -> list[Fetched]:
    """Fetch files into `folder`, up to `workers` at a time; what is there and right is not fetched again.

    The free space of the disk is checked before the first byte. The first error stops the others.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _check_space(files, folder, dataset)
    with ThreadPoolExecutor(max_workers=max(1, min(workers, len(files)))) as pool:
        jobs = [
            pool.submit(fetch, file, folder, dataset=dataset, progress=progress, pause=pause)
            for file in files
        ]
        try:
            return [job.result() for job in jobs]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def fetch(
    file: RemoteFile, folder: Path, *, dataset: str, progress: Progress | None = None, pause: float = 1.0
) -> Fetched:
    """One file, checked; an interrupted download goes on where it stopped."""
    target = folder / file.name
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.exists():
        return check_file(target, file, keep=True)
    source = _source(file, dataset)
    part = target.with_name(f"{target.name}.part")
    if isinstance(source, Path):
        _copy(source, part, file, progress)
    else:
        _download(source, part, file, progress, pause)
    found = check_file(part, file, keep=False)
    os.replace(part, target)
    _note_of(part).unlink(missing_ok=True)
    return Fetched(target, found.bytes, found.md5, found.sha256, found.verified)


def check_file(path: Path, file: RemoteFile, *, keep: bool) -> Fetched:
    """Compare size and checksums with what is published; a wrong file is an error that names both.

    With `keep` the wrong file stays where it is (it may be the user's own); else it is deleted.
    """
    size = path.stat().st_size
    if file.bytes is not None and size != file.bytes:
        _discard(path, keep=keep)
        raise HistobenchError(
            f"{file.name}: {size:,} bytes, but {file.bytes:,} are published{_fate(path, keep=keep)}"
        )
    md5, sha256 = _hashes(path)
    for kind, wanted, got in (("md5", file.md5, md5), ("sha256", file.sha256, sha256)):
        if wanted is not None and got != wanted.lower():
            _discard(path, keep=keep)
            raise HistobenchError(
                f"{file.name}: {kind} {got}, but {wanted} is published"
                f"{_looks_like(path) if keep else ''}{_fate(path, keep=keep)}"
            )
    return Fetched(path, size, md5, sha256, file.pinned)


def _fate(path: Path, *, keep: bool) -> str:
    return (
        f"; remove {path} and fetch it again"
        if keep
        else "; nothing was kept; try again, or pin the new file"
    )


def _discard(path: Path, *, keep: bool) -> None:
    if not keep:
        path.unlink(missing_ok=True)
        _note_of(path).unlink(missing_ok=True)


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


def _copy(source: Path, part: Path, file: RemoteFile, progress: Progress | None) -> None:
    if not source.is_file():
        raise HistobenchError(f"the mirror has no {source}; unset {MIRROR_VARIABLE}, or put the file there")
    shutil.copyfile(check_plain(source), part)
    if progress:
        progress(file.name, part.stat().st_size, file.bytes)


def _download(url: str, part: Path, file: RemoteFile, progress: Progress | None, pause: float) -> None:
    import httpx

    failures = 0
    with httpx.Client(follow_redirects=True, timeout=httpx.Timeout(60, connect=20)) as client:
        while True:
            before = part.stat().st_size if part.exists() else 0
            try:
                if _stream(client, url, part, file, progress):
                    return
                reason = "the connection ended before the file did"
            except httpx.HTTPError as error:
                reason = str(error) or type(error).__name__
            except _PassingError as error:
                reason = str(error)
            # An attempt that brought something is no failure: a line that often breaks still arrives.
            moved = part.exists() and part.stat().st_size > before
            failures = 1 if moved else failures + 1
            if failures >= _ATTEMPTS:
                raise HistobenchError(
                    f"{file.name}: {reason} ({_host(url)}); what has arrived is kept, run the command again"
                )
            time.sleep(min(60.0, pause * 2 ** (failures - 1)))


class _PassingError(Exception):
    """The server says to come back later."""


def _stream(client: httpx.Client, url: str, part: Path, file: RemoteFile, progress: Progress | None) -> bool:
    """Append what is missing; whether the file is whole now."""
    have, note = _resume_point(part, url)
    headers = {"Accept-Encoding": "identity", **_authorisation(url)}
    if have:
        headers["Range"] = f"bytes={have}-"
        if note.get("etag"):
            headers["If-Range"] = note["etag"]
    with client.stream("GET", url, headers=headers) as answer:
        if answer.status_code == 416:
            part.unlink(missing_ok=True)  # what is here is longer than what is there
            raise _PassingError("the file on the server has changed")
        _check_status(answer, file, url)
        if answer.status_code == 206 and not _continues(answer, have):
            part.unlink(missing_ok=True)
            raise _PassingError("the server sent another part than the one asked for")
        if answer.status_code != 206:
            have = 0
        total = _total(answer, have)
        _refuse_pages(answer, file, url)
        if file.bytes is not None and total is not None and total != file.bytes:
            raise HistobenchError(
                f"{file.name}: the server offers {total:,} bytes, but {file.bytes:,} are published;"
                " nothing was kept"
            )
        _write_note(part, url, answer)
        with part.open("r+b" if have and part.exists() else "wb") as handle:
            handle.seek(have)
            handle.truncate()
            for chunk in answer.iter_raw():  # as it comes, so that a break loses nothing
                if not have and _is_page(chunk) and not _expects_page(file):
                    handle.close()
                    part.unlink()
                    raise HistobenchError(_page_message(file, url))
                handle.write(chunk)
                have += len(chunk)
                if file.bytes is not None and have > file.bytes:
                    handle.close()
                    part.unlink()
                    raise HistobenchError(
                        f"{file.name}: the server sends more than the {file.bytes:,} published bytes;"
                        " nothing was kept"
                    )
                if progress:
                    progress(file.name, have, total or file.bytes)
            handle.flush()
            os.fsync(handle.fileno())
    return total is None or have >= total


def _check_status(answer: httpx.Response, file: RemoteFile, url: str) -> None:
    code = answer.status_code
    if code in _PASSING:
        raise _PassingError(f"the server answered {code}")
    if code in (401, 403):
        variables = next((names for host, names in _TOKENS if _host(url).endswith(host)), ())
        hint = f"; set {variables[0]} to a token that has access" if variables else ""
        raise HistobenchError(f"{file.name}: {_host(url)} refuses access ({code}){hint}")
    if code in (404, 410):
        raise HistobenchError(f"{file.name}: not there any more ({code}): {url}")
    if code >= 400:
        raise HistobenchError(f"{file.name}: {_host(url)} answered {code}")


def _refuse_pages(answer: httpx.Response, file: RemoteFile, url: str) -> None:
    kind = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind in ("text/html", "application/xhtml+xml") and not _expects_page(file):
        raise HistobenchError(_page_message(file, url))


def _page_message(file: RemoteFile, url: str) -> str:
    return (
        f"{file.name}: {_host(url)} answered with a web page instead of the file"
        " (a login, a form or an error); open the dataset's homepage in a browser"
    )


def _is_page(chunk: bytes) -> bool:
    return chunk[:256].lstrip().lower().startswith((b"<!doctype html", b"<html"))


def _expects_page(file: RemoteFile) -> bool:
    return file.name.lower().endswith((".html", ".htm"))


def _looks_like(path: Path) -> str:
    with open_plain(path) as handle:
        return " (it is a web page)" if _is_page(handle.read(256)) else ""


def _continues(answer: httpx.Response, have: int) -> bool:
    return bool(answer.headers.get("content-range", "").strip().startswith(f"bytes {have}-"))


def _total(answer: httpx.Response, have: int) -> int | None:
    whole = answer.headers.get("content-range", "").rpartition("/")[2]
    if answer.status_code == 206 and whole.isdigit():
        return int(whole)
    length = answer.headers.get("content-length", "")
    return have + int(length) if length.isdigit() else None


def _note_of(part: Path) -> Path:
    return part.with_name(f"{part.name}.json")


def _resume_point(part: Path, url: str) -> tuple[int, dict[str, Any]]:
    """Bytes that can be kept, and what is known of them; a part of another address is thrown away."""
    try:
        note = parse_json(read_plain_text(_note_of(part)))
        if note["url"] == url:
            return part.stat().st_size, note
    except (OSError, ValueError, KeyError, TypeError):
        pass
    part.unlink(missing_ok=True)
    return 0, {}


def _write_note(part: Path, url: str, answer: httpx.Response) -> None:
    # Weak tags do not promise the same bytes, so a server would not honour them in If-Range.
    tag = answer.headers.get("etag", "")
    note = {"url": url, "etag": "" if tag.startswith("W/") else tag}
    _note_of(part).write_text(json.dumps(note), encoding="utf-8")


def _authorisation(url: str) -> dict[str, str]:
    parts = urlsplit(url)
    if parts.scheme != "https":
        return {}  # a token never travels in the clear
    for host, variables in _TOKENS:
        if parts.hostname and (parts.hostname == host or parts.hostname.endswith(f".{host}")):
            token = next((os.environ[name] for name in variables if os.environ.get(name)), None)
            if token is None and host == "huggingface.co":
                from huggingface_hub import get_token

                token = get_token()
            return {"Authorization": f"Bearer {token}"} if token else {}
    return {}


def _host(url: str) -> str:
    return urlsplit(url).hostname or url


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
            f"{dataset} needs {needed / 1e9:.1f} GB, but {folder} has {free / 1e9:.1f} GB free;"
            " give another disk with `to`"
        )
