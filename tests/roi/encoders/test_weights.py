"""Where weights are looked for, and what is said when they are not there."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from histobench.core.errors import HistobenchError
from histobench.roi.encoders import weights_download as download
from histobench.roi.encoders.construct import construct
from histobench.roi.encoders.file_hash import sha256_of
from histobench.roi.encoders.registry import create_encoder, get_spec, list_encoders
from histobench.roi.encoders.weights import find_weights, read_table, resolve_companion, resolve_weights

ROOT = Path(__file__).resolve().parents[3]


def table(path: Path, **entries: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(entries))
    return path


def test_the_table_of_the_repository_lists_every_encoder_with_an_empty_path() -> None:
    entries = read_table(ROOT / "model_utils" / "model_weights.json")
    kinds = ("hub", "url", "by_hand")
    assert entries == {spec.name: "" for spec in list_encoders() if spec.source.kind in kinds}


def test_a_table_gives_the_path_absolute_or_relative_to_itself(checkpoint: Path, tmp_path: Path) -> None:
    spec = get_spec("lunit-vits16")
    absolute = table(tmp_path / "a.json", **{"lunit-vits16": str(checkpoint)})
    relative = table(tmp_path / "b.json", **{"lunit-vits16": "somewhere/lunit.pth"})
    assert resolve_weights(spec, absolute) == checkpoint
    assert resolve_weights(spec, relative) == checkpoint


def test_an_output_uses_the_weights_of_its_encoder(tmp_path: Path) -> None:
    (tmp_path / "v.pth").touch()
    weights = table(tmp_path / "a.json", virchow2=str(tmp_path / "v.pth"))
    assert find_weights(get_spec("virchow2@cls"), weights) == tmp_path / "v.pth"


def test_the_environment_and_the_current_folder_are_asked(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = get_spec("lunit-vits16")
    table(tmp_path / "work" / "model_utils" / "model_weights.json", **{"lunit-vits16": str(checkpoint)})
    assert find_weights(spec) is None
    monkeypatch.chdir(tmp_path / "work")
    assert find_weights(spec) == checkpoint
    other = tmp_path / "folder" / "lunit-vits16.safetensors"
    other.parent.mkdir()
    other.touch()
    monkeypatch.setenv("HISTOBENCH_WEIGHTS", str(other.parent))
    assert find_weights(spec) == other


@pytest.mark.parametrize(
    "place", ["lunit-vits16", "vit_small_patch16_224.lunit_dino", "1aurent/vit_small_patch16_224.lunit_dino"]
)
def test_a_folder_of_hub_style_folders_is_searched(place: str, tmp_path: Path) -> None:
    file = tmp_path / place / "model.safetensors"
    file.parent.mkdir(parents=True)
    file.touch()
    assert find_weights(get_spec("lunit-vits16"), tmp_path) == file


def test_a_path_without_the_checkpoint_is_an_error_not_a_download(tmp_path: Path) -> None:
    (tmp_path / "uni").mkdir()
    (tmp_path / "uni" / "pytorch_model.bin.part").touch()
    missing = table(tmp_path / "a.json", uni_v1="/nowhere/uni.bin")
    empty = table(tmp_path / "b.json", uni_v1=str(tmp_path / "uni"))
    for weights, words in (
        (missing, r"weights of uni_v1, /nowhere/uni\.bin, do not exist"),
        (tmp_path / "no.json", "does not exist"),
        (empty, r"no weights of uni_v1: .* it has pytorch_model\.bin\.part"),
    ):
        with pytest.raises(HistobenchError, match=words):
            create_encoder("uni_v1", weights=str(weights))


@pytest.mark.parametrize("text", ["{", '["uni_v1"]', '{"uni_v1": 3}'])
def test_a_broken_table_is_an_error_that_names_it(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(HistobenchError, match=str(tmp_path / "a.json")):
        create_encoder("uni_v1", weights=str(tmp_path / "a.json"))


def test_a_hash_is_computed_once_and_again_when_the_file_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from histobench.roi.encoders import file_hash

    monkeypatch.setenv("HISTOBENCH_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "weights.bin"
    file.write_bytes(b"abc")
    first = sha256_of(file)
    assert first == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    monkeypatch.setattr(file_hash, "_digest", lambda _: "computed again")
    assert sha256_of(file) == first
    file.write_bytes(b"abcd")
    assert sha256_of(file) == "computed again"


def test_a_users_own_checkpoint_need_not_be_the_pinned_one(checkpoint: Path) -> None:
    encoder = construct(get_spec("lunit-vits16"), weights=str(checkpoint), depth=1)
    assert encoder.identity["weights"] == f"sha256:{sha256_of(checkpoint)}"


def test_a_tokenizer_is_taken_from_beside_the_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").touch()
    found = resolve_companion(get_spec("keep"), tmp_path / "model.safetensors", "tokenizer.json")
    assert found == tmp_path / "tokenizer.json"
    conch = resolve_companion(
        get_spec("conch_v1"), tmp_path / "pytorch_model.bin", "conch_byte_level_bpe_uncased.json"
    )
    assert conch == tmp_path / "tokenizer.json"
    with pytest.raises(HistobenchError, match=r"tokenizer\.spm.*HF_HUB_OFFLINE=1"):
        resolve_companion(get_spec("musk"), tmp_path / "model.safetensors", "tokenizer.spm")


def sharded(folder: Path, seed: int) -> Path:
    """A checkpoint of lunit-vits16 (one block) in two shards, always laid out in the same way."""
    network = construct(get_spec("lunit-vits16"), allow_random=True, depth=1).network
    generator = torch.Generator().manual_seed(seed)
    state = {
        name: torch.randn(tensor.shape, generator=generator) for name, tensor in network.state_dict().items()
    }
    folder.mkdir(parents=True, exist_ok=True)
    names = sorted(state)
    weight_map = {name: f"model-0000{1 + index % 2}-of-00002.safetensors" for index, name in enumerate(names)}
    for part in sorted(set(weight_map.values())):
        save_file({name: state[name] for name in names if weight_map[name] == part}, folder / part)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    return index


@pytest.mark.slow
def test_the_identity_of_a_sharded_checkpoint_covers_every_shard(tmp_path: Path) -> None:
    first, second = sharded(tmp_path / "a", seed=1), sharded(tmp_path / "b", seed=2)
    assert first.read_bytes() == second.read_bytes()
    identities = [
        construct(get_spec("lunit-vits16"), weights=str(path), depth=1).identity["weights"]
        for path in (first, second, sharded(tmp_path / "c", seed=1))
    ]
    assert identities[0] != identities[1]
    assert identities[0] == identities[2]


def test_a_file_that_keeps_its_size_and_time_is_still_seen_to_have_changed(tmp_path: Path) -> None:
    file = tmp_path / "weights.bin"
    file.write_bytes(b"abc")
    before, stat = sha256_of(file), file.stat()
    file.write_bytes(b"abd")
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert sha256_of(file) == hashlib.sha256(b"abd").hexdigest() != before


def test_one_checkpoint_does_not_fill_several_encoders(checkpoint: Path) -> None:
    from histobench.roi.encoders.registry import check_distinct_weights

    both = ["kaiko-vits16", "lunit-vits16"]
    with pytest.raises(
        HistobenchError, match=r"kaiko-vits16 and lunit-vits16 would both be made from .*lunit"
    ):
        check_distinct_weights(both, str(checkpoint))
    # Several outputs of one encoder have one checkpoint by right, and so have encoders that need no file.
    check_distinct_weights(["virchow2", "virchow2@cls", "random-vit", "tiny-vl"], str(checkpoint))
    check_distinct_weights(["no-such-encoder", "lunit-vits16", "my.py:Mine"], str(checkpoint))


def test_another_encoders_published_file_is_recognised_and_refused(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from histobench.roi.encoders import construct as construct_module

    kaiko = get_spec("kaiko-vits16")
    pinned = replace(kaiko, source=replace(kaiko.source, sha256=sha256_of(checkpoint)))
    monkeypatch.setattr(construct_module, "load_zoo", lambda: {"kaiko-vits16": pinned})
    with pytest.raises(HistobenchError, match=r"lunit\.pth is kaiko-vits16's file .* not lunit-vits16's"):
        construct(get_spec("lunit-vits16"), weights=str(checkpoint), depth=1)
    lunit = get_spec("lunit-vits16")
    # An entry that pins the same file, or takes it from the same place, may use it.
    construct(
        replace(lunit, source=replace(lunit.source, sha256=sha256_of(checkpoint))),
        weights=str(checkpoint),
        depth=1,
    )
    construct(replace(lunit, source=kaiko.source), weights=str(checkpoint), depth=1)


@pytest.mark.slow
def test_a_folder_without_the_weights_is_an_error_and_not_a_download(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setattr(download, "_download", lambda *_: pytest.fail("went to the network"))
    (tmp_path / "kaiko-vit16.pth").touch()
    with pytest.raises(HistobenchError) as failure:
        create_encoder("kaiko-vits16", weights=str(tmp_path))
    said = str(failure.value)
    assert f"the folder {tmp_path} has no weights of kaiko-vits16: looked for kaiko-vits16, " in said
    assert "did you mean kaiko-vit16.pth?" in said
    monkeypatch.setenv("HISTOBENCH_WEIGHTS", str(tmp_path))
    with pytest.raises(HistobenchError, match=r"it has kaiko-vit16\.pth"):
        create_encoder("uni_v2")
    # What needs no file works beside it.
    assert create_encoder("random-vit").embed_dim == 384
    assert create_encoder("efficientnet-lite0").embed_dim == 1280


@pytest.mark.parametrize("wrong", ["kaiko-vit16", "Kaiko-ViTS16", "kaiko_vits16", "something else"])
def test_a_misspelt_name_in_the_table_is_an_error_and_not_a_download(
    wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setattr(download, "_download", lambda *_: pytest.fail("went to the network"))
    given = table(tmp_path / "t.json", **{"uni_v1": "", "virchow2@cls": "v.pth", wrong: "k.pth"})
    with pytest.raises(HistobenchError, match=rf"has no entry for kaiko-vits16 .*but one for '{wrong}'"):
        create_encoder("kaiko-vits16", weights=str(given))
    # An entry that is empty on purpose still means: download.
    monkeypatch.setattr(download, "_download", lambda *_: (_ for _ in ()).throw(HistobenchError("asked")))
    given = table(tmp_path / "t.json", **{"kaiko-vits16": "", wrong: "k.pth"})
    with pytest.raises(HistobenchError, match="asked"):
        create_encoder("kaiko-vits16", weights=str(given))
