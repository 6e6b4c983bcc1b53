"""Checksums from the hosts themselves, without downloading the files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from histobench.core.errors import HistobenchError
from histobench.core.http import open_client
from histobench.core.plain_data import parse_json
from histobench.roi.registry.entry import PublicDataset, RemoteFile

if TYPE_CHECKING:
    import httpx

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

    kind, record = _record_of(entry)
    with open_client() as client:
        try:
            listed = _LISTS[kind](client, apis, record, entry)
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
    text: str = yaml.safe_dump({entry.name: {"files": rows}}, sort_keys=False, width=200)
    return text


def _record_of(entry: PublicDataset) -> tuple[str, str]:
    parts = urlsplit(entry.homepage)
    host, path = parts.hostname or "", [part for part in parts.path.split("/") if part]
    if host == "zenodo.org":
        return "zenodo", path[-1]
    if host.endswith("figshare.com"):
        return "figshare", path[-1]
    if host == "data.mendeley.com":
        return "mendeley", path[path.index("datasets") + 1]
    if host == "huggingface.co" and path[:1] == ["datasets"]:
        return "huggingface", "/".join(path[1:3])
    if "persistentId" in parts.query:
        return "dataverse", parse_qs(parts.query)["persistentId"][0]
    raise HistobenchError(f"{entry.name}: {host or entry.homepage} offers no list of checksums")


def _zenodo(
    client: httpx.Client, apis: Mapping[str, str], record: str, entry: PublicDataset
) -> dict[str, RemoteFile]:
    answer = _json(client, f"{apis['zenodo']}{record}")
    files = {}
    for item in answer["files"]:
        kind, _, value = item["checksum"].partition(":")
        sums = {"md5": value} if kind == "md5" else {"sha256": value} if kind == "sha256" else {}
        name = item.get("key") or item["filename"]
        files[name] = RemoteFile(name=name, bytes=item.get("size", item.get("filesize")), **sums)
    return files


def _figshare(
    client: httpx.Client, apis: Mapping[str, str], record: str, entry: PublicDataset
) -> dict[str, RemoteFile]:
    answer = _json(client, f"{apis['figshare']}{record}")
    return {
        item["name"]: RemoteFile(name=item["name"], bytes=item["size"], md5=item["computed_md5"])
        for item in answer["files"]
    }


def _mendeley(
    client: httpx.Client, apis: Mapping[str, str], record: str, entry: PublicDataset
) -> dict[str, RemoteFile]:
    answer = _json(client, f"{apis['mendeley']}{record}/files")
    return {
        item["filename"]: RemoteFile(
            name=item["filename"],
            bytes=item.get("size") or item["content_details"].get("size"),
            sha256=item["content_details"]["sha256_hash"],
        )
        for item in answer
    }


def _huggingface(
    client: httpx.Client, apis: Mapping[str, str], record: str, entry: PublicDataset
) -> dict[str, RemoteFile]:
    revision = f"/revision/{entry.revision}" if entry.revision else ""
    answer = _json(client, f"{apis['huggingface']}{record}{revision}?blobs=true")
    files = {}
    for item in answer["siblings"]:
        large = item.get("lfs") or {}
        name = item["rfilename"].rpartition("/")[2]
        files[name] = RemoteFile(
            name=name, bytes=large.get("size", item.get("size")), sha256=large.get("sha256")
        )
    return files


def _dataverse(
    client: httpx.Client, apis: Mapping[str, str], record: str, entry: PublicDataset
) -> dict[str, RemoteFile]:
    host = urlsplit(entry.homepage)
    base = apis.get("dataverse", f"{host.scheme}://{host.hostname}/api/datasets/:persistentId/")
    answer = _json(client, f"{base}?persistentId={record}")
    return {
        item["dataFile"]["filename"]: RemoteFile(
            name=item["dataFile"]["filename"], bytes=item["dataFile"]["filesize"], md5=item["dataFile"]["md5"]
        )
        for item in answer["data"]["latestVersion"]["files"]
    }


def _json(client: httpx.Client, url: str) -> Any:
    answer = client.get(url)
    answer.raise_for_status()
    return parse_json(answer.text)


_List = Callable[["httpx.Client", Mapping[str, str], str, PublicDataset], dict[str, RemoteFile]]
_LISTS: dict[str, _List] = {
    "zenodo": _zenodo,
    "figshare": _figshare,
    "mendeley": _mendeley,
    "huggingface": _huggingface,
    "dataverse": _dataverse,
}
