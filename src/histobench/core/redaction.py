"""Keys and passwords are hidden here, and nowhere else, before a text is shown or kept."""

from __future__ import annotations

import base64
import json
import re
import threading
from urllib.parse import parse_qsl, quote, unquote, urlsplit, urlunsplit

HIDDEN = "[hidden]"
#: A shorter word is no secret, and hiding it would hide parts of ordinary words.
_SHORTEST = 6
#: In what a model says, only what nobody writes by chance is hidden.
_SHORTEST_IN_SPEECH = 16
_NAMES = r"(?:x-)?(?:goog-)?api[-_]?key|access[-_]?token|auth[-_]?token|client[-_]?secret|password|secret"
_KEY_NAME = re.compile(rf"(?:{_NAMES}|key|token|sig|signature|auth|code)", re.IGNORECASE)
_PATTERNS = (
    # What follows an authentication scheme: a word with a digit, or a long one ("bearer token" is none).
    (re.compile(r"\b(bearer|basic)(\s+)(?=[^\s\"',;<>]*\d|[^\s\"',;<>]{16})[^\s\"',;<>\\]+", re.I), r"\1\2"),
    (re.compile(rf"\b({_NAMES})([\"'\\]*\s*[:=]\s*[\"'\\]*)[^\s\"'&,;<>\\]+", re.I), r"\1\2"),
    (re.compile(r"()()\b(?:sk|pk|rk|gsk|hf|xai)[-_][A-Za-z0-9_-]{16,}"), ""),
    (re.compile(r"()()\bAIza[A-Za-z0-9_-]{30,}"), ""),
    (re.compile(r"(://)()[^/\s@\"'<>]+(?=@)"), r"\1"),
    (re.compile(r"([?&](?:key|token|sig|signature|auth|code)=)()[^&\s\"'#<>]+", re.I), r"\1"),
)
_lock = threading.Lock()
_known: set[str] = set()


def remember_secret(secret: str) -> None:
    """From now on no text of this process shows `secret`, nor what URLs, JSON and headers make of it."""
    spellings = {secret, quote(secret, safe=""), json.dumps(secret)[1:-1]}
    spellings.add(base64.b64encode(secret.encode()).decode())
    with _lock:
        _known.update(spelling for spelling in spellings if len(spelling) >= _SHORTEST)


def remember_credentials(url: str) -> None:
    """The same for the user, the password and the keys in an address."""
    parts = urlsplit(url)
    if parts.password is not None:
        remember_secret(unquote(parts.password))
        remember_secret(f"{unquote(parts.username or '')}:{unquote(parts.password)}")
    for name, value in parse_qsl(parts.query):
        if _KEY_NAME.fullmatch(name):
            remember_secret(value)


def redact(text: str) -> str:
    """The text without any key that this process uses, and without whatever else looks like one.

    >>> redact("HTTP 401: you sent Authorization: Bearer abc123def to http://me:pass@host/v1?api_key=42")
    'HTTP 401: you sent Authorization: Bearer [hidden] to http://[hidden]@host/v1?api_key=[hidden]'
    """
    text = _without(text, _SHORTEST)
    for pattern, kept in _PATTERNS:
        text = pattern.sub(f"{kept}{HIDDEN}", text)
    return text


def redact_speech(text: str) -> str:
    """What a model says, without the keys of this process: a server may echo the request that it got."""
    return _without(text, _SHORTEST_IN_SPEECH)


def without_credentials(url: str) -> str:
    """The address without user, password and the values of keys.

    >>> without_credentials("https://me:pass@host:8000/v1?api_key=42&version=2")
    'https://[hidden]@host:8000/v1?api_key=[hidden]&version=2'
    """
    parts = urlsplit(url)
    place = parts.netloc.rpartition("@")
    netloc = f"{HIDDEN}@{place[2]}" if place[1] else parts.netloc
    query = "&".join(
        f"{name}={HIDDEN}" if _KEY_NAME.fullmatch(unquote(name)) else piece
        for piece in parts.query.split("&")
        for name in [piece.partition("=")[0]]
    )
    return urlunsplit((parts.scheme, netloc, parts.path, query, parts.fragment))


def _without(text: str, shortest: int) -> str:
    with _lock:
        # The longest first: one secret may be a part of another.
        secrets = sorted((secret for secret in _known if len(secret) >= shortest), key=len, reverse=True)
    for secret in secrets:
        text = text.replace(secret, HIDDEN)
    return text
