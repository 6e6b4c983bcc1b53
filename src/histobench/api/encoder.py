"""Encoders for Python users: images in, vectors out."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from histobench.api.validation import as_array
from histobench.core.errors import HistobenchError, InvalidParameterError, error_text
from histobench.core.records import checked

if TYPE_CHECKING:
    from PIL.Image import Image

    from histobench.roi.encoders.base import BasePatchEncoder
    from histobench.roi.encoders.encoder_spec import EncoderSpec


class Encoder:
    """A frozen encoder with its own transform, on one device; `create_encoder` returns one.

    Attributes
    ----------
    name : str
        Its name in tables and files.
    dim : int
        Length of a feature vector.
    device : str
        Where it computes.
    module : torch.nn.Module
        The network itself, with its transform in `module.eval_transforms`.

    Examples
    --------
    >>> import histobench as hb
    >>> encoder = hb.create_encoder("tiny-vl", device="cpu")
    >>> encoder.name, encoder.dim
    ('tiny-vl', 256)
    """

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
        self, images: Image | str | Path | NDArray[np.integer] | Iterable[Any], *, batch_size: int = 32
    ) -> NDArray[np.float32]:
        """Compute the features of images.

        Parameters
        ----------
        images : PIL image, path, array, or an iterable of these
            Arrays are uint8 or uint16 with shape [h, w, 3], [h, w] (gray) or [h, w, 4] (drawn on white), or
            several of one shape as [n, h, w, c]. Floats are refused: it is not defined which value is white.
            An error names the image by its position, `images[3]`.
        batch_size : int, default 32
            Images per forward pass.

        Returns
        -------
        ndarray of float32, shape [n, d]
            One image gives [1, d], none give [0, d].

        Examples
        --------
        >>> import numpy as np, histobench as hb
        >>> encoder = hb.create_encoder("tiny-vl", device="cpu")
        >>> encoder.embed(np.zeros((2, 64, 64, 3), dtype=np.uint8)).shape
        (2, 256)
        """
        import torch

        size = checked(int, batch_size, "batch_size", least=1)
        transform: Any = self.module.eval_transforms
        pictures = (
            torch.as_tensor(np.asarray(transform(_picture(place, image))), dtype=torch.float32)
            for place, image in enumerate(_listed(images))
        )
        rows = [np.zeros((0, self.dim), dtype=np.float32)]
        with torch.inference_mode():
            while batch := list(itertools.islice(pictures, size)):
                rows.append(self._features(batch))
        return np.concatenate(rows)

    def _features(self, batch: list[Any]) -> NDArray[np.float32]:
        import torch

        shapes = sorted({tuple(image.shape) for image in batch})
        if len(shapes) > 1:
            raise HistobenchError(
                f"{self.name}: its eval_transforms gives tensors of several shapes ({shapes[0]}, "
                f"{shapes[-1]}); it must return the same shape for images of any size"
            )
        features: NDArray[np.float32] = self.module(torch.stack(batch).to(self.device)).float().cpu().numpy()
        if features.shape != (len(batch), self.dim):
            raise HistobenchError(
                f"{self.name} gives features of shape {features.shape}, but its embed_dim is {self.dim}: "
                f"expected [images, {self.dim}]"
            )
        return features

    def __repr__(self) -> str:
        return f"Encoder {self.name!r}: {self.dim} dimensions, on {self.device}"


def create_encoder(
    name: str | Any,
    *,
    device: str | None = None,
    weights: str | Path | None = None,
    size: int | None = None,
    transform: Any = None,
    label: str | None = None,
) -> Encoder:
    """Create an encoder: one of the zoo, any model of timm or the Hugging Face hub, or your own.

    Parameters
    ----------
    name : str, torch.nn.Module or callable
        A name from `list_encoders`, with or without a variant (`uni_v1`, `virchow2@cls`); `timm:NAME`;
        `hf:OWNER/NAME`; your own class, `my_file.py:MyEncoder`; or a module or callable from images
        [b, 3, h, w] to features [b, d].
    device : str, optional
        "cpu", "cuda:0", "mps", ... (default: the GPU if there is one).
    weights : str or Path, optional
        A checkpoint, a folder of checkpoints, or a table of paths such as model_weights.json (default: the
        usual places, then the Hugging Face hub).
    size : int, optional
        Image size in pixels (default: the encoder's own).
    transform : callable, optional
        For a module or callable: from a PIL image to a tensor (default: the model's own, else resize to 224
        with the mean and standard deviation of ImageNet).
    label : str, optional
        For a module or callable: its name in tables and files (default: the name of its class or function).

    Returns
    -------
    Encoder

    Examples
    --------
    >>> import histobench as hb
    >>> hb.create_encoder("tiny-vl", device="cpu")
    Encoder 'tiny-vl': 256 dimensions, on cpu
    """
    from histobench.core.devices import resolve_device
    from histobench.roi.encoders.registry import create_encoder as create

    if callable(name):
        from histobench.roi.encoders.any_model import wrap_object

        if weights is not None:
            raise InvalidParameterError("weights: the model has its weights already; leave it out")
        where = resolve_device(device_text(device))
        side = None if size is None else checked(int, size, "size", least=1)
        named = None if label is None else checked(str, label, "label")
        return Encoder(wrap_object(name, name=named, transform=transform, size=side).to(where).float(), where)
    if transform is not None or label is not None:
        raise InvalidParameterError("transform, label: only for a torch.nn.Module or a callable")
    size, place = encoder_settings(checked(str, name, "name"), size, weights)
    where = resolve_device(device_text(device))
    return Encoder(create(name, resize_size=size, weights=place).to(where).float().eval(), where)


def device_text(device: Any) -> str | None:
    """The name of a device, which may be given as PyTorch's own object."""
    named = str(device) if type(device).__name__ == "device" else device
    return None if named is None else checked(str, named, "device")


def encoder_settings(
    name: str, size: int | None, weights: str | Path | None
) -> tuple[int | None, str | None]:
    """Size and weights of an encoder that is to be made, checked; what it would not look at is refused."""
    from histobench.roi.encoders.own_name import names_a_file
    from histobench.roi.encoders.registry import find_spec

    size = None if size is None else checked(int, size, "size", least=1)
    if weights is None:
        return size, None
    place = checked(Path, weights, "weights")
    spec = None if names_a_file(name) else find_spec(name)
    ready = names_a_file(name) or (spec is not None and spec.source.kind in ("project", "seed"))
    # A folder or a table is a place to look in, and may be given for many encoders.
    if ready and not place.is_dir() and place.suffix != ".json":
        raise InvalidParameterError(
            f"weights: {name} includes its own weights and takes no checkpoint; leave it out"
        )
    return size, str(place)


class Encoders(list["EncoderSpec"]):
    """A list of encoder specifications that is shown as a table; so are slices of it."""

    def __getitem__(self, place: Any) -> Any:
        found = super().__getitem__(place)
        return Encoders(found) if isinstance(place, slice) else found

    def __repr__(self) -> str:
        width = max((len(spec.name) for spec in self), default=0)
        return "\n".join(
            f"{spec.name:{width}}  {spec.dim} numbers, "
            f"{'zero-shot' if spec.supports_zero_shot else 'no text'}, "
            f"{'on request' if spec.source.gated else 'open'}, {spec.license}"
            for spec in self
        )

    def to_frame(self) -> pd.DataFrame:
        """Return one row per encoder: name, title, dim, zero_shot, open, license, params.

        Returns
        -------
        pandas.DataFrame
        """
        rows = [
            {
                "name": spec.name,
                "title": spec.title,
                "dim": spec.dim,
                "zero_shot": spec.supports_zero_shot,
                "open": not spec.source.gated,
                "license": spec.license,
                "params": spec.cost.params if spec.cost else None,
            }
            for spec in self
        ]
        return pd.DataFrame(rows).astype({"params": "Int64"}) if rows else pd.DataFrame()

    def _repr_html_(self) -> str:
        return self.to_frame().to_html(index=False)


def list_encoders(*, zero_shot: bool | None = None, open: bool | None = None) -> Encoders:
    """List the encoders that histobench knows.

    Parameters
    ----------
    zero_shot : bool, optional
        True: only encoders with a text tower; False: only those without.
    open : bool, optional
        True: only encoders that anybody can download; False: only those on request.

    Returns
    -------
    list of EncoderSpec
        One short line per encoder when printed; `to_frame()` gives a table. A specification has `name`,
        `title`, `dim`, `license`, `supports_zero_shot`, `source` and more.

    Examples
    --------
    >>> import histobench as hb
    >>> hb.list_encoders(zero_shot=True, open=True)[-1:]
    tiny-vl  256 numbers, zero-shot, open, Apache-2.0
    """
    from histobench.roi.encoders.registry import list_encoders as everyone

    for asked, value in (("zero_shot", zero_shot), ("open", open)):
        if value is not None:
            checked(bool, value, asked)
    return Encoders(
        spec
        for spec in everyone()
        if (zero_shot is None or spec.supports_zero_shot == zero_shot)
        and (open is None or (not spec.source.gated) == open)
    )


_KINDS = "PIL images, arrays of shape [height, width, 3], or paths"


def _listed(images: Any) -> Iterable[Any]:
    if isinstance(images, str | os.PathLike) or _is_picture(images):
        return [images]
    if hasattr(images, "columns"):
        raise InvalidParameterError("images: this is a table; give its column of paths")
    if hasattr(images, "__array__"):
        array = as_array(images, "images")
        return [array] if array.ndim in (2, 3) else list(array)
    if isinstance(images, bytes | Mapping) or not hasattr(images, "__iter__"):
        raise InvalidParameterError(f"images: expected {_KINDS}, found {type(images).__name__}")
    return cast("Iterable[Any]", images)


def _picture(position: int, image: Any) -> Image:
    """An image of the list in RGB, by the rules for files."""
    from histobench.roi.data.image import array_rgb, open_rgb, picture_rgb

    try:
        if isinstance(image, str | os.PathLike):
            return open_rgb(checked(Path, image, "path"))
        if _is_picture(image):
            return picture_rgb(image)
        if hasattr(image, "__array__"):
            return array_rgb(as_array(image, "array"))
        raise HistobenchError(f"expected {_KINDS}, found {type(image).__name__}")
    except (HistobenchError, OSError) as error:
        raise InvalidParameterError(f"images[{position}]: {error_text(error)}") from error


def _is_picture(image: Any) -> bool:
    return hasattr(image, "convert") and hasattr(image, "mode") and not isinstance(image, type)
