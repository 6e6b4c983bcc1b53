"""Known keys and the credentials of addresses are not shown."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import quote, quote_plus, urlsplit

import pytest

from histobench.core import redaction
from histobench.core.redaction import (
    HIDDEN,
    address_identity,
    environment_without_keys,
    has_credentials,
    joined,
    redact,
    redact_speech,
    remember_credentials,
    remember_secret,
    without_credentials,
)

SECRET = "S3cretS3cret"


@pytest.fixture(autouse=True)
def nothing_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test begins with no key known."""
    monkeypatch.setattr(redaction, "_known", set())


@pytest.mark.parametrize("write", [str, quote, quote_plus, lambda key: quote(key, safe="")])
@pytest.mark.parametrize("key", ["a-plain-key-1", 'a+weird/key"with=signs é', "50%key"])
def test_a_known_key_is_hidden_plain_and_url_encoded(key: str, write: Callable[[str], str]) -> None:
    remember_secret("weird/key")  # a part of a longer key leaves nothing of it
    remember_secret(key)
    text = "max_tokens=12; code 401; http://127.0.0.1:8000/v1?api-version=2"
    assert redact(f"{text} <{write(key)}>") == f"{text} <{HIDDEN}>"


def test_the_password_and_the_keys_of_an_address_are_hidden() -> None:
    remember_credentials("http://someone:open%2Fsesame@host/v1?api_key=querysecret&api-version=2")
    assert redact("open/sesame open%2Fsesame querysecret 2") == f"{HIDDEN} {HIDDEN} {HIDDEN} 2"


def test_keys_of_the_environment_are_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_PROVIDER_API_KEY", "gargantuan-value-1")
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "a-setting-of-a-library")
    monkeypatch.setenv("SSH_KEY", "/home/me/.ssh/id_of_mine")
    monkeypatch.setenv("HTTPS_PROXY", "http://me:proxy-password@proxy:3128")
    text = "gargantuan-value-1 a-setting-of-a-library /home/me/.ssh/id_of_mine proxy-password"
    assert redact(text) == f"{HIDDEN} a-setting-of-a-library /home/me/.ssh/id_of_mine {HIDDEN}"


def test_short_words_in_an_answer_of_a_model_stay() -> None:
    remember_secret("a-real-key-of-some-length-1")
    remember_secret("orange")
    assert redact_speech("an orange; a-real-key-of-some-length-1") == f"an orange; {HIDDEN}"
    assert redact("an orange") == f"an {HIDDEN}"


def test_a_child_that_needs_no_key_gets_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "sk-1234567890abcdef")
    monkeypatch.setenv("HF_TOKEN", "hf_x")
    monkeypatch.setenv("HTTPS_PROXY", "http://me:secret@proxy:3128")
    monkeypatch.setenv("HTTP_PROXY", "http://proxy:3128")
    monkeypatch.setenv("PLAIN", "kept")
    environment = environment_without_keys()
    assert not {"SOME_API_KEY", "HF_TOKEN", "HTTPS_PROXY"} & environment.keys()
    assert (environment["PLAIN"], environment["HTTP_PROXY"]) == ("kept", "http://proxy:3128")
    assert environment["PATH"]


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        (f"https://me:{SECRET}@host/v1", f"https://{HIDDEN}@host/v1"),
        (f"https://{SECRET}@host/v1", f"https://{HIDDEN}@host/v1"),
        (f"https://host/v1?subscription-key={SECRET}", f"https://host/v1?subscription-key={HIDDEN}"),
        (
            f"https://host/v1?api%5Fkey={SECRET}&api-version=2",
            f"https://host/v1?api%5Fkey={HIDDEN}&api-version=2",
        ),
        ("https://host:80/v1?api-version=2", "https://host:80/v1?api-version=2"),
        (f"http://me:{SECRET}@[/v1", ""),  # a broken address holds and shows nothing
    ],
)
def test_no_secret_of_an_address_is_shown(address: str, shown: str) -> None:
    assert without_credentials(address) == shown
    assert has_credentials(address) == (HIDDEN in shown)


@pytest.mark.parametrize("query", ["", "?api-version=1", "?a=1&b=2", "?sig=x%2Fy"])
@pytest.mark.parametrize("base", ["http://host/v1/", "http://host", "http://me:p%2Fw@[::1]:80/a/b"])
def test_a_path_is_added_before_the_parameters(base: str, query: str) -> None:
    made, before = urlsplit(joined(f"{base}{query}#part", "chat/completions")), urlsplit(base)
    assert made.path == f"{before.path.rstrip('/')}/chat/completions"
    assert (made.netloc, f"?{made.query}", made.fragment) == (before.netloc, query or "?", "")


def test_a_cache_knows_servers_apart_but_not_their_keys() -> None:
    assert address_identity("http://h/v1?key=1") == address_identity("http://h/v1?key=2")
    assert address_identity("http://me:a@h/v1") == address_identity("http://me:b@h/v1")
    assert address_identity("http://h/v1?team=1") != address_identity("http://h/v1?team=2")
    assert address_identity("http://h:80/v1") == "http://h:80/v1"
