"""Encoders for Python users: images in, vectors out."""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from histobench.core.errors import HistobenchError

if TYPE_CHECKING:
    from PIL.Image import Image

    from histobench.roi.encoders.base import BasePatchEncoder
    from histobench.roi.encoders.spec import EncoderSpec


class Encoder:
    """A frozen encoder with its own transform, on one device."""

    def __init__(self, module: BasePatchEncoder, device: str) -> None:
        self.module = module
        self.device = device

    @property
    def name(self) -> str:
        """Its name in tables and files."""
        return self.module.name

    @property
    def dim(self) -> int:
        """Length of a feature vector."""
        return int(self.module.embed_dim)

    def embed(
        self, images: Image | str | Path | NDArray[np.uint8] | Iterable[Any], *, batch_size: int = 32
    ) -> NDArray[np.float32]:
        """Features [n, d] of PIL images, uint8 arrays [h, w, 3], or paths; one image gives [1, d]."""
        import torch

        rows: list[NDArray[np.float32]] = []
        with torch.inference_mode():
            for batch in _batches((self._prepared(image) for image in _listed(images)), batch_size):
                features = self.module(torch.stack(batch).to(self.device))
                rows.append(features.float().cpu().numpy())
        if not rows:
            return np.zeros((0, self.dim), dtype=np.float32)
        return np.concatenate(rows)

    def _prepared(self, image: Any) -> Any:
        import torch

        transform: Any = self.module.eval_transforms
        return torch.as_tensor(np.asarray(transform(_picture(image))), dtype=torch.float32)

    def __repr__(self) -> str:
        return f"Encoder {self.name!r}: {self.dim} dimensions, on {self.device}"

    def _repr_html_(self) -> str:
        return f"<p>{html.escape(repr(self))}</p>"


def create_encoder(
    name: str, *, device: str | None = None, weights: str | Path | None = None, size: int | None = None
) -> Encoder:
    """An encoder of the zoo (`uni_v1`, `virchow2@cls`) or of one's own (`my_file.py:MyEncoder`).

    Parameters
    ----------
    device : "cpu", "cuda:0", ... (default: the GPU if there is one)
    weights : a checkpoint, a folder of them, or a table of paths (default: the usual places, then the hub)
    size : image size (default: the encoder's own)
    """
    from histobench.core.device import resolve_device
    from histobench.roi.encoders.registry import create_encoder as create

    where = resolve_device(device)
    module = create(name, resize_size=size, weights=None if weights is None else str(weights))
    return Encoder(module.to(where).float().eval(), where)


class Encoders(list["EncoderSpec"]):
    """A list of encoders that is shown as a table."""

    def __repr__(self) -> str:
        width = max((len(spec.name) for spec in self), default=0)
        return "\n".join(f"{spec.name:{width}}  {', '.join(_facts(spec))}" for spec in self)

    def _repr_html_(self) -> str:
        rows = [(spec.name, spec.title, *_facts(spec)) for spec in self]
        cells = ["".join(f"<td>{html.escape(text)}</td>" for text in row) for row in rows]
        head = "".join(
            f"<th>{name}</th>" for name in ("name", "encoder", "features", "text", "access", "licence")
        )
        return f"<table><tr>{head}</tr>{''.join(f'<tr>{row}</tr>' for row in cells)}</table>"


def _facts(spec: EncoderSpec) -> tuple[str, str, str, str]:
    """Length of a feature, whether it reads text, how it is had, and under which licence."""
    text = "zero-shot" if spec.supports_zero_shot else "no text"
    return f"{spec.dim} numbers", text, "on request" if spec.source.gated else "open", spec.licence


def list_encoders(*, zero_shot: bool | None = None, open: bool | None = None) -> Encoders:
    """The encoders of the zoo; with (or without) a text tower, openly downloadable (or gated).

    >>> list_encoders(zero_shot=True, open=True)[:1][0].name
    'keep'
    """
    from histobench.roi.encoders.registry import list_encoders as everyone

    return Encoders(
        spec
        for spec in everyone()
        if (zero_shot is None or spec.supports_zero_shot == zero_shot)
        and (open is None or (not spec.source.gated) == open)
    )


def _listed(images: Any) -> Iterable[Any]:
    if isinstance(images, str | Path) or hasattr(images, "convert"):
        return [images]
    if isinstance(images, np.ndarray) and images.ndim == 3:
        return [images]
    return images


def _picture(image: Any) -> Image:
    from PIL import Image as Pillow

    from histobench.roi.data.image import open_rgb

    if isinstance(image, str | Path):
        return open_rgb(image)
    if isinstance(image, Pillow.Image):
        return _as_from_a_file(image)
    array = np.asarray(image)
    if array.dtype != np.uint8 or array.ndim != 3 or array.shape[2] != 3:
        raise HistobenchError(
            f"images: expected uint8 arrays of shape [height, width, 3], found {array.dtype} {array.shape}"
        )
    return Pillow.fromarray(array)


def _as_from_a_file(image: Image) -> Image:
    """In RGB by the rules for files: orientation, transparency, 16 bits and CMYK make no difference."""
    from io import BytesIO

    from PIL import ImageOps

    from histobench.roi.data.image import open_rgb

    try:
        image = ImageOps.exif_transpose(image)
        if image.mode in ("RGB", "L"):
            return image.convert("RGB")
        content = BytesIO()
        image.save(content, "TIFF" if image.mode == "CMYK" else "PNG")
    except (OSError, SyntaxError) as error:
        raise HistobenchError(f"images: a picture of mode {image.mode} cannot be read: {error}") from error
    return open_rgb(content.getvalue(), name="images")


def _batches(items: Iterator[Any], size: int) -> Iterator[list[Any]]:
    if size < 1:
        raise HistobenchError(f"batch_size: expected at least 1, found {size}")
    batch: list[Any] = []
    for item in items:
        batch.append(item)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch
