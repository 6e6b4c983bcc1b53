"""The demo set with sites: the same tiles, with the scanner and stain lot that they were drawn with."""

from __future__ import annotations

from pathlib import Path

import pytest

from histobench.roi.data.check import site_warnings
from histobench.roi.data.demo import write_demo_dataset
from histobench.roi.data.source import load_dataset

SMALL = {"train_per_class": 40, "test_per_class": 20, "size": 32}


@pytest.mark.slow
def test_sites_are_columns_of_the_same_tiles(tmp_path: Path) -> None:
    small = {"train_per_class": 6, "test_per_class": 2, "size": 32}
    plain = write_demo_dataset(tmp_path / "plain", **small)  # type: ignore[arg-type]
    sited = write_demo_dataset(tmp_path / "sited", sites="crossed", **small)  # type: ignore[arg-type]
    lines = zip(plain.read_text().splitlines(), sited.read_text().splitlines(), strict=True)
    assert all(long.startswith(f"{short},") for short, long in lines)
    for tile in plain.parent.rglob("*.jpg"):
        assert (sited.parent / tile.relative_to(plain.parent)).read_bytes() == tile.read_bytes()


@pytest.mark.slow
@pytest.mark.nightly
def test_the_crossed_set_is_clean_and_the_confounded_one_is_flagged(tmp_path: Path) -> None:
    crossed = load_dataset(write_demo_dataset(tmp_path / "a", sites="crossed", **SMALL))  # type: ignore[arg-type]
    assert not [text for text in site_warnings(crossed) if "confounded" in text]
    images = [image for split in crossed.splits.values() for image in split]
    assert {len({dict(image.sites)[name] for image in images}) for name in ("scanner", "stain")} == {2}
    table = write_demo_dataset(tmp_path / "b", sites="confounded", **SMALL)  # type: ignore[arg-type]
    found = "\n".join(site_warnings(load_dataset(table)))
    assert "label and scanner are confounded (Cramer's V 1.00)" in found
    assert "label and stain are confounded" not in found
