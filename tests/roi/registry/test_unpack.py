"""Archives of public datasets."""

from __future__ import annotations

import os
import random
import shutil
import sys
import zipfile
from pathlib import Path

import pytest

from histobench.core.errors import HistobenchError
from histobench.roi.registry.unpack import open_tree
from roi.registry.miniatures import tar_of


def _tar(
    path: Path, members: dict[str, bytes], links: dict[str, str] | None = None, mode: str = "w:gz"
) -> Path:
    path.write_bytes(tar_of(members, mode, links))
    return path


@pytest.mark.parametrize("name", ["/etc/x", "../x", "a/../../x"])
def test_paths_out_of_the_folder_are_refused(tmp_path: Path, name: str) -> None:
    archive = _tar(tmp_path / "a.tar.gz", {name: b"x"})
    with pytest.raises(HistobenchError, match="leaves the folder"):
        open_tree([archive], tmp_path)
    assert not list(tmp_path.rglob("x"))


def test_links_inside_of_the_folder_are_left_out(tmp_path: Path) -> None:
    archive = _tar(tmp_path / "a.tar.gz", {"a/b.png": b"x"}, {"all/b.png": "../a/b.png"})
    assert open_tree([archive], tmp_path).names == ("a/b.png",)


@pytest.mark.parametrize("name", ["a.tar.gz", "a.zip", "a.tar"])
def test_a_cut_archive_is_one_line_and_leaves_nothing(tmp_path: Path, name: str) -> None:
    archive = tmp_path / name
    if name == "a.zip":
        with zipfile.ZipFile(archive, "w") as box:
            box.writestr("a.png", bytes(5_000))
    else:
        _tar(archive, {"a.png": bytes(range(256)) * 40}, mode="w:gz" if name.endswith("gz") else "w")
    archive.write_bytes(archive.read_bytes()[: 60 if name.endswith("gz") else 700])
    with pytest.raises(HistobenchError, match="damaged, truncated"):
        open_tree([archive], tmp_path)
    assert not (tmp_path / "images" / "a").exists()


def test_parts_are_read_as_one_archive(tmp_path: Path) -> None:
    whole = _tar(tmp_path / "whole.tar", {f"{i}.png": bytes([i]) * 3_000 for i in range(9)}, mode="w")
    data = whole.read_bytes()
    parts = []
    for index in range(0, len(data), 7_001):
        parts.append(tmp_path / f"a.tar.{index:06d}")
        parts[-1].write_bytes(data[index : index + 7_001])
    tree = open_tree(parts, tmp_path)
    assert tree.names == tuple(f"{i}.png" for i in range(9))
    assert (tmp_path / tree.prefix / "8.png").read_bytes() == bytes([8]) * 3_000


@pytest.mark.parametrize("kind", ["gz", "bz2", "xz"])
def test_compressed_archives_are_unpacked(tmp_path: Path, kind: str) -> None:
    data = random.Random(0).randbytes(9_000)
    archive = _tar(tmp_path / f"a.tar.{kind}", {"a.jpg": data}, mode=f"w:{kind}")
    tree = open_tree([archive], tmp_path)
    assert (tmp_path / tree.prefix / "a.jpg").read_bytes() == data


def test_another_download_is_unpacked_anew(tmp_path: Path) -> None:
    archive = _tar(tmp_path / "a.tar.gz", {"old.png": b"x"})
    assert open_tree([archive], tmp_path).names == ("old.png",)
    os.utime(tmp_path / "images" / "a", (0, 0))
    _tar(archive, {"new.png": b"x"})
    assert open_tree([archive], tmp_path).names == ("new.png",)


def test_names_that_only_look_alike_are_all_there(tmp_path: Path) -> None:
    names = sorted(["A.png", "a.png", "e\u0301.png", "\u00e9.png", "a b.png", "ab:c.png"])
    if sys.platform != "linux":
        pytest.skip("this file system does not tell them apart")
    members = {name: name.encode() for name in names}
    tree = open_tree([_tar(tmp_path / "a.tar.gz", members)], tmp_path)
    assert list(tree.names) == names
    assert [(tmp_path / tree.prefix / name).read_bytes().decode() for name in names] == names
    plain = open_tree([_tar(tmp_path / "b.tar", members, mode="w")], tmp_path)
    assert list(plain.names) == names


@pytest.mark.slow
def test_a_rar_is_unpacked(tmp_path: Path) -> None:
    """bsdtar looks at the content: another archive stands in for the RAR that no free program writes."""
    if shutil.which("bsdtar") is None:
        pytest.skip("bsdtar is not installed")
    _tar(tmp_path / "a.rar", {"a/b.png": b"x"})
    assert open_tree([tmp_path / "a.rar"], tmp_path).names == ("a/b.png",)
    (tmp_path / "b.rar").write_bytes(b"Rar!rubbish")
    with pytest.raises(HistobenchError, match="damaged"):
        open_tree([tmp_path / "b.rar"], tmp_path)
