"""A cache that others use at the same time, or that cannot be written to."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from histobench.core.claim import exclusive
from histobench.roi.data.demo import write_demo_dataset
from histobench.roi.data.roi_dataset import RoiDataset
from histobench.roi.encoders.registry import create_encoder
from histobench.roi.features.feature_extraction import extract

pytestmark = pytest.mark.slow

Make = Callable[..., RoiDataset]


def test_a_warm_cache_that_cannot_be_written_to_gives_the_same_files(
    make_dataset: Make, encoder_file: Path, tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = make_dataset(6)
    encoder = create_encoder(f"{encoder_file}:Tiny")
    before = extract(dataset, encoder, tmp_path / "before", device="cpu", num_workers=0)

    def refuse(path: Any) -> None:
        if path is not None and str(path).startswith(str(own_cache)):
            raise OSError(errno.EROFS, "Read-only file system", str(path))

    # As root nothing is read-only: everything that writes is told no instead.
    def guarded(call: Callable[..., Any], *names: str) -> Callable[..., Any]:
        def wrapped(*args: Any, **options: Any) -> Any:
            for value in (*args[:2], *(options.get(name) for name in names)):
                if isinstance(value, str | Path):
                    refuse(value)
            return call(*args, **options)

        return wrapped

    for name in ("utime", "unlink", "replace", "mkdir"):
        monkeypatch.setattr(os, name, guarded(getattr(os, name)))
    monkeypatch.setattr(tempfile, "mkstemp", guarded(tempfile.mkstemp, "dir"))
    after = extract(dataset, encoder, tmp_path / "after", device="cpu", num_workers=0)
    assert [item.computed for item in after] == [0] * len(after)
    for one, other in zip(before, after, strict=True):
        assert one.path.read_bytes() == other.path.read_bytes()


def test_a_lock_is_waited_for_and_does_without_where_there_can_be_none(tmp_path: Path) -> None:
    waited: list[int] = []
    with exclusive(tmp_path / "lock"):
        code = (
            "import sys; from pathlib import Path; from histobench.core.claim import exclusive\n"
            "def told():\n    print('waiting', flush=True)\n"
            "with exclusive(Path(sys.argv[1]), on_wait=told):\n    print('got it', flush=True)\n"
        )
        child = subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path / "lock")], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        assert child.stdout.readline() == "waiting\n"
    assert child.communicate()[0] == "got it\n"
    (tmp_path / "file").write_text("")
    with exclusive(tmp_path / "file" / "lock", on_wait=lambda: waited.append(1)):
        pass
    assert waited == []


@pytest.mark.nightly
def test_two_runs_at_once_compute_each_image_once_and_write_the_same_rows(tmp_path: Path) -> None:
    write_demo_dataset(tmp_path / "data", name="tiles", train_per_class=6, test_per_class=3, size=64)
    start = "import sys; from histobench.cli.main import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", start, "run", "--data", str(tmp_path / "data" / "tiles.csv")]
    command += ["--models", "tiny-vl", "--tasks", "KNN,Proto", "--results", str(tmp_path / "r")]
    environment = {**os.environ, "HISTOBENCH_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
    runs = [
        subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for _ in range(2)
    ]
    for run in runs:
        said, _ = run.communicate(timeout=600)
        assert run.returncode == 0, said
    from histobench.roi.comparison.tidy_rows import COLUMNS, read_rows
    from histobench.roi.features.cache.listing import cached_encoders
    from histobench.roi.results.reader import load_runs

    tables = sorted((tmp_path / "r").rglob("results.parquet"))
    assert tables == [tmp_path / "r" / "results.parquet", tmp_path / "r/tiles/tiny-vl/uni/results.parquet"]
    measured = [name for name in COLUMNS if name not in ("value", "n", "date")]
    top, own = ([tuple(row[name] for name in measured) for row in read_rows(table)] for table in tables)
    assert len(top) == len(set(top)) > 0
    assert top == own
    (encoder,) = cached_encoders(tmp_path / "cache")
    assert encoder.images == 81
    for stored in load_runs(tmp_path / "r"):
        assert len(stored.predictions) == 27


def test_rows_of_cpus_of_two_kinds_are_kept_apart(
    make_dataset: Make, encoder_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = make_dataset(6)

    def computed(kind: str) -> tuple[int, set[str]]:
        monkeypatch.setattr("histobench.roi.features.feature_extraction.cpu_kind", lambda: kind)
        encoder = create_encoder(f"{encoder_file}:Tiny")
        done = extract(dataset, encoder, tmp_path / kind, device="cpu", num_workers=0)
        return sum(item.computed for item in done), {item.fingerprint for item in done}

    count, first = computed("x86_64 AVX512")
    assert count > 0
    again, second = computed("x86_64 AVX2")
    assert again == count
    assert first.isdisjoint(second)
    assert computed("x86_64 AVX512") == (0, first)
    assert computed("x86_64 AVX2") == (0, second)
