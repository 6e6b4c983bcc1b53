"""A user's file imports its siblings, and its identity covers all that it is made of."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from histobench.core.errors import HistobenchError
from histobench.roi.encoders.own_name import check_labels, label_of, split_alias
from histobench.roi.encoders.registry import create_encoder

FILE = """
import torch
from pathlib import Path
from histobench.roi.encoders.base import BasePatchEncoder
from histobench.roi.encoders.transform import TransformSpec
{imports}

class Own(BasePatchEncoder):
    def __init__(self):
        super().__init__()
        self.eval_transforms = TransformSpec(resize=8, crop=8)
        self.embed_dim = 3
        {init}

    def forward(self, images):
        {forward}
        return images.mean(dim=(2, 3)) * scale
"""


def write(folder: Path, *, imports: str = "", init: str = "pass", forward: str = "scale = 1.0") -> str:
    folder.mkdir(exist_ok=True)
    (folder / "own.py").write_text(FILE.format(imports=imports, init=init, forward=forward))
    return f"{folder}/own.py:Own"


@pytest.fixture(autouse=True)
def own_path() -> Iterator[None]:
    """Leave no folder of a test on the path."""
    before = list(sys.path)
    yield
    sys.path[:] = before


def feature(name: str) -> float:
    return float(create_encoder(name)(torch.ones(1, 3, 8, 8))[0, 0])


def identity(name: str) -> dict[str, Any]:
    return create_encoder(name).identity


@pytest.mark.sample(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("imports", "forward"),
    [
        ("import helper", "scale = helper.SCALE"),
        ("from helper import SCALE as scale0", "scale = scale0"),
        ("from . import helper", "scale = helper.SCALE"),
        ("import parts.inner", "scale = parts.inner.SCALE"),
        ("from parts import inner", "scale = inner.SCALE"),
        ("import parts.inner as deep", "scale = deep.SCALE"),
    ],
)
def test_two_folders_may_each_have_a_sibling_of_one_name(imports: str, forward: str, tmp_path: Path) -> None:
    names = []
    for folder, scale in (("a", 2.0), ("b", 3.0)):
        names.append(write(tmp_path / folder, imports=imports, forward=forward))
        (tmp_path / folder / "helper.py").write_text(f"SCALE = {scale}\n")
        (tmp_path / folder / "parts").mkdir()
        (tmp_path / folder / "parts" / "__init__.py").touch()
        (tmp_path / folder / "parts" / "inner.py").write_text("from helper import SCALE\n")
    first, second = (create_encoder(name) for name in names)
    images = torch.ones(1, 3, 8, 8)
    assert (first(images)[0, 0], second(images)[0, 0]) == (2.0, 3.0)


@pytest.mark.slow
def test_installed_packages_are_still_found_and_win_over_plain_folders(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "timm").mkdir()  # a folder of checkpoints, say
    (tmp_path / "a" / "random.py").write_text("raise RuntimeError('not the standard library')\n")
    assert feature(write(tmp_path / "a", imports="import random, timm\ntimm.create_model")) == 1.0


@pytest.mark.slow
def test_an_edit_takes_effect_though_size_and_second_stay_the_same(tmp_path: Path) -> None:
    name = write(tmp_path / "a", imports="import helper", forward="scale = helper.SCALE")
    for value in (2.0, 3.0, 4.0):
        (tmp_path / "a" / "helper.py").write_text(f"SCALE = {value}\n")
        os.utime(tmp_path / "a" / "helper.py", (1_000_000_000, 1_000_000_000))
        assert feature(name) == value


@pytest.mark.parametrize(
    ("imports", "helper"),
    [
        ("import helper", "helper"),
        ("from middle import *", "helper"),
        ("def later():\n    from middle import helper", "late"),
    ],
)
def test_a_changed_sibling_changes_the_identity(imports: str, helper: str, tmp_path: Path) -> None:
    name = write(tmp_path / "a", imports=imports.replace("middle", f"{helper}_middle"))
    (tmp_path / "a" / f"{helper}.py").write_text("SCALE = 2.0\n")
    (tmp_path / "a" / f"{helper}_middle.py").write_text(f"import {helper}\n")
    (tmp_path / "a" / "stranger.py").write_text("SCALE = 2.0\n")
    before = identity(name)
    assert identity(name) == before
    (tmp_path / "a" / "stranger.py").write_text("SCALE = 5.0\n")
    assert identity(name) == before
    (tmp_path / "a" / f"{helper}.py").write_text("SCALE = 3.0\n")
    assert identity(name) != before


@pytest.mark.parametrize("changed", ["weights", "version", "nothing"])
def test_weights_and_version_are_part_of_the_identity_and_data_files_are_not(
    changed: str, tmp_path: Path
) -> None:
    def made(number: int) -> dict[str, Any]:
        np.save(tmp_path / "a" / "bins.npy", np.arange(3) + number)
        return identity(name)

    init = "import numpy; bins = torch.tensor(numpy.load(Path(__file__).parent / 'bins.npy')); "
    init += {"weights": "self.register_buffer('bins', bins)", "version": "self.version = int(bins[0])"}.get(
        changed, "self.bins = bins"
    )
    name = write(tmp_path / "a", init=init)
    before = made(0)
    after = made(1)
    assert [key for key in after if after[key] != before.get(key)] == [changed] * (changed != "nothing")


@pytest.mark.slow
def test_the_same_file_by_another_path_is_the_same_encoder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = write(tmp_path / "a")
    monkeypatch.chdir(tmp_path / "a")
    assert identity("own.py:Own") == identity(name) == identity(f"mine={name}")


@pytest.mark.slow
def test_an_encoder_of_a_file_can_be_given_a_name(tmp_path: Path) -> None:
    name = write(tmp_path / "a")
    assert label_of(create_encoder(f"mine={name}").name) == "mine"
    assert label_of(create_encoder(name).name) == "Own"
    with pytest.raises(HistobenchError, match="the zoo has an encoder 'uni_v1' already"):
        create_encoder(f"uni_v1={name}")
    odd = write(tmp_path / "lr=1")
    assert split_alias(odd) == ("", odd)


def test_names_that_would_meet_in_one_file_are_refused_with_the_way_out() -> None:
    check_labels(["a.py:X", "b.py:Y", "uni_v1", "virchow2@cls", "other=b.py:X"])
    for names in (
        ["a.py:X", "b.py:X"],
        ["a.py:X", "b.py:x"],
        ["uni_v1", "uni_v1=a.py:Y"],
        ["z=a.py:X", "z=a.py:Y"],
    ):
        with pytest.raises(HistobenchError, match=r"give one of them another name: \w+2=\w\.py:"):
            check_labels(names)


@pytest.mark.parametrize("alias", ["..", "", " x", "-n", "a b", "\x1b[31m"])
def test_a_name_that_no_encoder_can_have_is_refused_as_such(alias: str) -> None:
    with pytest.raises(HistobenchError, match="cannot be the name of an encoder"):
        split_alias(f"{alias}=e1/my.py:Hist")
