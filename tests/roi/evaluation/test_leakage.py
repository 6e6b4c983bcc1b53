"""Test images among the training images are noticed, whichever way they came there."""

from __future__ import annotations

from dataclasses import replace

import torch

from builders import feature_set
from histobench.roi.comparison.answer import Evidence, answer, doubt_of
from histobench.roi.evaluation.caveats import leaks
from histobench.roi.features.feature_file import FeatureSet


def features(rows: torch.Tensor, groups: tuple[str, ...] | None = None) -> FeatureSet:
    return feature_set(rows, torch.zeros(len(rows)), groups=groups)


def simulated(n: int, seed: int) -> torch.Tensor:
    # As many zeros as a network with rectified outputs gives.
    return torch.randn(n, 64, generator=torch.Generator().manual_seed(seed)).clamp_min(0)


def test_other_images_and_other_patients_are_no_leak() -> None:
    train = features(simulated(500, 0), tuple(f"p{k % 9}" for k in range(500)))
    test = features(simulated(100, 1), tuple(f"q{k % 5}" for k in range(100)))
    assert leaks(test, {"training": train}) == ()
    assert leaks(replace(test, groups=None), {"training": train}) == ()
    some = tuple("" if k % 2 else f"p{k}" for k in range(100))  # without a group: not the same patient
    assert leaks(replace(test, groups=some), {"training": replace(train, groups=("",) * 500)}) == ()


def test_the_same_features_in_both_are_counted() -> None:
    train, rows = simulated(500, 0), simulated(100, 1)
    rows[[3, 50, 99]] = train[[7, 7, 499]]
    rows[4] = train[8]
    rows[4, 5] += 1  # nearly the same is another image
    (found,) = leaks(features(rows), {"training": features(train)})
    assert found.startswith("3 of 100 test images have the same features as a training image")


def test_patients_in_both_are_named() -> None:
    train = features(simulated(20, 0), tuple(f"p{k}" for k in range(20)))
    test = features(simulated(10, 1), tuple(f"p{k + 14}" for k in range(10)))
    (found,) = leaks(test, {"training": train})
    assert found.startswith(
        "6 of 10 test groups (patients, slides) are also in training (p14, p15, p16, ...)"
    )


def test_patients_in_file_names_of_both_are_counted_where_no_groups_are_known() -> None:
    names = [f"TCGA-05-{k // 3:04}_tile{k}.png" for k in range(18)]
    train = replace(features(simulated(12, 0)), img_names=tuple(names[:12]))
    test = replace(features(simulated(9, 1)), img_names=tuple(names[9:]))
    (found,) = leaks(test, {"training": train})
    assert found.startswith("file names show that 1 of 3 test patients or slides are also in training: ")
    grouped = replace(train, groups=tuple("ghijklmnopqr"))
    assert leaks(replace(test, groups=tuple("abcdefABC")), {"training": grouped}) == ()
    values = {"a": (0.9, 0.8, 1.0), "b": (0.5, 0.4, 0.6)}
    evidence = Evidence("lung", "accuracy", values, ("a",), 6, None, doubt=doubt_of([found]))
    text = answer([evidence], task="KNN", metric="accuracy").text
    assert text.endswith(f"(95% confidence). Caution: lung: {found}.")
