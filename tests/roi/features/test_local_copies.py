"""Copies of images on a machine's own disk: the bytes that were hashed."""

from __future__ import annotations

import os
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from histobench.roi.data.image_ref import ImageRef, digest, locate
from histobench.roi.encoders.transform import TransformSpec
from histobench.roi.features.loading import local_copies
from histobench.roi.features.loading.job import DecodeJob, perform
from histobench.roi.features.loading.local_copies import LocalCopies, copies_base


@pytest.fixture
def images(tmp_path: Path) -> dict[bytes, ImageRef]:
    """Images of every kind: files, members of a TAR and of a ZIP, rows of an array; by their hashes."""
    rng = np.random.default_rng(0)
    source = tmp_path / "shared"
    source.mkdir()
    for number in range(70):
        (source / f"{number}.jpg").write_bytes(rng.bytes(300 + number))
    places: list[object] = [source / f"{number}.jpg" for number in range(70)]
    with tarfile.open(source / "shard.tar", "w") as tar, zipfile.ZipFile(source / "box.zip", "w") as box:
        for number in range(5):
            tar.add(source / f"{number}.jpg", f"in/tar-{number}.jpg")
            box.writestr(f"zip-{number}.jpg", rng.bytes(50) * 20, zipfile.ZIP_DEFLATED)
    for number in range(5):
        (source / f"{number}.jpg").write_bytes(rng.bytes(200))  # else the TAR would hold nothing of its own
        places += [f"{source}/shard.tar/in/tar-{number}.jpg", f"{source}/box.zip/zip-{number}.jpg"]
    np.save(source / "pixels.npy", rng.integers(0, 255, (3, 8, 8, 3)).astype(np.uint8))
    places += [f"{source}/pixels.npy/{row}" for row in range(3)]
    refs = [locate(str(place)) for place in places]
    found = {digest(ref.read()): ref for ref in refs}
    assert len(found) == 83
    return found


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_a_copy_has_the_bytes_that_were_hashed_of_files_members_and_rows(
    images: dict[bytes, ImageRef], tmp_path: Path
) -> None:
    copies = LocalCopies(str(tmp_path / "node"))
    places = copies.refs(list(images), images)
    assert copies.reason == ""
    (copy,) = files(tmp_path / "node")
    assert {place.file for place in places.values()} == {str(copy)}
    assert all(digest(places[key].read()) == key for key in images)
    assert [place.name for place in places.values()] == [ref.name for ref in images.values()]
    assert os.stat(copy.parent).st_mode & 0o777 == 0o700
    copies.remove()
    assert files(tmp_path / "node") == []


def test_an_image_that_is_gone_or_changed_is_left_to_whoever_reads_it(
    images: dict[bytes, ImageRef], tmp_path: Path
) -> None:
    changed, gone, *others = (key for key, ref in images.items() if ref.size < 0)
    Path(images[changed].file).write_bytes(b"another one")
    Path(images[gone].file).unlink()
    places = LocalCopies(str(tmp_path / "node")).refs(list(images), images)
    assert places[changed] == images[changed]
    assert places[gone] == images[gone]
    assert all(digest(places[key].read()) == key for key in others)


def test_where_no_copy_can_be_made_images_are_read_where_they_are_and_why_is_said(
    images: dict[bytes, ImageRef], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_copies, "KEEP_FREE", 1 << 60)
    full = LocalCopies(str(tmp_path / "node"))
    assert full.refs(list(images), images) == images
    assert full.reason.endswith(": not enough disk space for a copy of the images")
    assert files(tmp_path / "node") == []
    monkeypatch.setattr(local_copies, "is_shared", lambda path: True)
    assert "is on a shared disk itself" in LocalCopies(str(tmp_path / "node")).reason
    (tmp_path / "file").write_text("")
    refused = LocalCopies(str(tmp_path / "file"))
    assert "File exists" in refused.reason
    assert refused.refs(list(images), images) == images


def test_copies_of_a_killed_process_are_removed_in_time(
    images: dict[bytes, ImageRef], tmp_path: Path
) -> None:
    LocalCopies(str(tmp_path / "node")).refs(list(images), images)
    (copy,) = files(tmp_path / "node")
    foreign = tmp_path / "node" / "thesis.txt"
    foreign.write_text("years of work")
    LocalCopies(str(tmp_path / "node"))
    assert files(tmp_path / "node") == [copy, foreign]
    for path in (copy.parent, foreign):
        os.utime(path, (1, 1))
    LocalCopies(str(tmp_path / "node"))
    assert files(tmp_path / "node") == [foreign]


def test_local_is_the_folder_of_the_job_or_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in local_copies.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, folder in (("TMPDIR", "/t"), ("HISTOBENCH_LOCAL", "/l"), ("SLURM_TMPDIR", "/job/7")):
        monkeypatch.setenv(name, folder)
        assert copies_base("local") == Path(folder)
    assert copies_base("/scratch") == Path("/scratch")


@pytest.mark.parametrize("what", ["removed", "damaged"])
def test_an_image_is_read_where_it_is_when_its_copy_is_gone(tmp_path: Path, what: str) -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (4, 8, 8, 3)).astype(np.uint8)
    for number, image in enumerate(pixels):
        Image.fromarray(image).save(tmp_path / f"{number}.png")
    originals = [locate(str(tmp_path / f"{number}.png")) for number in range(4)]
    images = {digest(ref.read()): ref for ref in originals}
    copies = LocalCopies(str(tmp_path / "node"))
    places = copies.refs(list(images), images)
    assert copies.refs(list(images), images) == places  # copied once
    (copy,) = files(tmp_path / "node")
    if what == "damaged":
        copy.write_bytes(bytes(copy.stat().st_size))
    else:
        copies.remove()
    row = np.zeros((4, 8, 8, 3), np.uint8)
    job = DecodeJob(0, 0, tuple(places.values()), tuple(places))
    assert perform(job, [[row]], [TransformSpec(resize=8, crop=8)]) == [None] * 4
    np.testing.assert_array_equal(row, pixels)
