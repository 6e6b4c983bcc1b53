"""What of a server's address is shown, and what of it is sent."""

from __future__ import annotations

from urllib.parse import quote, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from histobench.core.address import (
    HIDDEN,
    address_identity,
    credentials_in,
    has_credentials,
    joined,
    split_address,
    without_credentials,
)

SECRET = "S3cretS3cret"
SHOWN = ("api-version", "api_version", "version", "deployment", "alt", "model")
names = st.text("abcdefghijklmnopqrstuvwxyz-_.KEY%5F", min_size=1, max_size=20)


@pytest.mark.parametrize(
    "address",
    [
        f"https://me:{SECRET}@host/v1",
        f"https://{SECRET}@host/v1",
        f"https://me:{SECRET}/x@host/v1",
        f"https://me:12/{SECRET}@host/v1",
        f"https://me:{SECRET}@x@host/v1",
        f"https://me:a?{SECRET}@host/v1",
        f"https://me:a#{SECRET}@host/v1",
        f"me:{SECRET}@host",
        f"//me:{SECRET}@host",
        f"https://host/v1?subscription-key={SECRET}",
        f"https://host/v1?pwd={SECRET}&pass={SECRET}&sig={SECRET}&code={SECRET}",
        f"https://host/v1?api%5Fkey={SECRET}",
        f"https://host/v1?api-version=2;anything={SECRET}",
        f"https://host/v1?api-version={SECRET}%26{SECRET}%26{SECRET}%26{SECRET}",
        f"https://host/v1?{SECRET}",
        f"https://host/v1#api_key={SECRET}",
        f"https://host/v1#{SECRET}",
        f"https://host/v1;key={SECRET}/more?x=1",
        f"http://[/?key={SECRET}",
        f"http://me:{SECRET}@[/v1",
    ],
)
def test_no_secret_of_an_address_is_shown(address: str) -> None:
    shown = without_credentials(address)
    assert SECRET not in shown
    assert HIDDEN in shown
    assert without_credentials(shown) == shown


@pytest.mark.slow
@given(
    name=names.filter(
        lambda name: name.lower() not in ("api-version", "version", "deployment", "alt", "model")
    ),
    sign=st.sampled_from("&;"),
    place=st.sampled_from(["?{}", "?x=1{s}{}", "?{}{s}x=1", "#{}"]),
)
def test_whatever_a_parameter_is_called_its_value_is_hidden(name: str, sign: str, place: str) -> None:
    address = "https://host:8000/v1" + place.format(f"{name}={SECRET}", s=sign)
    assert SECRET not in without_credentials(address)


@given(password=st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=8, max_size=20))
def test_a_password_is_hidden_with_whatever_signs_it_is_written(password: str) -> None:
    shown = without_credentials(f"https://me:{password}@host/v1")
    assert password not in shown
    assert shown.startswith(f"https://{HIDDEN}@")
    encoded = f"https://me:{quote(password, safe='')}@host/v1"
    assert without_credentials(encoded) == f"https://{HIDDEN}@host/v1"
    assert password in set(credentials_in(encoded))
    assert has_credentials(encoded)


@pytest.mark.slow
@given(text=st.text(max_size=60) | st.text("ab[]/:@?&;=#%.", max_size=30))
def test_no_text_makes_it_raise_and_the_pieces_are_the_text(text: str) -> None:
    assert "".join(split_address(text)) == text
    without_credentials(text)
    list(credentials_in(text))
    has_credentials(text)
    joined(text, "path")


def test_an_address_keeps_what_is_no_secret() -> None:
    for plain in (
        "http://localhost:8000/v1",
        "http://[::1]:8000/v1/",
        "https://h/openai/deployments/gpt?api-version=2024-02-01&model=x",
        "http://host/models/a@b",
    ):
        assert without_credentials(plain) == plain
        assert not has_credentials(plain)
    assert not has_credentials("http://host/v1?project=3")


@pytest.mark.parametrize("query", ["", "?api-version=1", "?a=1&b=2", "?sig=x%2Fy"])
@pytest.mark.parametrize(
    "base", ["http://host/v1", "http://host/v1/", "http://host", "http://me:p%2Fw@[::1]:80/a/b"]
)
def test_a_path_is_added_before_the_parameters(base: str, query: str) -> None:
    made, before = urlsplit(joined(f"{base}{query}#part", "chat/completions")), urlsplit(base)
    assert made.path == f"{before.path.rstrip('/')}/chat/completions"
    assert made.netloc == before.netloc
    assert f"?{made.query}" == (query or "?")
    assert made.fragment == ""


def test_a_cache_knows_servers_apart_but_not_their_keys() -> None:
    assert address_identity("http://h/v1?key=1") == address_identity("http://h/v1?key=2")
    assert address_identity("http://me:a@h/v1") == address_identity("http://me:b@h/v1")
    assert address_identity("http://h/v1?team=1") != address_identity("http://h/v1?team=2")
    assert address_identity("http://h:80/v1") == "http://h:80/v1"
