"""Preprocessing as data: resize, centre crop, normalise."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

if TYPE_CHECKING:
    from torch import Tensor

INTERPOLATIONS = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class TransformSpec:
    """An encoder's preprocessing: short side to `resize`, centre crop of `crop`, then (x / 255 - mean) / std.

    With `squash` both sides are resized to `resize`, whatever the shape of the image: some authors do so.
    Every image ends square, so images of any shape can share a batch. Calling the object on a PIL image
    gives the float tensor that the encoder expects; `crop_pixels` gives the same image before normalisation,
    which is what travels to the device.
    """

    resize: int = 224
    crop: int = 224
    interpolation: str = "bicubic"
    mean: tuple[float, float, float] = IMAGENET_MEAN
    std: tuple[float, float, float] = IMAGENET_STD
    squash: bool = False

    def with_size(self, size: int) -> TransformSpec:
        """The same recipe at another input size; the ratio of resize to crop is kept.

        >>> TransformSpec(resize=256, crop=224).with_size(448).resize
        512
        """
        return replace(self, resize=round(self.resize * size / self.crop), crop=size)

    def crop_pixels(self, image: Image.Image) -> np.ndarray:
        """Resize and centre-crop an RGB image with torchvision's rounding; uint8 [crop, crop, 3]."""
        width, height = image.size
        size = self._resized(width, height)
        if size != (width, height):
            image = image.resize(size, INTERPOLATIONS[self.interpolation])
            width, height = size
        left = round((width - self.crop) / 2.0)
        top = round((height - self.crop) / 2.0)
        if (width, height) != (self.crop, self.crop):
            image = image.crop((left, top, left + self.crop, top + self.crop))
        return np.asarray(image, dtype=np.uint8)

    def _resized(self, width: int, height: int) -> tuple[int, int]:
        if self.squash:
            return self.resize, self.resize
        if min(width, height) == self.resize:
            return width, height
        longer = int(self.resize * max(width, height) / min(width, height))
        return (self.resize, longer) if width <= height else (longer, self.resize)

    def normalise(self, pixels: Tensor) -> Tensor:
        """uint8 [..., h, w, 3] to normalised float32 [..., 3, h, w], on the device the pixels are on."""
        import torch

        mean = torch.tensor(self.mean, dtype=torch.float32, device=pixels.device).view(3, 1, 1)
        std = torch.tensor(self.std, dtype=torch.float32, device=pixels.device).view(3, 1, 1)
        return (pixels.movedim(-1, -3).to(torch.float32).div(255.0) - mean) / std

    def __call__(self, image: Image.Image) -> Tensor:
        import torch

        return self.normalise(torch.from_numpy(self.crop_pixels(image.convert("RGB")).copy()))
