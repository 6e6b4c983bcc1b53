"""What an encoder embeds: every form of a picture gives the same features, the rest is refused."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

import histobench as hb
from histobench.roi.data.demo import write_demo_dataset

PIXELS = np.random.default_rng(0).integers(0, 256, (64, 48, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def encoder() -> hb.Encoder:
    return hb.create_encoder("tiny-vl", device="cpu")


def _png(array: np.ndarray, size: int | None = None) -> bytes:
    content = io.BytesIO()
    Image.fromarray(array).save(content, "PNG")
    return content.getvalue()[:size]


def _cut_short() -> Image.Image:
    return Image.open(io.BytesIO(_png(PIXELS, 3000)))


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "nothing": (lambda: None, "images: expected PIL images, arrays .*, or paths, found NoneType"),
    "a table": (
        lambda: pd.DataFrame({"path": ["a.png"]}),
        "images: this is a table; give its column of paths",
    ),
    "nothing in a list": (lambda: [PIXELS, None], r"images\[1\]: expected PIL images, .* found NoneType"),
    "no pixels": (
        lambda: [np.zeros((0, 8, 3), np.uint8)],
        r"images\[0\]: an image of shape .* has no pixels",
    ),
    "cut short": (lambda: [PIXELS, _cut_short()], r"images\[1\]: the image is damaged or truncated"),
    "no file": (lambda: ["no/such.png"], r"images\[0\]: no/such.png: the file does not exist"),
    "a folder": (lambda: Path(), r"images\[0\]: .: Is a directory"),
    "floats up to 1": (lambda: PIXELS / 255, r"images\[0\]: float64 samples have no agreed .*; give uint8"),
    "channels first": (
        lambda: PIXELS.transpose(2, 0, 1),
        r"images\[0\]: .* \(3, 64, 48\); the channels come last",
    ),
    "a tensor": (
        lambda: torch.zeros(2, 3, 8, 8),
        r"images\[0\]: float32 samples have no agreed black and white",
    ),
    "32-bit floats of a picture": (lambda: Image.fromarray(np.ones((8, 8), np.float32)), "pixels of kind F"),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("images", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_no_image_is_named_by_its_place(
    images: Callable[[], Any], message: str, encoder: hb.Encoder
) -> None:
    with pytest.raises(hb.HistobenchError, match=message) as refused:
        encoder.embed(images())
    assert "\n" not in str(refused.value)


def test_no_images_give_no_rows(encoder: hb.Encoder) -> None:
    for none in ([], (), iter([]), np.zeros((0, 8, 8, 3), np.uint8), pd.Series([], dtype=object)):
        assert encoder.embed(none).shape == (0, encoder.dim)


@pytest.mark.filterwarnings("error")
def test_every_form_of_a_picture_gives_the_same_features(encoder: hb.Encoder, tmp_path: Path) -> None:
    (tmp_path / "x.png").write_bytes(_png(PIXELS))
    with tarfile.open(tmp_path / "x.tar", "w") as archive:
        archive.add(tmp_path / "x.png", "a/x.png")
    truth = encoder.embed([tmp_path / "x.png"])
    opaque = np.dstack([PIXELS, np.full(PIXELS.shape[:2], 255, np.uint8)])
    for form in (
        PIXELS,
        PIXELS[None],
        [PIXELS],
        (PIXELS for _ in range(1)),
        torch.from_numpy(PIXELS),
        np.asfortranarray(PIXELS),
        opaque,
        PIXELS.astype(np.uint16) * 257,
        Image.fromarray(PIXELS),
        Image.fromarray(opaque),
        str(tmp_path / "x.png"),
        np.array([str(tmp_path / "x.png")]),
        pd.Series([tmp_path / "x.png"]),
        tmp_path / "x.tar" / "a" / "x.png",
    ):
        np.testing.assert_array_equal(encoder.embed(form, batch_size=np.int64(1)), truth)


def test_grey_is_colour_with_equal_parts(encoder: hb.Encoder) -> None:
    grey = PIXELS[..., 0]
    truth = encoder.embed(np.dstack([grey] * 3))
    for form in (grey, grey[..., None], grey.astype(np.uint16) * 257, Image.fromarray(grey)):
        np.testing.assert_array_equal(encoder.embed(form), truth)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"size": 32}, "size: the encoder exists already; pass this to create_encoder"),
        ({"weights": "w.pt"}, "weights: the encoder exists already; pass this to create_encoder"),
        ({"encoder": ["a", "b"]}, "encoder: expected a text, found"),
        ({"encoder": "tiny-vl", "size": "32"}, "size: expected a whole number of at least 1, found '32'"),
        ({"batch_size": 0}, "batch_size: expected auto or a whole number of at least 1, found 0"),
        ({"folder": __file__}, "folder: .*: Not a directory"),
        ({"data": None}, "data: expected a"),
        (
            {"encoder": "tiny-vl", "weights": "w.pt"},
            "weights: tiny-vl includes its own weights and takes no checkpoint",
        ),
    ],
)
def test_an_extraction_is_refused_before_the_data_are_read(
    change: dict[str, Any], message: str, encoder: hb.Encoder
) -> None:
    with pytest.raises(hb.HistobenchError, match=message):
        hb.extract(**{"data": "no such data", "encoder": encoder, **change})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"size": 0}, "size: expected a whole number of at least 1, found 0"),
        ({"name": "uni_v1", "size": 33}, "uni_v1 cannot take 33 x 33 pixels; possible sizes"),
        (
            {"weights": "w.pt"},
            "weights: tiny-vl includes its own weights and takes no checkpoint; leave it out",
        ),
        ({"name": "uni_v1", "weights": "/no/w.pt"}, "the weights given: /no/w.pt does not exist"),
        ({"device": "gpu"}, "unknown device 'gpu'"),
        ({"name": "tiny"}, "unknown encoder 'tiny'; did you mean tiny-vl"),
    ],
)
def test_an_encoder_that_cannot_be_made_says_which_parameter(change: dict[str, Any], message: str) -> None:
    with pytest.raises(hb.HistobenchError, match=message) as refused:
        hb.create_encoder(**{"name": "tiny-vl", **change})
    assert "resize_size" not in str(refused.value)


@pytest.mark.slow
def test_an_encoder_that_was_made_extracts_as_its_name_does(
    encoder: hb.Encoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HISTOBENCH_CACHE", str(tmp_path / "cache"))
    tiles = write_demo_dataset(tmp_path / "t", name="d", train_per_class=1, test_per_class=1, size=32, seed=0)
    by_name = hb.extract(tiles, "tiny-vl", folder=tmp_path / "a", num_workers=np.int64(0))
    made = hb.extract(tiles, encoder, folder=tmp_path / "b", num_workers=0)
    np.testing.assert_array_equal(by_name.train.X, made.train.X)
    assert next(encoder.module.parameters()).device.type == encoder.device


OWN = """
import numpy as np, torch
from histobench.roi.encoders.base import BasePatchEncoder
class Shapes(BasePatchEncoder):
    def __init__(self):
        super().__init__()
        self.embed_dim = 3
        self.eval_transforms = lambda image: torch.from_numpy(np.array(image).transpose(2, 0, 1)).float()
    def forward(self, images):
        return images.mean((2, 3))
class Flat(Shapes):
    def forward(self, images):
        return images.mean((1, 2, 3))
"""


@pytest.mark.slow
def test_ones_own_encoder_is_told_what_it_does_wrong(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    shapes, flat = (
        hb.create_encoder(f"{tmp_path}/own.py:{name}", device="cpu") for name in ("Shapes", "Flat")
    )
    assert shapes.embed([PIXELS, PIXELS]).shape == (2, 3)
    with pytest.raises(hb.HistobenchError, match="its eval_transforms gives tensors of several shapes"):
        shapes.embed([PIXELS, PIXELS[:9]])
    with pytest.raises(hb.HistobenchError, match=r"gives features of shape \(1,\), but its embed_dim is 3"):
        flat.embed(PIXELS)
