"""Archives from strangers."""

from __future__ import annotations

import gzip
import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from histobench.core.errors import HistobenchError
from histobench.roi.registry import unpack
from histobench.roi.registry.unpack import gunzip, open_tree


def _tar(
    path: Path, members: dict[str, bytes], links: dict[str, str] | None = None, mode: str = "w:gz"
) -> Path:
    with tarfile.open(path, mode) as box:  # type: ignore[call-overload]
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            box.addfile(info, io.BytesIO(data))
        for name, target in (links or {}).items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, target
            box.addfile(info)
    return path


@pytest.mark.parametrize("name", ["/etc/x", "../x", "a/../../x", "C:\\x", "..\\x"])
@pytest.mark.parametrize("kind", ["tar.gz", "tar", "zip"])
def test_paths_out_of_the_folder_are_refused(tmp_path: Path, name: str, kind: str) -> None:
    archive = tmp_path / "d" / f"a.{kind}"
    archive.parent.mkdir()
    if kind == "zip":
        with zipfile.ZipFile(archive, "w") as box:
            box.writestr(zipfile.ZipInfo(name), b"x")
    else:
        _tar(archive, {name: b"x"}, mode="w:gz" if kind == "tar.gz" else "w")
    with pytest.raises(HistobenchError, match="outside of the folder"):
        open_tree([archive], tmp_path)
    assert sorted(path.name for path in tmp_path.rglob("x")) == []


@pytest.mark.parametrize("target", ["/etc/passwd", "../../x", "sub/../../../x"])
def test_links_out_of_the_folder_are_refused(tmp_path: Path, target: str) -> None:
    archive = _tar(tmp_path / "a.tar.gz", {"a/b.png": b"x"}, {"a/link.png": target})
    with pytest.raises(HistobenchError, match="leads out of the folder"):
        open_tree([archive], tmp_path)
    assert not (tmp_path / "images" / "a").exists()


def test_links_inside_of_the_folder_are_left_out(tmp_path: Path) -> None:
    archive = _tar(tmp_path / "a.tar.gz", {"a/b.png": b"x"}, {"all/b.png": "../a/b.png"})
    assert open_tree([archive], tmp_path).names == ("a/b.png",)


def test_a_bomb_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpack, "GROWTH_FREE", 1 << 20)
    archive = _tar(tmp_path / "a.tar.gz", {"a.png": bytes(40 << 20)})
    with pytest.raises(HistobenchError, match="refused as a bomb"):
        open_tree([archive], tmp_path)
    assert not any((tmp_path / "images").iterdir())
    (tmp_path / "b.h5.gz").write_bytes(gzip.compress(bytes(40 << 20)))
    with pytest.raises(HistobenchError, match="refused as a bomb"):
        gunzip(tmp_path / "b.h5.gz", tmp_path / "b.h5")
    with zipfile.ZipFile(tmp_path / "c.zip", "w", zipfile.ZIP_DEFLATED) as box:
        box.writestr("a.png", bytes(40 << 20))
    with pytest.raises(HistobenchError, match="refused as a bomb"):
        open_tree([tmp_path / "c.zip"], tmp_path)


@pytest.mark.parametrize("name", ["a.tar.gz", "a.zip", "a.tar"])
def test_a_cut_archive_is_one_line_and_leaves_nothing(tmp_path: Path, name: str) -> None:
    archive = tmp_path / name
    if name == "a.zip":
        with zipfile.ZipFile(archive, "w") as box:
            box.writestr("a.png", bytes(5_000))
    else:
        _tar(archive, {"a.png": bytes(range(256)) * 40}, mode="w:gz" if name.endswith("gz") else "w")
    archive.write_bytes(archive.read_bytes()[: 60 if name.endswith("gz") else 700])
    with pytest.raises(HistobenchError, match="damaged, cut short"):
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
