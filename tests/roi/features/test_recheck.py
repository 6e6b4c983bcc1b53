"""Features of the cache are never those of another model, whatever the identity says."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from histobench.core.errors import HistobenchError
from histobench.roi.data.dataset import RoiDataset
from histobench.roi.encoders.base import BasePatchEncoder
from histobench.roi.encoders.registry import create_encoder
from histobench.roi.features.extract import Extraction, extract
from histobench.roi.features.feature_file import load
from histobench.roi.features.recheck import LENGTH, _apart
from histobench.roi.features.settings import EncoderRecipe

Make = Callable[..., RoiDataset]

#: What it reads from the environment cannot be known to any identity.
SECRET = """
import os, torch
from histobench.roi.encoders.base import BasePatchEncoder
from histobench.roi.encoders.transform import TransformSpec

class Secret(BasePatchEncoder):
    def __init__(self):
        super().__init__()
        self.eval_transforms = TransformSpec(resize=16, crop=16)
        self.embed_dim = 6

    def forward(self, images):
        if os.environ.get("NOISE"):
            images = images + torch.randn_like(images)
        means = images.mean(dim=(2, 3))
        return torch.cat([means, means ** float(os.environ.get("POWER", "2"))], dim=1)
"""


@pytest.fixture
def secret(tmp_path: Path) -> EncoderRecipe:
    (tmp_path / "secret.py").write_text(SECRET)
    return EncoderRecipe(f"{tmp_path}/secret.py:Secret")


def run(dataset: RoiDataset, encoders: object, folder: Path, **settings: object) -> list[Extraction]:
    return extract(
        dataset, encoders, folder, **{"device": "cpu", "num_workers": 0, "batch_size": 8, **settings}
    )


def test_a_change_that_no_identity_can_know_discards_the_cached_set(
    make_dataset: Make,
    secret: EncoderRecipe,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    dataset = make_dataset(30, 10)
    before = run(dataset, secret, tmp_path / "one")
    monkeypatch.setenv("POWER", "4")
    after = run(dataset, secret, tmp_path / "two")
    assert [item.computed for item in after] == [30, 10]
    assert "the cached set of 40 images is discarded and computed again" in caplog.text
    # What comes after must not take the old results for those of these features.
    assert {item.fingerprint for item in before}.isdisjoint(item.fingerprint for item in after)
    monkeypatch.setenv("HISTOBENCH_CACHE", str(tmp_path / "another-cache"))
    for item, fresh in zip(after, run(dataset, secret, tmp_path / "three"), strict=True):
        assert torch.equal(load(item.path).embeddings, load(fresh.path).embeddings)


def test_unchanged_features_are_not_computed_again_and_keep_their_name(
    make_dataset: Make, secret: EncoderRecipe, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    dataset = make_dataset(30, 10)
    first = run(dataset, secret, tmp_path / "out")
    # Another batch, another number of images: what differs then is no difference.
    second = run(dataset, secret, tmp_path / "out", batch_size=3, recheck=40)
    assert [item.computed for item in second] == [0, 0]
    assert [item.fingerprint for item in second] == [item.fingerprint for item in first]
    assert not caplog.text


def test_the_look_can_be_left_out(
    make_dataset: Make, secret: EncoderRecipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = make_dataset(6, 3)
    run(dataset, secret, tmp_path / "out")
    monkeypatch.setenv("POWER", "4")
    assert [item.computed for item in run(dataset, secret, tmp_path / "out", recheck=0)] == [0, 0]
    with pytest.raises(HistobenchError, match="`recheck`: expected a whole number of at least 0"):
        run(dataset, secret, tmp_path / "out", recheck=-1)


def test_an_encoder_that_never_repeats_itself_is_told_and_not_computed_for_ever(
    make_dataset: Make,
    secret: EncoderRecipe,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    dataset = make_dataset(6, 3)
    monkeypatch.setenv("NOISE", "1")
    run(dataset, secret, tmp_path / "out")
    assert [item.computed for item in run(dataset, secret, tmp_path / "out")] == [0, 0]
    assert "gives other features each time" in caplog.text


def test_without_the_cache_everything_is_computed_and_nothing_kept(
    make_dataset: Make, secret: EncoderRecipe, tmp_path: Path, own_cache: Path
) -> None:
    dataset = make_dataset(6, 3)
    for _ in range(2):
        done = run(dataset, secret, tmp_path / "out", no_cache=True)
        assert [item.computed for item in done] == [6, 3]
    assert not list(own_cache.rglob("*.safetensors"))
    assert sorted(path.suffix for path in (tmp_path / "out").iterdir()) == [".pt", ".pt"]
    cached = run(dataset, secret, tmp_path / "cached")
    for one, other in zip(done, cached, strict=True):
        assert torch.equal(load(one.path).embeddings, load(other.path).embeddings)
        assert one.fingerprint != other.fingerprint


def test_a_cache_that_cannot_be_emptied_is_not_used(
    make_dataset: Make,
    secret: EncoderRecipe,
    tmp_path: Path,
    own_cache: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dataset = make_dataset(6, 3)
    run(dataset, secret, tmp_path / "out")
    monkeypatch.setenv("POWER", "4")

    def refuse(self: Path, missing_ok: bool = False) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refuse)
        with pytest.raises(HistobenchError, match="use `no_cache`"):
            run(dataset, secret, tmp_path / "out")


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_rounding_is_no_difference_and_another_model_is(precision: str) -> None:
    rng = np.random.default_rng(0)
    rows = (rng.normal(size=(8, 256)) + rng.normal(size=256)).astype(np.float32)
    noise = rng.normal(size=rows.shape).astype(np.float32)
    noise *= np.linalg.norm(rows, axis=1, keepdims=True) / np.linalg.norm(noise, axis=1, keepdims=True)
    assert (_apart(rows, rows + 0.5 * LENGTH[precision] * noise, precision) < 1).all()
    assert (_apart(rows, rows + 10 * LENGTH[precision] * noise, precision) > 1).all()
    assert (_apart(rows, rows * np.nan, precision) > 1).all()
    # A large part that all images share hides nothing.
    shared = rows + 50
    other = shared + np.linalg.norm(rows - rows.mean(0), axis=1).mean() / 16 * rng.normal(size=rows.shape)
    if precision == "fp32":
        assert (_apart(shared, other.astype(np.float32), precision) > 1).all()


TWO = """
import torch
from histobench.roi.encoders.base import BasePatchEncoder
from histobench.roi.encoders.transform import TransformSpec

class ColourHist(BasePatchEncoder):
    def __init__(self):
        super().__init__()
        self.eval_transforms = TransformSpec(resize=16, crop=16)
        self.embed_dim = 3

    def forward(self, images):
        return images.{what}(dim=(2, 3))
"""


@pytest.fixture
def two(tmp_path: Path) -> tuple[str, str]:
    for name, what in (("one", "mean"), ("other", "amax")):
        (tmp_path / f"{name}.py").write_text(TWO.format(what=what))
    return f"{tmp_path}/one.py:ColourHist", f"{tmp_path}/other.py:ColourHist"


def test_two_classes_of_one_name_are_refused_or_told_apart(
    make_dataset: Make, two: tuple[str, str], tmp_path: Path
) -> None:
    dataset = make_dataset(6, 3)
    with pytest.raises(HistobenchError, match=r"ColourHist2=.*other\.py:ColourHist"):
        run(dataset, [EncoderRecipe(name) for name in two], tmp_path / "out")
    assert not (tmp_path / "out").exists()
    named = [EncoderRecipe(two[0]), EncoderRecipe(f"largest={two[1]}")]
    done = run(dataset, named, tmp_path / "out")
    assert {item.path.name.split("]")[1] for item in done} == {"_Model_[ColourHist", "_Model_[largest"}
    alone = run(dataset, EncoderRecipe(two[1]), tmp_path / "alone")
    assert torch.equal(load(done[2].path).embeddings, load(alone[0].path).embeddings)


def test_a_later_run_does_not_replace_another_encoders_file(
    make_dataset: Make, two: tuple[str, str], tmp_path: Path
) -> None:
    dataset = make_dataset(6, 3)
    (train, _) = run(dataset, EncoderRecipe(two[0]), tmp_path / "out")
    before = train.path.read_bytes()
    with pytest.raises(HistobenchError, match=r"holds the features of .*one\.py:ColourHist"):
        run(dataset, EncoderRecipe(two[1]), tmp_path / "out")
    assert train.path.read_bytes() == before
    run(dataset, EncoderRecipe(two[0]), tmp_path / "out")
    # A file that was moved is the same encoder, and there is nobody left to protect.
    os.rename(tmp_path / "one.py", tmp_path / "moved.py")
    run(dataset, EncoderRecipe(f"{tmp_path}/moved.py:ColourHist"), tmp_path / "out")


def test_two_encoders_given_as_objects_do_not_share_a_file(
    make_dataset: Make, encoder_file: Path, tmp_path: Path
) -> None:
    first, second = (create_encoder(f"{encoder_file}:{name}") for name in ("Tiny", "Wide"))
    second.name = first.name

    def given(*encoders: BasePatchEncoder) -> list[Extraction]:
        return run(make_dataset(6, 3), list(encoders), tmp_path / "out")

    with pytest.raises(HistobenchError, match="two different encoders are called Tiny"):
        given(first, second)
    assert len(given(first, first)) == 4
