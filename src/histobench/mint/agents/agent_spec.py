"""An agent in one string, such as `openai:MODEL@http://host/v1`, `local:` or `replay:FILE`."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from ipaddress import ip_address
from urllib.parse import urlsplit

from histobench.core.errors import HistobenchError, did_you_mean
from histobench.core.redaction import (
    has_credentials,
    redact,
    remember_credentials,
    remember_secret,
    without_credentials,
)

#: Add a provider here: kind -> (default address, environment variables of its key). A new request format is a
#: class in `providers`.
PROVIDERS: dict[str, tuple[str | None, tuple[str, ...]]] = {
    "openai": ("https://api.openai.com/v1", ("OPENAI_API_KEY",)),
    "responses": ("https://api.openai.com/v1", ("OPENAI_API_KEY",)),
    "vllm": (None, ()),
    "anthropic": ("https://api.anthropic.com/v1", ("ANTHROPIC_API_KEY",)),
    "gemini": ("https://generativelanguage.googleapis.com/v1beta", ("GEMINI_API_KEY", "GOOGLE_API_KEY")),
}
#: The key for an address that the user gave: a provider's own key is never sent to another host.
OWN_KEY = "HISTOBENCH_API_KEY"
#: Set to 1 on a trusted network between here and a server that speaks plain HTTP.
PLAIN_HTTP = "HISTOBENCH_KEY_OVER_HTTP"
OTHERS = ("local", "replay", "human")
#: A user and a password behind the @: an address without a scheme, and no part of a model's name.
_PASSWORD = re.compile(r"@[^@\s]*:[^@\s]*@|@[\w.-]+:\d+(?:/|$)")
#: A password that holds a character with a meaning in addresses.
_SPECIAL = re.compile(r"https?://[^/?#@]*:[^@]*[/?#].*@")
EXAMPLES = (
    "openai:gpt-4o-mini, openai:MODEL@http://localhost:8000/v1, anthropic:MODEL, local:, replay:FILE, human"
)


@dataclass(frozen=True)
class AgentSpec:
    kind: str
    target: str = ""
    base_url: str | None = field(default=None, repr=False)  # may hold a password

    @property
    def is_endpoint(self) -> bool:
        return self.kind in PROVIDERS

    @property
    def folder_name(self) -> str:
        return re.sub(r"[^\w.+-]", "_", self.target.rstrip("/").rsplit("/", 1)[-1])

    def api_key(self) -> str | None:
        """The key for this address; raises where it is missing or would travel unencrypted."""
        default, variables = PROVIDERS[self.kind]
        foreign = default is None or urlsplit(self.base_url or "").netloc != urlsplit(default).netloc
        for variable in (OWN_KEY,) if foreign else variables:
            if key := _key(variable):
                self._check_encryption(f"the key in {variable}")
                return key
        if not foreign:
            raise HistobenchError(f"{self.kind}:{self.target} needs a key: set {' or '.join(variables)}")
        if has_credentials(self.base_url or ""):
            self._check_encryption("the password or key in its address")
        return None

    def _check_encryption(self, what: str) -> None:
        parts = urlsplit(self.base_url or "")
        if parts.scheme == "https" or _is_loopback(parts.hostname or ""):
            return
        if os.environ.get(PLAIN_HTTP) != "1":
            raise HistobenchError(
                f"{self} would send {what} unencrypted to {parts.hostname}; "
                f"write https://, or set {PLAIN_HTTP}=1 on a trusted network"
            )

    def __str__(self) -> str:
        default = PROVIDERS[self.kind][0] if self.is_endpoint else None
        address = ""
        if self.base_url and self.base_url != default:
            address = f"@{without_credentials(self.base_url)}"
        return self.kind if self.kind == "human" else f"{self.kind}:{self.target}{address}"


def parse_agent(text: str) -> AgentSpec:
    for url in re.split(r"@(?=https?://)", text)[1:]:
        remember_credentials(url)  # before any message repeats them
    kind, _, rest = text.strip().partition(":")
    known = (*PROVIDERS, *OTHERS)
    if kind not in known:
        raise HistobenchError(
            f"unknown agent {redact(text)!r}; {did_you_mean(kind, known)} (such as {EXAMPLES})"
        )
    if kind not in PROVIDERS:
        if kind == "replay" and not rest:
            raise HistobenchError("replay: needs a file or folder of recordings: replay:FILE.k5.jsonl.gz")
        return AgentSpec(kind, rest)
    # An @ that no address follows belongs to the model's name.
    position = rest.rfind("@http")
    model, address = (rest, "") if position < 0 else (rest[:position], rest[position + 1 :])
    base_url = address or PROVIDERS[kind][0]
    if not model:
        raise HistobenchError(
            f"{redact(text)!r} names no model; write {kind}:MODEL or {kind}:MODEL@http://host/v1"
        )
    if _PASSWORD.search(model):
        raise HistobenchError(f"{kind}:MODEL@ADDRESS: the address has no scheme; write http:// or https://")
    if base_url is None:
        raise HistobenchError(f"{redact(text)!r} names no address; write {kind}:MODEL@http://host/v1")
    if not _is_address(base_url):  # not repeated: it may hold a password
        raise HistobenchError(
            f"{kind}:{model}@ADDRESS: not a valid address; write one such as http://host/v1, and in a "
            "password %2F for /, %3F for ?, %23 for #, %40 for @"
        )
    return AgentSpec(kind, model, base_url)


def _key(variable: str) -> str | None:
    """The key in a variable. One that no header can carry is refused here, where no message repeats it."""
    key = os.environ.get(variable, "").strip()  # a key from a file often brings a line end along
    if not (key.isascii() and key.isprintable()):
        raise HistobenchError(f"{variable} contains characters that no key has; copy it again")
    if key:
        remember_secret(key)
    return key or None


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        refused = _SPECIAL.match(url) or ",http" in url
        return parts.scheme in ("http", "https") and bool(parts.hostname) and not refused
    except ValueError:  # half a bracket, as in http://[/v1
        return False


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
