"""A large dataset is hashed by many hands before it is prepared, and comes out the same, byte for byte."""

from __future__ import annotations

import errno
import io
import os
import random
import tarfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from histobench.cli.main import main
from histobench.core import files
from histobench.core.errors import HistobenchError
from histobench.core.progress import Silent
from histobench.roi.data.image_ref import ImageRef, locate
from histobench.roi.data.roi_dataset import RoiDataset, RoiImage
from histobench.roi.data.source import DatasetSource
from histobench.roi.features.cache import content_hashes
from histobench.roi.features.cache.content_hashes import distinct_paths, take_inventory
from histobench.roi.features.cache.hashed_images import HashedImages
from histobench.roi.features.inference import shards as shard_sizes
from histobench.roi.features.loading.loader import open_pool
from histobench.roi.features.recheck import images_for
from histobench.roi.options import Plan, Settings
from histobench.roi.plan.plan_file import read_plan
from histobench.roi.plan.plan_run import run_plan
from histobench.roi.plan.whole_benchmark import run_benchmark
from histobench.roi.units import hashing
from histobench.roi.units.hashing import hash_units, hashes_of, write_list
from histobench.roi.units.roi_run import RoiRun
from histobench.roi.units.status import status_of
from histobench.roi.units.unit_worker import UnitWorker, WorkerStoppedError
from histobench.work import clusters
from histobench.work.engines import Display, SlurmEngine
from histobench.work.run_folder import Unit

Same = Callable[[Path, Path], None]


@pytest.fixture
def plan(
    tiles: Callable[[int], Path],
    write_plan: Callable[[Path], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Plan:
    monkeypatch.setattr(shard_sizes, "CPU_SHARD_IMAGES", 32)
    monkeypatch.setattr(content_hashes, "SETTLED_NS", -1)  # the files of a test are a moment old
    monkeypatch.setenv("HISTOBENCH_CACHE", str(tmp_path / "cache"))
    plan = read_plan(write_plan(tiles(60)))
    return replace(plan, encoders=plan.encoders[:1], tasks=("KNN",))


@pytest.fixture
def local(plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What this process gives without any units that hash; what follows has another cache."""
    monkeypatch.setenv("HISTOBENCH_CACHE", str(tmp_path / "cache-local"))
    run_benchmark(plan)
    assert not (plan.results / "work" / "hashes").exists()
    monkeypatch.setenv("HISTOBENCH_CACHE", str(tmp_path / "cache"))
    return plan.results.rename(tmp_path / "local")


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixty images are a large dataset, and sixteen of them a unit."""
    monkeypatch.setattr(hashing, "LARGE", 60)
    monkeypatch.setattr(hashing, "IMAGES_PER_UNIT", 16)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The files that are read from here on."""
    original, names = ImageRef.read, []

    def noted(self: ImageRef) -> bytes:
        names.append(self.name)
        return original(self)

    monkeypatch.setattr(ImageRef, "read", noted)
    return names


def latest(results: Path) -> RoiRun:
    folder = RoiRun.latest(results)
    assert folder is not None
    folder.refresh()
    return folder


@pytest.mark.sample(1)
@pytest.mark.slow
@pytest.mark.parametrize("seed", [None, 0])
def test_images_are_hashed_once_by_units_and_the_results_keep_every_byte(
    plan: Plan, local: Path, large: None, assert_same: Same, reads: list[str], hands: Any, seed: int | None
) -> None:
    engine = None if seed is None else hands(seed)
    done = run_benchmark(plan, engine=engine)
    assert (done.outcome.evaluated, done.outcome.failures) == (1, [])
    assert_same(local, plan.results)
    kinds = [unit.kind for unit in latest(plan.results).units()]
    assert kinds[:5] == ["hash"] * 4 + ["prepare"]
    cells = {cell.encoder: dict(cell.states) for cell in status_of(plan.results).cells}
    assert (cells["(hash)"], cells["(prepare)"]) == ({"done": 4}, {"done": 1})
    assert len(set(reads[:60])) == 60  # by the units, before anything else is read
    before = len(reads)
    again = run_benchmark(plan, engine=engine)
    assert again.outcome.unchanged == 1
    # A later run finds the hashes; of the features some are checked, by two workers where both prepare.
    assert len(reads) - before < 60 + images_for(60)  # hashing again would read 60 more


@pytest.mark.slow
def test_the_hashes_are_found_by_another_machine_and_only_what_changed_is_hashed_again(
    plan: Plan, hands: Any, large: None, reads: list[str], tmp_path: Path
) -> None:
    run_plan(plan, engine=hands(until="prepare"))
    folder = latest(plan.results)
    dataset = DatasetSource.of(plan.datasets[0], plan).load()
    prepare = next(unit for unit in folder.units() if unit.kind == "prepare")
    paths = distinct_paths(dataset)
    changed, gone, touched = paths[3], paths[20], paths[41]
    changed.write_bytes(changed.read_bytes() + b"more")
    gone.unlink()
    touched.touch()
    reads.clear()
    with closing(open_pool(0)) as pool:
        given = take_inventory(dataset, pool, tmp_path / "node", hashes_of(folder, prepare, dataset))
        given.close()
        assert sorted(reads) == sorted(map(str, (changed, touched)))
        alone = take_inventory(dataset, pool, tmp_path / "other node")
        alone.close()
    assert (given.keys, given.refs, given.unreadable) == (alone.keys, alone.refs, alone.unreadable)
    assert list(given.unreadable) == [gone]
    # A file that was changed a moment ago is not trusted by others either.
    for path in paths:
        if path.exists():
            os.utime(path, (time.time() + 3600,) * 2)
    run_plan(replace(plan, settings=replace(plan.settings, no_cache=True)), engine=hands(until="prepare"))
    folder = latest(plan.results)
    prepare = next(unit for unit in folder.units() if unit.kind == "prepare")
    nothing = hashes_of(folder, prepare, dataset)
    assert nothing is not None
    assert nothing.unknown() == list(range(60))


@pytest.mark.sample(1)
@pytest.mark.slow
@pytest.mark.parametrize("on_bad_image", ["stop", "skip"])
def test_an_image_that_cannot_be_read_is_told_as_without_units(
    plan: Plan,
    hands: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    assert_same: Same,
    on_bad_image: str,
) -> None:
    plan = replace(plan, settings=replace(plan.settings, on_bad_image=on_bad_image))
    images = distinct_paths(DatasetSource.of(plan.datasets[0], plan).load())
    images[7].unlink()
    images[30].write_bytes(b"no image")
    monkeypatch.setenv("HISTOBENCH_CACHE", str(tmp_path / "cache-local"))
    alone = run_benchmark(plan)
    local = plan.results.rename(tmp_path / "local")
    monkeypatch.setenv("HISTOBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(hashing, "LARGE", 60)
    monkeypatch.setattr(hashing, "IMAGES_PER_UNIT", 16)
    for engine in (None, hands(1)):
        done = run_benchmark(plan, engine=engine)
        assert [str(failure) for failure in done.outcome.failures] == [
            str(failure) for failure in alone.outcome.failures
        ]
        assert bool(done.outcome.failures) == (on_bad_image == "stop")
        assert dict(status_of(plan.results).cells[0].states) == {"done": 4}
    if on_bad_image == "skip":
        assert_same(local, plan.results)


@pytest.mark.slow
def test_what_a_unit_left_is_believed_only_while_it_is_whole(
    plan: Plan, hands: Any, local: Path, large: None, assert_same: Same
) -> None:
    engine = hands(2, until="prepare")
    run_plan(plan, engine=engine)
    folder = latest(plan.results)
    names = [unit.id for unit in folder.units() if unit.kind == "hash"]
    damaged, gone, failed = ((folder.output(name) or {})["files"][0] for name in names[:3])
    data = bytearray(Path(damaged).read_bytes())
    data[40] ^= 1  # one bit of a hash
    Path(damaged).write_bytes(data)
    Path(gone).unlink()
    Path(failed).unlink()
    images = folder.unit(names[2]).spec["list"]
    (plan.results / "work" / "hashes" / f"{images}.paths").write_text("/elsewhere.png")
    done = run_benchmark(plan, engine=hands(3), retry_failed=True)
    assert not done.outcome.failures
    assert_same(local, plan.results)
    (cell,) = (cell for cell in status_of(plan.results).cells if cell.encoder == "(hash)")
    assert dict(cell.states) == {"done": 3, "failed": 1}  # and preparing the dataset has done its work
    assert "is damaged; start a new run" in cell.reasons[0]
    run_benchmark(plan, engine=hands(4))  # which writes the list anew
    assert dict(status_of(plan.results).cells[0].states) == {"done": 4}


@pytest.mark.nightly
@pytest.mark.sample(1)
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_faults_of_the_disk_while_images_are_hashed_change_no_byte(
    plan: Plan,
    hands: Any,
    local: Path,
    large: None,
    tmp_path: Path,
    faulty_disk: Any,
    monkeypatch: pytest.MonkeyPatch,
    assert_same: Same,
    seed: int,
) -> None:
    monkeypatch.setattr(files, "PAUSES", (0.0, 0.0))
    codes = (errno.ESTALE, errno.EMFILE, errno.EIO) if seed else (errno.ENOSPC,)
    with (
        faulty_disk.at_random(plan.results, random.Random(seed), codes, share=1 / 8),
        suppress(HistobenchError),
    ):
        run_plan(plan, engine=hands(seed, until="prepare", rounds=60))
    assert faulty_disk.failed > 0
    done = run_benchmark(plan, engine=hands(seed))
    assert not done.outcome.failures
    assert_same(local, plan.results)


def test_a_worker_that_is_stopped_keeps_what_it_has_hashed(
    plan: Plan, hands: Any, large: None, monkeypatch: pytest.MonkeyPatch, reads: list[str]
) -> None:
    monkeypatch.setattr(content_hashes, "PORTION", 4)

    class Stopping(Silent):
        left = 2

        def advance(self, count: int) -> None:
            self.left -= 1
            if not self.left:
                raise WorkerStoppedError

    run_plan(plan, engine=hands(until="hash"))
    folder = latest(plan.results)
    first = folder.units()[0]
    with pytest.raises(WorkerStoppedError):
        UnitWorker(folder, Stopping()).perform([first])
    assert folder.output(first.id) is None
    assert len(reads) == 8
    UnitWorker(folder, Silent()).perform([first])
    assert folder.output(first.id) is not None
    assert len(reads) == 16


def archives(folder: Path) -> RoiDataset:
    """Images in a TAR, a ZIP, a NumPy file and beside them; each split has some of every archive."""
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 255, (12, 6, 6, 3), dtype=np.uint8)
    np.save(folder / "rows.npy", pixels)
    with tarfile.open(folder / "a.tar", "w") as tar, zipfile.ZipFile(folder / "b.zip", "w") as box:
        for number, image in enumerate(pixels):
            data = io.BytesIO()
            Image.fromarray(image[::-1]).save(data, format="png")
            member = tarfile.TarInfo(f"{number}.png")
            member.size = len(data.getvalue())
            tar.addfile(member, io.BytesIO(data.getvalue()))
            box.writestr(f"{number}.png", data.getvalue() + b" ")
            (folder / f"{number}.png").write_bytes(data.getvalue() + b"  ")
    names = ["rows.npy/{}", "a.tar/{}.png", "{}.png", "b.zip/{}.png", "a.tar/none-{}.png"]
    images = [RoiImage(folder / name.format(n), 0, name, "") for n in range(12) for name in names]
    return RoiDataset(
        "boxes", ("x",), {"train": tuple(images[::2]), "test": tuple(images[1::2] + images[:3])}
    )


def test_units_read_an_archive_together_and_find_what_one_process_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reads: list[str]
) -> None:
    monkeypatch.setattr(content_hashes, "SETTLED_NS", -1)
    monkeypatch.setattr(hashing, "LARGE", 1)
    monkeypatch.setattr(hashing, "IMAGES_PER_UNIT", 25)
    dataset = archives(tmp_path)
    lists: list[list[str]] = []

    def on_list(images: str, data: bytes) -> None:
        lists.append(data.decode().split("\0"))
        write_list(tmp_path / "results", images, data)

    units = hash_units("boxes", dataset, Settings(no_cache=True), on_list)
    assert sorted(chain.from_iterable(lists)) == sorted({str(path) for path in distinct_paths(dataset)})
    assert [sum(".npy/" in name for name in names) for names in lists].count(12) == 1
    assert [sum(".tar/" in name for name in names) for names in lists].count(24) == 1
    assert [sum(".zip/" in name for name in names) for names in lists].count(12) == 1
    prepare = Unit("prepare", "boxes", "", needs=tuple(unit.id for unit in units))
    folder = RoiRun.create(tmp_path / "results", {}, [*units, prepare])
    UnitWorker(folder, Silent()).perform(units)
    assert len(reads) == 48  # those in no archive of that name are not there to be read
    with closing(open_pool(0)) as pool:
        given = take_inventory(dataset, pool, tmp_path / "node", hashes_of(folder, prepare, dataset))
        given.close()
        assert len(reads) == 48
        alone = take_inventory(dataset, pool, tmp_path / "other")
        alone.close()
    assert (given.keys, given.refs, given.unreadable) == (alone.keys, alone.refs, alone.unreadable)
    assert len(given.unreadable) == 12


@pytest.mark.parametrize("seed", range(20))
def test_lists_have_every_image_once_and_cut_an_archive_only_when_it_is_larger(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    rng = random.Random(seed)
    monkeypatch.setattr(hashing, "LARGE", 1)
    monkeypatch.setattr(hashing, "IMAGES_PER_UNIT", size := rng.randint(1, 12))
    sizes = {f"/d/{number}.tar": rng.randint(1, 20) for number in range(6)}
    names = [f"{archive}/{row}" for archive, count in sizes.items() for row in range(count)]
    names += [f"/d/{number}.png" for number in range(rng.randint(0, 20))]
    rng.shuffle(names)
    dataset = RoiDataset("d", ("x",), {"test": tuple(RoiImage(Path(name), 0, name, "") for name in names)})
    lists: list[list[str]] = []
    units = hash_units("d", dataset, Settings(), lambda _, data: lists.append(data.decode().split("\0")))
    assert [unit.spec["images"] for unit in units] == [len(some) for some in lists]
    assert max(map(len, lists)) <= size
    assert sorted(chain.from_iterable(lists)) == sorted(names)
    for archive, count in sizes.items():
        found = [sum(name.startswith(f"{archive}/") for name in some) for some in lists]
        assert len(list(filter(None, found))) == -(-count // size)


@pytest.mark.slow
def test_a_small_dataset_has_no_such_units_and_a_dry_run_counts_those_of_a_large_one(
    plan: Plan,
    tmp_path: Path,
    large: None,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert main(["run", str(tmp_path / "plan.yaml"), "--dry-run", "--engine", "ray"]) == 0
    assert "units of work: 4 hash, 1 prepare" in capsys.readouterr().out
    assert not plan.results.exists()
    monkeypatch.setattr(hashing, "LARGE", 61)
    assert main(["run", str(tmp_path / "plan.yaml"), "--dry-run", "--engine", "ray"]) == 0
    assert "units of work: 1 prepare" in capsys.readouterr().out


def test_slurm_hashes_in_an_array_that_preparing_waits_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted: list[tuple[str, int, str, dict[str, str]]] = []

    def submit(name: str, command: list[str], *, tasks: int, after: str, options: Any, **rest: Any) -> str:
        submitted.append((command[-1], tasks, after, options))
        return f"job-{name}"

    monkeypatch.setattr(clusters, "submit_array", submit)
    units = [Unit("hash", "d", "", {"list": str(number)}, seconds=65.5) for number in range(153)]
    units.append(Unit("prepare", "d", "", needs=tuple(unit.id for unit in units)))
    folder = RoiRun.create(tmp_path, {}, units)
    engine = SlurmEngine({"gres": "gpu:1"}, {"mem": "4G"})
    assert not engine.run(folder, Display())
    assert submitted[0] == ("hash", 11, "", {"mem": "4G"})  # 2.8 hours by quarters of an hour
    # What a task of the array leaves undone, at the end of its time, is hashed by who prepares.
    assert submitted[1][:3] == ("hash,prepare", 1, "job-hash")


class SlowPool:
    """Workers that take longer than a file needs to be settled."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool

    def submit(self, *job: Any) -> None:
        time.sleep(content_hashes.SETTLED_NS / 1e9 + 0.1)
        self._pool.submit(*job)

    def check(self) -> None:
        self._pool.check()


@pytest.mark.slow
def test_a_file_that_changed_just_before_it_was_read_is_not_trusted_because_the_others_took_long(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(b"one")
    dataset = RoiDataset("d", ("x",), {"test": (RoiImage(path, 0, "a", ""),)})
    with closing(open_pool(0)) as pool:
        for remembered in (False, True):  # the second time nothing has changed it again
            take_inventory(dataset, SlowPool(pool), tmp_path / "node").close()  # type: ignore[arg-type]
            with closing(content_hashes.ContentHashes(tmp_path / "node")) as table:
                ((known,),) = table.known([locate(path)])
            assert (known is not None) == remembered


def test_rows_are_read_as_they_were_written_whatever_times_and_inodes_there_are(tmp_path: Path) -> None:
    stamps = [(1, -5, 7, (1 << 64) - 1), (0, 0, 0, 0), (1 << 40, 2, 3, 4)]
    rows = HashedImages.of([(stamps[0], b"a" * 32), None, (stamps[2], b"\0" * 31 + b"c")])
    path = rows.write(tmp_path, "list")
    read = HashedImages.read(path, 3)
    assert read is not None
    assert read.found(stamps) == [b"a" * 32, None, b"\0" * 31 + b"c"]
    assert read.found([stamps[2], stamps[1], None]) == [None, None, None]
    assert read.unknown() == [1]
    assert HashedImages.read(path, 2) is None
    os.truncate(path, 128)
    assert HashedImages.read(path, 2) is None
    assert HashedImages.read(tmp_path / "none", 3) is None
