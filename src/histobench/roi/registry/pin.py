"""Checksums from the hosts themselves, without downloading the files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs, urlsplit

from histobench.core.errors import HistobenchError
from histobench.core.http import open_client
from histobench.core.plain_data import parse_json
from histobench.roi.registry.dataset_entry import PublicDataset, RemoteFile

_Lister = Callable[[Any], Iterator[RemoteFile]]  # from the host's answer to the files
#: Where each host answers; tests put a local server here.
APIS = {
    "zenodo": "https://zenodo.org/api/records/",
    "figshare": "https://api.figshare.com/v2/articles/",
    "mendeley": "https://data.mendeley.com/public-api/datasets/",
    "huggingface": "https://huggingface.co/api/datasets/",
}


def pinned(entry: PublicDataset, *, apis: Mapping[str, str] = APIS) -> tuple[RemoteFile, ...]:
    """The entry's files with size and checksum as the host states them now.

    A published checksum that the host contradicts is an error; files that it does not list stay as they are.
    """
    import httpx

    list_files, address = _host_of(entry, apis)
    with open_client() as client:
        try:
            answer = client.get(address)
            answer.raise_for_status()
            listed = {file.name: file for file in list_files(parse_json(answer.text))}
        except httpx.HTTPError as error:
            raise HistobenchError(f"{entry.name}: the host did not answer ({error})") from error
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise HistobenchError(f"{entry.name}: the host's answer has another form ({error!r})") from error
    files = []
    for file in entry.files:
        found = listed.get(file.name)
        if found is None:
            files.append(file)
            continue
        for what in ("bytes", "md5", "sha256"):
            old, new = getattr(file, what), getattr(found, what)
            if old is not None and new is not None and old != new:
                raise HistobenchError(
                    f"{entry.name}: {file.name} has {what} {old} here and {new} at the host"
                )
        files.append(
            replace(
                file,
                bytes=found.bytes or file.bytes,
                md5=found.md5 or file.md5,
                sha256=found.sha256 or file.sha256,
                confidence="A" if file.pinned else "B",
            )
        )
    return tuple(files)


def as_yaml(entry: PublicDataset, files: tuple[RemoteFile, ...]) -> str:
    """The `files` of the entry, ready to be put into the registry file."""
    import yaml

    keys = ("name", "url", "bytes", "md5", "sha256", "confidence")
    rows = [{key: getattr(file, key) for key in keys if getattr(file, key) is not None} for file in files]
    return yaml.safe_dump({entry.name: {"files": rows}}, sort_keys=False, width=200)


def _host_of(entry: PublicDataset, apis: Mapping[str, str]) -> tuple[_Lister, str]:
    """How the entry's host lists its files, and the address at which it does."""
    parts = urlsplit(entry.homepage)
    host, path = parts.hostname or "", [part for part in parts.path.split("/") if part]
    if host == "zenodo.org":
        return _zenodo, f"{apis['zenodo']}{path[-1]}"
    if host.endswith("figshare.com"):
        return _figshare, f"{apis['figshare']}{path[-1]}"
    if host == "data.mendeley.com":
        return _mendeley, f"{apis['mendeley']}{path[path.index('datasets') + 1]}/files"
    if host == "huggingface.co" and path[:1] == ["datasets"]:
        revision = f"/revision/{entry.revision}" if entry.revision else ""
        return _huggingface, f"{apis['huggingface']}{'/'.join(path[1:3])}{revision}?blobs=true"
    if "persistentId" in parts.query:
        base = apis.get("dataverse", f"{parts.scheme}://{host}/api/datasets/:persistentId/")
        return _dataverse, f"{base}?persistentId={parse_qs(parts.query)['persistentId'][0]}"
    raise HistobenchError(f"{entry.name}: {host or entry.homepage} offers no list of checksums")


def _zenodo(answer: Any) -> Iterator[RemoteFile]:
    for item in answer["files"]:
        kind, _, value = item["checksum"].partition(":")
        sums = {kind: value} if kind in ("md5", "sha256") else {}
        name = item.get("key") or item["filename"]
        yield RemoteFile(name=name, bytes=item.get("size", item.get("filesize")), **sums)


def _figshare(answer: Any) -> Iterator[RemoteFile]:
    for item in answer["files"]:
        yield RemoteFile(name=item["name"], bytes=item["size"], md5=item["computed_md5"])


def _mendeley(answer: Any) -> Iterator[RemoteFile]:
    for item in answer:
        details = item["content_details"]
        size = item.get("size") or details.get("size")
        yield RemoteFile(name=item["filename"], bytes=size, sha256=details["sha256_hash"])


def _huggingface(answer: Any) -> Iterator[RemoteFile]:
    for item in answer["siblings"]:
        large = item.get("lfs") or {}
        name = item["rfilename"].rpartition("/")[2]
        yield RemoteFile(name=name, bytes=large.get("size", item.get("size")), sha256=large.get("sha256"))


def _dataverse(answer: Any) -> Iterator[RemoteFile]:
    for item in answer["data"]["latestVersion"]["files"]:
        file = item["dataFile"]
        yield RemoteFile(name=file["filename"], bytes=file["filesize"], md5=file["md5"])
