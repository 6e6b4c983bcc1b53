"""One file over HTTP, resumed after a break: what has arrived is kept only while it is of the same file."""

from __future__ import annotations

import email.utils
import json
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from histobench.core.errors import HistobenchError
from histobench.core.files import read_plain_text
from histobench.core.plain_data import parse_json
from histobench.roi.registry.entry import RemoteFile

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx

_log = logging.getLogger(__name__)
_ATTEMPTS = 6
_PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
#: A server that asks for more patience than this (seconds) gets its answer in another run.
_LONGEST_PAUSE = 300.0
_TOKENS = (("huggingface.co", ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")), ("zenodo.org", ("ZENODO_TOKEN",)))
#: What servers do to a file on its way, and can be undone.
_UNDONE = frozenset({"gzip", "deflate"})
#: Called with a file's name, the bytes that are there, and how many there will be (None: not known).
Progress = Callable[[str, int, int | None], None]


class TransferStoppedError(Exception):
    """Another file failed, or the user interrupted: what has arrived stays for the next run."""


class _PassingError(Exception):
    """The server says to come back later, in `wait` seconds if it says when."""

    def __init__(self, message: str, wait: float = 0.0) -> None:
        super().__init__(message)
        self.wait = wait


def transfer(
    url: str,
    part: Path,
    file: RemoteFile,
    *,
    progress: Progress | None = None,
    pause: float = 1.0,
    stop: threading.Event | None = None,
) -> None:
    """Bring the bytes at `url` to `part`; whether they are the right ones is for the caller to check.

    A line that breaks is tried again as long as each try gets further than all before it.
    """
    import httpx

    _check_address(url, file)
    stop = stop or threading.Event()
    failures, furthest = 0, 0
    with _client() as client:
        while True:
            wait = 0.0
            try:
                if _stream(client, url, part, file, progress, stop):
                    return
                reason = "the connection ended before the file did"
            except (httpx.TooManyRedirects, httpx.UnsupportedProtocol, httpx.LocalProtocolError) as error:
                raise HistobenchError(f"{file.name}: {error} ({_host(url)})") from error
            except httpx.HTTPError as error:
                reason = str(error) or type(error).__name__
            except _PassingError as error:
                reason, wait = str(error), error.wait
            # Only getting further counts: a server that always breaks at the same place, or that takes back
            # what it gave, would be asked for ever.
            have = part.stat().st_size if part.exists() else 0
            failures = 1 if have > furthest else failures + 1
            furthest = max(furthest, have)
            if failures >= _ATTEMPTS:
                raise HistobenchError(
                    f"{file.name}: {reason} ({_host(url)}); what has arrived is kept, run the command again"
                )
            seconds = max(wait, min(60.0, pause * 2 ** (failures - 1)))
            _log.warning(
                "%s: %s (%s); retrying in %.0f s, attempt %d of %d",
                *(file.name, reason, _host(url), seconds, failures + 1, _ATTEMPTS),
            )
            if stop.wait(seconds):
                raise TransferStoppedError


def _check_address(url: str, file: RemoteFile) -> None:
    import httpx

    try:
        urlsplit(url), httpx.URL(url)
    except (ValueError, httpx.InvalidURL) as error:
        raise HistobenchError(f"{file.name}: {url} is no address ({error})") from error


def _client() -> httpx.Client:
    import httpx

    try:
        return httpx.Client(follow_redirects=True, timeout=httpx.Timeout(60, connect=20))
    except (ValueError, OSError, httpx.InvalidURL) as error:
        # The proxies and certificates of the environment are read here.
        raise HistobenchError(
            f"cannot connect: {error}; look at HTTP_PROXY, HTTPS_PROXY, ALL_PROXY, NO_PROXY and SSL_CERT_FILE"
        ) from error


def _stream(
    client: httpx.Client,
    url: str,
    part: Path,
    file: RemoteFile,
    progress: Progress | None,
    stop: threading.Event,
) -> bool:
    """Append what is missing; whether the file is whole now."""
    have, note = _resume_point(part, url)
    if have and have == file.bytes:
        return True  # it broke off between the last byte and the check
    headers = {"Accept-Encoding": "identity", **_authorisation(url)}
    if have:
        headers["Range"] = f"bytes={have}-"
        if note.get("same"):
            headers["If-Range"] = note["same"]
    with client.stream("GET", url, headers=headers) as answer:
        if answer.status_code == 416:
            if answer.headers.get("content-range", "").strip() == f"bytes */{have}":
                return True  # there is nothing behind what is here
            part.unlink(missing_ok=True)
            raise _PassingError("the file on the server has changed")
        _check_status(answer, file, url)
        if answer.status_code == 206 and not _continues(answer, have, note):
            part.unlink(missing_ok=True)
            raise _PassingError("the server sent another part than the one asked for")
        if answer.status_code != 206:
            have = 0
        packed = _packed(answer, file, url)
        total = None if packed else _total(answer, have)
        _refuse_pages(answer, file, url)
        if file.bytes is not None and total is not None and total != file.bytes:
            raise HistobenchError(
                f"{file.name}: the server offers {total:,} bytes, but {file.bytes:,} are published;"
                " nothing was kept"
            )
        # What was packed on its way cannot be continued: without a note a next try begins anew.
        note_of(part).unlink(missing_ok=True) if packed else _write_note(part, url, answer, total)
        total = total or file.bytes
        chunks = answer.iter_bytes() if packed else answer.iter_raw()  # as it comes: a break loses nothing
        have = _append(
            chunks, part, have, file, url, lambda got: progress and progress(file.name, got, total), stop
        )
    return total is None or have >= total


def _append(
    chunks: Iterator[bytes],
    part: Path,
    have: int,
    file: RemoteFile,
    url: str,
    report: Callable[[int], object],
    stop: threading.Event,
) -> int:
    """Write chunks behind the first `have` bytes of `part`; returns how many there are then."""
    with part.open("r+b" if have and part.exists() else "wb") as handle:
        handle.seek(have)
        handle.truncate()
        for chunk in chunks:
            if not have and is_page(chunk) and not expects_page(file):
                handle.close()
                discard(part)
                raise HistobenchError(_page_message(file, url))
            handle.write(chunk)
            have += len(chunk)
            if file.bytes is not None and have > file.bytes:
                handle.close()
                discard(part)
                raise HistobenchError(
                    f"{file.name}: the server sends more than the {file.bytes:,} published bytes;"
                    " nothing was kept"
                )
            report(have)
            if stop.is_set():
                raise TransferStoppedError
        handle.flush()
        os.fsync(handle.fileno())
    return have


def _check_status(answer: httpx.Response, file: RemoteFile, url: str) -> None:
    code = answer.status_code
    if code in _PASSING:
        wait = _retry_after(answer)
        if wait > _LONGEST_PAUSE:
            raise HistobenchError(
                f"{file.name}: {_host(url)} answered {code} and asks to come back in {wait / 60:.0f} minutes;"
                " what has arrived is kept, run the command again then"
            )
        raise _PassingError(f"the server answered {code}", wait)
    if code in (401, 403):
        variables = next((names for host, names in _TOKENS if _host(url).endswith(host)), ())
        hint = f"; set {variables[0]} to a token that has access" if variables else ""
        raise HistobenchError(f"{file.name}: {_host(url)} refuses access ({code}){hint}")
    if code in (404, 410):
        raise HistobenchError(f"{file.name}: not there any more ({code}): {url}")
    if code not in (200, 206):
        raise HistobenchError(f"{file.name}: {_host(url)} answered {code}; nothing was kept")


def _retry_after(answer: httpx.Response) -> float:
    """The seconds that a busy server asks for, as a number or as a date; 0 if it does not say."""
    said = answer.headers.get("retry-after", "").strip()
    if said.isdecimal():
        return float(said)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(said).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return 0.0


def _packed(answer: httpx.Response, file: RemoteFile, url: str) -> bool:
    """Whether the bytes are packed for the way only, although plain ones were asked for.

    Many servers say gzip of files that are .gz by themselves; those are left as they come.
    """
    said = {word.strip().lower() for word in answer.headers.get("content-encoding", "").split(",")}
    said -= {"", "identity"}
    if not said or (said <= {"gzip", "x-gzip"} and file.name.lower().endswith((".gz", ".tgz"))):
        return False
    if said <= _UNDONE and answer.status_code == 200:
        return True
    raise HistobenchError(
        f"{file.name}: {_host(url)} sends it packed ({', '.join(sorted(said))}), which was not asked for;"
        " nothing was kept"
    )


def _refuse_pages(answer: httpx.Response, file: RemoteFile, url: str) -> None:
    kind = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind in ("text/html", "application/xhtml+xml") and not expects_page(file):
        raise HistobenchError(_page_message(file, url))


def _page_message(file: RemoteFile, url: str) -> str:
    return (
        f"{file.name}: {_host(url)} answered with a web page instead of the file"
        " (a login, a form or an error); open the dataset's homepage in a browser"
    )


def is_page(beginning: bytes) -> bool:
    """Whether a file that begins so is a web page."""
    return (
        beginning[:256]
        .removeprefix(b"\xef\xbb\xbf")
        .lstrip()
        .lower()
        .startswith((b"<!doctype html", b"<html", b"<head", b"<!--"))
    )


def expects_page(file: RemoteFile) -> bool:
    """Whether the file is meant to be a web page."""
    return file.name.lower().endswith((".html", ".htm"))


def _continues(answer: httpx.Response, have: int, note: dict[str, Any]) -> bool:
    """Whether a part begins where ours ends, and is of the same file as far as the server lets us see."""
    if not answer.headers.get("content-range", "").strip().startswith(f"bytes {have}-"):
        return False
    before, now = (note.get("same"), note.get("total")), (_same(answer), _total(answer, have))
    return not have or all(old == new for old, new in zip(before, now, strict=True) if old and new)


def _total(answer: httpx.Response, have: int) -> int | None:
    whole = answer.headers.get("content-range", "").rpartition("/")[2]
    if answer.status_code == 206 and whole.isdecimal():
        return int(whole)
    length = answer.headers.get("content-length", "")
    return have + int(length) if length.isdecimal() else None


def _same(answer: httpx.Response) -> str:
    """What If-Range can compare: the tag of these very bytes, or else their date."""
    tag = answer.headers.get("etag", "")
    # Weak tags do not promise the same bytes, so a server would not honour them.
    return str(tag if tag and not tag.startswith("W/") else answer.headers.get("last-modified", ""))


def note_of(part: Path) -> Path:
    """Where it is written down what a part is a part of."""
    return part.with_name(f"{part.name}.json")


def discard(part: Path) -> None:
    """Keep nothing of it."""
    part.unlink(missing_ok=True)
    note_of(part).unlink(missing_ok=True)


def _resume_point(part: Path, url: str) -> tuple[int, dict[str, Any]]:
    """Bytes that can be kept, and what is known of them; a part of another address is thrown away."""
    try:
        note = parse_json(read_plain_text(note_of(part)))
        if note["url"] == url:
            return part.stat().st_size, note
    except (OSError, ValueError, KeyError, TypeError):
        pass
    part.unlink(missing_ok=True)
    return 0, {}


def _write_note(part: Path, url: str, answer: httpx.Response, total: int | None) -> None:
    note = {"url": url, "same": _same(answer), "total": total}
    note_of(part).write_text(json.dumps(note), encoding="utf-8")


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
            # The line end of the file that a token was read from would be an illegal header.
            token = (token or "").strip()
            if not token.isascii():
                raise HistobenchError(f"{' or '.join(variables)}: the token holds signs that no token has")
            return {"Authorization": f"Bearer {token}"} if token else {}
    return {}


def _host(url: str) -> str:
    return urlsplit(url).hostname or url
