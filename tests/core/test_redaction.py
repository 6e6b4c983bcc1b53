"""No key and no password in a text that is shown or kept."""

from __future__ import annotations

import base64
import html
import json
import re
import string
import subprocess
import sys
from collections.abc import Callable
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from histobench.core import redaction
from histobench.core.address import HIDDEN
from histobench.core.redaction import (
    environment_without_keys,
    redact,
    redact_speech,
    remember_credentials,
    remember_secret,
)

KEY = 'a+weird/key"with=signs'
SECRETS = ("abc123", "Zm9vYmFy42", "deadbeef99", "hunter/2@x", "opensesame")
keys = st.text(
    string.ascii_letters + string.digits + "-_+/=.:\"'\\&?#@%~$!*é", min_size=8, max_size=60
).filter(lambda key: key.strip() == key and sum(sign.isalnum() for sign in key) >= 6)
CARRIERS: list[Callable[[str], str]] = [
    lambda key: key,
    lambda key: quote(key, safe=""),
    lambda key: re.sub("%..", lambda code: code[0].lower(), quote(key, safe="")),
    quote_plus,
    lambda key: "".join(f"%{octet:02X}" for octet in key.encode()),
    lambda key: quote(quote(key, safe=""), safe=""),
    lambda key: json.dumps({"echo": key}),
    lambda key: json.dumps({"echo": key}, ensure_ascii=False),
    lambda key: json.dumps({"echo": json.dumps({"headers": key})}),
    lambda key: json.dumps(key).replace("/", "\\/"),
    lambda key: "".join(f"\\u{ord(sign):04X}" for sign in key),
    html.escape,
    lambda key: base64.b64encode(key.encode()).decode(),
    lambda key: base64.urlsafe_b64encode(key.encode()).decode(),
    lambda key: base64.b64encode(f"u:{key}".encode()).decode(),
    lambda key: base64.b64encode(f"me:{key}:more".encode()).decode(),
    repr,
]


@pytest.fixture(autouse=True)
def nothing_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test begins with no key known."""
    monkeypatch.setattr(redaction, "_known", set())


@given(key=keys, carrier=st.sampled_from(CARRIERS), before=st.sampled_from(["", "said ", '{"x": "', "%"]))
def test_a_key_of_this_process_is_hidden_however_it_is_written(
    key: str, carrier: Callable[[str], str], before: str
) -> None:
    redaction._known.clear()
    remember_secret(key)
    written = carrier(key)
    shown = redact(f"{before}{written} and no more")
    assert written not in shown
    assert key not in shown
    assert HIDDEN in shown
    runs = [written[start : start + 9] for start in range(len(written) - 9)]
    assert not any(run in shown for run in runs if key[:9] in run), "a piece of it is left"


@given(text=st.text(max_size=200) | st.text("abc /:@?&=;#%[]\\\"'{}", max_size=80))
def test_hiding_never_raises_and_hides_nothing_more_when_done_again(text: str) -> None:
    once = redact(text)
    assert redact(once).replace(HIDDEN, "") == once.replace(HIDDEN, "") or len(redact(once)) <= len(once)


def test_the_password_of_an_address_is_hidden_also_as_a_header() -> None:
    remember_credentials("http://someone:opensesame@host/v1?api_key=querysecret&api-version=2")
    basic = base64.b64encode(b"someone:opensesame").decode()
    shown = redact(f"opensesame querysecret Basic {basic} v=2")
    assert shown == f"{HIDDEN} {HIDDEN} Basic {HIDDEN} v=2"


def test_keys_in_the_environment_are_hidden_although_nobody_used_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SOME_PROVIDER_API_KEY", "gargantuan-value-1")
    monkeypatch.setenv("HF_TOKEN", "another-long-value-2")
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "a-setting-of-a-library")
    monkeypatch.setenv("SSH_KEY", "/home/me/.ssh/id_of_mine")
    text = "gargantuan-value-1 another-long-value-2 a-setting-of-a-library /home/me/.ssh/id_of_mine"
    assert redact(text) == f"{HIDDEN} {HIDDEN} a-setting-of-a-library /home/me/.ssh/id_of_mine"
    assert redact_speech(text) == redact(text)


@pytest.mark.parametrize(
    "text",
    [
        "Authorization: Bearer abc123",
        "Authorization: Bearer opensesame",
        "Bearer opensesame",
        "Authorization: Basic opensesame",
        "authorization=opensesame",
        "Proxy-Authorization: Basic opensesame",
        "('authorization', 'Bearer opensesame')",
        "[(b'x-api-key', b'opensesame')]",
        '{"authorization": "Bearer Zm9vYmFy42"}',
        "x-api-key: deadbeef99",
        '{"X-Api-Key": "deadbeef99"}',
        r'"{\"x-goog-api-key\": \"deadbeef99\"}"',
        "Ocp-Apim-Subscription-Key: opensesame",
        "token: opensesame",
        '{"token": "opensesame"}',
        "access_token=opensesame",
        "api%5Fkey=opensesame",
        "api%5fkey%3Dopensesame",
        '{"password": "open, opensesame; and more"}',
        "pwd=opensesame",
        "Set-Cookie: session=opensesame; path=/",
        "https://host/v1?api_key=deadbeef99&x=1",
        "https://host/v1?x=1&key=deadbeef99",
        "https://host/v1?subscription-key=opensesame",
        "https://host/v1?x=1;sig=opensesame",
        "https://host/v1?anything=opensesame",
        "https://host/v1#api_key=opensesame",
        "https://host/v1;key=opensesame/models",
        "https://user:deadbeef99@host/v1",
        "https://user:hunter/2@x@host/v1",
        r"https:\/\/user:deadbeef99@host\/v1",
        "postgres://user:deadbeef99@host/base",
        "cannot connect to user:deadbeef99@host",
        "cannot connect to user:deadbeef99@gateway.example:8000/v1",
        "Incorrect API key provided: sk-proj-deadbeef99deadbeef99",
        "sk-deadbeef99",
        "ghp_deadbeef99deadbeef99",
        "github_pat_11AAdeadbeef99",
        "AKIADEADBEEF99DEAD AKIAdeadbeef99"[:18],
        "nvapi-deadbeef99deadbeef99",
        "hf_deadbeef99deadbeef99",
        "AIzadeadbeef99deadbeef99deadbeef99",
        "xoxb-deadbeef99-12",
        "eyJdeadbeef99.eyJdeadbeef99.deadbeef99",
    ],
)
def test_what_looks_like_a_key_is_hidden_although_nobody_named_it(text: str) -> None:
    shown = redact(text)
    assert HIDDEN in shown
    assert not any(secret in shown for secret in (*SECRETS, "DEADBEEF99"))
    assert redact(shown) == shown


@pytest.mark.parametrize(
    "text",
    [
        "HTTP 400: unsupported parameter: 'max_tokens' is not supported",
        "max_tokens: 512, max_token: 512 and total_tokens=12",
        "bearer token missing",
        "http://127.0.0.1:8000/v1: given up after 10 attempts",
        "http://[::1]:8000/v1?api-version=2024-02-01 https://host/manual#the-section",
        "the key of this map is written below; missing key: 'choices'",
        "a risk-averse answer, sk-short",
        "openai:gpt@http://localhost:8000/v1 and my_file.py:Hist@cls and virchow2@cls",
        "openai:MODEL needs a key: set OPENAI_API_KEY or HISTOBENCH_API_KEY",
        "anthropic:claude@20240101",
        "basic plan; task: pass: 3, fail: 2; code 401; me@example.org; at 10:30",
        "cannot read /data/tables/a.csv:12: label 'x' is unknown",
    ],
)
def test_ordinary_complaints_stay_as_they_are(text: str) -> None:
    assert redact(text) == text


def test_what_a_model_says_loses_only_real_keys() -> None:
    remember_secret("a-real-key-of-some-length-1")
    remember_secret("orange")
    said = "an orange; a-real-key-of-some-length-1; password: 'x'; http://me:pass@host; Bearer abc123"
    assert redact_speech(said) == said.replace("a-real-key-of-some-length-1", HIDDEN)


@pytest.mark.slow
def test_hiding_takes_no_more_than_linear_time() -> None:
    """Texts on which a careless pattern needs hours; the process is ended if one does."""
    units = ["bearer ", "bearer", "://", "api_key", 'api_key"', "sk-", "?key=", "://a@", "password: ", "\\"]
    units += [
        'password: "',
        "authorization: ",
        "a:",
        "a:b@",
        "http://a:",
        "http://a?b=c&",
        "cookie:",
        "eyJa.",
    ]
    units += [
        "eyJa.",
        "token",
        "a-",
        "_token=",
        "%25",
        "set-cookie: '",
        "api-",
        "key='\\",
        "basic =",
        "http://a/;x=",
    ]
    script = (
        "from histobench.core.redaction import redact, remember_secret\nremember_secret('secret%25key')\n"
        f"for unit in {units}: redact(unit * (40_000 // len(unit)))"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=600)


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
