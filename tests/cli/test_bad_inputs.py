"""Inputs that cannot be meant, from a table to a study: the right words and exit code 2."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import histobench as hb
from builders import MEAN_ENCODER
from histobench.cli.main import main
from histobench.core.errors import HistobenchError

LEAK = "group 'p0' is in train and in test"


@pytest.fixture
def tiles(tmp_path: Path) -> Path:
    """Eight tiles of two sizes in `t.csv`; in `leak.csv` a patient is in both splits."""
    draw, rows = np.random.default_rng(0), ["image_path,label,split,group"]
    for number in range(8):
        side = 48 if number % 4 else 40
        pixels = draw.integers(0, 255, (side, side, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{number}.png")
        rows.append(f"{number}.png,{'ab'[number % 2]},{'train' if number < 4 else 'test'},p{number // 2}")
    (tmp_path / "t.csv").write_text("\n".join(rows) + "\n")
    (tmp_path / "leak.csv").write_text("\n".join(rows).replace("p3", "p0") + "\n")
    (tmp_path / "mean.py").write_text(MEAN_ENCODER)
    few = MEAN_ENCODER.replace("mean(dim=(2, 3))", "mean(dim=(2, 3))[:1]")
    (tmp_path / "few.py").write_text(few)
    (tmp_path / "file").write_text("not a folder")
    return tmp_path


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("data check leak.csv", LEAK),
        ("run --data leak.csv --models tiny-vl --results r", LEAK),
        ("data demo file/demo", "Not a directory"),
        ("data demo file", "Not a directory"),
        ("run --data t.csv --models tiny-vl --results=", "--results/-o: expected a text"),
        ("run --data t.csv --models hf:/nonexistent/model --results r", "folder /nonexistent/model does not"),
        ("run --data t.csv --models hf:./nope --results r", "the folder nope does not exist"),
        (
            "run --data t.csv --models mean.py:Mean --weights /nonexistent --results r",
            "--weights /nonexistent does not exist",
        ),
        (
            "run --data t.csv --models few.py:Mean --tasks Proto --results r",
            "gives features of shape (1, 3) for 8 images; expected one row for each image",
        ),
        ("evaluate --TASK KNN --train a.pt --test a.pt", "a.pt"),
        ("evaluate --TASK KNN --train a.pt --test a.pt --n_neighbors 0", "--n-neighbors: expected a whole"),
        ("choose r --min-robustness 2", "expected a number of at least 0 and at most 1"),
        ("choose r --min-robustness -1", "--min-robustness"),
        ("consult run nostudy --agent policy:reader", "is not a Consult study"),
        ("run --data t.csv --features m=nope.npz --results r", "nope.npz does not exist"),
        ("run --data t.csv --features m=file --results r", "is not one of .h5"),
        ("run --data t.csv --models tiny-vl --tree split/class --results r", "leave out --tree"),
    ],
)
def test_commands(
    command: str, words: str, tiles: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tiles)
    device = ["--device", "cpu"] if command.startswith("run") else []
    assert main([*command.split(), *device]) == 2
    shown = capsys.readouterr()
    assert words in " ".join((shown.out + shown.err).split())
    assert "Traceback" not in shown.err


def test_a_semicolon_table_is_read(tiles: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tiles / "s.csv").write_text((tiles / "t.csv").read_text().replace(",", ";"))
    assert main(["data", "check", str(tiles / "s.csv")]) == 0
    assert "2 classes, 8 images" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("output", "words"),
    [
        (lambda images: images.mean(), "gives () for 1 images; expected [images, dimension]"),
        (lambda images: ["a"] * len(images), "gives a list that is not numbers"),
        (lambda images: None, "gives a NoneType that is not numbers"),
        (lambda images: images.mean(dim=(2, 3))[:-1], "gives (0, 3) for 1 images"),
    ],
)
def test_outputs_of_a_model(output: object, words: str) -> None:
    with pytest.raises(HistobenchError) as caught:
        hb.create_encoder(output, label="mine")
    assert words in str(caught.value)


def test_a_study_without_cases(tmp_path: Path) -> None:
    (tmp_path / "study.json").write_text(
        '{"version": 2, "dataset": "d", "classes": ["a"], "encoders": [], "arms": ["none"], "seed": 0}'
    )
    (tmp_path / "cases.jsonl").write_text("")
    with pytest.raises(HistobenchError, match=r"cases\.jsonl \(it holds no cases\); run histobench consult"):
        hb.consult.open_study(tmp_path)
