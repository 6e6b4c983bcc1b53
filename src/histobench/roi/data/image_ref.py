"""Where the bytes of an image are: a file, a member of a TAR or ZIP archive, or a row of an array file.

`shard.tar/a/b.jpg` and `tiles.zip/a/b.jpg` are members, `pixels.npy/17` is a row of a NumPy file of shape
[n, h, w, 3], and `pixels.h5/x/17` a row of the HDF5 dataset `x`. All of them come down to an offset, a size
and a coding, so that workers read them with one `open` and need no library of the format.
"""

from __future__ import annotations

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

#: What a container file ends with, followed by a slash and the name of an image in it.
CONTAINERS = (".tar", ".zip", ".npy", ".h5", ".hdf5")
_INSIDE = re.compile("|".join(re.escape(f"{suffix}/") for suffix in CONTAINERS))
#: A file, or a compressed member, that says it is larger is no tissue region.
_MOST_BYTES = 1 << 30
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".webp", ".jp2")
#: Whole slides, which have to be cut into tiles first.
SLIDE_SUFFIXES = (".svs", ".ndpi", ".mrxs", ".scn", ".vms", ".bif", ".czi")
TILING = (
    "cut them into tiles with TRIDENT, LazySlide or CLAM; histobench reads folders of tiles (PNG, JPEG, "
    "TIFF) and the features that these tools write (`features`)"
)
_ZIP_LOCAL_HEADER = struct.Struct("<4s22xHH")

#: What changes when a file is written: size, two times, inode.
Stamp = tuple[int, int, int, int]


class ImageRef(NamedTuple):  # made and sent to workers by the hundred thousand
    """The bytes of one image; `size` is -1 for "the whole file". `name` is what messages call it.

    `coding` is "" for the bytes of an image file, "zip:N:SUM" for such bytes in a ZIP, where SUM is their
    CRC-32 and N their number if they are compressed, and "rgb:WxH" for bare pixels, which are read as a PPM.
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
        with open(regular(self.file), "rb", buffering=0) as handle:
            if self.name.lower().endswith(SLIDE_SUFFIXES):
                raise OSError(errno.EFBIG, f"a whole slide, not a tile: {TILING}")
            if self.size < 0:
                size = os.fstat(handle.fileno()).st_size
                if size > _MOST_BYTES:
                    raise OSError(errno.EFBIG, f"{size:,} bytes are too much for a tissue region")
                return _read_whole(handle.fileno(), size)
            if self.size > _MOST_BYTES:
                raise OSError(errno.EFBIG, f"{self.size:,} bytes are too much for a tissue region")
            handle.seek(self.offset)
            data = _read_whole(handle.fileno(), self.size)
        if not self.coding:
            return data
        kind, _, detail = self.coding.partition(":")
        if kind == "rgb":
            width, _, height = detail.partition("x")
            return f"P6\n{width} {height}\n255\n".encode() + data
        length, _, checksum = detail.partition(":")
        data = _inflated(data, int(length)) if length else data
        if zlib.crc32(data) != int(checksum):
            raise OSError("the data in the archive are damaged: their checksum is another one")
        return data


def _read_whole(descriptor: int, size: int) -> bytes:
    parts = []
    while size > 0:
        part = os.read(descriptor, size)
        if not part:
            break
        parts.append(part)
        size -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _inflated(data: bytes, size: int) -> bytes:
    # The archive says how much comes out; a member that goes on beyond that is not believed.
    try:
        plain = zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, size + 1)
    except zlib.error as error:
        raise OSError(f"the compressed data in the archive are damaged ({error})") from error
    if len(plain) != size:
        raise OSError("the archive's directory gives another size than its data have")
    return plain


def locate(path: str | Path) -> ImageRef:
    """The image at `path`, which may go on inside of a container file."""
    text = str(path)
    plain = text.replace(os.sep, "/")
    if _INSIDE.search(plain) is None:
        return ImageRef(file=text, name=text)
    container, member = _split_at_container(plain)
    if container is None:
        return ImageRef(file=text, name=text)
    return _in_container(container, member, text)


def _in_container(container: str, member: str, name: str) -> ImageRef:
    suffix = os.path.splitext(container)[1].lower()
    if suffix == ".tar":
        place = tar_members(container).get(member)
        if place is not None:
            return ImageRef(container, name, *place)
    elif suffix == ".zip":
        entry = zip_members(container).get(member)
        if entry is not None:
            return _zip_member(container, name, entry)
    else:
        table, _, row = member.rpartition("/")
        if suffix == ".npy":
            rows = _npy_rows(container, *_state(container, "NumPy"))
        else:
            rows = hdf5_rows(container, table)
        if row.isascii() and row.isdigit() and int(row) < rows.images and not (suffix == ".npy" and table):
            offset = rows.offsets[int(row)] if rows.offsets else rows.offset + int(row) * rows.size
            return ImageRef(container, name, offset, rows.size, f"rgb:{rows.width}x{rows.height}")
    raise HistobenchError(f"{container} has no member {member!r}")


def tar_members(archive: str) -> dict[str, tuple[int, int]]:
    """Offset and size of every regular file in a TAR, without reading their contents."""
    return _tar_members(archive, *_state(archive, "TAR"))


def zip_members(archive: str) -> dict[str, zipfile.ZipInfo]:
    return _zip_members(archive, *_state(archive, "ZIP"))


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


def hdf5_rows(file: str, dataset: str) -> Rows:
    """Where the rows of an HDF5 dataset of uint8 [n, h, w, 3] are: one piece, or chunks of one image."""
    return _hdf5_rows(file, dataset, *_state(file, "HDF5"))


def _state(file: str, kind: str) -> tuple[int, int]:
    try:
        found = os.stat(file)
    except OSError as error:
        raise HistobenchError(f"cannot read the {kind} file {file}: {error.strerror}") from error
    return found.st_size, found.st_mtime_ns


@functools.lru_cache(maxsize=4096)
def _tar_members(archive: str, size: int, changed: int) -> dict[str, tuple[int, int]]:
    try:
        with tarfile.open(archive, "r:") as tar:
            # What has holes does not lie there as it is read.
            return {
                item.name: (item.offset_data, item.size)
                for item in tar
                if item.isreg() and not item.issparse()
            }
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
        header = handle.read(_ZIP_LOCAL_HEADER.size)
    if len(header) < _ZIP_LOCAL_HEADER.size or header[:4] != b"PK\x03\x04":
        raise HistobenchError(
            f"{archive} is damaged: {entry.filename} does not begin where the directory says"
        )
    _, name_length, extra_length = _ZIP_LOCAL_HEADER.unpack(header)
    offset = entry.header_offset + _ZIP_LOCAL_HEADER.size + name_length + extra_length
    size = str(entry.file_size) if entry.compress_type == zipfile.ZIP_DEFLATED else ""
    return ImageRef(archive, name, offset, entry.compress_size, f"zip:{size}:{entry.CRC}")


@functools.lru_cache(maxsize=256)
def _npy_rows(file: str, size: int, changed: int) -> Rows:
    import numpy as np

    try:
        with open(regular(file), "rb") as handle:
            version = np.lib.format.read_magic(handle)
            read = (
                np.lib.format.read_array_header_1_0
                if version == (1, 0)
                else np.lib.format.read_array_header_2_0
            )
            shape, fortran, dtype = read(handle)
            return _rows(shape, dtype, handle.tell(), size, file, in_order=not fortran)
    except (OSError, ValueError) as error:
        raise HistobenchError(f"cannot read the NumPy file {file}: {error}") from error


@functools.lru_cache(maxsize=256)
def _hdf5_rows(file: str, dataset: str, size: int, changed: int) -> Rows:
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


def _split_at_container(text: str) -> tuple[str | None, str]:
    """The first part of a path that is a container file, and the rest; None where there is no such file."""
    for position in range(len(text)):
        if (
            text[position] == "/"
            and text[:position].lower().endswith(CONTAINERS)
            and os.path.isfile(text[:position])
        ):
            return text[:position], text[position + 1 :]
    return None, text
