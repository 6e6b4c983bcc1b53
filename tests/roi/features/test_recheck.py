"""Features of the cache are never those of another model, whatever the identity says."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import torch
from scipy.stats import hypergeom

from builders import encoder_file
from histobench.core.errors import HistobenchError
from histobench.core.progress import Silent
from histobench.roi.data.roi_dataset import RoiDataset
from histobench.roi.encoders.base import BasePatchEncoder
from histobench.roi.encoders.registry import EncoderRecipe, create_encoder
from histobench.roi.features.feature_extraction import Extraction, Extractor, extract
from histobench.roi.features.feature_file import load
from histobench.roi.features.multi_device import planned_runner
from histobench.roi.features.recheck import CHANCE, images_for
from histobench.roi.options import Settings

Make = Callable[..., RoiDataset]

#: What it reads when it runs is no part of its identity.
SECRET = """
import os, torch
from histobench.roi.encoders.base import BasePatchEncoder
from histobench.roi.encoders.transform import TransformSpec

secret = os.environ.get

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
    assert "the cached features of 40 images are discarded and computed again" in caplog.text
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
    assert "is not deterministic" in caplog.text


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
    # The look can be left out.
    assert [item.computed for item in run(dataset, secret, tmp_path / "out", recheck=0)] == [0, 0]
    with pytest.raises(HistobenchError, match=r"recheck`?: expected auto or a whole number of at least 0"):
        run(dataset, secret, tmp_path / "out", recheck=-1)

    def refuse(self: Path, missing_ok: bool = False) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refuse)
        with pytest.raises(HistobenchError, match="use `no_cache`"):
            run(dataset, secret, tmp_path / "out")


@pytest.fixture
def two(encoder_file: Path, tmp_path: Path) -> tuple[str, str]:
    (tmp_path / "other.py").write_text(encoder_file.read_text().replace("manual_seed(3)", "manual_seed(5)"))
    return f"{encoder_file}:Tiny", f"{tmp_path}/other.py:Tiny"


@pytest.mark.slow
def test_two_classes_of_one_name_are_refused_or_told_apart(
    make_dataset: Make, two: tuple[str, str], tmp_path: Path
) -> None:
    dataset = make_dataset(6, 3)
    with pytest.raises(HistobenchError, match=r"Tiny2=.*other\.py:Tiny"):
        run(dataset, [EncoderRecipe(name) for name in two], tmp_path / "out")
    assert not (tmp_path / "out").exists()
    named = [EncoderRecipe(two[0]), EncoderRecipe(f"largest={two[1]}")]
    done = run(dataset, named, tmp_path / "out")
    assert {item.path.name.split("]")[1] for item in done} == {"_Model_[Tiny", "_Model_[largest"}
    alone = run(dataset, EncoderRecipe(two[1]), tmp_path / "alone")
    assert torch.equal(load(done[2].path).embeddings, load(alone[0].path).embeddings)


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


TRAINING = f"""
{encoder_file("Mean", "self.norm(images).mean(dim=(2, 3))", norm="torch.nn.BatchNorm2d(3)", version="1")}
class Training(Mean):
    def forward(self, images):
        return self.norm.train()(images).amax(dim=(2, 3))

class Centered(Mean):
    def forward(self, images):
        return images.mean(dim=(2, 3)) - images.mean(dim=(0, 2, 3))

class Exits(Mean):
    def forward(self, images):
        sys.exit(0)

class Transform(Mean):
    def __init__(self):
        super().__init__()
        self.eval_transforms = sys.exit
"""


@pytest.fixture
def own(tmp_path: Path) -> str:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "training.py").write_text(TRAINING)
    return f"{tmp_path}/own/training.py"


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("Training", "its output depends on the batch"),
        ("Centered", "its output depends on the batch"),
        ("Exits", "fails on a batch of shape .*: SystemExit"),
        ("Transform", "its eval_transforms fails: SystemExit"),
    ],
)
def test_an_encoder_that_depends_on_its_batch_or_exits_is_an_error(
    kind: str, why: str, make_dataset: Make, own: str, tmp_path: Path
) -> None:
    with pytest.raises(HistobenchError, match=why):
        run(make_dataset(4, 2), EncoderRecipe(f"{own}:{kind}"), tmp_path / "out")
    with pytest.raises(HistobenchError, match=why):
        run(make_dataset(4, 2), create_encoder(f"{own}:{kind}"), tmp_path / "out")


def test_a_worker_with_another_file_refuses_to_compute(
    make_dataset: Make, tmp_path: Path, own_cache: Path, own: str
) -> None:
    recipe = EncoderRecipe(f"{own}:Mean")
    settings = Settings(device="cpu", num_workers=0, batch_size=8)
    dataset, out = make_dataset(3, 2), tmp_path / "out"
    with closing(Extractor(dataset, [recipe], out, settings, root=own_cache, progress=Silent())) as job:
        (planned,) = job.plan().encoders

    def failures() -> dict[int, str]:
        runner = planned_runner({7: planned}, root=own_cache, settings=settings, workers=0, threads=1)
        runner.close()
        return runner.failures

    assert not failures()
    Path(own).write_text(TRAINING.replace("version = 1", "version = 2"))
    assert "where the run was planned: source, version differ" in failures()[7]
