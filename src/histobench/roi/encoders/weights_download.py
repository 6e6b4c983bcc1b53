"""Published files: from the model hub at a pinned revision or a fixed address, checked by hash."""

from __future__ import annotations

import logging
import os
import time
from functools import partial
from pathlib import Path

from histobench.core.errors import HistobenchError
from histobench.core.folders import cache_dir
from histobench.core.http import UnreachableError, call_while_reachable, discard, transfer
from histobench.roi.encoders.encoder_spec import EncoderSpec
from histobench.roi.encoders.file_hash import sha256_of


def find_pinned(spec: EncoderSpec, file: str) -> Path | None:
    """The file at the pinned revision, or the same bytes at another one; never touches the network."""
    from huggingface_hub import try_to_load_from_cache

    source = spec.source
    found = try_to_load_from_cache(source.repo, file, revision=source.revision or None)
    if isinstance(found, str):
        return Path(found)
    if source.sha256 and file == source.file:
        others = find_others(spec, file)
        return next((path for path in others.values() if sha256_of(path) == source.sha256), None)
    return None


def find_others(spec: EncoderSpec, file: str) -> dict[str, Path]:
    """The same file at other revisions than the pinned one, by revision, the newest first."""
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    folder = Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=spec.source.repo, repo_type="model")
    found = [path / file for path in (folder / "snapshots").glob("*") if path.name != spec.source.revision]
    there = sorted((path for path in found if path.is_file()), key=lambda path: -path.stat().st_mtime)
    depth = len(Path(file).parts)
    return {path.parents[depth - 1].name: path for path in there}


def other_revision(spec: EncoderSpec, checkpoint: Path) -> str:
    """The revision of a file that the cache has instead of the pinned one; empty if it is the pinned file."""
    if spec.source.kind != "hub" or checkpoint == find_pinned(spec, spec.source.file):
        return ""
    others = find_others(spec, spec.source.file)
    return next((revision for revision, path in others.items() if path == checkpoint), "")


log = logging.getLogger(__name__)

#: A hub that could not be reached is not asked again for so long: each time its library waits half a minute.
_UNREACHABLE_SECONDS = 120.0
_unreachable_at: float | None = None


def is_offline() -> bool:
    """Whether the user has forbidden network access (`HF_HUB_OFFLINE=1`)."""
    return os.environ.get("HF_HUB_OFFLINE", "").strip().upper() in ("1", "ON", "YES", "TRUE")


def fetch_from_hub(spec: EncoderSpec, file: str, *, allow_revision: bool = False) -> Path:
    """A file at the pinned revision (or with `allow_revision` at another one that the cache has)."""
    source = spec.source
    path = find_pinned(spec, file)
    if path is None and allow_revision:
        for revision, other in find_others(spec, file).items():
            log.warning("%s: %s at %s, not at the pinned %s", spec.name, file, revision, source.revision)
            return other
    if path is None and is_offline():
        raise _not_here(spec, file, "HF_HUB_OFFLINE=1 forbids the download")
    path = path or _download(spec, file)
    if file == source.file:
        check_sha256(spec, path)
    return path


def _not_here(spec: EncoderSpec, file: str, why: str) -> HistobenchError:
    source = spec.source
    get = f"request access at {source.page} and run: hf auth login" if source.gated else "repeat the command"
    for other in list(find_others(spec, file))[:1] if source.revision else ():
        why += f"; the hub's cache has it at revision {other} instead of the pinned {source.revision}: "
        why += "`allow_revision` takes that"
    return HistobenchError(
        f"{spec.name}: no weights on this machine, and {why}\n"
        f"  with internet: {get}\n"
        f"  without: copy {Path(file).name} of {source.page} here and give `weights` FILE; "
        f"details: histobench models show {spec.name}"
    )


def check_sha256(spec: EncoderSpec, path: Path) -> None:
    if spec.source.sha256 and sha256_of(path) != spec.source.sha256:
        raise HistobenchError(
            f"{path}: the sha256 of the weights of {spec.name} is {sha256_of(path)}, not the pinned "
            f"{spec.source.sha256}; the download is damaged or the file was replaced: delete it and try again"
        )


def _download(spec: EncoderSpec, file: str) -> Path:
    from huggingface_hub import constants, hf_hub_download
    from huggingface_hub.errors import (
        EntryNotFoundError,
        GatedRepoError,
        LocalEntryNotFoundError,
        RevisionNotFoundError,
    )

    global _unreachable_at
    source = spec.source
    away = f"the model hub cannot be reached ({source.repo}/{file})"
    if _unreachable_at is not None and time.monotonic() - _unreachable_at < _UNREACHABLE_SECONDS:
        raise _not_here(spec, file, away)
    # Its library reports every attempt in two lines; what matters of them is said here in one.
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    try:
        fetch = partial(hf_hub_download, source.repo, file, revision=source.revision or None)
        return Path(call_while_reachable(fetch, constants.ENDPOINT))
    except Exception as error:  # of the hub's library, of the operating system, of the library's HTTP client
        answers = (getattr(each, "response", None) for each in (error, error.__cause__))
        status = next((each.status_code for each in answers if each is not None), 0)
        why = f"downloading {source.repo}/{file} failed ({type(error).__name__})"
        if isinstance(error, GatedRepoError):
            why = f"the authors of {source.repo} have not given you access"
        elif status in (401, 403):  # its library may call this a file that it cannot find
            why = f"the model hub refuses access (HTTP {status}): is your token valid, with access to gated "
            why += "repositories? https://huggingface.co/settings/tokens"
        elif isinstance(error, UnreachableError | LocalEntryNotFoundError):
            _unreachable_at, why = time.monotonic(), away
        elif isinstance(error, RevisionNotFoundError | EntryNotFoundError):
            raise HistobenchError(f"{spec.name}: {source.repo} has no {file} at {source.revision}") from error
        raise _not_here(spec, file, why) from error


def fetch_from_url(spec: EncoderSpec, url: str) -> Path:
    """A file from a fixed address (of a code repository), kept in the cache folder."""
    path = cached_url(spec, url)
    if not path.is_file():
        by_hand = "download it on another machine and give `weights` FILE"
        if is_offline():
            raise HistobenchError(
                f"{spec.name} needs {url}, and HF_HUB_OFFLINE=1 forbids the download; {by_hand}"
            )
        try:
            call_while_reachable(partial(_copy_from, url, path), url)
        except (UnreachableError, HistobenchError, OSError) as error:
            raise HistobenchError(f"{spec.name}: cannot download {url} ({error}); {by_hand}") from error
    if url == spec.source.url:
        check_sha256(spec, path)
    return path


def _copy_from(url: str, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")  # workers of several devices fetch at once
    try:
        transfer(url, part, name=path.name)
        os.replace(part, path)
    finally:
        discard(part)


def cached_url(spec: EncoderSpec, url: str) -> Path:
    return cache_dir() / "weights" / spec.name / url.rsplit("/", 1)[-1]
