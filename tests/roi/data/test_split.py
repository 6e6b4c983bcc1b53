"""Splits keep groups whole and classes balanced."""

from __future__ import annotations

import random
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import examples
from histobench.core.errors import HistobenchError
from histobench.roi.data.roi_dataset import SPLITS, RoiDataset, RoiImage
from histobench.roi.data.split import assign_groups, group_of, parse_fractions, split_images, split_words

SHARES = st.sampled_from(
    [(0.7, 0.1, 0.2), (0.8, 0.0, 0.2), (0.5, 0.25, 0.25), (0.0, 0.0, 1.0), (0.34, 0.33, 0.33)]
)
# Per image: class and group, the latter perhaps absent.
LABELLED = st.lists(
    st.tuples(st.integers(0, 3), st.one_of(st.none(), st.integers(0, 12))), min_size=1, max_size=80
)


def images_of(labelled: list[tuple[int, int | None]]) -> list[RoiImage]:
    return [
        RoiImage(Path(f"{i}.png"), label, f"{i}.png", f"x:{i}", None if group is None else f"p{group}")
        for i, (label, group) in enumerate(labelled)
    ]


def badness(assignment: tuple[int, ...], counts: list[list[int]], shares: tuple[float, ...]) -> float:
    """The definition of imbalance, spelt out with loops."""
    total = 0.0
    for label in range(len(counts[0])):
        members = sum(row[label] for row in counts)
        for split, share in enumerate(shares):
            here = sum(row[label] for row, chosen in zip(counts, assignment, strict=True) if chosen == split)
            total += (here / members - share) ** 2
            if share > 0 and here == 0:
                total += 1
        # Of few groups with the class, every split should have as many, up to three.
        having = [sum(c == s and row[label] > 0 for row, c in zip(counts, assignment, strict=True))
                  for s, share in enumerate(shares) if share > 0]  # fmt: skip
        wanted = min(3, sum(having) // len(having))
        total += sum(max(0, wanted - max(found, 1)) for found in having)
    return total


@pytest.mark.slow
@settings(max_examples=examples(150), deadline=None)
@given(labelled=LABELLED, shares=SHARES, seed=st.integers(0, 5))
def test_no_group_is_in_two_splits_and_no_image_is_lost(
    labelled: list[tuple[int, int | None]], shares: tuple[float, float, float], seed: int
) -> None:
    images = images_of(labelled)
    splits = split_images(images, shares, seed=seed)
    placed = [image for members in splits.values() for image in members]
    assert sorted(placed, key=lambda image: image.origin) == sorted(images, key=lambda image: image.origin)
    owner: dict[str, str] = {}
    for split, members in splits.items():
        assert shares[SPLITS.index(split)] > 0
        for image in members:
            if image.group is not None:
                assert owner.setdefault(image.group, split) == split


@pytest.mark.slow
@settings(max_examples=examples(60), deadline=None)
@given(labelled=LABELLED, shares=SHARES, seed=st.integers(0, 5), shuffle=st.randoms())
def test_the_split_does_not_depend_on_the_order_of_the_images(
    labelled: list[tuple[int, int | None]],
    shares: tuple[float, float, float],
    seed: int,
    shuffle: random.Random,
) -> None:
    images = images_of(labelled)
    other = images.copy()
    shuffle.shuffle(other)
    assert split_images(images, shares, seed=seed) == split_images(other, shares, seed=seed)


@pytest.mark.slow
@settings(max_examples=examples(60), deadline=None)
@given(
    counts=st.lists(
        st.lists(st.integers(0, 6), min_size=2, max_size=2).filter(any), min_size=1, max_size=6
    ).filter(lambda rows: all(map(sum, zip(*rows, strict=True)))),
    shares=SHARES,
)
def test_a_handful_of_groups_is_split_as_well_as_possible(
    counts: list[list[int]], shares: tuple[float, float, float]
) -> None:
    found = tuple(assign_groups(np.array(counts, dtype=float), shares, seed=0).tolist())
    choices = [split for split, share in enumerate(shares) if share > 0]
    best = min(badness(option, counts, shares) for option in product(choices, repeat=len(counts)))
    assert badness(found, counts, shares) == pytest.approx(best, abs=1e-8)


def test_many_groups_of_unequal_size_come_close_to_the_shares() -> None:
    generator = np.random.default_rng(3)
    counts = generator.integers(0, 30, size=(60, 7)) * (generator.random((60, 7)) < 0.4)
    counts = counts[counts.sum(axis=1) > 0].astype(float)
    assignment = assign_groups(counts, (0.7, 0.1, 0.2), seed=0)
    for split, share in enumerate((0.7, 0.1, 0.2)):
        found = counts[assignment == split].sum(axis=0) / counts.sum(axis=0)
        np.testing.assert_allclose(found, share, atol=0.03)


@settings(max_examples=examples(60), deadline=None)
@given(sizes=st.lists(st.integers(1, 40), min_size=1, max_size=5), shares=SHARES, seed=st.integers(0, 3))
def test_single_images_are_stratified_to_less_than_one_image(
    sizes: list[int], shares: tuple[float, float, float], seed: int
) -> None:
    images = images_of([(label, None) for label, size in enumerate(sizes) for _ in range(size)])
    splits = split_images(images, shares, seed=seed)
    for label, size in enumerate(sizes):
        counts = [sum(image.label == label for image in splits.get(split, ())) for split in SPLITS]
        wanted = [share * size for share in shares]
        if size >= 10:
            assert all(abs(found - want) < 1 for found, want in zip(counts, wanted, strict=True))
        if size >= sum(share > 0 for share in shares):
            assert all(found for found, share in zip(counts, shares, strict=True) if share > 0)


@pytest.mark.parametrize(
    ("patients", "shares", "found"),
    [(4, (0.7, 0.1, 0.2), 1), (6, (0.7, 0.1, 0.2), 2), (12, (0.7, 0.1, 0.2), 3), (6, (0.8, 0.0, 0.2), 3)],
)
def test_the_patients_of_a_rare_class_are_spread_over_all_splits(
    patients: int, shares: tuple[float, float, float], found: int
) -> None:
    # Ten images of each patient; those of the rare class are the first, and of very unequal number.
    labelled = [(int(p < patients and i <= p), p) for p in range(60) for i in range(10)]
    splits = split_images(images_of(list(labelled)), shares, seed=1)
    of_class = {split: {i.group for i in members if i.label == 1} for split, members in splits.items()}
    assert min(map(len, of_class.values())) >= found
    dataset = RoiDataset("tissue", ("common", "rare"), splits)
    counts = "/".join(str(len(groups)) for groups in of_class.values())
    assert split_words(dataset).endswith(f"groups; classes with few: rare {counts}")
    alone = {split: images_of([(0, None)]) for split in splits}
    assert split_words(RoiDataset("tissue", ("common",), alone)).endswith(
        "at random, as no patients or slides are known"
    )


def test_the_seed_chooses_and_repeats() -> None:
    images = images_of([(i % 3, i // 4) for i in range(240)])
    first, again, other = (split_images(images, (0.7, 0.1, 0.2), seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_a_group_named_like_an_image_number_is_still_a_group() -> None:
    images = [RoiImage(Path(f"{i}"), 0, f"{i}", "x", "000000000" if i < 5 else None) for i in range(30)]
    splits = split_images(images, (0.5, 0.0, 0.5), seed=0)
    assert {len(members) for members in splits.values()} == {15}


@pytest.mark.parametrize(
    ("text", "shares"),
    [
        ("0.7/0.1/0.2", (0.7, 0.1, 0.2)),
        ("0.8/0.2", (0.8, 0.0, 0.2)),
        ("70/10/20", (0.7, 0.1, 0.2)),
        ("0/0/1", (0, 0, 1)),
        ("0.34/0.33/0.33", (0.34, 0.33, 0.33)),
    ],
)
def test_shares_are_read(text: str, shares: tuple[float, ...]) -> None:
    assert parse_fractions(text) == pytest.approx(shares)


@pytest.mark.parametrize(
    "text", ["", "1", "0.7", "0.7/0.2", "-0.2/0.2/1", "a/b", "nan/1", "0.1/0.2/0.3/0.4", "inf/0"]
)
def test_shares_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(HistobenchError, match="`split`"):
        parse_fractions(text)


@pytest.mark.parametrize(
    ("path", "regex", "group"),
    [
        ("a/p12_x.png", r"(?P<slide>x).|p(?P<group>\d+)", "12"),  # the named group, or the first, or all
        ("a/p12_x.png", r"p(\d+)", "12"),
        ("a/p12_x.png", r"p\d+", "p12"),
        ("a/x.png", r"p\d+", None),
        ("TUM/patient7_x.png", r"^(patient\d+)_", "patient7"),  # anchored at the path or at the file name
        ("C:\\tiles\\patient7_x.png", r"^(patient\d+)_", "patient7"),
        ("patient1_a/patient7_x.png", r"^(patient\d+)_", "patient1"),
    ],
)
def test_a_group_is_found_in_a_path(path: str, regex: str, group: str | None) -> None:
    assert group_of(path, regex) == group
