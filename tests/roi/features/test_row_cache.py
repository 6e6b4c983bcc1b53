"""The cache of rows: what goes in comes out, in any order, with little memory."""

from __future__ import annotations

import errno
import hashlib
import os
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from histobench.roi.data.image_ref import locate
from histobench.roi.data.roi_dataset import RoiDataset, RoiImage
from histobench.roi.features.cache import content_hashes
from histobench.roi.features.cache.content_hashes import ContentHashes, Keys, Order, take_inventory
from histobench.roi.features.cache.row_cache import (
    RowCache,
    is_intact,
    read_shard,
    remove_leftovers,
    shard_files,
    write_shard,
)
from histobench.roi.features.fingerprint import describe_transform
from histobench.roi.features.loading.loader import open_pool

DESCRIPTION = {"encoder": "e", "dim": 4}


def keys_of(*numbers: int) -> list[bytes]:
    return [number.to_bytes(32, "big") for number in numbers]


def rows_of(*numbers: int) -> np.ndarray:
    return np.array([[number] * 4 for number in numbers], dtype=np.float32)


def test_rows_come_back_in_any_order_from_several_shards(tmp_path: Path) -> None:
    cache = RowCache(tmp_path, DESCRIPTION)
    cache.add(keys_of(1, 2, 3), rows_of(1, 2, 3), {})
    cache.add(keys_of(4, 5), rows_of(4, 5), {b"\xff" * 32: "damaged"})
    for again in (cache, RowCache(tmp_path, DESCRIPTION)):
        out = np.empty((4, 4), np.float32)
        again.gather(keys_of(5, 1, 5, 3), out)
        np.testing.assert_array_equal(out, rows_of(5, 1, 5, 3))
        assert b"\xff" * 32 in again
        assert again.bad == {b"\xff" * 32: "damaged"}
        assert keys_of(9)[0] not in again


def test_the_same_rows_are_the_same_file_and_what_another_decoder_found_bad_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, bad = RowCache(tmp_path, DESCRIPTION), {b"\xff" * 32: "one", b"\x02" * 32: "two"}
    first = write_shard(cache.folder, keys_of(1, 2), rows_of(1, 2), bad)
    assert first == write_shard(cache.folder, keys_of(1, 2), rows_of(1, 2), dict(reversed(bad.items())))
    monkeypatch.setattr("histobench.roi.features.cache.row_cache.DECODER", "pillow 99")
    assert b"\xff" * 32 not in RowCache(tmp_path, DESCRIPTION)


@pytest.mark.sample(1)
@pytest.mark.slow
@pytest.mark.parametrize("code", [errno.ESTALE, errno.EMFILE, errno.EIO])
def test_an_intact_shard_survives_every_error_of_the_disk(
    tmp_path: Path, faulty_disk: Any, code: int
) -> None:
    cache = RowCache(tmp_path, DESCRIPTION)
    cache.add(keys_of(1, 2), rows_of(1, 2), {})
    (shard,) = shard_files(cache.folder)
    content = shard.read_bytes()
    with faulty_disk.failing(shard, code, times=3):  # passes: the rows are there after all
        assert keys_of(1)[0] in RowCache(tmp_path, DESCRIPTION)
    for read in (
        lambda: RowCache(tmp_path, DESCRIPTION),
        lambda: read_shard(shard),
        lambda: is_intact(shard),
    ):
        with faulty_disk.failing(shard, code), pytest.raises(OSError, match=str(tmp_path)):
            read()
    with faulty_disk.failing(cache.folder, code), pytest.raises(OSError, match=str(tmp_path)):
        shard_files(cache.folder)
    assert faulty_disk.failed > 3
    assert shard.read_bytes() == content
    out = np.empty((2, 4), np.float32)
    RowCache(tmp_path, DESCRIPTION).gather(keys_of(2, 1), out)
    np.testing.assert_array_equal(out, rows_of(2, 1))


def test_what_a_checksum_proves_damaged_is_removed_and_a_lagging_listing_loses_nothing(
    tmp_path: Path, faulty_disk: Any
) -> None:
    cache = RowCache(tmp_path, DESCRIPTION)
    cache.add(keys_of(1), rows_of(1), {})
    (shard,) = shard_files(cache.folder)
    shard.write_bytes(shard.read_bytes()[:20])
    assert keys_of(1)[0] not in RowCache(tmp_path, DESCRIPTION)
    assert not shard.exists()
    cache.add(keys_of(1), rows_of(1), {})
    assert shard.exists()
    with faulty_disk.lagging(shard):
        late = RowCache(tmp_path, DESCRIPTION)
        assert keys_of(1)[0] not in late
        late.add(keys_of(1), rows_of(1), {})  # computed again: the same file
    assert len(shard_files(cache.folder)) == 1
    late.refresh()
    assert keys_of(1)[0] in late


@pytest.mark.slow
def test_the_first_decision_about_a_cache_holds_for_everybody(tmp_path: Path, faulty_disk: Any) -> None:
    one, other = RowCache(tmp_path, DESCRIPTION), RowCache(tmp_path, DESCRIPTION)
    assert one.decide_once("precision", {"precision": "fp16"}) == {"precision": "fp16"}
    assert other.decide_once("precision", {"precision": "fp32"}) == {"precision": "fp16"}
    # One that cannot be read now is not made again.
    with faulty_disk.failing(one.folder, errno.ESTALE), pytest.raises(OSError, match=str(tmp_path)):
        one.decision("precision")


def test_what_a_killed_run_left_half_written_is_removed_in_time(tmp_path: Path) -> None:
    for name, age in ((".a.pt.x1.tmp", 7200), (".a.pt.x2.tmp", 5), (".b.pt.x3.tmp", 7200), ("a.pt", 7200)):
        (tmp_path / name).write_bytes(b"half")
        then = time.time() - age
        os.utime(tmp_path / name, (then, then))
    remove_leftovers(tmp_path, "a.pt")
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {".a.pt.x2.tmp", ".b.pt.x3.tmp", "a.pt"}


def test_unchanged_files_are_not_hashed_again_and_changed_ones_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(b"one")
    long_ago = 1_700_000_000
    os.utime(path, (long_ago, long_ago))
    ref = locate(path)
    table = ContentHashes(tmp_path / "cache")
    assert list(table.known([ref])) == [[None]]
    # The inode's change time is now, so that the hash is not trusted yet ...
    stamp = ref.stamp()
    table.remember([(ref, (stamp, b"x" * 32))], began=time.time_ns())
    assert list(table.known([ref])) == [[None]]
    # ... unless all of the file's times are old.
    settled = (stamp[0], stamp[1], long_ago * 10**9, stamp[3])
    table.remember([(ref, (settled, b"x" * 32))], began=time.time_ns())
    assert list(table.known([ref])) == [[None]]
    monkeypatch.setattr(content_hashes, "stamp_of", lambda _: settled)
    assert list(table.known([ref])) == [[(settled, b"x" * 32)]]
    table.close()


def test_without_a_writable_folder_nothing_is_remembered_and_nothing_fails(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    table = ContentHashes(tmp_path / "file")
    ref = locate(tmp_path / "file")
    table.remember([(ref, (ref.stamp(), b"x" * 32))], began=time.time_ns())
    assert list(table.known([ref])) == [[None]]


def test_own_transforms_are_known_by_their_text() -> None:
    def one(image: object) -> object:
        return image

    def other(image: object) -> object:
        return [image]

    assert describe_transform(one) == describe_transform(one)
    assert describe_transform(one) != describe_transform(other)


def test_rows_computed_twice_are_the_same_for_every_reader(tmp_path: Path) -> None:
    first, second = (RowCache(tmp_path, {"encoder": "a"}) for _ in range(2))
    first.add(keys_of(1, 2), rows_of(1, 2), {})
    second.add(keys_of(1, 2), rows_of(1, 2) + np.float32(1e-6), {})
    out = np.empty((3, 2, rows_of(1).shape[1]), np.float32)
    for cache in (first, second):
        cache.refresh()
    for cache, into in zip((first, second, RowCache(tmp_path, {"encoder": "a"})), out, strict=True):
        cache.gather(keys_of(1, 2), into)
    np.testing.assert_array_equal(out[0], out[1])
    np.testing.assert_array_equal(out[0], out[2])


class SlowPool:
    """Workers that take longer than a file needs to be settled."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool

    def submit(self, *job: Any) -> None:
        time.sleep(content_hashes.SETTLED_NS / 1e9 + 0.1)
        self._pool.submit(*job)

    def check(self) -> None:
        self._pool.check()


@pytest.mark.parametrize("at_once", [3, 1000])
def test_the_inventory_of_a_dataset_is_what_hashing_each_file_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(content_hashes, "LOOKED_AT", at_once)
    contents = {f"{number}.png": str(number % 6).encode() for number in range(11)}  # several are copies
    for name, data in contents.items():
        (tmp_path / name).write_bytes(data)
    names = [*contents, "missing.png"]
    images = [RoiImage(tmp_path / name, 0, name, "") for name in names]
    dataset = RoiDataset("d", ("x",), {"test": images[:4], "train": images[4:]})  # train comes first
    hashes = {tmp_path / name: hashlib.sha256(data).digest() for name, data in contents.items()}
    with closing(open_pool(0)) as pool, closing(take_inventory(dataset, pool, tmp_path / "node")) as found:
        every = [pair for split in ("train", "test") for pair in found.contents.of(split)]
        assert every == [(image, hashes.get(image.path)) for image in images[4:] + images[:4]]
        first: dict[bytes, str] = {}
        for image, key in every:
            if key is not None:
                first.setdefault(key, str(image.path))
        assert {key: ref.file for key, ref in found.refs.items()} == first
        assert list(found.refs) == list(first)
        assert b"".join(found.refs.in_order()) == b"".join(sorted(first))
        places: dict[bytes, list[int]] = {}
        for row, (_, key) in enumerate(every):
            if key is not None:
                places.setdefault(key, []).append(row)
        assert found.contents.copies == [rows for rows in places.values() if len(rows) > 1]
        assert list(found.unreadable) == [tmp_path / "missing.png"]
        with pytest.raises(KeyError):
            found.refs[bytes(31) + b"1"]


def test_keys_that_begin_alike_are_found() -> None:
    rng = np.random.default_rng(0)
    data = rng.integers(0, 256, (60, 32)).astype(np.uint8)
    data[:, :8] = data[rng.integers(0, 4, 60), :8]  # of runs of fifteen no first bits tell one from another
    data[50:] = data[40:50]  # copies
    keys = Keys(data)
    order = Order(keys)
    assert sorted(order.places(slice(None)).tolist()) == sorted(order.alike().tolist()) == list(range(60))
    for place, key in enumerate(keys):
        assert order.find(key) in {place, place - 10, place + 10}
    assert order.find(data[0, :8].tobytes() + bytes(24)) is None


@pytest.mark.slow
def test_a_file_that_changed_just_before_it_was_read_is_not_trusted_because_the_others_took_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(content_hashes, "SETTLED_NS", 300_000_000)
    path = tmp_path / "a.png"
    path.write_bytes(b"one")
    dataset = RoiDataset("d", ("x",), {"test": (RoiImage(path, 0, "a", ""),)})
    with closing(open_pool(0)) as pool:
        for remembered in (False, True):  # the second time nothing has changed it again
            take_inventory(dataset, SlowPool(pool), tmp_path / "node").close()  # type: ignore[arg-type]
            with closing(content_hashes.ContentHashes(tmp_path / "node")) as table:
                ((known,),) = table.known([locate(path)])
            assert (known is not None) == remembered
