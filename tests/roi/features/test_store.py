"""Feature files: what is written comes back, and nothing in them is ever executed."""

from __future__ import annotations

import io
import os
import pickle
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from builders import examples
from histobench.core.errors import HistobenchError
from histobench.roi.features.feature_file import FeatureSet, check_pair, fingerprint_of, load, save
from histobench.roi.features.feature_rows import read_rows


def make(count: int = 5, dim: int = 3, **metadata: object) -> FeatureSet:
    return FeatureSet(
        embeddings=torch.arange(count * dim, dtype=torch.float32).reshape(count, dim),
        labels=torch.arange(count) % 2,
        img_names=tuple(f"{row}.png" for row in range(count)),
        groups=tuple(f"patient {row % 2}" for row in range(count)),
        metadata=dict(metadata),
    )


def test_what_is_saved_comes_back(tmp_path: Path) -> None:
    features = make(encoder="random-vit", classes=["a", "b"], transform={"crop": 224})
    path = save(features, tmp_path / "Dataset_[X]_Model_[Y]_Size_[224]_train.pt")
    again = load(path)
    assert torch.equal(again.embeddings, features.embeddings)
    assert torch.equal(again.labels, features.labels)
    assert (again.img_names, again.groups) == (features.img_names, features.groups)
    assert again.metadata == {**features.metadata, "source": str(path)}
    assert save(again, tmp_path / "other_name.pt").read_bytes() == path.read_bytes()
    content = torch.load(path, weights_only=True)  # by any torch, without code
    assert list(content) == ["embeddings", "labels", "img_names", "groups", "metadata", "checksum"]
    assert content["metadata"] == features.metadata


def test_features_without_a_name_are_known_by_rows_and_labels() -> None:
    one, named = make(), make(fingerprint="f")
    others = replace(one, labels=1 - one.labels), replace(one, embeddings=one.embeddings + 1), named
    assert len({fingerprint_of(each) for each in (one, make(), *others)}) == 4
    assert fingerprint_of(one, named) != fingerprint_of(named, one)


@pytest.mark.slow
def test_no_flipped_bit_changes_what_is_read(tmp_path: Path) -> None:
    path = save(make(40, 6, encoder="e", classes=["a", "b"]), tmp_path / "f.pt")
    whole = path.read_bytes()
    before = load(path)
    rng = np.random.default_rng(0)
    refused = 0
    for position, bit in zip(rng.integers(0, len(whole), 150), rng.integers(0, 8, 150), strict=True):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << bit
        path.write_bytes(damaged)
        try:
            found = load(path)
        except HistobenchError:
            refused += 1
            continue
        # Bytes that carry nothing (padding, dates) may change without harm.
        assert torch.equal(found.embeddings, before.embeddings)
        assert torch.equal(found.labels, before.labels)
        assert (found.img_names, found.groups) == (before.img_names, before.groups)
        assert found.metadata == before.metadata
    assert refused > 40


def test_a_file_without_a_checksum_is_read_with_a_note(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = save(make(encoder="e"), tmp_path / "f.pt")
    load(path)
    assert not caplog.records
    content = torch.load(path, weights_only=True)
    del content["checksum"]
    torch.save(content, path)
    assert len(load(path)) == 5
    assert "has no checksum" in caplog.text


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize(
    "content",
    [
        (np.ones((3, 2), np.float32), np.array([0, 1, 1]), list("abc")),
        (np.ones((3, 2)), [0, 1, 1], np.array(["a", "b", "c"])),
        (np.ones((3, 2), np.float16), list(np.array([0, 1, 1])), np.array(["a", "b", "c"], dtype=object)),
        (torch.ones(3, 2).half(), torch.tensor([0.0, 1.0, 1.0]), ("a", "b", "c")),
        ([np.ones(2, np.float32)] * 3, np.array([0, 1, 1], np.uint8), list("abc")),
        ([torch.ones(2)] * 3, np.array([[0], [1], [1]]), list("abc")),
    ],
)
def test_files_of_the_ancestor_load(tmp_path: Path, content: tuple, zipped: bool) -> None:
    named = dict(zip(("embeddings", "labels", "img_names"), content, strict=True))
    torch.save(named, tmp_path / "f.pt", _use_new_zipfile_serialization=zipped)
    features = load(tmp_path / "f.pt")
    assert features.embeddings.dtype == torch.float32
    assert features.embeddings.tolist() == [[1.0, 1.0]] * 3
    assert features.labels.tolist() == [0, 1, 1]
    assert features.img_names == ("a", "b", "c")
    assert features.groups is None


def test_files_written_under_numpy_1_load(tmp_path: Path) -> None:
    torch.save(
        {"embeddings": np.ones((3, 2)), "labels": np.array([0, 1, 1]), "img_names": ["a", "b", "c"]},
        tmp_path / "new.pt",
    )
    # The only difference between the two is the name of the module that rebuilds an array.
    with zipfile.ZipFile(tmp_path / "new.pt") as old, zipfile.ZipFile(tmp_path / "f.pt", "w") as new:
        for name in old.namelist():
            data = old.read(name)
            if name.endswith("data.pkl"):
                assert b"numpy._core.multiarray" in data
                data = data.replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
            new.writestr(name, data)
    assert load(tmp_path / "f.pt").labels.tolist() == [0, 1, 1]


class _Evil:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple:
        return (os.mkdir, (str(self.marker),))


@pytest.mark.parametrize("kind", ["zip", "legacy", "object array", "plain pickle"])
def test_pickled_code_is_refused_and_never_run(tmp_path: Path, kind: str) -> None:
    evil, path = _Evil(tmp_path / "ran"), tmp_path / "f.pt"
    content: dict[str, object] = {"embeddings": evil, "labels": [0]}
    if kind == "object array":
        names = np.array([evil], dtype=object)
        content = {"embeddings": np.ones((1, 2)), "labels": [0], "img_names": names}
    if kind == "plain pickle":
        path.write_bytes(pickle.dumps(evil))
    else:
        torch.save(content, path, _use_new_zipfile_serialization=kind != "legacy")
    with pytest.raises(HistobenchError, match=r"f\.pt is damaged, or holds more than plain arrays"):
        load(path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.slow
@settings(
    max_examples=examples(15),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(cut=st.floats(0, 0.97), garbage=st.binary(max_size=400))
def test_a_cut_file_and_garbage_are_one_clear_error(tmp_path: Path, cut: float, garbage: bytes) -> None:
    whole = save(make(40, 8), tmp_path / "whole.pt").read_bytes()
    for data in (whole[: int(cut * len(whole))], garbage):
        (tmp_path / "f.pt").write_bytes(data)
        with pytest.raises(HistobenchError, match=r"feature file .*f\.pt"):
            load(tmp_path / "f.pt")


GOOD = {"embeddings": np.ones((3, 2)), "labels": [0, 1, 1], "img_names": ["a", "b", "c"]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"embeddings": None}, "has no 'embeddings'"),
        ({"embeddings": np.array([[1.0], [np.nan], [np.inf]])}, r"in 2 rows \(the first is row 1\)"),
        ({"embeddings": np.ones(3)}, r"shape \(3,\)"),
        ({"embeddings": ["x", "y", "z"]}, "not an array of numbers"),
        ({"labels": [0, 1]}, "3 embeddings but 2 labels"),
        ({"labels": [0, 1, 1.5]}, "not whole numbers"),
        ({"labels": [0, 1, -1]}, "negative label -1"),
        ({"img_names": ["a"]}, "3 embeddings but 1 img_names"),
        ({"groups": ["a"]}, "3 embeddings but 1 groups"),
    ],
)
def test_bad_content_is_named(tmp_path: Path, change: dict, message: str) -> None:
    content = {key: value for key, value in {**GOOD, **change}.items() if value is not None}
    torch.save(content, tmp_path / "f.pt")
    with pytest.raises(HistobenchError, match=message) as caught:
        load(tmp_path / "f.pt")
    assert "f.pt" in str(caught.value)


def test_missing_names_are_made_up_and_a_bare_tensor_and_a_missing_file_are_named(tmp_path: Path) -> None:
    torch.save({"embeddings": np.ones((2, 2)), "labels": [0, 1]}, tmp_path / "f.pt")
    assert load(tmp_path / "f.pt").img_names == ("image-0", "image-1")
    torch.save(torch.ones(2, 2), tmp_path / "f.pt")
    for name, words in (("f.pt", "holds a Tensor"), ("none.pt", r"no feature file .*none\.pt")):
        with pytest.raises(HistobenchError, match=words):
            load(tmp_path / name)


def test_a_failing_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = save(make(), tmp_path / "f.pt").read_bytes()

    class FullDisk(io.BytesIO):
        def write(self, data: bytes) -> int:
            if self.tell() > 2000:
                raise OSError(28, "No space left on device")
            return super().write(data)

    monkeypatch.setattr(Path, "open", lambda self, mode: FullDisk())
    with pytest.raises(HistobenchError, match="disk is full"):
        save(make(600), tmp_path / "f.pt")
    monkeypatch.undo()
    assert (tmp_path / "f.pt").read_bytes() == old
    assert [item.name for item in tmp_path.iterdir()] == ["f.pt"]


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        (make(dim=3), make(dim=4), "differ in dimension"),
        (make(encoder="a"), make(encoder="b"), r"differ in encoder \(a and b\)"),
        (make(size=224), make(size=448), "differ in image size"),
        (make(encoder_fingerprint="0"), make(encoder_fingerprint="1"), "weights, transform or precision"),
        (make(classes=["a", "b"]), make(classes=["b", "a"]), "differ in classes"),
        (make(count=1), make(count=2), "has label 1, which the training features never shows"),
    ],
)
def test_a_pair_that_does_not_match_is_refused(train: FeatureSet, test: FeatureSet, message: str) -> None:
    with pytest.raises(HistobenchError, match=message):
        check_pair(train, test)


def test_the_rows_of_a_file_are_read_without_torch_as_with_it(tmp_path: Path) -> None:
    features = FeatureSet(torch.randn(5, 3), torch.arange(5), tuple("abcde"), metadata={"encoder": "x"})
    names, rows = read_rows(save(features, tmp_path / "own.pt"))
    assert (list(names), rows.tolist()) == (list("abcde"), features.embeddings.tolist())
    torch.save(
        {"embeddings": rows.T.copy().T, "labels": np.arange(5), "img_names": list(names)},
        tmp_path / "other.pt",
    )
    again, same = read_rows(tmp_path / "other.pt")
    assert (list(again), same.tolist()) == (list(names), rows.tolist())
