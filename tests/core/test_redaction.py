"""No key and no password in a text that is shown or kept."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from urllib.parse import quote

import pytest

from histobench.core.redaction import (
    HIDDEN,
    redact,
    redact_speech,
    remember_credentials,
    remember_secret,
    without_credentials,
)

KEY = 'a+weird/key"with=signs'


@pytest.mark.parametrize(
    "spelling",
    [KEY, quote(KEY, safe=""), json.dumps({"echo": KEY}), base64.b64encode(KEY.encode()).decode()],
)
def test_a_key_of_this_process_is_hidden_in_every_spelling(spelling: str) -> None:
    remember_secret(KEY)
    shown = redact(f"the server said {spelling} and no more")
    assert spelling not in shown
    assert "weird" not in shown
    assert HIDDEN in shown


def test_the_password_of_an_address_is_hidden_also_as_a_header() -> None:
    remember_credentials("http://someone:opensesame@host/v1?api_key=querysecret&v=2")
    basic = base64.b64encode(b"someone:opensesame").decode()
    shown = redact(f"opensesame querysecret Basic {basic} v=2")
    assert shown == f"{HIDDEN} {HIDDEN} Basic {HIDDEN} v=2"


@pytest.mark.parametrize(
    "text",
    [
        "Authorization: Bearer abc123",
        '{"authorization": "Bearer Zm9vYmFy42"}',
        "x-api-key: deadbeef99",
        '{"X-Api-Key": "deadbeef99"}',
        r'"{\"x-goog-api-key\": \"deadbeef99\"}"',
        "https://host/v1?api_key=deadbeef99&x=1",
        "https://host/v1?x=1&key=deadbeef99",
        "https://user:deadbeef99@host/v1",
        "Incorrect API key provided: sk-proj-deadbeef99deadbeef99",
    ],
)
def test_what_looks_like_a_key_is_hidden_although_nobody_named_it(text: str) -> None:
    shown = redact(text)
    assert HIDDEN in shown
    assert not any(secret in shown for secret in ("abc123", "Zm9vYmFy42", "deadbeef99"))


@pytest.mark.parametrize(
    "text",
    [
        "HTTP 400: unsupported parameter: 'max_tokens' is not supported",
        "bearer token missing",
        "http://127.0.0.1:8000/v1: given up after 10 attempts",
        "the key of this map is written below",
        "a risk-averse answer, sk-short",
    ],
)
def test_ordinary_complaints_stay_as_they_are(text: str) -> None:
    assert redact(text) == text


def test_what_a_model_says_loses_only_real_keys() -> None:
    remember_secret("a-real-key-of-some-length-1")
    remember_secret("orange")
    assert redact_speech("an orange; a-real-key-of-some-length-1") == f"an orange; {HIDDEN}"


def test_an_address_keeps_what_is_no_secret() -> None:
    assert without_credentials("http://localhost:8000/v1") == "http://localhost:8000/v1"
    assert (
        without_credentials("https://h/v1?api-version=3&sig=42") == f"https://h/v1?api-version=3&sig={HIDDEN}"
    )


def test_hiding_takes_no_more_than_linear_time() -> None:
    """Texts on which a careless pattern needs hours; the process is ended if one does."""
    units = ["bearer ", "bearer", "://", "api_key", 'api_key"', "sk-", "?key=", "://a@", "password: ", "\\"]
    script = f"from histobench.core.redaction import redact\nfor unit in {units}: redact(unit * 100_000)"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=600)
