"""Loading workers: they may die, the work may not."""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from histobench.core.errors import HistobenchError
from histobench.roi.data.image_ref import ImageRef, digest, locate
from histobench.roi.encoders.transform import TransformSpec
from histobench.roi.features.loading.job import Failure
from histobench.roi.features.loading.loader import Hashing, Loader, LoadRequest, useful_workers
from histobench.roi.features.loading.loading_pool import ProcessPool, ThreadPool

pytestmark = pytest.mark.skipif(os.name != "posix", reason="worker processes need POSIX")

SPEC = TransformSpec(resize=32, crop=28)


class Poison(ImageRef):
    """Ends the process that reads about it."""

    def __reduce__(self) -> tuple:
        return os._exit, (9,)


@pytest.fixture
def images(tmp_path: Path) -> list[ImageRef]:
    rng = np.random.default_rng(0)
    refs = []
    for index in range(40):
        path = tmp_path / f"{index}.png"
        Image.fromarray(rng.integers(0, 256, (40, 44, 3), dtype=np.uint8)).save(path)
        refs.append(locate(path))
    return refs


def hash_all(pool: ProcessPool, refs: list[ImageRef]) -> list[bytes | Failure]:
    hashing = Hashing(pool)
    hashing.put(refs[:7])
    hashing.put(refs[7:])
    return [item if isinstance(item, Failure) else item[1] for item in hashing.results()]


def requests_of(refs: list[ImageRef], size: int) -> list[LoadRequest]:
    keys = [digest(ref.read()) for ref in refs]
    starts = range(0, len(refs), size)
    return [LoadRequest(tuple(refs[at : at + size]), tuple(keys[at : at + size]), tag=at) for at in starts]


def pixels_of(ref: ImageRef) -> np.ndarray:
    return SPEC.crop_pixels(Image.open(ref.file))


@pytest.mark.slow
def test_hashes_are_those_of_the_bytes(images: list[ImageRef]) -> None:
    with closing(ProcessPool(2)) as pool:
        hashes = hash_all(pool, [*images, ImageRef("/nowhere.png", "/nowhere.png")])
    assert hashes[:-1] == [hashlib.sha256(Path(ref.file).read_bytes()).digest() for ref in images]
    assert hashes[-1] == Failure("the file does not exist", lasting=False)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [ProcessPool, ThreadPool])
def test_batches_come_in_order_with_the_right_pixels(images: list[ImageRef], kind: type) -> None:
    with closing(kind(2)) as pool:
        written = []
        loader = Loader(
            pool, [SPEC], [(28, 28, 3)], batch=7, slots=2, on_written=lambda ring: written.append(len(ring))
        )
        seen = []
        for batch in loader.batches(iter(requests_of(images, 7))):
            seen.append(batch.request.tag)
            assert written == [2]  # both slots, before the first batch, once
            for row, ref in enumerate(batch.request.refs):
                np.testing.assert_array_equal(batch.pixels[0][row], pixels_of(ref))
            assert not batch.pixels[0][batch.count :].any()
            loader.release(batch)
    assert seen == [0, 7, 14, 21, 28, 35]


@pytest.mark.slow
def test_jpeg_tiles_have_pillows_pixels_and_damaged_ones_are_told(
    images: list[ImageRef], tmp_path: Path
) -> None:
    refs = []
    for number, ref in enumerate(images[:6]):
        path = tmp_path / f"{number}.jpg"
        Image.open(ref.file).crop((0, 0, 28, 28)).save(path, subsampling=number % 3)
        refs.append(locate(path))
    Path(refs[2].file).write_bytes(Path(refs[2].file).read_bytes()[:-40])
    keys = tuple(digest(ref.read()) for ref in refs)
    with closing(ProcessPool(1)) as pool:
        loader = Loader(pool, [TransformSpec(resize=28, crop=28)], [(28, 28, 3)], batch=6, slots=2)
        [batch] = loader.batches([LoadRequest(tuple(refs), keys)])
    assert {row: failure.lasting for row, failure in batch.failures.items()} == {2: True}
    assert not batch.pixels[0][2].any()
    for row in (0, 1, 3, 4, 5):
        np.testing.assert_array_equal(batch.pixels[0][row], np.asarray(Image.open(refs[row].file)))


@pytest.mark.slow
def test_a_second_loader_of_a_pool_has_batches_of_its_own_size(images: list[ImageRef]) -> None:
    with closing(ProcessPool(1)) as pool:
        for size in (7, 4, 9):
            loader = Loader(pool, [SPEC], [(28, 28, 3)], batch=size, slots=2)
            for batch in loader.batches(requests_of(images[:36], size)):
                for row, ref in enumerate(batch.request.refs):
                    np.testing.assert_array_equal(batch.pixels[0][row], pixels_of(ref))
                loader.release(batch)
    assert pool.restarts == 0


def test_whoever_stops_early_leaves_no_job_at_work(images: list[ImageRef]) -> None:
    begun, ended = [], []

    def slow(image: Image.Image) -> np.ndarray:
        begun.append(image)
        time.sleep(0.02)
        ended.append(image)
        return np.zeros((3, 2, 2), np.float32)

    keys = [digest(ref.read()) for ref in images]
    with closing(ThreadPool(2)) as pool:
        loader = Loader(pool, [slow], [(3, 2, 2)], batch=5, slots=3)
        batches = loader.batches(
            LoadRequest(tuple(images[at : at + 5]), tuple(keys[at : at + 5])) for at in range(0, 40, 5)
        )
        next(batches)
        batches.close()
        assert len(begun) == len(ended) == 15


@pytest.mark.slow
def test_a_killed_worker_is_replaced_and_its_jobs_are_done_again(images: list[ImageRef]) -> None:
    with closing(ProcessPool(1)) as pool:
        loader = Loader(pool, [SPEC], [(28, 28, 3)], batch=4, slots=2)
        keys = [digest(ref.read()) for ref in images]
        requests = [LoadRequest((ref,) * 4, (key,) * 4) for ref, key in zip(images, keys, strict=True)]
        for position, batch in enumerate(loader.batches(iter(requests))):
            if position in (3, 11):
                os.kill(pool._workers[0].process.pid, signal.SIGKILL)
            assert not batch.failures
            np.testing.assert_array_equal(batch.pixels[0][3], pixels_of(images[position]))
            loader.release(batch)
    assert position == 39
    assert pool.restarts == 2


@pytest.mark.slow
def test_an_image_that_takes_workers_down_is_found_and_the_others_are_read(images: list[ImageRef]) -> None:
    refs = [*images[:5], Poison("x.png", "x.png"), *images[5:9]]
    with closing(ProcessPool(1)) as pool:
        hashes = hash_all(pool, refs)
    assert hashes[5] == Failure("decoding it crashed the decoder", lasting=False)
    assert all(isinstance(item, bytes) for position, item in enumerate(hashes) if position != 5)


def test_workers_that_cannot_start_are_an_error_and_not_a_loop(
    images: list[ImageRef], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with (
        closing(ProcessPool(1)) as pool,
        pytest.raises(HistobenchError, match="loading workers cannot start"),
    ):
        hash_all(pool, images)


@pytest.mark.slow
def test_workers_end_when_their_parent_is_killed() -> None:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        pool = ProcessPool(2)
        pool.start()
        os.write(writing, " ".join(str(worker.process.pid) for worker in pool._workers).encode())
        time.sleep(600)
        os._exit(0)
    workers = [int(item) for item in os.read(reading, 100).split()]
    time.sleep(0.2)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    deadline = time.monotonic() + 300
    while any(is_running(worker) for worker in workers):
        assert time.monotonic() < deadline, "a worker outlived its parent"
        time.sleep(0.05)


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_file_that_changes_after_it_was_hashed_is_not_used(images: list[ImageRef]) -> None:
    with closing(ThreadPool(1)) as pool:
        loader = Loader(pool, [SPEC], [(28, 28, 3)], batch=1)
        (batch,) = loader.batches([LoadRequest((images[0],), (b"\0" * 32,))])
    assert batch.failures[0] == Failure("the file changed while it was being used; run again", lasting=False)


def test_a_transform_that_raises_is_the_users_to_see(images: list[ImageRef]) -> None:
    def wrong(image: object) -> np.ndarray:
        raise ZeroDivisionError("in the encoder's own transform")

    with closing(ThreadPool(1)) as pool:
        loader = Loader(pool, [wrong], [(3, 28, 28)], batch=2)
        keys = tuple(digest(ref.read()) for ref in images[:2])
        with pytest.raises(HistobenchError, match="ZeroDivisionError: in the encoder's own transform"):
            list(loader.batches([LoadRequest(tuple(images[:2]), keys)]))


def test_no_more_workers_than_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)), raising=False)
    assert useful_workers(8, on_cpu=False) == 8
    assert useful_workers(64, on_cpu=False) == 16
    assert useful_workers(64, on_cpu=True) == 8
    assert useful_workers(0, on_cpu=True) == 0
