"""`histobench extract`, `histobench cache` and the script, run as a user would run them."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from builders import MEAN_ENCODER
from histobench.cli.extract import Lines
from histobench.cli.main import main
from histobench.core.claim import try_claim
from histobench.roi.features.feature_file import load

ROOT = Path(__file__).resolve().parents[2]

ENCODER = f"""{MEAN_ENCODER}
class Second(Mean):
    def forward(self, images):
        return images.amax(dim=(2, 3))
"""

Run = Callable[..., int]


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with images, a wide CSV, a class map and an encoder file."""
    monkeypatch.setenv("HISTOBENCH_CACHE", str(tmp_path / "cache"))
    rng = np.random.default_rng(0)
    rows = ["train_path,train_label,val_path,val_label,test_path,test_label"]
    for index in range(6):
        for split in ("train", "test"):
            pixels = rng.integers(0, 256, (20, 24, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / f"{split}{index}.png")
        rows.append(f"train{index}.png,{index % 2},,,test{index}.png,{index % 2}.0")
    (tmp_path / "data.csv").write_text("\n".join(rows) + "\n")
    (tmp_path / "classes.txt").write_text("NORM,0\nTUM,1\n")
    (tmp_path / "mine.py").write_text(ENCODER)
    return tmp_path


def arguments(data: Path, **changes: str) -> list[str]:
    values = {
        "dataset_split_csv": data / "data.csv",
        "class2id_txt": data / "classes.txt",
        "dataset_name": "CAMEL",
        "model_name": f"{data}/mine.py:Mean",
        "batch_size": 4,
        "num_workers": 0,
        "device": "cpu",
        "save_dir": data / "features",
        **changes,
    }
    return [text for name, value in values.items() for text in (f"--{name}", str(value))]


@pytest.mark.slow
def test_the_documented_flags_write_the_documented_files(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["extract", *arguments(data, resize_size="24")]) == 0
    out = capsys.readouterr()
    for split in ("train", "test"):
        path = data / "features" / f"Dataset_[CAMEL]_Model_[Mean]_Size_[24]_{split}.pt"
        assert f"{path}  (6 images, 6 computed)" in out.out
        assert load(path).metadata["classes"] == ["NORM", "TUM"]
    assert "images/s" in out.err
    assert main(["extract", *arguments(data, resize_size="24")]) == 0
    out = capsys.readouterr()
    assert "all from the cache" in out.out
    assert "nothing to compute" in out.err


@pytest.mark.slow
def test_several_encoders_in_one_command(data: Path) -> None:
    names = f"{data}/mine.py:Mean, {data}/mine.py:Second"
    assert main(["extract", *arguments(data, model_name=names, batch_size="auto")]) == 0
    assert sorted(path.name for path in (data / "features").iterdir()) == [
        f"Dataset_[CAMEL]_Model_[{model}]_Size_[16]_{split}.pt"
        for model in ("Mean", "Second")
        for split in ("test", "train")
    ]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dataset_split_csv": "nowhere.csv"}, "nowhere.csv"),
        ({"model_name": "resnet51"}, "did you mean resnet50"),
        ({"model_name": ","}, "--encoders: empty"),
        ({"batch_size": "many"}, "many"),
        ({"batch_size": "0"}, "'0'"),
        ({"device": "tpu9"}, "tpu9"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    data: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, str], message: str
) -> None:
    assert main(["extract", *arguments(data, **changes)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


@pytest.mark.slow
def test_bad_images_are_named_with_their_lines_or_left_out(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (data / "train3.png").write_bytes(b"no")
    (data / "test5.png").unlink()
    assert main(["extract", *arguments(data)]) == 2
    error = capsys.readouterr().err
    assert "data.csv:5" in error
    assert "data.csv:7" in error
    assert main(["extract", *arguments(data), "--on-bad-image", "skip"]) == 0
    out = capsys.readouterr().out
    assert "left out: train3.png" in out
    assert "left out: test5.png" in out


@pytest.mark.slow
def test_the_cache_is_listed_verified_and_emptied(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", "ls"]) == 0
    assert "no cached features" in capsys.readouterr().out
    assert main(["extract", *arguments(data)]) == 0
    capsys.readouterr()
    assert main(["cache", "ls"]) == 0
    listing = capsys.readouterr().out
    assert "mine.py:Mean" in listing
    assert "CAMEL/train" in listing
    assert main(["cache", "verify"]) == 0
    assert "12 images of 1 encoder verified" in capsys.readouterr().out

    (shard,) = (data / "cache" / "features").glob("*/*.safetensors")
    content = bytearray(shard.read_bytes())
    content[-1] ^= 255
    shard.write_bytes(content)
    assert main(["cache", "verify"]) == 2
    assert "1 damaged file;" in capsys.readouterr().err
    assert main(["cache", "verify", "--remove"]) == 0
    assert not shard.exists()
    capsys.readouterr()

    assert main(["cache", "rm"]) == 2
    assert main(["cache", "rm", "unknown", "--yes"]) == 2
    os.utime(shard.with_name("encoder.json"), (time.time() - 5 * 3600,) * 2)
    for days, said in (("0.25", "nothing to remove"), ("0.2", "removed 1 entry,")):
        assert main(["cache", "rm", "--older-than", days, "--yes"]) == 0
        assert said in capsys.readouterr().out
    assert main(["cache", "rm", "--all", "--yes"]) == 0
    assert main(["cache", "ls"]) == 0
    assert "no cached features" in capsys.readouterr().out
    assert len(list((data / "features").iterdir())) == 2  # feature files are the user's own


@pytest.mark.slow
def test_a_class_that_is_only_in_the_test_set_is_an_error_before_anything_is_computed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = "a.png,0,train\nb.png,0,test\nc.png,1,test\n"
    (tmp_path / "t.csv").write_text(f"image_path,label,split\n{rows}")
    order = ["extract", "--dataset_split_csv", str(tmp_path / "t.csv"), "--model_name", "random-vit"]
    assert main([*order, "--save_dir", str(tmp_path / "out")]) == 2
    assert "there are test images but no training images of 1" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    (tmp_path / "t.csv").write_text("image_path,label,split\nb.png,0,test\nc.png,1,test\n")
    assert main([*order, "--save_dir", str(tmp_path / "out")]) == 2  # of a test set alone nothing is learnt
    assert "no training images" not in capsys.readouterr().err


def test_the_time_left_does_not_count_the_first_batch(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = [0.0]
    monkeypatch.setattr("histobench.cli.extract.time.perf_counter", lambda: clock[0])
    lines = Lines()
    lines.begin("tiles x own", 8 * 128)
    for seconds in (100.0, 2.0, 2.0, 2.0, 2.0, 2.0):  # the first batch starts workers and compiles
        clock[0] += seconds
        lines.advance(8)
    told = [line for line in capsys.readouterr().err.splitlines() if line.endswith("s left")]
    assert told[0] == "tiles x own: 16/1024 images, 4.0 images/s, 252 s left"


@pytest.mark.slow
def test_a_run_that_waits_says_for_which_process_and_since_when(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @contextmanager
    def held(path: Path, *, on_wait: Callable[[], None]) -> Iterator[None]:
        path.parent.mkdir(parents=True, exist_ok=True)
        claim = try_claim(path)
        assert claim is not None
        on_wait()
        yield
        claim.release()

    monkeypatch.setattr("histobench.roi.features.feature_extraction.exclusive", held)
    assert main(["extract", *arguments(data)]) == 0
    said = capsys.readouterr()
    waiting = rf"Mean: waiting for another run .*\(process {os.getpid()} on .*, since \d\d:\d\d:\d\d\)"
    assert re.search(waiting, said.err + said.out)
