"""Perturbations by definition, and what they do to features, predictions and accuracy."""

from __future__ import annotations

import io
import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from scipy import ndimage

from histobench.cli.main import main
from histobench.roi.data.demo import render_tile, write_demo_dataset
from histobench.roi.data.roi_dataset import RoiImage
from histobench.roi.features.feature_file import load
from histobench.roi.plan import stress
from histobench.roi.robustness.perturbations import (
    STRESS,
    THUNDER,
    macenko,
    scale,
    stress_measures,
    stressed_features,
)

BY_NAME = {change.name: change for change in (*STRESS, *THUNDER)}


@cache
def tile() -> np.ndarray:
    return render_tile("TUM", seed=0, index=1, size=96)


def changed(name: str, seed: int = 0) -> np.ndarray:
    return BY_NAME[name].apply(tile(), np.random.default_rng(seed))


@pytest.mark.parametrize("name", BY_NAME)
def test_a_change_keeps_shape_and_type_and_depends_on_its_seed_alone(name: str) -> None:
    before = tile().copy()
    result = changed(name)
    assert (result.shape, result.dtype) == (tile().shape, np.uint8)
    np.testing.assert_array_equal(result, changed(name))
    np.testing.assert_array_equal(tile(), before)
    assert (result != tile()).any()
    oblong = tile()[:, :71]
    if "thunder" not in name:  # whose rotations turn it
        assert BY_NAME[name].apply(oblong, np.random.default_rng(0)).shape == oblong.shape


@pytest.mark.parametrize("family", ["jpeg", "blur", "brightness", "hed"])
def test_more_strength_is_more_change(family: str) -> None:
    apart = [
        np.mean([np.abs(changed(f"{family}_{k}", seed).astype(int) - tile()).mean() for seed in range(8)])
        for k in (1, 2, 3)
    ]
    assert apart[0] < apart[1] < apart[2]


def test_simple_changes_are_what_they_are_called() -> None:
    box = io.BytesIO()
    Image.fromarray(tile()).save(box, "JPEG", quality=40)
    np.testing.assert_array_equal(changed("jpeg_2"), np.asarray(Image.open(box)))
    np.testing.assert_array_equal(changed("brightness_2"), np.rint(tile() * 0.75).astype(np.uint8))
    turned = changed("thunder_rotation")
    assert any((turned == np.rot90(tile(), k)).all() for k in (1, 2, 3))
    assert any((changed("thunder_flip") == flipped).all() for flipped in (tile()[::-1], tile()[:, ::-1]))
    for kind in ("dilation", "erosion", "opening", "closing"):
        judge = [
            np.stack(
                [getattr(ndimage, f"grey_{kind}")(tile()[..., c], size=(k, k)) for c in range(3)], axis=2
            )
            for k in (3, 5)
        ]
        assert any((changed(f"thunder_{kind}") == result).all() for result in judge)
    black = (changed("thunder_cutout") == 0).all(axis=2).mean()
    assert 0.09 < black < 0.52
    middle = np.asarray(Image.fromarray(tile()[10:86, 10:86]).resize((96, 96), Image.Resampling.BILINEAR))
    np.testing.assert_array_equal(scale(96 / 76)(tile(), np.random.default_rng(0)), middle)


def test_macenko_brings_two_stainings_of_one_tissue_together() -> None:
    draw = np.random.default_rng(0)
    amounts = draw.uniform(0, 1.2, (64, 64, 2))
    amounts[draw.random((64, 64)) < 0.4, 1] = 0.02
    stains = np.array([[[0.65, 0.70, 0.29], [0.15, 0.90, 0.35]], [[0.55, 0.75, 0.45], [0.25, 0.80, 0.55]]])
    light = [256 * np.exp(-(amounts @ pair)) - 1 for pair in stains]
    images = [np.clip(np.rint(each), 0, 255).astype(np.uint8) for each in light]
    apart = np.abs(images[0].astype(float) - images[1]).mean()
    same = [macenko(1.0)(image, draw).astype(float) for image in images]
    assert np.abs(same[0] - same[1]).mean() < apart / 2
    glass = np.full((32, 32, 3), 245, np.uint8)
    np.testing.assert_array_equal(macenko(1.0)(glass, draw), glass)


def test_measures_are_plain_means_over_images() -> None:
    draw = np.random.default_rng(1)
    features = draw.normal(size=(3, 20, 5)).astype(np.float32)
    labels, predicted = draw.integers(0, 2, 20), draw.integers(0, 2, (3, 20))
    first, second = stress_measures(features, STRESS[:2], labels, np.arange(20) // 4, predicted)
    assert first.flip_rate.value == pytest.approx((predicted[1] != predicted[0]).mean())
    lost = (predicted[0] == labels).mean() - (predicted[2] == labels).mean()
    assert second.accuracy_drop.value == pytest.approx(lost)
    a, b = features[0], features[1]
    slow = np.mean([x @ y / np.linalg.norm(x) / np.linalg.norm(y) for x, y in zip(a, b, strict=True)])
    assert first.cosine.value == pytest.approx(slow, abs=1e-6)
    assert first.cosine.low <= first.cosine.value <= first.cosine.high  # type: ignore[operator]
    report = stress.StressReport("d", "e", 20, 5, 0.5, (first, second), (), Path())
    order = sorted((first, second), key=lambda each: each.accuracy_drop.value, reverse=True)
    for row, each in zip(stress.stress_grid(report).rows, order, strict=True):
        shares = [f"{100 * found.value:.0f}" for found in (each.flip_rate, each.accuracy_drop)]
        assert [cell.split()[0] for cell in row] == [each.name, f"{each.cosine.value:.3f}", *shares]


def test_an_image_is_decoded_once_and_changed_alike_whatever_the_others_are() -> None:
    seen = []

    def encode(images: list[np.ndarray]) -> np.ndarray:
        seen.append(len(images))
        return np.array([[image.mean(), image.std()] for image in images], dtype=np.float32)

    both = stressed_features([("a", tile()), ("b", tile()[::-1])], THUNDER, encode, seed=0)  # type: ignore[arg-type]
    alone = stressed_features([("b", tile()[::-1])], THUNDER, encode, seed=0)  # type: ignore[arg-type]
    assert both.shape == (15, 2, 2)
    assert seen == [15, 15, 15]
    np.testing.assert_array_equal(both[:, 1], alone[:, 0])
    other = stressed_features([("b", tile()[::-1])], THUNDER, encode, seed=1)  # type: ignore[arg-type]
    assert (other != alone).any()


@pytest.mark.slow
def test_the_stress_test_runs_from_images_to_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HISTOBENCH_CACHE", str(tmp_path / "cache"))
    table = write_demo_dataset(tmp_path / "data", train_per_class=3, test_per_class=1, size=64)
    weights = str(tmp_path / "weights.pth")
    torch.manual_seed(0)
    torch.save(timm.create_model("test_vit", num_classes=0).state_dict(), weights)
    command = ["robustness", "--stress", "--data", str(table), "--device", "cpu"]
    command += ["--models", "timm:test_vit", "--weights", weights]
    seeds: list[int] = []
    computed, chosen = stress.stressed_features, stress._chosen
    monkeypatch.setattr(
        stress, "stressed_features", lambda *given, seed: seeds.append(seed) or computed(*given, seed=seed)
    )
    monkeypatch.setattr(stress, "_chosen", lambda *given: seeds.append(given[-1]) or chosen(*given))
    assert main([*command, "-o", str(tmp_path / "r"), "--stress-images", "7", "--seed", "5"]) == 0
    assert seeds == [5, 5]
    many = [RoiImage(Path(name), 0, name, "") for name in map(str, range(99))]
    assert chosen(many, 7, 5) == chosen(many, 7, 5) != chosen(many, 7, 6)
    content = json.loads(
        (tmp_path / "r" / "synthetic-crc" / "timm_test_vit" / "Robustness" / "stress.json").read_text()
    )
    assert (content["num_samples"], content["seed"]) == (7, 5)
    (stored,) = (tmp_path / "r" / "features").rglob("*.pt")
    assert len(load(stored)) == 27  # the probe learns from the training images
    assert "too few groups" in content["changes"]["jpeg_1"]["cosine"]["reason"]
    assert set(content["changes"]) == set(BY_NAME)
    assert len(BY_NAME) == 3 * 7 + 14
    values = {name: each["cosine"]["value"] for name, each in content["changes"].items()}
    assert values["jpeg_1"] > values["thunder_cutout"]
    assert main(["robustness", "--stress", "--data", str(table)]) == 2
