"""One policy for HTTP: which failures pass, how long to wait, who is reachable, and files that resume.

Downloads, the model hub, language-model providers and Wikipedia all use it. What is shown of an answer goes
through `core.redaction`.
"""

from __future__ import annotations

import email.utils
import json
import logging
import os
import queue
import random
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from histobench.core.errors import HistobenchError
from histobench.core.files import read_plain_text
from histobench.core.plain_data import parse_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx

_log = logging.getLogger(__name__)
#: Worth asking again: time-outs, conflicts, rate limits, overload and everything that broke in the server.
PASSING = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 520, 521, 522, 523, 524, 529})


@dataclass(frozen=True)
class RetryPolicy:
    """Limits of one request. Back-off doubles from `first_pause` to `longest_pause`, with jitter."""

    attempts: int = 10
    first_pause: float = 1.0
    longest_pause: float = 60.0
    #: A whole answer has to be here after so many seconds, however slowly it drips.
    answer_timeout: float = 300.0
    connect_timeout: float = 15.0
    #: How long a server may ask to be left alone.
    longest_retry_after: float = 600.0

    def pause(self, failures: int, *, jitter: float | None = None) -> float:
        """Seconds to wait after so many failures.

        >>> [RetryPolicy().pause(n, jitter=1.0) for n in (1, 2, 3, 20)]
        [1.0, 2.0, 4.0, 60.0]
        """
        # Requests that failed together do not come back together.
        share = random.uniform(0.5, 1.0) if jitter is None else jitter
        longest = min(self.first_pause * 2.0 ** min(failures - 1, 30), self.longest_pause)
        return longest * share


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that a server asks to wait: a number, milliseconds or a date; None where it does not say.

    >>> retry_after({"retry-after": "3"})
    3.0
    """
    try:
        if "retry-after-ms" in headers:
            return max(0.0, float(headers["retry-after-ms"]) / 1000)
        value = headers.get("retry-after")
        if value is None:
            return None
        try:
            return max(0.0, float(value))
        except ValueError:
            moment = email.utils.parsedate_to_datetime(value).timestamp()
            return max(0.0, moment - server_time(headers))
    except (ValueError, TypeError, OverflowError):
        return None


def server_time(headers: Mapping[str, str]) -> float:
    """What time it is for the server, whose dates are to be read by its own clock; else this machine's time.

    >>> server_time({"date": "Sun, 15 Nov 2026 12:00:00 GMT"})
    1794744000.0
    """
    try:
        return email.utils.parsedate_to_datetime(headers["date"]).timestamp()
    except (KeyError, ValueError, TypeError, OverflowError):
        return time.time()


# Waiting for a server no longer than a person would: is it there at all?

#: Seconds within which a server has to say anything; `HF_HUB_ETAG_TIMEOUT` changes it.
SECONDS = 2.0


class UnreachableError(Exception):
    """The server did not answer in time, or there is no way to it."""


def call_while_reachable(function: Callable[[], Any], url: str) -> Any:
    """The result of `function`, which talks to `url`; it is given up when nothing answers there.

    Download libraries try again for half a minute before they say that there is no network. Here one short
    question to the same server goes out at the same time.
    """
    seconds = _seconds()
    news: queue.Queue[tuple[str, Any]] = queue.Queue()

    def work() -> None:
        try:
            news.put(("result", function()))
        except BaseException as error:
            news.put(("error", error))

    threading.Thread(target=work, name="histobench-download", daemon=True).start()
    threading.Thread(target=lambda: news.put(("answers", answers(url, seconds))), daemon=True).start()
    # A name server can be silent for longer than any timeout of a connection.
    deadline: float | None = time.monotonic() + 1.25 * seconds
    while True:
        try:
            what, value = news.get(timeout=None if deadline is None else max(deadline - time.monotonic(), 0))
        except queue.Empty:
            raise UnreachableError(url) from None
        if what == "result":
            return value
        if what == "error":
            raise value
        if value:
            deadline = None
        elif news.empty():
            raise UnreachableError(url)


def answers(url: str, seconds: float) -> bool:
    """Whether a server says anything at all, be it an error."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=seconds):
            return True
    except urllib.error.HTTPError:
        return True
    except (OSError, ValueError) as error:
        # A certificate that only Python's own client does not know: someone is there.
        return isinstance(getattr(error, "reason", error), ssl.SSLError)


def _seconds() -> float:
    try:
        return max(float(os.environ.get("HF_HUB_ETAG_TIMEOUT", SECONDS)), 0.1)
    except ValueError:
        return SECONDS


# One file, resumed after a break: what has arrived is kept only while it is of the same file.

#: A server that asks for more patience than five minutes gets its answer in another run.
DOWNLOAD = RetryPolicy(attempts=6, answer_timeout=60.0, connect_timeout=20.0, longest_retry_after=300.0)
_TOKENS = (("huggingface.co", ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")), ("zenodo.org", ("ZENODO_TOKEN",)))
#: What servers do to a file on its way, and can be undone.
_UNDONE = frozenset({"gzip", "deflate"})
#: Called with a file's name, the bytes that are there, and how many there will be (None: not known).
Progress = Callable[[str, int, int | None], None]


@dataclass(frozen=True)
class _Wanted:
    """A file to fetch; its size is None where nobody published it."""

    url: str
    part: Path
    name: str
    bytes: int | None
    progress: Progress | None
    stop: threading.Event

    @property
    def host(self) -> str:
        return urlsplit(self.url).hostname or self.url


class TransferStoppedError(Exception):
    """Another file failed, or the user interrupted: what has arrived stays for the next run."""


class OtherSizeError(HistobenchError):
    """The server offers a file of another size than the published one."""


class _PassingError(Exception):
    """The server says to come back later, in `wait` seconds if it says when."""

    def __init__(self, message: str, wait: float = 0.0) -> None:
        super().__init__(message)
        self.wait = wait


def transfer(
    url: str,
    part: Path,
    *,
    name: str,
    size: int | None = None,
    progress: Progress | None = None,
    pause: float = 1.0,
    stop: threading.Event | None = None,
) -> None:
    """Bring the bytes at `url` to `part`; whether they are the right ones is for the caller to check.

    A line that breaks is tried again as long as each try gets further than all before it.
    """
    import httpx

    file = _Wanted(url, part, name, size, progress, stop or threading.Event())
    try:
        urlsplit(url), httpx.URL(url)
    except (ValueError, httpx.InvalidURL) as error:
        raise HistobenchError(f"{name}: {url} is not a valid address ({error})") from error
    failures, furthest = 0, 0
    with open_client(DOWNLOAD) as client:
        while True:
            wait = 0.0
            try:
                if _stream(client, file):
                    return
                reason = "the connection ended before the file was complete"
            except (httpx.TooManyRedirects, httpx.UnsupportedProtocol, httpx.LocalProtocolError) as error:
                raise HistobenchError(f"{name}: {error} ({file.host})") from error
            except httpx.HTTPError as error:
                reason = str(error) or type(error).__name__
            except _PassingError as error:
                reason, wait = str(error), error.wait
            # Only getting further counts: a server that always breaks at the same place, or that takes back
            # what it gave, would be asked for ever.
            have = part.stat().st_size if part.exists() else 0
            failures = 1 if have > furthest else failures + 1
            furthest = max(furthest, have)
            if failures >= DOWNLOAD.attempts:
                raise HistobenchError(
                    f"{name}: {reason} ({file.host}); the partial download is kept; run the command again"
                )
            seconds = max(wait, pause * DOWNLOAD.pause(failures, jitter=1.0))
            _log.warning(
                "%s: %s (%s); retrying in %.0f s, attempt %d of %d",
                *(name, reason, file.host, seconds, failures + 1, DOWNLOAD.attempts),
            )
            if file.stop.wait(seconds):
                raise TransferStoppedError


def open_client(policy: RetryPolicy = DOWNLOAD) -> httpx.Client:
    """A client with the time-outs of a policy, and the proxies and certificates of the environment."""
    import httpx

    try:
        timeout = httpx.Timeout(policy.answer_timeout, connect=policy.connect_timeout)
        return httpx.Client(follow_redirects=True, timeout=timeout)
    except (ValueError, OSError, httpx.InvalidURL) as error:
        # The proxies and certificates of the environment are read here.
        raise HistobenchError(
            f"cannot connect: {error}; check HTTP_PROXY, HTTPS_PROXY, ALL_PROXY, NO_PROXY and SSL_CERT_FILE"
        ) from error


def _stream(client: httpx.Client, file: _Wanted) -> bool:
    """Append what is missing; whether the file is whole now."""
    have, note = _resume_point(file)
    if have and have == file.bytes:
        return True  # it broke off between the last byte and the check
    headers = {"Accept-Encoding": "identity", **_authorisation(file.url)}
    if have:
        headers["Range"] = f"bytes={have}-"
        if note.get("same"):
            headers["If-Range"] = note["same"]
    with client.stream("GET", file.url, headers=headers) as answer:
        if answer.status_code == 416:
            if answer.headers.get("content-range", "").strip() == f"bytes */{have}":
                return True  # there is nothing behind what is here
            file.part.unlink(missing_ok=True)
            raise _PassingError("the file on the server has changed")
        _check_status(answer, file)
        if answer.status_code == 206 and not _continues(answer, have, note):
            file.part.unlink(missing_ok=True)
            raise _PassingError("the server sent a different part than requested")
        if answer.status_code != 206:
            have = 0
        packed = _packed(answer, file)
        total = None if packed else _total(answer, have)
        kind = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind in ("text/html", "application/xhtml+xml") and not expects_page(file.name):
            raise _page_error(file)
        if file.bytes is not None and total is not None and total != file.bytes:
            raise OtherSizeError(
                f"{file.name}: the server offers {total:,} bytes, but {file.bytes:,} are published;"
                " nothing was kept"
            )
        # What was packed on its way cannot be continued: without a note a next try begins anew.
        if packed:
            note_of(file.part).unlink(missing_ok=True)
        else:
            note = {"url": file.url, "same": _same(answer), "total": total}
            note_of(file.part).write_text(json.dumps(note), encoding="utf-8")
        total = total or file.bytes
        chunks = answer.iter_bytes() if packed else answer.iter_raw()  # as it comes: a break loses nothing
        have = _append(chunks, file, have, total)
    return total is None or have >= total


def _append(chunks: Iterator[bytes], file: _Wanted, have: int, total: int | None) -> int:
    """Write chunks behind the first `have` bytes of the part; returns how many there are then."""
    part = file.part
    with part.open("r+b" if have and part.exists() else "wb") as handle:
        handle.seek(have)
        handle.truncate()
        for chunk in chunks:
            if not have and is_page(chunk) and not expects_page(file.name):
                handle.close()
                discard(part)
                raise _page_error(file)
            handle.write(chunk)
            have += len(chunk)
            if file.bytes is not None and have > file.bytes:
                handle.close()
                discard(part)
                raise HistobenchError(
                    f"{file.name}: the server sends more than the {file.bytes:,} published bytes;"
                    " nothing was kept"
                )
            if file.progress is not None:
                file.progress(file.name, have, total)
            if file.stop.is_set():
                raise TransferStoppedError
        handle.flush()
        os.fsync(handle.fileno())
    return have


def _check_status(answer: httpx.Response, file: _Wanted) -> None:
    code = answer.status_code
    if code in PASSING:
        wait = retry_after(answer.headers) or 0.0
        if wait > DOWNLOAD.longest_retry_after:
            raise HistobenchError(
                f"{file.name}: {file.host} answered {code} and asked to retry in {wait / 60:.0f} minutes;"
                " the partial download is kept; run the command again then"
            )
        raise _PassingError(f"the server answered {code}", wait)
    if code in (401, 403):
        variables = next((names for host, names in _TOKENS if file.host.endswith(host)), ())
        hint = f"; set {variables[0]} to a token that has access" if variables else ""
        raise HistobenchError(f"{file.name}: {file.host} refuses access ({code}){hint}")
    if code in (404, 410):
        raise HistobenchError(f"{file.name}: no longer available ({code}): {file.url}")
    if code not in (200, 206):
        raise HistobenchError(f"{file.name}: {file.host} answered {code}; nothing was kept")


def _packed(answer: httpx.Response, file: _Wanted) -> bool:
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
        f"{file.name}: {file.host} sent it compressed ({', '.join(sorted(said))}), which was not asked for;"
        " nothing was kept"
    )


def _page_error(file: _Wanted) -> HistobenchError:
    return HistobenchError(
        f"{file.name}: {file.host} answered with a web page instead of the file"
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


def expects_page(name: str) -> bool:
    """Whether a file of that name is meant to be a web page."""
    return name.lower().endswith((".html", ".htm"))


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


def _resume_point(file: _Wanted) -> tuple[int, dict[str, Any]]:
    """Bytes that can be kept, and what is known of them; a part of another address is thrown away."""
    try:
        note = parse_json(read_plain_text(note_of(file.part)))
        if note["url"] == file.url:
            return file.part.stat().st_size, note
    except (OSError, ValueError, KeyError, TypeError):
        pass
    file.part.unlink(missing_ok=True)
    return 0, {}


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
                raise HistobenchError(f"{' or '.join(variables)}: the token contains invalid characters")
            return {"Authorization": f"Bearer {token}"} if token else {}
    return {}
