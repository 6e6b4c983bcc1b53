"""What a file is by its first bytes, whatever it is called."""

from __future__ import annotations

import zipfile
from pathlib import Path

from histobench.core.errors import HistobenchError
from histobench.core.plain_file import open_plain

HEAD_BYTES = 512
#: The largest header that the safetensors format allows.
SAFETENSORS_HEADER = 100_000_000
#: First bytes of what people take for a checkpoint, and what to do about it.
STRANGERS = (
    (
        b"version https://git-lfs",
        "a git-lfs pointer, not the weights: run `git lfs pull` there, or download the file itself",
    ),
    (b"<!doctype html", "a web page, not the weights (a login or error page?): download the file again"),
    (b"<html", "a web page, not the weights (a login or error page?): download the file again"),
    (b"<?xml", "an XML answer of a server, not the weights: download the file again"),
    (b"\x89hdf", "an HDF5 (Keras) file; give the PyTorch weights"),
    (b"gguf", "a GGUF file, quantised for language models; give the PyTorch weights"),
    (b"\x1f\x8b", "a gzip archive; unpack it and give the checkpoint inside"),
    (b"7z\xbc\xaf", "a 7z archive; unpack it and give the checkpoint inside"),
    (b"{", "a JSON text, not weights; give the checkpoint itself (or the .index.json of a sharded one)"),
)


def kind_of(path: Path) -> str:
    """`safetensors`, `zip`, `truncated zip` or `pickle`; anything that cannot be weights is an error."""
    try:
        with open_plain(path) as handle:
            size = path.stat().st_size
            head = handle.read(HEAD_BYTES)
    except OSError as error:
        raise HistobenchError(f"cannot read {path}: {error.strerror or error}") from error
    if not head:
        raise HistobenchError(f"{path} is empty: a download that failed? fetch it again")
    if is_safetensors(head):
        return "safetensors"
    if head.startswith(b"PK"):
        return "zip" if zipfile.is_zipfile(path) else "truncated zip"
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    for prefix, what in STRANGERS:
        if start.startswith(prefix):
            raise HistobenchError(f"{path} is {what} ({size} bytes)")
    return "pickle"


def is_safetensors(head: bytes) -> bool:
    """Whether a file that starts like this is in the safetensors format: a length, and so much JSON."""
    return head[8:9] == b"{" and 2 <= int.from_bytes(head[:8], "little") <= SAFETENSORS_HEADER
