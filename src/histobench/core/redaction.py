"""Keys and passwords are hidden here, and nowhere else, before a text is shown or kept.

What is promised: a key of this process is hidden where it is written as it is or as URLs, JSON, HTML, headers
and base64 write it, and so is whatever else looks like a key. A server that disguises the key it was sent
(reversed, in pieces, encrypted) is not seen through; it has the key already.
"""

from __future__ import annotations

import base64
import os
import re
import threading
from functools import lru_cache

from histobench.core.address import HIDDEN, credentials_in, without_credentials

#: A shorter word is no secret, and hiding it would hide parts of ordinary words.
_SHORTEST = 6
#: The same for what stands in variables of the environment that only sound like keys.
_SHORTEST_IN_ENVIRONMENT = 12
#: In what a model says, only what nobody writes by chance is hidden.
_SHORTEST_IN_SPEECH = 16
#: Variables of the environment that hold a key by their name.
_VARIABLE = re.compile(r"(?:.*_)?(?:API_?KEY|KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)", re.IGNORECASE)

_J = r"(?:[-_. ]|%5f|%2d)?"
#: Names that are given to keys and to nothing else.
_CLEAR = (
    rf"(?:api|access|secret|subscription|auth|account|master|shared|private|client|functions?){_J}key"
    rf"|(?<!max_)(?<!max-)(?<!max )token|secret|password|passwd|passphrase"
)
#: Names that are given to keys and to other things: these have to be followed by an equals sign.
_VAGUE = r"(?:pass|pwd|sig|signature|auth|code|key)"
#: A value in quotes, of whichever kind and however escaped, or a word; none of those that stand for a value.
_VALUE = (
    rf"(?:(?P<quote>\\*[\"'])(?!{re.escape(HIDDEN)})[^\r\n]*?(?=(?P=quote)|[\r\n]|\Z)"
    rf"|(?!{re.escape(HIDDEN)}|(?:\d{{1,6}}|null|none|true|false|value)\b)[^\s\"'&,;<>\\]{{3,}})"
)
_BETWEEN = r"[\"'\\]*\s*(?:[:=]|%3[ad])\s*b?"
#: What follows the word "bearer" in sentences about authentication.
_WORDS = (
    r"tokens?|auth\w*|schemes?|headers?|is|was|not|in|of|the|a|an|and|or|for|from|required|missing|invalid"
    r"|formats?|credentials?|keys?|access|with|to|only|errors?|prefix|types?|must|should|method"
)
_ADDRESS = re.compile(r"\b[a-z][a-z0-9+.-]{0,20}:(?:\\?/){2}[^\s\"'<>]+", re.IGNORECASE)
_PATTERNS = (
    (
        re.compile(
            r"\b((?:proxy-)?authorization[\"'\\]*\s*[:=,]\s*b?[\"'\\]*(?:\w+\s+)?+)"
            rf"(?!\s|{re.escape(HIDDEN)})[^\s\"',;<>\\]+",
            re.I,
        ),
        r"\1",
    ),
    (re.compile(rf"\b(bearer\s+)(?!(?:{_WORDS})\b|{re.escape(HIDDEN)})[^\s\"',;<>\\]+", re.I), r"\1"),
    (re.compile(r"\b(basic\s+)(?=[^\s\"',;<>]*[\d=]|[^\s\"',;<>]{16})[^\s\"',;<>\\]+", re.I), r"\1"),
    (re.compile(rf"((?:{_CLEAR})(?:{_BETWEEN}|[\"'\\]+\s*,\s*b?(?=[\"'\\]))){_VALUE}", re.I), r"\1\g<quote>"),
    (re.compile(rf"((?:\b|[?&;_-]){_VAGUE}(?:=|%3d)b?){_VALUE}", re.I), r"\1\g<quote>"),
    (
        re.compile(r"\b((?:set-)?cookie[\"'\\]*\s*:\s*[\"'\\]*)(?!\[hidden\])[^\s\"'\\][^\r\n\"'\\]*", re.I),
        r"\1",
    ),
    # Words by which providers let their keys begin.
    (
        re.compile(
            r"()\b(?:sk|pk|rk|gsk|csk|hf|xai|r8|fw|pplx|tvly|nvapi|glpat|dop_v1)[-_][A-Za-z0-9_-]{16,}"
        ),
        "",
    ),
    (re.compile(r"()\bsk-(?=[A-Za-z_-]*\d)[A-Za-z0-9_-]{6,}"), ""),
    (re.compile(r"()\b(?:gh[opusr]|github_pat)_[A-Za-z0-9_]{12,}"), ""),
    (re.compile(r"()\b(?:AKIA|ASIA)[A-Z0-9]{12,}"), ""),
    (re.compile(r"()\bAIza[A-Za-z0-9_-]{20,}"), ""),
    (re.compile(r"()\bya29\.[A-Za-z0-9_-]{16,}"), ""),
    (re.compile(r"()\bxox[a-z]-[A-Za-z0-9-]{8,}"), ""),
    (re.compile(r"()\beyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?"), ""),
    # A user and a password without the scheme in front; agents are written KIND:MODEL@http://..., encoders
    # my_file.py:Class@variant, and models may end with @DATE.
    (
        re.compile(
            r"()(?<![\w/.:@-])[^\s:@/\"'<>(),=]{1,64}(?<!\.py):(?!\\?/|\[hidden\])[^\s@\"'<>]{1,128}"
            r"(?=@(?!https?:|\d+(?![\d.:]))[\w\[])"
        ),
        "",
    ),
)
_ENTITIES = {"&": "amp", "<": "lt", ">": "gt", '"': "quot", "'": "apos"}
_lock = threading.Lock()
_known: set[str] = set()


def remember_secret(secret: str) -> None:
    """From now on no text of this process shows `secret`, nor what URLs, JSON and headers make of it."""
    if len(secret) >= _SHORTEST:
        with _lock:
            _known.add(secret)


def remember_credentials(url: str) -> None:
    """The same for the user, the password and the keys in an address."""
    for secret in credentials_in(url):
        remember_secret(secret)


def redact(text: str) -> str:
    """The text without any key that this process uses, and without whatever else looks like one.

    >>> redact("HTTP 401: you sent Authorization: Bearer abc123def to http://me:pass@host/v1?api_key=42")
    'HTTP 401: you sent Authorization: Bearer [hidden] to http://[hidden]@host/v1?api_key=[hidden]'
    """
    text = _without(text, _SHORTEST)
    text = _ADDRESS.sub(lambda found: _shown_address(found[0]), text)
    for pattern, kept in _PATTERNS:
        text = pattern.sub(f"{kept}{HIDDEN}", text)
    return text


def redact_speech(text: str) -> str:
    """What a model says, without the keys of this process: a server may echo the request that it got."""
    return _without(text, _SHORTEST_IN_SPEECH)


def _shown_address(written: str) -> str:
    address, slashes = written.replace("\\/", "/"), "\\/" in written
    # Sentences link to sections of manuals; a key behind the sharp has a name.
    page, sharp, section = address.partition("#")
    kept = f"#{section}" if sharp and re.fullmatch(r"[\w./:-]{0,80}", section) else ""
    shown = without_credentials(page if kept else address) + kept
    return shown.replace("/", "\\/") if slashes else shown


def _without(text: str, shortest: int) -> str:
    with _lock:
        secrets = {secret for secret in _known if len(secret) >= shortest}
    secrets |= {secret for secret in _in_environment() if len(secret) >= shortest}
    # The longest first: one secret may be a part of another.
    for secret in sorted(secrets, key=lambda word: (-len(word), word)):
        text = _spellings(secret).sub(HIDDEN, text)
    return text


def _in_environment() -> set[str]:
    """The values of variables that are called like keys; a path leads to a key and is none."""
    return {
        value.strip()
        for name, value in os.environ.items()
        if len(value.strip()) >= _SHORTEST_IN_ENVIRONMENT
        and not value.lstrip().startswith(("/", "~", "."))
        and _VARIABLE.fullmatch(name)
    }


def environment_without_keys() -> dict[str, str]:
    """The environment for a child that needs no key: without keys and without addresses with passwords."""
    with _lock:
        known = set(_known)
    return {
        name: value
        for name, value in os.environ.items()
        if not _VARIABLE.fullmatch(name)
        and value.strip() not in known
        and not ("://" in value and any(credentials_in(value)))
    }


@lru_cache(maxsize=256)
def _spellings(secret: str) -> re.Pattern[str]:
    """Finds a secret however it is written: as it is, in an address, in JSON, in HTML, in base64."""
    letters = "".join(_letter(sign) for sign in secret)
    # The last sign of base64 may belong to what follows as well.
    packed = [rf"{re.escape(part)}[\w+/-]?={{0,2}}" for part in sorted(_in_base64(secret.encode()))]
    return re.compile("|".join([letters, *packed]))


def _letter(sign: str) -> str:
    """A pattern for one sign: itself, escaped, or as a number."""
    octets = "".join(rf"%(?:25){{0,4}}{_digits(f'{octet:02x}')}" for octet in sign.encode())
    number = f"{ord(sign):04x}"
    ways = [rf"\\{{0,8}}{re.escape(sign)}" if sign in "\"'\\/" else re.escape(sign), octets]
    ways += [rf"\\{{1,8}}u{_digits(number)}", rf"&#(?:{ord(sign)}|[xX]0*{_digits(f'{ord(sign):x}')});"]
    if sign in _ENTITIES:
        ways.append(f"&{_ENTITIES[sign]};")
    if ord(sign) < 256:
        ways.append(rf"\\{{1,8}}x{_digits(f'{ord(sign):02x}')}")
    return f"(?:{'|'.join(ways)})"


def _digits(number: str) -> str:
    """Hexadecimal digits in small or capital letters."""
    return "".join(f"[{digit}{digit.upper()}]" if digit.isalpha() else digit for digit in number)


def _in_base64(secret: bytes) -> set[str]:
    """What is in base64 for sure, wherever in a longer text (`user:secret`) the secret begins."""
    found = set()
    for shift, first in ((0, 0), (1, 2), (2, 3)):
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            written = encode(b"\0" * shift + secret).decode()
            part = written[first : (shift + len(secret)) * 8 // 6]
            if len(part) >= _SHORTEST + 1:
                found.add(part)
    return found
