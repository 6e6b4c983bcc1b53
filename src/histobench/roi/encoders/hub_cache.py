"""What the model hub's library has kept on this machine: a published file, at whichever revision."""

from __future__ import annotations

from pathlib import Path

from histobench.roi.encoders.file_hash import sha256_of
from histobench.roi.encoders.spec import EncoderSpec


def find_pinned(spec: EncoderSpec, file: str) -> Path | None:
    """The file at the pinned revision; never touches the network.

    A file of another revision whose sha256 is the pinned one is the same file.
    """
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
