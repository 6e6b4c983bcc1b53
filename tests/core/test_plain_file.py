"""Whatever file a user names, it is a plain one of a bounded size, or one line says what it is."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from histobench.cli.main import main
from histobench.core.files import (
    check_plain,
    open_plain,
    read_plain,
    read_plain_text,
)


@pytest.mark.parametrize("read", [read_plain, read_plain_text, open_plain])
def test_only_plain_files_are_read(tmp_path: Path, read: Callable[[Path], Any]) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/dev/zero")
    for name, what in (("pipe", "not a plain file"), ("link", "not a plain file"), (".", "it is a folder")):
        with pytest.raises(OSError, match=what) as caught:
            read(tmp_path / name)
        assert caught.value.strerror == str(caught.value)
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "nothing")


def test_a_plain_file_is_read_as_it_is_and_through_a_link(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"a\r\nb\rc\n\xc3\xa9")
    (tmp_path / "link").symlink_to(path)
    assert read_plain(tmp_path / "link") == path.read_bytes()
    assert read_plain_text(path) == path.read_text(encoding="utf-8") == "a\nb\nc\n\u00e9"
    assert check_plain(path, limit=10) == path
    with open_plain(path) as handle:
        assert handle.read(1) == b"a"
    with pytest.raises(OSError, match=r"file too large: 9 bytes \(limit 8\)"):
        read_plain(path, limit=8)


#: `{}` is a pipe, `{table}` a dataset of two images.
READING = [
    "run {}",
    "data check {}",
    "data check {table} --class2id_txt {}",
    "extract --dataset_split_csv {table} --model_name uni_v1 --weights {}.pth --save_dir out",
    "evaluate --TASK KNN --train_feature_file {} --test_feature_file {}",
    "robustness {}",
    "mint run --agent replay:{}.jsonl.gz --tasks quickstart --output out",
    "mint run --config {}",
    "mint table {}.csv",
    "mint rescore {}",
]
#: Those that name a folder.
LISTING = [
    "report {} -o site",
    "compare {}",
    "bootstrap --results_dir {}",
    "status {}",
    "serve {}",
    "consult table {}",
    "consult run {} --agent human --output out",
]


def refused(command: str, odd: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What a verb says about the odd thing when it ends with code 2."""
    assert main(command.format(odd, odd, table="table.csv").split()) == 2
    told = capsys.readouterr().err
    for code in ("Traceback", "Error(", "Errno"):
        assert code not in told
    assert len(told.strip().splitlines()) == 1
    return told


@pytest.mark.slow
@pytest.mark.parametrize("command", READING)
def test_commands_say_that_a_pipe_is_not_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        Image.new("RGB", (32, 32)).save(tmp_path / f"{name}.png")
    (tmp_path / "table.csv").write_text("image_path,label,split\na.png,0,train\nb.png,0,test\n")
    for ending in ("", ".pth", ".csv", ".jsonl.gz"):
        os.mkfifo(tmp_path / f"odd{ending}")
    assert "not a plain file; save its content" in refused(command, tmp_path / "odd", capsys)


@pytest.mark.parametrize("command", LISTING)
def test_no_verb_takes_a_pipe_for_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo(tmp_path / "odd")
    assert str(tmp_path / "odd") in refused(command, tmp_path / "odd", capsys)
