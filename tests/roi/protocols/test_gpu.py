"""A GPU gives what the CPU gives."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from histobench.roi.metrics.batched import evaluate_episodes
from histobench.roi.protocols.few_shot import few_shot_settings
from histobench.roi.protocols.knn import knn, prototype
from histobench.roi.protocols.linear_probe import linear_probe

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU on this machine"),
]


def data() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    labels, test_labels = torch.arange(6000) % 5, torch.randint(5, (700,), generator=g)
    centres = torch.randn(5, 64, generator=g)
    train = centres[labels] + 2 * torch.randn(6000, 64, generator=g)
    test = centres[test_labels] + 2 * torch.randn(700, 64, generator=g)
    return train, labels, test, test_labels


@pytest.mark.parametrize("protocol", [knn, prototype])
def test_predictions_are_the_same(protocol) -> None:
    train, labels, test, _ = data()
    cpu, gpu, again = (protocol(train, labels, test, n_classes=5, device=d) for d in ("cpu", "cuda", "cuda"))
    np.testing.assert_array_equal(gpu.probabilities, again.probabilities)  # the same bits
    np.testing.assert_array_equal(gpu.predicted, cpu.predicted)
    np.testing.assert_allclose(gpu.probabilities, cpu.probabilities, atol=1e-12)


def test_the_linear_probe_finds_the_same_minimum() -> None:
    train, labels, test, _ = data()
    cpu, gpu = (linear_probe(train, labels, test, n_classes=5, device=device) for device in ("cpu", "cuda"))
    assert gpu.info["objective"] == pytest.approx(cpu.info["objective"], rel=1e-6)
    assert (gpu.predicted == cpu.predicted).mean() > 0.99


def test_few_shot_episodes_are_the_same() -> None:
    settings = [(2, 1), (2, 8), (3, 1), (3, 8)]
    cpu, gpu = (
        list(few_shot_settings(*data(), n_classes=5, n_iter=4, settings=settings, device=device))
        for device in ("cpu", "cuda")
    )
    for a, b in zip(cpu, gpu, strict=True):
        np.testing.assert_array_equal(b.outcome.predicted, a.outcome.predicted)
        np.testing.assert_allclose(b.outcome.probabilities, a.outcome.probabilities, atol=1e-6)
        for name, values in a.episode_metrics.items():
            np.testing.assert_allclose(b.episode_metrics[name], values, atol=1e-5, err_msg=name)


def test_metrics_are_the_same() -> None:
    g = torch.Generator().manual_seed(1)
    p = torch.softmax(torch.randn(4, 300, 6, generator=g), 2)
    labels = torch.randint(-1, 6, (4, 300), generator=g)
    cpu, gpu = evaluate_episodes(p, labels), evaluate_episodes(p.cuda(), labels.cuda())
    for name, values in cpu.items():
        np.testing.assert_allclose(gpu[name], values, atol=1e-9, err_msg=name)
