"""Several devices: other processes compute shares, and the files come out the same."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from histobench.core.errors import HistobenchError
from histobench.roi.data.roi_dataset import RoiDataset
from histobench.roi.encoders.registry import EncoderRecipe
from histobench.roi.features.feature_extraction import extract
from histobench.roi.features.inference import shards as loop
from histobench.roi.features.inference.shards import Shard, plan_shards
from histobench.roi.features.multi_device import share_shards

pytestmark = pytest.mark.slow

Make = Callable[..., RoiDataset]


@pytest.mark.nightly
def test_two_devices_give_the_files_of_one_bit_for_bit(
    make_dataset: Make, encoder_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "CPU_SHARD_IMAGES", 16)
    dataset = make_dataset(60, 20)
    bad = dataset.splits["train"][20].path  # in the share of the second process
    bad.write_text("no image")
    recipes = [EncoderRecipe(f"{encoder_file}:{name}") for name in ("Tiny", "Large")]
    files = []
    for number, device in enumerate(("cpu", "cpu,cpu", "cpu,cpu")):
        monkeypatch.setenv("HISTOBENCH_CACHE", str(tmp_path / f"cache {number}"))
        if number == 2:
            monkeypatch.setattr(sys, "executable", "/bin/false")  # the second process ends at once
        done = extract(
            dataset,
            recipes,
            tmp_path / str(number),
            device=device,
            batch_size=8,
            num_workers=int(number < 2),
            on_bad_image="skip",
        )
        assert [item.skipped[0][0] for item in done if item.skipped] == [bad.name] * 2
        files.append([item.path.read_bytes() for item in done])
    assert files[0] == files[1] == files[2]


def test_several_devices_need_encoders_by_name(
    make_dataset: Make, encoder_file: Path, tmp_path: Path
) -> None:
    encoder = EncoderRecipe(f"{encoder_file}:Tiny").build()
    dataset = make_dataset(4, 2)
    with pytest.raises(HistobenchError, match="by name"):
        extract(dataset, encoder, tmp_path, device="cpu,cpu", batch_size=1, num_workers=0)


def test_units_are_dealt_out_completely() -> None:
    cards = [Shard((bytes([number]),), (0,)) for number in range(7)]
    shares = share_shards(cards, 3)
    assert sorted(unit.keys for share in shares for unit in share) == sorted(unit.keys for unit in cards)
    assert [len(share) for share in shares] == [3, 2, 2]


def test_encoders_that_miss_the_same_shard_share_it() -> None:
    keys = [bytes([number]) for number in range(10)]
    both = plan_shards([keys, keys], 4)
    assert [unit.encoders for unit in both] == [(0, 1)] * 3
    # After a kill the first encoder was one shard ahead; the rest is still shared.
    resumed = plan_shards([keys[4:], keys], 4)
    assert {unit.keys: unit.encoders for unit in resumed} == {
        tuple(keys[4:8]): (0, 1),
        tuple(keys[8:]): (0, 1),
        tuple(keys[:4]): (1,),
    }
