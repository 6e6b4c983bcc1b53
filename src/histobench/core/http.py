"""HTTP: which failures are worth a retry, how long to wait, and downloads that resume."""

from __future__ import annotations

import email.utils
import json
import logging
import os
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from histobench.core.errors import HistobenchError
from histobench.core.files import read_plain_text
from histobench.core.plain_data import parse_json

if TYPE_CHECKING:
    import httpx

_log = logging.getLogger(__name__)
#: Worth a retry: time-outs, conflicts, rate limits, overload and server errors.
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
        return min(self.first_pause * 2.0 ** min(failures - 1, 30), self.longest_pause) * share


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that a server asks to wait: a number, milliseconds or a date; None where it does not say.

    >>> retry_after({"retry-after": "3"})
    3.0
    """
    value = headers.get("retry-after", "")
    try:
        if "retry-after-ms" in headers:
            return max(0.0, float(headers["retry-after-ms"]) / 1000)
        if "," in value:
            return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
        return max(0.0, float(value))
    except (ValueError, TypeError, OverflowError):
        return None


class UnreachableError(Exception):
    """The server did not answer in time."""


def call_while_reachable(function: Callable[[], Any], url: str) -> Any:
    """Call `function`, which talks to `url`, if that server answers within `HF_HUB_ETAG_TIMEOUT` (2 s).

    Download libraries try for half a minute before they report that there is no network.
    """
    seconds = float(os.environ.get("HF_HUB_ETAG_TIMEOUT") or 2.0)
    found: list[bool] = []
    # In a thread: a name server can be silent for longer than any time-out of a connection.
    probe = threading.Thread(target=lambda: found.append(answers(url, seconds)), daemon=True)
    probe.start()
    probe.join(1.25 * seconds)
    if not any(found):
        raise UnreachableError(url)
    return function()


def answers(url: str, seconds: float) -> bool:
    """Return whether a server says anything, be it an error."""
    import httpx

    try:
        # Nothing is sent or read, so any certificate will do: the library that downloads may know others.
        httpx.head(url, timeout=seconds, verify=False)
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, OSError):
        return False
    return True


#: A server that asks to wait for more than five minutes is asked by another run.
DOWNLOAD = RetryPolicy(attempts=6, answer_timeout=60.0, connect_timeout=20.0, longest_retry_after=300.0)
_TOKENS = (("huggingface.co", ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")), ("zenodo.org", ("ZENODO_TOKEN",)))
#: Called with a file's name, the bytes that are there, and how many there will be (None: not known).
Progress = Callable[[str, int, int | None], None]


class TransferStoppedError(Exception):
    """Another file failed, or the user interrupted: what has arrived stays for the next run."""


class OtherSizeError(HistobenchError):
    """The server offers a file of another size than the published one."""


class _RetryError(Exception):
    """The request is worth a retry, after `wait` seconds if the server says so."""

    def __init__(self, message: str, wait: float = 0.0) -> None:
        super().__init__(message)
        self.wait = wait


def open_client(policy: RetryPolicy = DOWNLOAD) -> httpx.Client:
    """Open a client with the time-outs of a policy, and the proxies and certificates of the environment."""
    import httpx

    try:
        timeout = httpx.Timeout(policy.answer_timeout, connect=policy.connect_timeout)
        return httpx.Client(follow_redirects=True, timeout=timeout)
    except (ValueError, OSError, httpx.InvalidURL) as error:
        raise HistobenchError(
            f"cannot connect: {error}; check HTTP_PROXY, HTTPS_PROXY, ALL_PROXY, NO_PROXY and SSL_CERT_FILE"
        ) from error


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
    """Download `url` to `part`, from where an earlier try stopped; checksums are for the caller to compare.

    A broken connection is tried again as long as each try gets further than all before it.
    """
    import httpx

    stop = stop or threading.Event()
    try:
        host = httpx.URL(url).host
    except httpx.InvalidURL as error:
        raise HistobenchError(f"{name}: {url} is not a valid address ({error})") from error
    failures, furthest = 0, 0
    with open_client(DOWNLOAD) as client:
        while True:
            wait = 0.0
            try:
                if _stream(client, url, part, name, size, progress, stop):
                    return
                reason = "the connection ended before the file was complete"
            except (httpx.TooManyRedirects, httpx.UnsupportedProtocol, httpx.LocalProtocolError) as error:
                raise HistobenchError(f"{name}: {error} ({host})") from error
            except httpx.HTTPError as error:
                reason = str(error) or type(error).__name__
            except _RetryError as error:
                reason, wait = str(error), error.wait
            have = part.stat().st_size if part.exists() else 0
            failures = 1 if have > furthest else failures + 1
            furthest = max(furthest, have)
            if failures >= DOWNLOAD.attempts or wait > DOWNLOAD.longest_retry_after:
                later = f" and asked to retry in {wait / 60:.0f} minutes" if wait else ""
                raise HistobenchError(
                    f"{name}: {reason}{later} ({host}); the partial download is kept; run the command again"
                )
            seconds = max(wait, pause * DOWNLOAD.pause(failures, jitter=1.0))
            _log.warning(
                "%s: %s (%s); retrying in %.0f s, attempt %d of %d",
                *(name, reason, host, seconds, failures + 1, DOWNLOAD.attempts),
            )
            if stop.wait(seconds):
                raise TransferStoppedError


def _stream(
    client: httpx.Client,
    url: str,
    part: Path,
    name: str,
    size: int | None,
    progress: Progress | None,
    stop: threading.Event,
) -> bool:
    """Append what is missing; return whether the file is complete now."""
    have, note = _resume_point(url, part)
    if have and have == size:
        return True  # it broke off between the last byte and the check
    headers = {"Accept-Encoding": "identity", **_authorisation(url)}
    if have:
        headers["Range"] = f"bytes={have}-"
        headers |= {"If-Range": note["same"]} if note.get("same") else {}
    with client.stream("GET", url, headers=headers) as answer:
        reply = answer.headers
        content_range = reply.get("content-range", "").strip()
        if answer.status_code == 416 and content_range == f"bytes */{have}":
            return True
        resumes = answer.status_code == 206 and have > 0
        tag = reply.get("etag", "")
        # Weak tags do not promise the same bytes.
        same = tag if tag and not tag.startswith("W/") else reply.get("last-modified", "")
        length = content_range.rpartition("/")[2] if resumes else reply.get("content-length", "")
        total = int(length) if length.isascii() and length.isdecimal() else None
        before, now = (note.get("same"), note.get("total")), (same, total)
        changed = any(old != new for old, new in zip(before, now, strict=True) if old and new)
        if answer.status_code == 416 or (
            resumes and (changed or not content_range.startswith(f"bytes {have}-"))
        ):
            part.unlink(missing_ok=True)
            raise _RetryError("the file on the server has changed")
        _check_status(answer, url, name)
        if size is not None and total is not None and total != size:
            raise OtherSizeError(
                f"{name}: the server offers {total:,} bytes, but {size:,} are published; nothing was kept"
            )
        note_of(part).write_text(json.dumps({"url": url, "same": same, "total": total}), encoding="utf-8")
        total = total or size
        have = have if resumes else 0
        with part.open("r+b" if have else "wb") as handle:
            handle.truncate(have)
            handle.seek(have)
            for chunk in answer.iter_raw():  # many servers say gzip of files that are .gz by themselves
                handle.write(chunk)
                have += len(chunk)
                if progress is not None:
                    progress(name, have, total)
                if stop.is_set():
                    raise TransferStoppedError
            handle.flush()
            os.fsync(handle.fileno())
    return total is None or have >= total


def _check_status(answer: httpx.Response, url: str, name: str) -> None:
    code, host = answer.status_code, urlsplit(url).hostname or url
    kind = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
    if code in PASSING:
        raise _RetryError(f"the server answered {code}", retry_after(answer.headers) or 0.0)
    if code in (401, 403):
        variable = next((names[0] for domain, names in _TOKENS if host.endswith(domain)), None)
        hint = f"; set {variable} to a token that has access" if variable else ""
        raise HistobenchError(f"{name}: {host} refuses access ({code}){hint}")
    if code in (404, 410):
        raise HistobenchError(f"{name}: no longer available ({code}): {url}")
    if code not in (200, 206):
        raise HistobenchError(f"{name}: {host} answered {code}; nothing was kept")
    if kind in ("text/html", "application/xhtml+xml") and not expects_page(name):
        raise HistobenchError(
            f"{name}: {host} answered with a web page instead of the file"
            " (a login, a form or an error); open the dataset's homepage in a browser"
        )


def is_page(beginning: bytes) -> bool:
    """Return whether a file that begins so is a web page."""
    text = beginning[:256].removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    return text.startswith((b"<!doctype html", b"<html", b"<head", b"<!--"))


def expects_page(name: str) -> bool:
    """Return whether a file of that name is meant to be a web page."""
    return name.lower().endswith((".html", ".htm"))


def note_of(part: Path) -> Path:
    return part.with_name(f"{part.name}.json")


def discard(part: Path) -> None:
    part.unlink(missing_ok=True)
    note_of(part).unlink(missing_ok=True)


def _resume_point(url: str, part: Path) -> tuple[int, dict[str, Any]]:
    """Return the bytes that can be kept and their note; a part of another address is deleted."""
    try:
        note = parse_json(read_plain_text(note_of(part)))
        if note["url"] == url:
            return part.stat().st_size, note
    except (OSError, ValueError, KeyError, TypeError):
        pass
    part.unlink(missing_ok=True)
    return 0, {}


def _authorisation(url: str) -> dict[str, str]:
    parts = urlsplit(url)
    for host, variables in _TOKENS:
        # A token never travels in the clear.
        if parts.scheme == "https" and f".{parts.hostname}".endswith(f".{host}"):
            token = next((os.environ[name] for name in variables if os.environ.get(name)), None)
            if token is None and host == "huggingface.co":
                from huggingface_hub import get_token

                token = get_token()
            # A token that was read from a file may end with a line end.
            token = (token or "").strip()
            if not token.isascii():
                raise HistobenchError(f"{' or '.join(variables)}: the token contains invalid characters")
            return {"Authorization": f"Bearer {token}"} if token else {}
    return {}
