"""Near-duplicates are found as a comparison of every pair would find them."""

from __future__ import annotations

import numpy as np
import pytest

from histobench.roi.data.near_duplicates import _ALIKE, SIDE, _hashes, near_duplicates


def test_every_pair_that_shares_a_band_and_correlates_is_found_once_and_no_other() -> None:
    rng = np.random.default_rng(1)
    coarse = rng.normal(size=(300, 6, 6)).repeat(4, axis=1).repeat(4, axis=2)
    thumbs = np.clip(128 + 40 * coarse + 10 * rng.normal(size=(300, SIDE, SIDE)), 0, 255).astype(np.uint8)
    copies, sources = rng.permutation(300)[:120].reshape(2, 60)
    noise = rng.integers(-6, 7, (60, SIDE, SIDE))
    thumbs[copies] = np.clip(thumbs[sources].astype(int) + noise, 0, 255).astype(np.uint8)
    thumbs[:9] = 200  # nothing to recognise
    parts = rng.choice(["train", "val", "test"], 300).tolist()
    contents = [bytes([number // 2 % 256, number // 512]) for number in range(300)]

    alike = np.corrcoef(thumbs[9:].reshape(291, -1).astype(np.float64)) >= _ALIKE
    hashes = _hashes(thumbs)
    expected = {
        (i, j)
        for j in range(9, 300)
        for i in range(9, j)
        if alike[i - 9, j - 9]
        and parts[i] != parts[j]
        and contents[i] != contents[j]
        and (hashes[i] == hashes[j]).any()
    }
    found = list(near_duplicates(list(thumbs), parts, contents))
    assert len(expected) > 20
    assert set(found) == expected
    assert len(found) == len(expected)


@pytest.mark.slow
def test_a_crowd_of_look_alikes_is_compared_with_the_last_ones_only() -> None:
    thumb = np.arange(SIDE * SIDE, dtype=np.uint8).reshape(SIDE, SIDE)
    contents = [number.to_bytes(2) for number in range(100)]
    found = list(near_duplicates([thumb] * 100, ["train", "test"] * 50, contents))
    assert {j - i for i, j in found} == set(range(1, 17, 2))
    assert len(found) == sum(100 - back for back in range(1, 17, 2))
