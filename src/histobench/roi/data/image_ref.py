"""Where the bytes of an image are: a file, a member of a TAR or ZIP archive, or a row of an array file.

All come down to an offset, a size and a coding, so that workers read them with one `open`.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import os
import re
import struct
import tarfile
import zipfile
import zlib
from pathlib import Path
from typing import NamedTuple

from histobench.core.errors import HistobenchError
from histobench.core.files import regular
from histobench.roi.registry.unpack import h5py_module

CONTAINERS = (".tar", ".zip", ".npy", ".h5", ".hdf5")
_INSIDE = re.compile("|".join(re.escape(f"{suffix}/") for suffix in CONTAINERS), re.IGNORECASE)
#: A file, or a compressed member, that says it is larger is no tissue region.
_MOST_BYTES = 1 << 30
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".webp", ".jp2")
SLIDE_SUFFIXES = (".svs", ".ndpi", ".mrxs", ".scn", ".vms", ".bif", ".czi")
TILING = (
    "cut them into tiles with TRIDENT, LazySlide or CLAM; histobench reads folders of tiles (PNG, JPEG, "
    "TIFF) and the features that these tools write (`features`)"
)
_ZIP_LOCAL_HEADER = struct.Struct("<4s22xHH")

Stamp = tuple[int, int, int, int]


class ImageRef(NamedTuple):  # made and sent to workers by the hundred thousand
    """The bytes of one image; `size` is -1 for "the whole file". `name` is what messages call it.

    `coding`: "zip:N:SUM" in a ZIP (CRC-32, and N bytes if compressed), "rgb:WxH" for bare pixels.
    """

    file: str
    name: str
    offset: int = 0
    size: int = -1
    coding: str = ""

    def stamp(self) -> Stamp:
        stat = os.stat(self.file)
        return stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino

    def read(self) -> bytes:
        with open(regular(self.file), "rb") as handle:
            if self.name.lower().endswith(SLIDE_SUFFIXES):
                raise OSError(errno.EFBIG, f"a whole slide, not a tile: {TILING}")
            size = os.fstat(handle.fileno()).st_size if self.size < 0 else self.size
            if size > _MOST_BYTES:
                raise OSError(errno.EFBIG, f"{size:,} bytes are too much for a tissue region")
            if self.offset:
                handle.seek(self.offset)
            data = handle.read(size)
        if not self.coding:
            return data
        kind, _, detail = self.coding.partition(":")
        if kind == "rgb":
            width, _, height = detail.partition("x")
            return f"P6\n{width} {height}\n255\n".encode() + data
        length, _, checksum = detail.partition(":")
        if length:
            with contextlib.suppress(zlib.error):  # the checksum tells
                data = zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, int(length))
        if zlib.crc32(data) != int(checksum):
            raise OSError("the archive is damaged: wrong checksum")
        return data


def locate(path: str | Path) -> ImageRef:
    """The image at `path`, which may go on inside of a container file."""
    text = str(path)
    plain = text.replace(os.sep, "/")
    for found in _INSIDE.finditer(plain):
        container = plain[: found.end() - 1]
        if os.path.isfile(container):
            return _in_container(container, plain[found.end() :], text)
    return ImageRef(file=text, name=text)


def _in_container(container: str, member: str, name: str) -> ImageRef:
    suffix = os.path.splitext(container)[1].lower()
    if suffix == ".tar":
        place = tar_members(container).get(member)
        if place is not None:
            return ImageRef(container, name, *place)
    elif suffix == ".zip":
        entry = _zip_members(container, *_state(container)).get(member)
        if entry is not None:
            return _zip_member(container, name, entry)
    else:
        table, _, row = member.rpartition("/")
        state, is_npy = _state(container), suffix == ".npy"
        rows = _npy_rows(container, *state) if is_npy else _hdf5_rows(container, table, *state)
        if row.isascii() and row.isdigit() and int(row) < rows.images and not (suffix == ".npy" and table):
            offset = rows.offsets[int(row)] if rows.offsets else rows.offset + int(row) * rows.size
            return ImageRef(container, name, offset, rows.size, f"rgb:{rows.width}x{rows.height}")
    raise HistobenchError(f"{container} has no member {member!r}")


def tar_members(archive: str) -> dict[str, tuple[int, int]]:
    """Offset and size of every regular file in a TAR, without reading their contents."""
    return _tar_members(archive, *_state(archive))


class Rows(NamedTuple):
    """Images stored one after the other in a file, as bare RGB pixels."""

    offset: int
    images: int
    height: int
    width: int
    offsets: tuple[int, ...] = ()  # of every image, where they are not one after the other

    @property
    def size(self) -> int:
        return self.height * self.width * 3


def _state(file: str) -> tuple[int, int]:
    found = os.stat(file)
    return found.st_size, found.st_mtime_ns


@functools.lru_cache(maxsize=4096)
def _tar_members(archive: str, size: int, changed: int) -> dict[str, tuple[int, int]]:
    try:
        with tarfile.open(archive, "r:") as tar:
            whole = (item for item in tar if item.isreg() and not item.issparse())  # others have holes
            return {item.name: (item.offset_data, item.size) for item in whole}
    except (OSError, tarfile.TarError) as error:
        raise HistobenchError(f"cannot read the TAR file {archive}: {error}") from error


@functools.lru_cache(maxsize=64)
def _zip_members(archive: str, size: int, changed: int) -> dict[str, zipfile.ZipInfo]:
    try:
        with zipfile.ZipFile(archive) as box:
            return {item.filename: item for item in box.infolist() if not item.is_dir()}
    except (OSError, zipfile.BadZipFile, NotImplementedError) as error:
        raise HistobenchError(f"cannot read the ZIP file {archive}: {error}") from error


def _zip_member(archive: str, name: str, entry: zipfile.ZipInfo) -> ImageRef:
    if entry.flag_bits & 1:
        raise HistobenchError(f"{name} is encrypted; unpack the archive with its password first")
    if entry.file_size > _MOST_BYTES:
        raise HistobenchError(f"{name} unpacks to {entry.file_size:,} bytes, too much for a tissue region")
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise HistobenchError(f"{name} is compressed in a way that is not read in place; unpack the archive")
    # The data begin after the local header, whose name and extra field may differ from the directory's.
    with open(regular(archive), "rb") as handle:
        handle.seek(entry.header_offset)
        _, name_length, extra_length = _ZIP_LOCAL_HEADER.unpack(handle.read(_ZIP_LOCAL_HEADER.size))
    offset = entry.header_offset + _ZIP_LOCAL_HEADER.size + name_length + extra_length
    size = str(entry.file_size) if entry.compress_type == zipfile.ZIP_DEFLATED else ""
    return ImageRef(archive, name, offset, entry.compress_size, f"zip:{size}:{entry.CRC}")


@functools.lru_cache(maxsize=256)
def _npy_rows(file: str, size: int, changed: int) -> Rows:
    import numpy as np

    try:
        with open(regular(file), "rb") as handle:
            version = np.lib.format.read_magic(handle)
            read = getattr(np.lib.format, f"read_array_header_{version[0]}_0")
            shape, fortran, dtype = read(handle)
            return _rows(shape, dtype, handle.tell(), size, file, in_order=not fortran)
    except (OSError, ValueError) as error:
        raise HistobenchError(f"cannot read the NumPy file {file}: {error}") from error


@functools.lru_cache(maxsize=256)
def _hdf5_rows(file: str, dataset: str, size: int, changed: int) -> Rows:
    """Where the rows of an HDF5 dataset of uint8 [n, h, w, 3] are: one piece, or chunks of one image."""
    h5py = h5py_module()
    try:
        with h5py.File(file, "r") as box:
            if dataset not in box:
                raise HistobenchError(f"{file} has no dataset {dataset!r}")
            found = box[dataset]
            offset = found.id.get_offset()
            if offset is not None:
                return _rows(found.shape, found.dtype, offset, size, file, in_order=True)
            if found.chunks != (1, *found.shape[1:]) or found.id.get_create_plist().get_nfilters():
                raise HistobenchError(
                    f"{file}: {dataset!r} is compressed, or in chunks of several images, and cannot be read "
                    "in place"
                )
            rows = _rows(found.shape, found.dtype, 0, size, file, in_order=True)
            places: dict[int, int] = {}
            found.id.chunk_iter(lambda chunk: places.update({chunk.chunk_offset[0]: chunk.byte_offset}))
            if len(places) < rows.images:
                raise HistobenchError(
                    f"{file}: {rows.images - len(places)} images of {dataset!r} were never written"
                )
            return rows._replace(offsets=tuple(places[row] for row in range(rows.images)))
    except OSError as error:
        raise HistobenchError(f"cannot read the HDF5 file {file}: {error}") from error


def _rows(
    shape: tuple[int, ...], dtype: object, offset: int, file_size: int, file: str, *, in_order: bool
) -> Rows:
    if str(dtype) != "uint8" or len(shape) != 4 or shape[3] != 3 or not in_order:
        raise HistobenchError(
            f"{file} holds {dtype} of shape {shape}; images are uint8 [n, height, width, 3]"
        )
    rows = Rows(offset, shape[0], shape[1], shape[2])
    if offset + rows.images * rows.size > file_size:
        raise HistobenchError(f"{file} is truncated: {rows.images:,} images do not fit into it")
    return rows


def digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def reason_of(error: Exception, ref: ImageRef) -> str:
    """One line that says why an image cannot be used, without its name."""
    if isinstance(error, FileNotFoundError):
        return "the file does not exist"
    if isinstance(error, OSError):
        return f"cannot be read: {error.strerror or error}"
    return str(error).removeprefix(f"{ref.name}: ")
