"""Bad tables and folders: the right words and exit code 2, from `data check` and from `run`."""

from __future__ import annotations

from pathlib import Path

import pytest

from histobench.cli.main import main

TABLE = "path,label,split,patient\na.png,x,train,p1\nb.png,y,train,p2\nc.png,x,test,p3\nd.png,y,test,p4\n"


@pytest.mark.parametrize(
    ("table", "flags", "words"),
    [
        ("", (), "is empty"),
        ("path,label,split\n", (), "lists no images"),
        ("path\n", (), "no column 'label'"),
        ("train_path,train_label,test_path\na,0,b\n", (), "no column 'test_label'"),
        (TABLE.replace("path", "wo", 1), (), "no column 'image_path'"),
        (TABLE.replace("label", "art", 1), (), "name it with --label-column"),
        (TABLE.replace("split", "teil", 1), (), "has no split column"),
        ("wo,art\na.png,x\n", (), "image), no 'label', no 'split'; it has: wo, art"),
        ("wo,art\na.png,x\n", ("--split", "0.5/0.5"), "name them with --image-column and --label-column"),
        (TABLE, ("--label-column", "lable"), "did you mean label?"),
        (TABLE, ("--site-columns", "scaner"), "no column 'scaner'"),
        (TABLE, ("--root", "/nonexistent"), "is not a folder"),
        (TABLE, ("--split", "0.5/0.5"), "has a split column"),
        (TABLE, ("--group-regex", "^(q\\d)"), r"--group-regex '^(q\d)' finds no group in 4 of 4 paths"),
        (TABLE, ("--group-regex", "("), "not a regular expression"),
        (TABLE, ("--site-regex", "zz"), "finds no site"),
        (TABLE + "a.png,y,train,p1\n", (), "a.png is labeled y here and x at"),
        (TABLE + "e.png,,test,p1\n", (), "e.png has no label"),
        (TABLE + ",x,test,p1\n", (), "no path"),
        (TABLE + "e.png,x,tst,p1\n", (), "split 'tst' is not train, val or test"),
        (TABLE + "e.png,x,test,p1,7,8\n", (), "more cells than the header has (4)"),
        (TABLE + '"e\n.png",x,test,p1\n', (), "goes over several lines"),
        (TABLE + '"e.png,x,test,p1\n', (), "not a valid CSV row"),
        (TABLE.replace("patient", "label", 1), (), "the column 'label' is there twice"),
        (TABLE, ("--target", "regression", "--target-columns", "age"), "no column 'age'"),
        (TABLE.replace(",x,", ',"1,5",'), ("--target", "regression"), "write decimals with a point"),
        (TABLE.replace(",y,", ",x,"), (), "all images are of one class (x)"),
        (TABLE.replace("\n", "\0\n", 1), (), "NUL byte"),
    ],
)
def test_the_right_words_and_exit_code_2(
    table: str, flags: tuple[str, ...], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(table.encode())
    run = ["run", "--models", "tiny-vl", "--results", str(tmp_path / "r"), "--data", str(path), *flags]
    for command in (["data", "check", str(path), *flags], run):
        assert main(command) == 2
        shown = capsys.readouterr()
        assert words in " ".join((shown.out + shown.err).split())
