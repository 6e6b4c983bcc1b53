"""Images to feature files: right, complete, and never twice."""

from __future__ import annotations

import sys
import tarfile
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from histobench.core.errors import HistobenchError
from histobench.roi.data.image import open_rgb
from histobench.roi.data.roi_dataset import RoiDataset, RoiImage
from histobench.roi.encoders.base import BasePatchEncoder
from histobench.roi.encoders.registry import EncoderRecipe, create_encoder
from histobench.roi.features.feature_extraction import Extraction, extract
from histobench.roi.features.feature_file import load
from histobench.roi.features.inference import shards as loop
from histobench.roi.features.inference.shards import plan_shards

Make = Callable[..., RoiDataset]


def obvious_features(encoder: BasePatchEncoder, images: tuple[RoiImage, ...]) -> torch.Tensor:
    """One image at a time through the encoder's own transform."""
    with torch.inference_mode():
        return torch.cat([encoder(encoder.eval_transforms(open_rgb(image.path))[None]) for image in images])


def run(dataset: RoiDataset, encoders: object, folder: Path, **settings: object) -> list[Extraction]:
    return extract(
        dataset, encoders, folder, **{"device": "cpu", "num_workers": 0, "batch_size": 8, **settings}
    )


@pytest.fixture
def tiny(encoder_file: Path) -> BasePatchEncoder:
    return create_encoder(f"{encoder_file}:Tiny")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "workers"),
    [
        ("Tiny", 2),
        ("Floats", 0),
        pytest.param("Tiny", 0, marks=pytest.mark.nightly),
        pytest.param("Floats", 2, marks=pytest.mark.nightly),
    ],
)
def test_features_are_those_of_the_obvious_loop(
    make_dataset: Make, encoder_file: Path, tmp_path: Path, kind: str, workers: int
) -> None:
    dataset, encoder = make_dataset(), create_encoder(f"{encoder_file}:{kind}")
    for item in run(dataset, encoder, tmp_path / "out", num_workers=workers):
        features = load(item.path)
        images = dataset.splits[item.split]
        torch.testing.assert_close(
            features.embeddings, obvious_features(encoder, images), rtol=1e-5, atol=1e-6
        )
        assert features.labels.tolist() == [image.label for image in images]
        assert features.img_names == tuple(image.name for image in images)
        assert features.groups == tuple(image.group for image in images)


@pytest.mark.slow
def test_an_image_without_a_group_does_not_cost_the_others_theirs(
    make_dataset: Make, tiny: BasePatchEncoder, tmp_path: Path
) -> None:
    dataset = make_dataset()
    first, *others = dataset.splits["test"]
    dataset = replace(dataset, splits={**dataset.splits, "test": (first._replace(group=None), *others)})
    _, test = run(dataset, tiny, tmp_path / "out")
    assert load(test.path).groups == ("", *(image.group for image in others))


@pytest.mark.slow
def test_files_have_the_documented_names_and_metadata(
    make_dataset: Make, tiny: BasePatchEncoder, tmp_path: Path
) -> None:
    train, test = run(make_dataset(), tiny, tmp_path / "out")
    assert train.path.name == "Dataset_[demo]_Model_[Tiny]_Size_[28]_train.pt"
    assert test.path.name == "Dataset_[demo]_Model_[Tiny]_Size_[28]_test.pt"
    metadata = load(test.path).metadata
    said = {"dataset": "demo", "split": "test", "classes": ["a", "b", "c"], "size": 28, "precision": "fp32"}
    assert metadata | said == metadata
    assert metadata["transform"]["resize"] == 32
    assert metadata["identity"]["weights"].startswith("sha256:")
    assert metadata["exactness"]["least_cosine_to_plain_fp32"] > 0.9999
    assert metadata["versions"]["torch"] == version("torch")
    assert metadata["fingerprint"] != load(train.path).metadata["fingerprint"]
    assert metadata["encoder_fingerprint"] == load(train.path).metadata["encoder_fingerprint"]


@pytest.mark.slow
def test_several_encoders_share_one_pass_and_give_what_each_gives_alone(
    make_dataset: Make, encoder_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = make_dataset()
    names = ("Tiny", "Wide", "Large")
    encoders = {name: create_encoder(f"{encoder_file}:{name}") for name in names}
    together = run(dataset, list(encoders.values()), tmp_path / "together")
    monkeypatch.setenv("HISTOBENCH_CACHE", str(tmp_path / "other-cache"))
    alone = [item for name in names for item in run(dataset, encoders[name], tmp_path / "alone")]
    assert [item.path.name for item in together] == [item.path.name for item in alone]
    for one, other in zip(together, alone, strict=True):
        assert one.path.read_bytes() == other.path.read_bytes()


@pytest.mark.slow
def test_a_second_run_computes_nothing_and_writes_the_same_bytes(
    make_dataset: Make, tiny: BasePatchEncoder, tmp_path: Path
) -> None:
    dataset = make_dataset()
    first = run(dataset, tiny, tmp_path / "one")
    assert [item.computed for item in first] == [20, 10]
    second = run(dataset, tiny, tmp_path / "two")
    assert [item.computed for item in second] == [0, 0]
    for one, other in zip(first, second, strict=True):
        assert one.path.read_bytes() == other.path.read_bytes()


@pytest.mark.slow
def test_exact_features_serve_a_request_that_leaves_compiling_open_and_not_the_other_way(
    make_dataset: Make, tiny: BasePatchEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = make_dataset(6, 3)
    exact = run(dataset, tiny, tmp_path / "one", compile="off")
    served = run(dataset, tiny, tmp_path / "two", compile="auto")
    assert [item.computed for item in served] == [0, 0]
    for one, other in zip(exact, served, strict=True):
        assert torch.equal(load(one.path).embeddings, load(other.path).embeddings)
    monkeypatch.setenv("HISTOBENCH_CACHE", str(tmp_path / "other-cache"))
    for compiling in ("auto", "off"):
        done = run(dataset, tiny, tmp_path / "three", precision="fp32", compile=compiling)
        assert [item.computed for item in done] == [6, 3]


@pytest.mark.slow
def test_only_changed_images_are_computed_again(
    make_dataset: Make, tiny: BasePatchEncoder, tmp_path: Path
) -> None:
    dataset = make_dataset()
    before = load(run(dataset, tiny, tmp_path / "out")[0].path).embeddings
    changed = dataset.splits["train"][3].path
    Image.new("RGB", (40, 40), "white").save(changed)
    train, test = run(dataset, tiny, tmp_path / "out")
    assert (train.computed, test.computed) == (1, 0)
    after = load(train.path).embeddings
    assert [row for row in range(20) if not torch.equal(before[row], after[row])] == [3]


@pytest.mark.slow
def test_other_weights_size_or_precision_are_other_features(
    make_dataset: Make, encoder_file: Path, tmp_path: Path
) -> None:
    dataset = make_dataset(6, 3)
    tiny = create_encoder(f"{encoder_file}:Tiny")
    run(dataset, tiny, tmp_path / "out")
    with torch.no_grad():
        next(tiny.body.parameters()).mul_(1.5)
    for encoder, settings in (
        (create_encoder(f"{encoder_file}:Wide"), {}),
        (create_encoder(f"{encoder_file}:Tiny", resize_size=30), {}),
        (create_encoder(f"{encoder_file}:Tiny"), {"precision": "bf16"}),
    ):
        assert [item.computed for item in run(dataset, encoder, tmp_path / "out", **settings)] == [6, 3]


@pytest.mark.nightly
def test_a_precision_that_would_change_the_features_is_not_used(
    make_dataset: Make, encoder_file: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    dataset = make_dataset(6, 3)
    for name, used in (("Delicate", "fp32"), ("Tiny", "bf16")):
        plain = run(dataset, create_encoder(f"{encoder_file}:{name}"), tmp_path / "plain")
        asked = run(dataset, create_encoder(f"{encoder_file}:{name}"), tmp_path / "low", precision="bf16")
        for one, other in zip(plain, asked, strict=True):
            assert load(other.path).metadata["precision"] == used
            cosine = torch.nn.functional.cosine_similarity(
                load(one.path).embeddings, load(other.path).embeddings
            )
            assert float(cosine.min()) >= (0.9999 if used == "fp32" else 0.999)
    assert [record.message.split(":")[0] for record in caplog.records] == [f"{encoder_file}"]
    assert "Delicate: bf16 would change its features too much" in caplog.text
    # Other images of the same encoder are not tried again, and computed alike.
    caplog.clear()
    more = run(
        make_dataset(9, 3), create_encoder(f"{encoder_file}:Delicate"), tmp_path / "m", precision="bf16"
    )
    assert load(more[0].path).metadata["precision"] == "fp32"
    assert not caplog.records


@pytest.mark.slow
def test_copies_of_an_image_are_computed_once(
    make_dataset: Make, tiny: BasePatchEncoder, tmp_path: Path
) -> None:
    dataset = make_dataset(4, 2)
    first = dataset.splits["train"][0]
    copy = tmp_path / "copy.png"
    copy.write_bytes(first.path.read_bytes())
    twice = (*dataset.splits["train"], first._replace(path=copy, name="copy.png"))
    (train, _) = run(replace(dataset, splits={**dataset.splits, "train": twice}), tiny, tmp_path / "out")
    assert (train.images, train.computed) == (5, 4)
    first_row, *_, last_row = load(train.path).embeddings
    assert torch.equal(first_row, last_row)


def spoil(dataset: RoiDataset) -> None:
    """One missing file, one cut short, one that is no image."""
    dataset.splits["train"][1].path.unlink()
    broken = dataset.splits["train"][4].path
    broken.write_bytes(broken.read_bytes()[:100])
    dataset.splits["test"][2].path.write_text("not an image")


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1])
def test_bad_images_stop_the_run_and_all_of_them_are_named(
    make_dataset: Make, tiny: BasePatchEncoder, tmp_path: Path, workers: int
) -> None:
    dataset = make_dataset()
    spoil(dataset)
    for _ in range(2):  # what the cache knows of bad images is said again
        with pytest.raises(HistobenchError) as caught:
            run(dataset, tiny, tmp_path / "out", num_workers=workers)
        message = str(caught.value)
        assert "train-1.jpg: the file does not exist" in message
        assert "list.csv:6" in message
        assert "train-4.jpg: the image is damaged or truncated" in message
        assert "test-22.jpg: not a PNG, JPEG or TIFF image" in message
        assert "`on_bad_image` skip" in message
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_bad_images_can_be_left_out_and_are_listed(
    make_dataset: Make, tiny: BasePatchEncoder, tmp_path: Path
) -> None:
    dataset = make_dataset()
    spoil(dataset)
    train, test = run(dataset, tiny, tmp_path / "out", on_bad_image="skip")
    assert (train.images, test.images) == (18, 9)
    assert [name for name, _ in train.skipped] == ["train-1.jpg", "train-4.jpg"]
    features = load(train.path)
    assert [item["image"] for item in features.metadata["skipped"]] == ["train-1.jpg", "train-4.jpg"]
    kept = tuple(
        image for image in dataset.splits["train"] if image.name not in ("train-1.jpg", "train-4.jpg")
    )
    assert features.img_names == tuple(image.name for image in kept)
    torch.testing.assert_close(features.embeddings, obvious_features(tiny, kept), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_a_split_without_a_readable_image_is_an_error(
    make_dataset: Make, tiny: BasePatchEncoder, tmp_path: Path
) -> None:
    dataset = make_dataset(4, 1)
    dataset.splits["test"][0].path.write_text("no")
    with pytest.raises(HistobenchError, match="none of the test images can be read"):
        run(dataset, tiny, tmp_path / "out", on_bad_image="skip")


@pytest.mark.slow
def test_infinite_features_are_an_error_that_names_the_image(
    make_dataset: Make, tiny: BasePatchEncoder, tmp_path: Path
) -> None:
    with torch.no_grad():
        list(tiny.body.parameters())[-1].fill_(float("nan"))
    with pytest.raises(HistobenchError, match=r"NaN or infinite features for .*train-0\.png"):
        run(make_dataset(), tiny, tmp_path / "out")


@pytest.mark.slow
def test_a_large_set_is_put_together_on_disk_with_the_same_bytes(
    make_dataset: Make, tiny: BasePatchEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = make_dataset()
    in_memory = [item.path.read_bytes() for item in run(dataset, tiny, tmp_path / "one")]
    monkeypatch.setattr("histobench.roi.features.assemble.IN_MEMORY", 0)
    on_disk = [item.path.read_bytes() for item in run(dataset, tiny, tmp_path / "two")]
    assert in_memory == on_disk


@pytest.mark.nightly
@pytest.mark.slow
def test_images_in_tar_files_give_the_features_of_the_same_files(
    make_dataset: Make, tiny: BasePatchEncoder, tmp_path: Path
) -> None:
    dataset = make_dataset(6, 3)
    inside: dict[str, tuple[RoiImage, ...]] = {}
    for split, images in dataset.splits.items():
        with tarfile.open(tmp_path / f"{split}.tar", "w") as tar:
            for image in images:
                tar.add(image.path, f"deep/{image.name}")
        inside[split] = tuple(
            image._replace(path=tmp_path / f"{split}.tar" / "deep" / image.name) for image in images
        )
    shards = replace(dataset, splits=inside)
    packed = run(shards, tiny, tmp_path / "packed", num_workers=1)
    assert [item.computed for item in packed] == [6, 3]
    plain = run(dataset, tiny, tmp_path / "plain")
    assert [item.computed for item in plain] == [0, 0]  # the same bytes are the same images
    for one, other in zip(packed, plain, strict=True):
        assert one.path.read_bytes() == other.path.read_bytes()
    missing = inside["test"][0]._replace(path=tmp_path / "test.tar" / "none.png")
    with pytest.raises(HistobenchError, match=r"test\.tar has no member 'none\.png'"):
        run(replace(shards, splits={"test": (missing,)}), tiny, tmp_path / "out")


@pytest.mark.slow
def test_golden_features_of_real_images(shared_dir: Path, tmp_path: Path) -> None:
    """The first images of the golden set, from the files, to cosine 0.9999."""
    golden = np.load(shared_dir / "golden" / "roi" / "lunghist700_efficientnet-lite0.npz")
    folder = shared_dir / "data" / "lunghist700"
    files = {path.name: path for path in folder.rglob("*.*")}
    rows = list(range(0, len(golden["test_names"]), 40))
    names = [str(golden["test_names"][row]) for row in rows]
    images = tuple(
        RoiImage(files[Path(name).name], int(golden["test_labels"][row]), name, name)
        for row, name in zip(rows, names, strict=True)
    )
    dataset = RoiDataset("golden", tuple("abcdefg"), {"test": images})
    (item,) = run(dataset, create_encoder("efficientnet-lite0"), tmp_path / "out")
    cosine = torch.nn.functional.cosine_similarity(
        load(item.path).embeddings, torch.from_numpy(golden["test_embeddings"][rows])
    )
    assert float(cosine.min()) >= 0.9999


@pytest.mark.slow
def test_a_folder_that_cannot_be_written_is_found_before_the_work(
    make_dataset: Make, tiny: BasePatchEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(tiny, "forward", lambda pixels: pytest.fail("images were encoded"))
    with pytest.raises(HistobenchError, match=r"cannot write to .*file/below: Not a directory"):
        run(make_dataset(), tiny, tmp_path / "file" / "below")


@pytest.mark.slow
@pytest.mark.nightly
def test_two_devices_give_the_files_of_one_bit_for_bit(
    make_dataset: Make, encoder_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "CPU_SHARD_IMAGES", 16)
    dataset = make_dataset(60, 20)
    bad = dataset.splits["train"][20].path  # in the share of the second process
    bad.write_text("no image")
    recipes = [EncoderRecipe(f"{encoder_file}:{name}") for name in ("Tiny", "Large")]
    files = []
    for number, device in enumerate(("cpu", "cpu,cpu", "cpu,cpu")):
        monkeypatch.setenv("HISTOBENCH_CACHE", str(tmp_path / f"cache {number}"))
        if number == 2:
            monkeypatch.setattr(sys, "executable", "/bin/false")  # the second process ends at once
        done = extract(
            dataset,
            recipes,
            tmp_path / str(number),
            device=device,
            batch_size=8,
            num_workers=int(number < 2),
            on_bad_image="skip",
        )
        assert [item.skipped[0][0] for item in done if item.skipped] == [bad.name] * 2
        files.append([item.path.read_bytes() for item in done])
    assert files[0] == files[1] == files[2]


@pytest.mark.slow
def test_several_devices_need_encoders_by_name(
    make_dataset: Make, encoder_file: Path, tmp_path: Path
) -> None:
    encoder = EncoderRecipe(f"{encoder_file}:Tiny").build()
    dataset = make_dataset(4, 2)
    with pytest.raises(HistobenchError, match="by name"):
        extract(dataset, encoder, tmp_path, device="cpu,cpu", batch_size=1, num_workers=0)


@pytest.mark.slow
def test_encoders_that_miss_the_same_shard_share_it() -> None:
    keys = [bytes([number]) for number in range(10)]
    both = plan_shards([keys, keys], 4)
    assert [unit.encoders for unit in both] == [(0, 1)] * 3
    # After a kill the first encoder was one shard ahead; the rest is still shared.
    resumed = plan_shards([keys[4:], keys], 4)
    assert {unit.keys: unit.encoders for unit in resumed} == {
        tuple(keys[4:8]): (0, 1),
        tuple(keys[8:]): (0, 1),
        tuple(keys[:4]): (1,),
    }
