"""Preprocessing gives the pixels that torchvision gives, which is what the authors' code uses."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from histobench.roi.encoders.registry import get_spec
from histobench.roi.encoders.transform import TransformSpec
from histobench.roi.encoders.zoo import load_zoo
from histobench.roi.features.fingerprint import describe_transform
from histobench.roi.features.inference.device_runner import distinct

MODES = ("bilinear", "bicubic")
SHAPES = [(96, 96), (224, 224), (301, 224), (223, 500), (700, 460)]


def picture(width: int, height: int) -> Image.Image:
    rng = np.random.default_rng([width, height])
    return Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8))


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("interpolation", MODES)
@pytest.mark.parametrize("resize", [224, 256])
def test_cropping_is_torchvisions_resize_and_centre_crop(
    shape: tuple[int, int], interpolation: str, resize: int
) -> None:
    from torchvision.transforms import v2

    image, mode = picture(*shape), v2.InterpolationMode(interpolation)
    theirs = v2.CenterCrop(224)(v2.Resize(resize, interpolation=mode)(image))
    ours = TransformSpec(resize=resize, crop=224, interpolation=interpolation).crop_pixels(image)
    np.testing.assert_array_equal(ours, np.asarray(theirs))


@pytest.mark.parametrize(("resize", "crop"), [(23, 23), (26, 23), (27, 24), (31, 20)])
def test_cropping_is_torchvisions_at_every_width(resize: int, crop: int) -> None:
    from torchvision.transforms import v2

    theirs = v2.Compose([v2.Resize(resize, interpolation=v2.InterpolationMode.NEAREST), v2.CenterCrop(crop)])
    ours = TransformSpec(resize=resize, crop=crop, interpolation="nearest")
    for longer in range(31, 136):
        for image in (picture(longer, 31), picture(31, longer), picture(longer, resize)):
            np.testing.assert_array_equal(ours.crop_pixels(image), np.asarray(theirs(image)), str(image.size))


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("interpolation", MODES)
def test_squashing_is_torchvisions_resize_of_both_sides(shape: tuple[int, int], interpolation: str) -> None:
    from torchvision.transforms import v2

    image, mode = picture(*shape), v2.InterpolationMode(interpolation)
    theirs = v2.Resize((224, 224), interpolation=mode)(image)
    ours = TransformSpec(interpolation=interpolation, squash=True).crop_pixels(image)
    np.testing.assert_array_equal(ours, np.asarray(theirs))


def test_encoders_squash_where_their_authors_do() -> None:
    squashed = {name for name in load_zoo() if get_spec(name).transform.squash}
    assert squashed == {
        "phikon",  # a ViT processor of transformers: height and width
        "vit-b-in21k",
        "vit-l-in21k",
        "dinov3-s",
        "dinov3-b",
        "dinov3-l",
        "dinov3-s-plus",
        "dinov3-h-plus",
        "medsiglip",  # a SigLIP processor of transformers: height and width
        "gpfm",  # Resize((224, 224)) in the authors' code
        "genbio-pathfm",
        "gemma4-e4b",  # its processor keeps the shape where the tokens allow; a square becomes a square
        "gemma4-26b",
    }


def test_squashed_and_cropped_pixels_are_not_shared_between_encoders() -> None:
    crop, squash = TransformSpec(), TransformSpec(squash=True)
    assert distinct([crop, squash, TransformSpec(mean=(0.5,) * 3)])[1] == [0, 1, 0]
    assert describe_transform(squash) != describe_transform(crop)
    # Features that were stored before squashing existed keep their name.
    assert "squash" not in describe_transform(crop)
