"""Checksums from the hosts' own interfaces, in the forms that they document."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import cache
from importlib import resources
from typing import Any

import pytest
import yaml

from histobench.core.errors import HistobenchError
from histobench.roi.registry.dataset_entry import PublicDataset, RemoteFile, all_datasets, parse_entry
from histobench.roi.registry.pin import as_yaml, pinned

from .conftest import Habits

MD5, SHA = "0" * 31 + "a", "0" * 63 + "b"
ANSWERS = {
    "zenodo": (
        "https://zenodo.org/records/7",
        "/7",
        {"files": [{"key": "a.zip", "size": 5, "checksum": f"md5:{MD5}"}]},
    ),
    "figshare": (
        "https://figshare.com/articles/dataset/7",
        "/7",
        {"files": [{"name": "a.zip", "size": 5, "computed_md5": MD5}]},
    ),
    "mendeley": (
        "https://data.mendeley.com/datasets/7/2",
        "/7/files",
        [{"filename": "a.zip", "size": 5, "content_details": {"sha256_hash": SHA}}],
    ),
    "huggingface": (
        "https://huggingface.co/datasets/some/set",
        "/some/set",
        {
            "siblings": [
                {"rfilename": "data/a.zip", "lfs": {"sha256": SHA, "size": 5}},
                {"rfilename": "README.md"},
            ]
        },
    ),
    "dataverse": (
        "https://example.org/dataset.xhtml?persistentId=doi:1/2",
        "/",
        {
            "data": {
                "latestVersion": {"files": [{"dataFile": {"filename": "a.zip", "filesize": 5, "md5": MD5}}]}
            }
        },
    ),
}


def _entry(homepage: str, **facts: object) -> PublicDataset:
    file = RemoteFile(name="a.zip", url="https://example.org/a.zip", **facts)  # type: ignore[arg-type]
    return replace(all_datasets()["bach"], homepage=homepage, files=(file,))


@pytest.mark.sample(2)
@pytest.mark.slow
@pytest.mark.parametrize("host", sorted(ANSWERS))
def test_the_host_states_size_and_checksum(host: str, server: Habits) -> None:
    homepage, path, answer = ANSWERS[host]
    server.answers[path] = (200, {"Content-Type": "application/json"}, json.dumps(answer).encode())
    entry = _entry(homepage)
    (file,) = pinned(entry, apis={host: f"{server.address}/"})
    assert file.bytes == 5
    assert (file.md5, file.sha256) in ((MD5, None), (None, SHA))
    assert yaml.safe_load(as_yaml(entry, (file,)))["bach"]["files"][0]["bytes"] == 5


def test_a_checksum_that_the_host_contradicts_is_an_error(server: Habits) -> None:
    homepage, path, answer = ANSWERS["zenodo"]
    server.answers[path] = (200, {}, json.dumps(answer).encode())
    with pytest.raises(HistobenchError, match=f"md5 {'1' * 32} here and {MD5} at the host"):
        pinned(_entry(homepage, md5="1" * 32), apis={"zenodo": f"{server.address}/"})


@pytest.mark.slow
@pytest.mark.parametrize(
    "answer", [b'{"message": "moved"}', b'{"files": [{"checksum": 5}]}', b"[" * 9_000, b"\xff", b""]
)
def test_a_host_that_answers_otherwise_is_one_line(server: Habits, answer: bytes) -> None:
    homepage, path, _ = ANSWERS["zenodo"]
    server.answers[path] = (200, {}, answer)
    with pytest.raises(HistobenchError, match="another form"):
        pinned(_entry(homepage), apis={"zenodo": f"{server.address}/"})
    server.answers[path] = (500, {}, b"")
    with pytest.raises(HistobenchError, match="did not answer"):
        pinned(_entry(homepage), apis={"zenodo": f"{server.address}/"})


@cache
def written_entry(name: str) -> dict[str, Any]:
    text = resources.files("histobench.roi.registry").joinpath("datasets.yaml").read_text(encoding="utf-8")
    entry: dict[str, Any] = yaml.safe_load(text)[name]
    return entry


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"acess": "open"}, "unknown field 'acess'; did you mean access"),
        ({"access": "fast"}, "access is 'fast'; known: form, open, token"),
        ({"splits": {"eva": {"rule": "coin"}}}, "splits: eva: rule is 'coin'"),
        ({"files": [{"name": "a.zip", "bytes": -1}]}, "files: bytes must be positive, found -1"),
        ({"layout": []}, "no layout"),
        ({"layout": [{"kind": "shoebox"}]}, "layout kind 'shoebox'"),
        ({"recommended": "nobody"}, "the recommended split is none of its splits"),
    ],
)
def test_a_mistake_in_the_registry_is_named_with_its_place(change: dict[str, Any], message: str) -> None:
    raw = written_entry("bach")
    assert parse_entry("bach", raw) == all_datasets()["bach"]
    with pytest.raises(HistobenchError, match=re.escape(message)) as failure:
        parse_entry("bach", raw | change)
    assert str(failure.value).startswith("dataset registry, bach: ")
