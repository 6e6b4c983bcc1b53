"""Copies of images on a machine's own disk: the bytes that were hashed, made once, made anew if damaged."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from histobench.roi.data.image_ref import ImageRef, digest, locate
from histobench.roi.encoders.transform import TransformSpec
from histobench.roi.features.loading import local_copies
from histobench.roi.features.loading.job import DecodeJob, perform
from histobench.roi.features.loading.local_copies import LocalCopies, copies_folder


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


def test_a_copy_is_made_once_and_anew_where_it_is_damaged(
    images: dict[bytes, ImageRef], tmp_path: Path
) -> None:
    LocalCopies(str(tmp_path / "node")).refs(list(images), images)
    (copy,) = files(tmp_path / "node")
    gone = {key: ref._replace(file="/nowhere") for key, ref in images.items()}
    places = LocalCopies(str(tmp_path / "node")).refs(list(images), gone)
    assert all(digest(places[key].read()) == key for key in images)
    whole = copy.read_bytes()
    for damaged in (whole[:-100], whole[:1000] + bytes([whole[1000] ^ 1]) + whole[1001:], b""):
        copy.write_bytes(damaged)
        places = LocalCopies(str(tmp_path / "node")).refs(list(images), images)
        assert all(digest(places[key].read()) == key for key in images)
        assert copy.read_bytes() == whole


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
    assert full.reason.endswith("/stage: not enough disk space for a copy of the images")
    assert files(tmp_path / "node") == []
    monkeypatch.setattr(local_copies, "is_shared", lambda path: True)
    assert "is on a shared disk itself" in LocalCopies(str(tmp_path / "node")).reason
    (tmp_path / "file").write_text("")
    refused = LocalCopies(str(tmp_path / "file"))
    assert "Not a directory" in refused.reason
    assert refused.refs(list(images), images) == images
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    (tmp_path / "theirs" / "histobench-12345").mkdir(parents=True)
    assert "belongs to another user" in LocalCopies(str(tmp_path / "theirs")).reason


def test_copies_that_were_forgotten_are_removed_in_time(
    images: dict[bytes, ImageRef], tmp_path: Path
) -> None:
    LocalCopies(str(tmp_path / "node")).refs(list(images), images)
    (copy,) = files(tmp_path / "node")
    half = copy.with_name(f".{copy.name}.killed.tmp")
    half.touch()
    LocalCopies(str(tmp_path / "node"))
    assert files(tmp_path / "node") == [half, copy]
    then = time.time() - local_copies.KEPT - 1
    for path in (copy, half):
        os.utime(path, (then, then))
    LocalCopies(str(tmp_path / "node"))
    assert files(tmp_path / "node") == []


@pytest.mark.slow
def test_processes_that_start_at_the_same_time_make_one_copy(
    images: dict[bytes, ImageRef], tmp_path: Path
) -> None:
    code = (
        "import sys; from histobench.roi.data.image_ref import ImageRef, digest, locate\n"
        "from histobench.roi.features.loading.local_copies import LocalCopies\n"
        "refs = {digest(ref.read()): ref for ref in map(locate, sys.argv[2:])}\n"
        "places = LocalCopies(sys.argv[1]).refs(list(refs), refs)\n"
        "print(all(digest(place.read()) == key for key, place in places.items()))\n"
        "print(*{place.file for place in places.values()})"
    )
    names = [ref.name for ref in images.values()]
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path / "node"), *names], stdout=subprocess.PIPE, text=True
        )
        for _ in range(3)
    ]
    said = {process.communicate(timeout=600)[0] for process in started}
    (copy,) = files(tmp_path / "node")
    assert said == {f"True\n{copy}\n"}


def test_local_is_the_folder_of_the_job_or_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in local_copies.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    end = f"histobench-{os.getuid()}/stage"
    for name, folder in (("TMPDIR", "/t"), ("HISTOBENCH_LOCAL", "/l"), ("SLURM_TMPDIR", "/job/7")):
        monkeypatch.setenv(name, folder)
        assert copies_folder("local") == Path(folder) / end
    assert copies_folder("/scratch") == Path("/scratch") / end


@pytest.mark.parametrize("what", ["removed by another run", "damaged"])
def test_an_image_is_read_where_it_is_when_its_copy_is_gone(tmp_path: Path, what: str) -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (4, 8, 8, 3)).astype(np.uint8)
    for number, image in enumerate(pixels):
        Image.fromarray(image).save(tmp_path / f"{number}.png")
    originals = [locate(str(tmp_path / f"{number}.png")) for number in range(4)]
    images = {digest(ref.read()): ref for ref in originals}
    copies = LocalCopies(str(tmp_path / "node"))
    places = copies.refs(list(images), images)
    if what == "damaged":
        (copy,) = files(tmp_path / "node")
        copy.write_bytes(bytes(copy.stat().st_size))
    else:
        other = LocalCopies(str(tmp_path / "node"))
        other.refs(list(images), images)
        other.remove()
    row = np.zeros((4, 8, 8, 3), np.uint8)
    transform = TransformSpec(resize=8, crop=8)
    job = DecodeJob(0, 0, tuple(places.values()), tuple(places))
    assert perform(job, [[row]], [transform]) == [None] * 4
    np.testing.assert_array_equal(row, pixels)
    again = copies.refs(list(images), images)
    assert copies.reason == ""
    if what != "damaged":  # the next unit has a copy again
        assert {place.file for place in again.values()} == {str(files(tmp_path / "node")[0])}


def test_only_copies_are_removed_after_days_without_use(
    images: dict[bytes, ImageRef], tmp_path: Path
) -> None:
    LocalCopies(str(tmp_path / "node")).refs(list(images), images)
    (copy,) = files(tmp_path / "node")
    foreign = copy.with_name("thesis.txt")
    foreign.write_text("years of work")
    for path in (copy, foreign):
        os.utime(path, (1, 1))
    LocalCopies(str(tmp_path / "node"))
    assert files(tmp_path / "node") == [foreign]
