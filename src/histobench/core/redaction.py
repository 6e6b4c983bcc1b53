"""Hide known keys in texts, and add paths to server addresses without showing their credentials.

Known keys are those of this process: remembered ones, environment variables named like keys, and passwords in
addresses. Each is replaced literally, in the plain and the URL-encoded form; other encodings are not.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from urllib.parse import SplitResult, quote, quote_plus, unquote, unquote_plus, urlsplit

HIDDEN = "[hidden]"
#: Shorter words are not hidden: they are parts of ordinary words. Answers of models keep longer ones, too.
_SHORTEST, _SHORTEST_IN_ENVIRONMENT, _SHORTEST_IN_SPEECH = 6, 12, 16
_VARIABLE = re.compile(r"(?:.*_)?(?:API_?KEY|KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)", re.IGNORECASE)
_PARAMETER = re.compile(
    r"(?:.*[-_.])?(?:\w*key|\w*token|\w*secret|pass\w*|pwd|sig|signature|auth\w*|code)", re.I
)
#: Parameters of addresses whose values are shown.
_SHOWN = frozenset({"api-version", "api_version", "version", "deployment", "alt", "model"})
_known: set[str] = set()


def remember_secret(secret: str) -> None:
    """Hide `secret` in all texts of this process from now on."""
    _known.add(secret)


def remember_credentials(url: str) -> None:
    """Hide the password and the keys of an address from now on."""
    _known.update(credentials_in(url))


def redact(text: str, *, shortest: int = _SHORTEST) -> str:
    """Replace every known key of at least `shortest` characters.

    >>> remember_secret("a/secret")
    >>> redact("you sent a/secret to http://host/v1?sig=a%2Fsecret")
    'you sent [hidden] to http://host/v1?sig=[hidden]'
    """
    secrets = set(_known)
    for name, value in os.environ.items():
        # A path leads to a key and is not one.
        if _VARIABLE.fullmatch(name) and not value.lstrip().startswith(("/", "~", ".")):
            secrets.update({value.strip()} if len(value.strip()) >= _SHORTEST_IN_ENVIRONMENT else ())
        elif "://" in value:
            secrets.update(credentials_in(value))
    # The longest first: one secret may be a part of another.
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= shortest:
            for written in (secret, quote(secret, safe=""), quote(secret), quote_plus(secret)):
                text = text.replace(written, HIDDEN)
    return text


def redact_speech(text: str) -> str:
    """Replace long known keys in what a model says: a server may echo the request."""
    return redact(text, shortest=_SHORTEST_IN_SPEECH)


def environment_without_keys() -> dict[str, str]:
    """Return the environment for a child that needs no key and no address with a password."""
    return {
        name: value
        for name, value in os.environ.items()
        if not _VARIABLE.fullmatch(name) and value.strip() not in _known and not has_credentials(value)
    }


def without_credentials(url: str) -> str:
    """Return an address as it may be shown: without user, password, fragment and most parameter values.

    >>> without_credentials("https://me:pass@host:8000/v1?subscription-key=42&api-version=2")
    'https://[hidden]@host:8000/v1?subscription-key=[hidden]&api-version=2'
    """
    return _rewritten(url, lambda name: name.lower() not in _SHOWN, f"={HIDDEN}")


def address_identity(url: str) -> str:
    """Return what names a server in a cache, without its keys; for hashing only.

    >>> address_identity("http://me:pass@host/v1?key=1&team=2")
    'http://[hidden]@host/v1?key&team=2'
    """
    return _rewritten(url, lambda name: _PARAMETER.fullmatch(unquote(name)) is not None, "")


def joined(base: str, path: str) -> str:
    """Add a path before the parameters of an address; a fragment is never sent.

    >>> joined("https://host/v1/?api-version=2", "chat/completions")
    'https://host/v1/chat/completions?api-version=2'
    """
    parts = _split(base)
    return parts._replace(path=f"{parts.path.rstrip('/')}/{path}", fragment="").geturl()


def has_credentials(url: str) -> bool:
    """Return whether an address holds a password or a parameter named like a key."""
    return "://" in url and any(credentials_in(url))


def credentials_in(url: str) -> Iterator[str]:
    """Yield the password and the keys of an address, as written and as meant."""
    parts = _split(url)
    user, _, password = parts.netloc.rpartition("@")[0].partition(":")
    yield from (password or user, unquote(password or user))
    for name, _, value in (pair.partition("=") for pair in parts.query.split("&")):
        if _PARAMETER.fullmatch(unquote(name)):
            yield from (value, unquote_plus(value))


def _rewritten(url: str, hides: Callable[[str], bool], replacement: str) -> str:
    """Replace the user and the values of those parameters that `hides` picks."""
    parts = _split(url)
    _, at, host = parts.netloc.rpartition("@")
    pairs = [(pair.partition("=")[0], pair) for pair in parts.query.split("&") if pair]
    query = "&".join(f"{name}{replacement}" if hides(name) else pair for name, pair in pairs)
    return parts._replace(netloc=f"{HIDDEN}@{host}" if at else host, query=query, fragment="").geturl()


def _split(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError:  # half a bracket, as in http://[/v1
        return SplitResult("", "", "", "", "")
