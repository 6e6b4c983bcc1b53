"""`histobench data` as a user runs it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from histobench.cli.main import main


@pytest.fixture
def tiles(tmp_path: Path) -> Path:
    """Two classes, five patients each with two tiles of each class."""
    generator = np.random.default_rng(0)
    for name in ("ADI", "TUM"):
        (tmp_path / "tiles" / name).mkdir(parents=True)
        for patient in range(5):
            for number in range(2):
                pixels = generator.integers(0, 256, (16, 20, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(tmp_path / "tiles" / name / f"p{patient}_{name}{number}.png")
    return tmp_path / "tiles"


def test_a_split_can_be_written_down_and_checked(
    tiles: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "lists" / "set.csv"
    options = ["--split", "0.6/0.2/0.2", "--group-regex", r"/(p\d)_"]
    assert main(["data", "split", str(tiles), *options, "-o", str(table)]) == 0
    assert "12 train, 4 val, 4 test" in capsys.readouterr().out
    assert table.read_text().splitlines()[:1] == ["image_path,label,split,group"]
    assert main(["data", "check", str(table), "--class2id_txt", str(table.with_suffix(".txt"))]) == 0
    shown = capsys.readouterr().out
    assert "set: 2 classes, 20 images, 5 groups, 20 x 16 px" in shown
    assert "no group is in two splits" not in shown
    assert "20 of 20 images are very small" in shown
    assert "checks passed (-v lists them)" in shown
    assert shown.rstrip().endswith("PASS 0 errors, 2 warnings")  # one of them: every image is small
    command = ["data", "check", str(table), "--class2id_txt", str(table.with_suffix(".txt"))]
    assert main([*command, "-v"]) == 0
    assert "PASS   no group is in two splits" in capsys.readouterr().out


@pytest.mark.slow
def test_a_dataset_with_errors_lists_them_all_and_exits_with_2(
    tiles: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "set.csv"
    (tiles / "broken.png").write_bytes(b"\x89PNG\r\n")
    table.write_text(
        "image_path,label,split\ntiles/ADI/p0_ADI0.png,0,train\ntiles/ADI/p0_ADI0.png,0,test\n"
        "tiles/broken.png,1,train\ngone.png,1,test\ntiles/TUM/p0_TUM0.png,1,train\n"
        "tiles/TUM/p0_TUM1.png,1,test\ntiles/TUM/p1_TUM1.png,5,test\n"
    )
    class_map = tmp_path / "classes.txt"
    class_map.write_text("ADI,0\nTUM,1\n")
    arguments = ["data", "check", str(table), "--class2id_txt", str(class_map)]
    assert main(arguments) == 2
    shown = capsys.readouterr().out
    for line, words in ((4, "broken.png"), (5, "does not exist"), (8, "label 5"), (2, "same image")):
        assert any(f"{table}:{line}: " in text and words in text for text in shown.splitlines())
    assert "FAIL 4 errors, 2 warnings" in shown  # small images; one test image of a class
    assert main([*arguments, "--on-bad-image", "skip"]) == 2
    shown = capsys.readouterr().out
    assert "WARN   missing file: 1, left out" in shown
    assert "FAIL 2 errors, 4 warnings" in shown


def test_long_lists_are_cut_and_say_how_to_see_all(tiles: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(30):
        (tiles / "ADI" / f"bad{number}.png").touch()
    assert main(["data", "check", str(tiles), "--split", "0.5/0.5", "--show", "3"]) == 2
    shown = capsys.readouterr().out
    assert shown.count("the file is empty") == 3
    assert "... and 27 more (--show 30 lists all)" in shown


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["check", "nowhere"], "nowhere does not exist"),
        (["check", "ADII"], "ADII does not exist; did you mean ADI?"),
        (["check", "."], "--split"),
        (["check", ".", "--split", "1/1"], "add up to 2"),
        (["split", ".", "--split", "0.5/0.5", "-o", "x.txt"], "end the output in .csv"),
    ],
)
def test_a_wrong_command_is_one_line_and_exit_code_2(
    tiles: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    words: str,
) -> None:
    monkeypatch.chdir(tiles)
    assert main(["data", *arguments]) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if not line.endswith(" ...")]
    assert len(lines) == 1
    assert lines[0].startswith("histobench data: error: ")
    assert words in lines[0]


def test_the_demo_dataset_passes_its_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "demo"
    assert main(["data", "demo", str(out), "--per-class", "2", "--size", "64", "--debug"]) == 0
    command = capsys.readouterr().out.splitlines()[-1].removeprefix("Next: histobench ")
    assert main(command.split()) == 0
    assert "9 classes, 27 images" in capsys.readouterr().out
