"""Addresses of servers: what of them may be shown, what is secret, and how a path is added to one.

They are taken apart by hand: a password that should have been percent-encoded, or half a bracket, must
neither raise nor show anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import unquote, unquote_plus

HIDDEN = "[hidden]"
#: Parameters whose values are shown. Every other may be a key, whatever it is called.
_SHOWN = frozenset({"api-version", "api_version", "version", "deployment", "alt", "model"})
_PLAIN_VALUE = re.compile(r"[\w.:-]{1,40}")
#: Names that are given to keys.
_KEY_NAME = re.compile(
    r"(?:.*[-_.])?(?:\w*key|\w*token|\w*secret|pass\w*|pwd|sig|signature|auth\w*|code)", re.I
)
#: A value of an unknown name that is as long may well be a key.
_LONG = 16


class Address(NamedTuple):
    """The pieces of an address; joined again with their signs they give the same text."""

    scheme: str  # with ://
    user: str  # with @
    host: str  # and port
    path: str
    query: str  # with ?
    fragment: str  # with #


def split_address(text: str) -> Address:
    """The pieces; a user's name or password may hold signs that belong into no address.

    >>> split_address("http://me:a/b@host/v1?x=1#y")
    Address(scheme='http://', user='me:a/b@', host='host', path='/v1', query='?x=1', fragment='#y')
    """
    found = re.match(r"[A-Za-z][A-Za-z0-9+.-]*://|//", text)
    scheme = found[0] if found else ""
    rest = text[len(scheme) :]
    at = _end_of_user(rest)
    user, rest = rest[:at], rest[at:]
    rest, sharp, fragment = rest.partition("#")
    rest, mark, query = rest.partition("?")
    host, slash, path = rest.partition("/")
    return Address(scheme, user, host, slash + path, mark + query, sharp + fragment)


def _end_of_user(rest: str) -> int:
    """Where the host begins: behind the @ that ends the user and the password, if there are any."""
    host = re.split(r"[/?#]", rest, maxsplit=1)[0]
    # `me:a/b@host`: what looks like host and port may be a name and the beginning of a password. Whoever has
    # an @ in a parameter behind a port has to write %40.
    return (rest if ":" in host else host).rfind("@") + 1


def without_credentials(url: str) -> str:
    """The address as it may be shown: no user, no password, no fragment, and of few parameters the values.

    >>> without_credentials("https://me:pass@host:8000/v1?subscription-key=42&api-version=2")
    'https://[hidden]@host:8000/v1?subscription-key=[hidden]&api-version=2'
    """
    parts = split_address(url)
    user = f"{HIDDEN}@" if parts.user else ""
    path = re.sub(r"(;[^/;=]*=)[^/;]*", rf"\1{HIDDEN}", parts.path)
    query = "".join(
        piece if is_sign else _shown_parameter(piece) for piece, is_sign in _parameters(parts.query)
    )
    fragment = f"#{HIDDEN}" if len(parts.fragment) > 1 else ""
    return f"{parts.scheme}{user}{parts.host}{path}{query}{fragment}"


def has_credentials(url: str) -> bool:
    """Whether a password or a key is in an address, as far as its names tell."""
    return bool(split_address(url).user) or any(_is_key(name, value) for name, value in _named_values(url))


def credentials_in(url: str) -> Iterator[str]:
    """Every part of an address that may be secret, as it is written and as it is meant."""
    user = split_address(url).user.removesuffix("@")
    name, colon, password = user.partition(":")
    for secret in (password, f"{name}:{password}") if colon else (name,):
        yield from (secret, unquote(secret))
    for name, value in _named_values(url):
        if _is_key(name, value):
            yield from (value, unquote_plus(value))


def address_identity(url: str) -> str:
    """Names the server for a cache: without keys, but with whatever else tells one answer from another.

    It may hold a secret under an odd name, and is for hashing alone.
    """
    parts = split_address(url)
    query = "".join(
        piece if is_sign or not _is_key(*_name_and_value(piece)) else piece.partition("=")[0]
        for piece, is_sign in _parameters(parts.query)
    )
    user = f"{HIDDEN}@" if parts.user else ""
    return f"{parts.scheme}{user}{parts.host}{parts.path}{query}"


def joined(base: str, path: str) -> str:
    """An address with a path added before its parameters; a fragment is never sent.

    >>> joined("https://host/v1/?api-version=2", "chat/completions")
    'https://host/v1/chat/completions?api-version=2'
    """
    parts = split_address(base)
    return f"{parts.scheme}{parts.user}{parts.host}{parts.path.rstrip('/')}/{path}{parts.query}"


def _parameters(query: str) -> Iterator[tuple[str, bool]]:
    """The pieces of a query and, told apart, the signs between them."""
    for position, piece in enumerate(re.split(r"([?&;])", query)):
        if piece:
            yield piece, position % 2 == 1


def _name_and_value(piece: str) -> tuple[str, str]:
    name, equals, value = piece.partition("=")
    return (unquote_plus(name), value) if equals else ("", name)


def _named_values(url: str) -> Iterator[tuple[str, str]]:
    parts = split_address(url)
    for text in (parts.query, parts.fragment[1:], *re.findall(r";[^/;]*", parts.path)):
        for piece, is_sign in _parameters(text):
            if not is_sign:
                yield _name_and_value(piece)


def _is_key(name: str, value: str) -> bool:
    return name.lower() not in _SHOWN and (bool(_KEY_NAME.fullmatch(name)) or len(value) >= _LONG)


def _shown_parameter(piece: str) -> str:
    name, value = _name_and_value(piece)
    if name.lower() in _SHOWN and _PLAIN_VALUE.fullmatch(value):
        return piece
    return f"{piece.partition('=')[0]}={HIDDEN}" if name else HIDDEN
