"""Features of the cache are never those of another model, whatever the identity says."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import hypergeom

from histobench.core.errors import HistobenchError
from histobench.roi.data.roi_dataset import RoiDataset
from histobench.roi.encoders.base import BasePatchEncoder
from histobench.roi.encoders.own_encoder import recording
from histobench.roi.encoders.registry import create_encoder
from histobench.roi.features.feature_extraction import Extraction, extract, plan_extraction
from histobench.roi.features.feature_file import load
from histobench.roi.features.inference.planned_runner import PlannedRunner
from histobench.roi.features.recheck import CHANCE, LENGTH, _apart, images_for, sample
from histobench.roi.features.settings import EncoderRecipe
from histobench.roi.options import Settings

Make = Callable[..., RoiDataset]

#: What it asks the C library for is seen by no recording.
SECRET = """
import ctypes, torch
from histobench.roi.encoders.base import BasePatchEncoder
from histobench.roi.encoders.transform import TransformSpec

def secret(name, default=""):
    ask = ctypes.CDLL(None).getenv
    ask.restype = ctypes.c_char_p
    return (ask(name.encode()) or default.encode()).decode()

class Secret(BasePatchEncoder):
    def __init__(self):
        super().__init__()
        self.eval_transforms = TransformSpec(resize=16, crop=16)
        self.embed_dim = 6

    def forward(self, images):
        if secret("NOISE"):
            images = images + torch.randn_like(images)
        means = images.mean(dim=(2, 3))
        if secret("BRIGHT"):  # changes few images
            means = torch.where(means > float(secret("BRIGHT")), means + 1, means)
        return torch.cat([means, means ** float(secret("POWER", "2"))], dim=1)
"""


@pytest.fixture
def secret(tmp_path: Path) -> EncoderRecipe:
    (tmp_path / "secret.py").write_text(SECRET)
    return EncoderRecipe(f"{tmp_path}/secret.py:Secret")


def run(dataset: RoiDataset, encoders: object, folder: Path, **settings: object) -> list[Extraction]:
    return extract(
        dataset, encoders, folder, **{"device": "cpu", "num_workers": 0, "batch_size": 8, **settings}
    )


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_the_look_can_be_left_out(
    make_dataset: Make, secret: EncoderRecipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = make_dataset(6, 3)
    run(dataset, secret, tmp_path / "out")
    monkeypatch.setenv("POWER", "4")
    assert [item.computed for item in run(dataset, secret, tmp_path / "out", recheck=0)] == [0, 0]
    with pytest.raises(HistobenchError, match="`recheck` must be 'auto' or a whole number from 0 up"):
        run(dataset, secret, tmp_path / "out", recheck=-1)


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.parametrize("rows", [1, 20, 99, 180, 1000, 12_345, 1_000_000])
def test_the_number_of_images_has_the_promised_chance_and_no_smaller_one_has_it(rows: int) -> None:
    changed, drawn = -(-rows // 100), images_for(rows)
    assert 1 - hypergeom(rows, changed, drawn).pmf(0) >= CHANCE - 1e-9
    assert drawn == 1 or 1 - hypergeom(rows, changed, drawn - 1).pmf(0) < CHANCE
    assert drawn <= 300


def test_images_are_drawn_anew_in_every_run_and_every_image_can_be_drawn() -> None:
    keys = [bytes([number]) for number in range(180)]
    draws = [sample(keys, 8, seed) for seed in range(400)]
    assert len({tuple(draw) for draw in draws}) == 400
    assert set().union(*draws) == set(keys)
    assert all(draw == sorted(draw) and len(draw) == 8 for draw in draws)


@pytest.mark.nightly
@pytest.mark.slow
def test_a_change_of_one_image_in_a_hundred_is_found(
    make_dataset: Make,
    secret: EncoderRecipe,
    tmp_path: Path,
    own_cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    dataset = make_dataset(60, 30)
    done = run(dataset, secret, tmp_path / "out")
    brightest = torch.cat([load(item.path).embeddings for item in done])[:, :3].flatten().sort().values
    monkeypatch.setenv("BRIGHT", str(float(brightest[-2:].mean())))  # one image of ninety
    found = 0
    for seed in range(20):
        monkeypatch.setattr(
            "histobench.roi.features.feature_extraction.secrets.randbits", lambda bits, seed=seed: seed
        )
        caplog.clear()
        again = run(dataset, secret, tmp_path / "out")
        if sum(item.computed for item in again):
            found += 1
            assert f"seed {seed}" in caplog.text
            monkeypatch.setenv("HISTOBENCH_CACHE", str(tmp_path / f"cache{seed}"))
            with monkeypatch.context() as patch:
                patch.setenv("BRIGHT", "")
                run(dataset, secret, tmp_path / "out")
        else:
            (note,) = Path(os.environ["HISTOBENCH_CACHE"]).rglob("recheck.json")
            assert json.loads(note.read_text()) == {"seed": seed, "images": images_for(90), "of": 90}
    assert found >= 17


READS = """
import importlib, os, runpy, sys, torch
from pathlib import Path
from histobench.roi.encoders.base import BasePatchEncoder
from histobench.roi.encoders.transform import TransformSpec

class Reads(BasePatchEncoder):
    def __init__(self):
        super().__init__()
        self.eval_transforms = TransformSpec(resize=16, crop=16)
        self.embed_dim = 3
        {build}

    def forward(self, images):
        scale = 1.0
        {forward}
        return images.mean(dim=(2, 3)) * scale
"""


#: A folder elsewhere in which modules are looked for.
PATH = "sys.path.insert(0, os.environ['OTHER'])"


def write_scale(folder: Path, value: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "elsewhere_scale.py").write_text(f"SCALE = {value}\n")


@pytest.mark.sample(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("build", "forward"),
    [
        ("pass", "scale = float(os.environ.get('SCALE', 1))"),
        ("pass", "scale = float(os.getenv('SCALE', 1))"),
        ("pass", "scale = float(os.environb.get(b'SCALE', 1))"),
        ("self.scale = float(os.environ.get('SCALE', 1))", "scale = self.scale"),
        (PATH, "import elsewhere_scale; scale = elsewhere_scale.SCALE"),
        (PATH, "scale = importlib.import_module('else' + 'where_scale').SCALE"),
        ("pass", "scale = runpy.run_path(os.environ['OTHER'] + '/else' + 'where_scale.py')['SCALE']"),
        (PATH, "scale = runpy.run_module('else' + 'where_scale')['SCALE']"),
        (
            "pass",
            "g = {}\n        exec(Path(os.environ['OTHER'], 'elsewhere_scale.py').read_text(), g)\n"
            "        scale = g['SCALE']",
        ),
    ],
)
def test_what_an_encoder_reads_while_it_computes_is_part_of_its_identity(
    build: str,
    forward: str,
    make_dataset: Make,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "reads.py").write_text(READS.format(build=build, forward=forward))
    recipe = EncoderRecipe(f"{tmp_path}/own/reads.py:Reads")
    monkeypatch.setattr(sys, "path", list(sys.path))
    dataset = make_dataset(6, 3)

    def extracted(value: str) -> tuple[int, float]:
        write_scale(tmp_path / "other", value)
        monkeypatch.setenv("SCALE", value)
        monkeypatch.setenv("OTHER", str(tmp_path / "other"))
        sys.modules.pop("elsewhere_scale", None)  # another process would load it anew
        importlib.invalidate_caches()
        done = run(dataset, recipe, tmp_path / "out", recheck=0)
        return sum(item.computed for item in done), float(load(done[0].path).embeddings.abs().sum())

    first = extracted("2.0")
    second = extracted("30.0")
    assert (first[0], second[0]) == (9, 9)
    assert second[1] == pytest.approx(15 * first[1], rel=1e-5)
    # What was there before is found again.
    assert extracted("2.0") == (0, first[1])


def test_the_environment_is_watched_only_while_something_is_recorded() -> None:
    kind, load_module = type(os.environ), importlib.import_module
    os.environ["READ_ME"] = "1"
    try:
        with recording() as record:
            dict(os.environ)
            os.environ.copy()
            copied = subprocess.run([sys.executable, "-c", ""], env={**os.environ}, check=True)
            assert copied.returncode == 0
            assert not record.variables  # a copy of everything says nothing about anything
            os.environ["READ_ME"]
        assert set(record.variables) == {"READ_ME"}
    finally:
        del os.environ["READ_ME"]
    assert type(os.environ) is kind
    assert importlib.import_module is load_module


@pytest.mark.slow
def test_a_secret_in_the_environment_is_not_written_down(
    make_dataset: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = "os.environ['SCALE_TOKEN'], os.environ['SCALE']"
    (tmp_path / "reads.py").write_text(READS.format(build=reads, forward="pass"))
    monkeypatch.setenv("SCALE_TOKEN", "hunter2")
    monkeypatch.setenv("SCALE", "2")
    done = run(make_dataset(3, 2), EncoderRecipe(f"{tmp_path}/reads.py:Reads"), tmp_path / "out")
    told = load(done[0].path).metadata["identity"]["environment"]
    assert told["SCALE_TOKEN"] == "set"
    assert set(told) == {"SCALE_TOKEN", "SCALE"}
    assert b"hunter2" not in done[0].path.read_bytes()


def test_threads_that_an_encoder_starts_are_seen_and_those_of_others_are_not(tmp_path: Path) -> None:
    for name in ("mine", "theirs", "ours"):
        (tmp_path / name).write_text(name)
    go, done = threading.Event(), threading.Event()

    def other() -> None:
        go.wait()
        (tmp_path / "theirs").read_text()
        done.set()

    threading.Thread(target=other).start()
    with recording() as record:
        go.set()
        done.wait()
        for name, thread in (("mine", None), ("ours", "histobench-load")):
            started = threading.Thread(target=(tmp_path / name).read_text, name=thread)
            started.start()
            started.join()
    assert record.files == {str(tmp_path / "mine")}


@pytest.mark.slow
def test_a_worker_with_another_environment_refuses_to_compute(
    make_dataset: Make, tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "reads.py").write_text(READS.format(build="self.x = os.environ.get('SCALE')", forward="pass"))
    recipe = EncoderRecipe(f"{tmp_path}/reads.py:Reads")
    monkeypatch.setenv("SCALE", "2")
    settings = Settings(device="cpu", num_workers=0, batch_size=8)
    (planned,) = plan_extraction(make_dataset(3, 2), [recipe], tmp_path / "out", settings).encoders

    def stage() -> PlannedRunner:
        return PlannedRunner(
            [recipe], [planned.description], [dict(planned.record)],
            root=own_cache, settings=settings, workers=0, threads=1,
        )  # fmt: skip

    stage().close()
    for value in ("3", None):
        monkeypatch.setenv("SCALE", value) if value else monkeypatch.delenv("SCALE")
        with pytest.raises(HistobenchError, match=r"its environment differ \(SCALE\)"):
            stage()
