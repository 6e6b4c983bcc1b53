"""A run may be killed at any moment: nothing finished is lost, and the files come out the same."""

from __future__ import annotations

import multiprocessing
import os
import random
import re
import runpy
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from builders import encoder_file
from histobench.cli.main import main
from histobench.core.errors import DiskFullError, HistobenchError, InterruptedWorkError
from histobench.core.progress import Silent
from histobench.roi.data.roi_dataset import RoiDataset
from histobench.roi.encoders.registry import EncoderRecipe, create_encoder
from histobench.roi.features.cache import row_cache as rows
from histobench.roi.features.cache.row_cache import read_keys, shard_files
from histobench.roi.features.feature_extraction import Extractor, extract
from histobench.roi.features.inference import shards as loop
from histobench.roi.options import Settings

Make = Callable[..., RoiDataset]
SCRIPT = Path(__file__).with_name("extraction_to_be_killed.py")
work = runpy.run_path(str(SCRIPT))["work"]

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards of 16 images, so that a small job has several."""
    monkeypatch.setattr(loop, "CPU_SHARD_IMAGES", 16)


def in_a_child(*arguments: object) -> BaseProcess:
    """Do the work in a process of its own: a copy of one that has imported torch and has used no thread.

    A copy of this process would inherit the locks of threads that are not copied, and wait for ever.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["histobench.roi.features.feature_extraction", "timm"])
    child = context.Process(target=runpy.run_path, args=(str(SCRIPT), {"arguments": arguments}))
    child.start()
    return child


def rows_on_disk(cache: Path) -> int:
    return sum(len(shard.keys) for path in shard_files_below(cache) if (shard := read_keys(path)))


def shard_files_below(cache: Path) -> list[Path]:
    return [path for folder in (cache / "features").glob("*") for path in shard_files(folder)]


@pytest.mark.nightly
@pytest.mark.sample(1)
@pytest.mark.slow
@pytest.mark.parametrize("names", [("Slow",), ("Slow", "Wide", "Large")], ids=["one", "three"])
@pytest.mark.parametrize("seed", [1, 2])
def test_killed_at_random_points_the_files_are_the_same_bit_for_bit(
    make_dataset: Make,
    encoder_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    names: tuple[str, ...],
    seed: int,
) -> None:
    dataset = make_dataset(70, 31)
    broken = dataset.splits["train"][20].path
    broken.write_bytes(broken.read_bytes()[:80])
    encoders = [f"{encoder_file}:{name}" for name in names]
    monkeypatch.setenv("HISTOBENCH_CACHE", "")  # put back whatever `work` sets
    began = time.perf_counter()
    work(tmp_path / "whole-cache", tmp_path / "whole", dataset, encoders)
    lasts = time.perf_counter() - began
    expected = {path.name: path.read_bytes() for path in (tmp_path / "whole").iterdir()}

    cache = tmp_path / "killed-cache"
    chance = random.Random(seed)
    kept, kills = 0, 0
    for _ in range(12):
        child = in_a_child(cache, tmp_path / "killed", dataset, encoders)
        child.join(chance.uniform(0.1, 0.8) * lasts)
        child.kill()
        child.join()
        now = rows_on_disk(cache)
        assert now >= kept  # what was finished before is still there
        kept = now
        if child.exitcode == -signal.SIGKILL:
            kills += 1
            continue
        assert child.exitcode == 0
        if kills:
            break
        # Over before it could be killed, the machine being less busy than it was: from the start, sooner.
        shutil.rmtree(cache)
        shutil.rmtree(tmp_path / "killed")
        kept, lasts = 0, lasts / 3
    assert kills, "the run was over before it could be killed"
    work(cache, tmp_path / "killed", dataset, encoders)
    assert {path.name: path.read_bytes() for path in (tmp_path / "killed").glob("*.pt")} == expected


class StopsAt(Silent):
    """Ctrl-C after so many images."""

    def __init__(self, images: int) -> None:
        self.left = images

    def advance(self, count: int) -> None:
        self.left -= count
        if self.left <= 0:
            raise KeyboardInterrupt


@pytest.mark.sample(1)
@pytest.mark.slow
@pytest.mark.parametrize("names", [("Tiny",), ("Tiny", "Wide")], ids=["one", "two"])
def test_an_interrupt_keeps_the_finished_rows_of_the_open_shard(
    make_dataset: Make,
    encoder_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    names: tuple[str, ...],
) -> None:
    monkeypatch.setattr(loop, "CPU_SHARD_IMAGES", 256)  # as outside of tests
    dataset = make_dataset(80, 40)
    encoders = [create_encoder(f"{encoder_file}:{name}") for name in names]

    def extracted(folder: str, progress: Silent | None = None) -> list[int]:
        done = extract(
            dataset, encoders, tmp_path / folder, device="cpu", batch_size=8, num_workers=0, progress=progress
        )
        return [item.computed for item in done]

    assert sum(extracted("whole")) == 120 * len(names)
    monkeypatch.setenv("HISTOBENCH_CACHE", str(tmp_path / "other-cache"))
    with pytest.raises(InterruptedWorkError, match=r"40 of 120 images of .* are kept"):
        extracted("parts", StopsAt(40))
    with pytest.raises(InterruptedWorkError, match=r"96 of 120 images of .* are kept"):
        extracted("parts", StopsAt(56))
    assert sum(extracted("parts")) == 24 * len(names)
    for path in (tmp_path / "whole").iterdir():
        assert (tmp_path / "parts" / path.name).read_bytes() == path.read_bytes()


SLOW = encoder_file("Sleepy", size=8).replace(
    "        return images",
    "        os.mkdir(f'{marks}/{{time.monotonic_ns()}}')\n        time.sleep(0.2)\n        return images",
)


@pytest.mark.nightly
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("verb", ["extract", "run"])
def test_a_signal_says_what_is_kept_and_how_to_go_on(
    verb: str,
    number: int,
    code: int,
    make_dataset: Make,
    tmp_path: Path,
    own_cache: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    dataset = make_dataset(32, 16)
    marks = tmp_path / "batches"
    marks.mkdir()
    (tmp_path / "sleepy.py").write_text(SLOW.format(marks=marks))
    lines = ["image_path,label,split"]
    for split, images in dataset.splits.items():
        lines += [f"{image.path},{image.label},{split}" for image in images]
    (tmp_path / "tiles.csv").write_text("\n".join(lines))
    name = f"{tmp_path}/sleepy.py:Sleepy"
    batch = ["--batch_size", "4", "--num_workers", "1", "--device", "cpu", "--recheck", "0"]
    command = [sys.executable, "-m", "histobench.cli.main", verb]
    if verb == "extract":
        command += ["--dataset_split_csv", str(tmp_path / "tiles.csv"), "--model_name", name, *batch]
        command += ["--save_dir", str(tmp_path / "out")]
    else:
        command += ["--data", str(tmp_path / "tiles.csv"), "--models", name, *batch, "--tasks", "KNN"]
        command += ["--results", str(tmp_path / "out")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stderr is not None
        while len(list(marks.iterdir())) < 10:  # batches of four images, and those of the check
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.02)
        process.send_signal(number)
        said = process.stderr.read()
    assert process.returncode == code, said
    kept = re.search(r"(\d+) of 48 images of tiles x \S+ are kept", said)
    assert kept is not None, said
    assert 0 < int(kept[1]) < 48
    assert rows_on_disk(own_cache) == int(kept[1])
    told = next(line for line in said.splitlines() if line.startswith("Continue with: "))
    assert shlex.split(told.removeprefix("Continue with: ")) == ["histobench", *command[3:]]
    with pytest.raises(ProcessLookupError):  # no worker is left
        os.killpg(process.pid, 0)
    if verb == "extract":
        assert main(command[3:]) == 0
        assert sum(map(int, re.findall(r"(\d+) computed", capsys.readouterr().out))) == 48 - int(kept[1])


@pytest.mark.slow
def test_a_damaged_shard_is_computed_again(
    make_dataset: Make, encoder_file: Path, tmp_path: Path, own_cache: Path
) -> None:
    dataset = make_dataset(40, 8)
    tiny = create_encoder(f"{encoder_file}:Tiny")

    def work() -> list[bytes]:
        done = extract(dataset, tiny, tmp_path / "out", device="cpu", batch_size=8, num_workers=0)
        return [item.path.read_bytes() for item in done]

    whole = work()
    cut, flipped = shard_files_below(own_cache)[:2]
    cut.write_bytes(cut.read_bytes()[:50])
    data = bytearray(flipped.read_bytes())
    data[-3] ^= 1
    flipped.write_bytes(data)
    with pytest.raises(HistobenchError, match=r"was damaged and has been removed; run again"):
        work()
    assert work() == whole


@pytest.mark.slow
def test_a_full_disk_is_noticed_before_the_next_shard_and_no_encoder_is_tried_again(
    make_dataset: Make, encoder_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object) -> Path:
        raise DiskFullError("cannot write shard: the disk is full; free some space and run again")

    class Counts(Silent):
        done = 0

        def advance(self, count: int) -> None:
            time.sleep(0.02)  # the disk answers in this time
            self.done += count

    monkeypatch.setattr(rows, "write_shard", full)
    dataset, counts = make_dataset(80, 16), Counts()
    recipes = [EncoderRecipe(f"{encoder_file}:{name}") for name in ("Tiny", "Wide")]
    settings = Settings(device="cpu", batch_size=2, num_workers=0)
    out, root = tmp_path / "out", tmp_path / "cache"
    job = Extractor(dataset, recipes, out, settings, root=root, progress=counts, tolerant=True)
    with closing(job), pytest.raises(DiskFullError):
        job.compute(job.plan().shards)
    assert 16 <= counts.done < 32  # a shard, and what was under way
