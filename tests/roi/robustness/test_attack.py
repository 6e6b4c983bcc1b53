"""The attack on the linear probe against formulas for a linear encoder, and by what it may not do."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from histobench.cli.main import main
from histobench.core.errors import HistobenchError
from histobench.roi.data.demo import write_demo_dataset
from histobench.roi.protocols.linear_probe import fitted_linear_probe, linear_probe
from histobench.roi.robustness.perturbations import ATTACKS, Attack, attacked, attacked_features

SIDE, CLASSES = 6, 3
STRONG = Attack(1, 0.05, 0.03, steps=4)


def made(count: int = 5) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Images, labels, noise and the weights of a linear encoder with its probe."""
    draw = torch.Generator().manual_seed(0)
    images = torch.randn(count, 3, SIDE, SIDE, generator=draw, dtype=torch.float64)
    labels = torch.randint(0, CLASSES, (count,), generator=draw)
    noise = 2 * torch.rand(images.shape, generator=draw, dtype=torch.float64) - 1
    weights = torch.randn(CLASSES, 3 * SIDE * SIDE, generator=draw, dtype=torch.float64)
    return images, labels, noise, weights


def test_the_attack_on_a_linear_classifier_is_that_of_its_formula() -> None:
    images, labels, noise, weights = made()
    found = attacked(images, labels, lambda x: x.flatten(1) @ weights.T, STRONG, noise=noise)
    for image, label, start, result in zip(images.numpy(), labels, noise.numpy(), found.numpy(), strict=True):
        x = image.copy()
        low, high = image.min(axis=(1, 2)), image.max(axis=(1, 2))
        for step in range(STRONG.steps + 1):
            if step == 0:
                move = STRONG.epsilon * start
            else:
                logits = weights.numpy() @ x.ravel()
                shares = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
                shares[label] -= 1  # the gradient of the cross-entropy by the logits
                move = STRONG.step * np.sign(shares @ weights.numpy()).reshape(x.shape)
            for channel in range(3):
                span = high[channel] - low[channel]
                moved = x[channel] + move[channel] * span
                moved = np.minimum(moved, image[channel] + STRONG.epsilon * span)
                moved = np.maximum(moved, image[channel] - STRONG.epsilon * span)
                x[channel] = np.minimum(np.maximum(moved, low[channel]), high[channel])
        np.testing.assert_allclose(result, x, atol=1e-12)


def small_net() -> torch.nn.Module:
    torch.manual_seed(1)
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, stride=2), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.Flatten()
    ).eval()


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_an_attacked_image_stays_in_the_ball_and_in_its_own_range_and_loses(attack: Attack) -> None:
    draw = torch.Generator().manual_seed(2)
    images = torch.rand(6, 3, 24, 24, generator=draw)
    images[0, 1] = 0.25  # a channel without range is not moved
    labels = torch.arange(6) % CLASSES
    net, head = small_net(), torch.nn.Linear(8 * 11 * 11, CLASSES)
    noise = 2 * torch.rand(images.shape, generator=draw) - 1

    def score(x: torch.Tensor) -> torch.Tensor:
        return head(net(x))

    found = attacked(images, labels, score, attack, noise=noise)
    span = images.amax(dim=(2, 3), keepdim=True) - images.amin(dim=(2, 3), keepdim=True)
    assert ((found - images).abs() <= attack.epsilon * span + 1e-7).all()
    assert (found >= images.amin(dim=(2, 3), keepdim=True)).all()
    assert (found <= images.amax(dim=(2, 3), keepdim=True)).all()
    assert 0 <= found.min() <= found.max() <= 1
    torch.testing.assert_close(found[0, 1], images[0, 1])
    with torch.no_grad():
        before, after, random = (
            torch.nn.functional.cross_entropy(score(x), labels)
            for x in (images, found, (images + noise * attack.epsilon * span))
        )
    assert after > before
    assert after > random  # better than noise of the same size


def test_no_room_is_no_change() -> None:
    images, labels, noise, weights = made()
    still = Attack(1, 0.0, 0.0)
    torch.testing.assert_close(
        attacked(images, labels, lambda x: x.flatten(1) @ weights.T, still, noise=noise), images
    )


def test_an_image_is_attacked_alike_whatever_the_others_are() -> None:
    draw = np.random.default_rng(0)
    images = [(f"{k}.png", draw.integers(0, 256, (24, 24, 3), dtype=np.uint8)) for k in range(3)]
    labels, net, head = np.array([0, 1, 2]), small_net(), torch.nn.Linear(8 * 11 * 11, CLASSES)

    def features(which: list[int]) -> np.ndarray:
        return attacked_features(
            [images[k] for k in which],
            labels[which],
            ATTACKS[:2],
            net,
            head,
            transform=lambda pixels: torch.from_numpy(pixels).permute(2, 0, 1) / 255,
            device="cpu",
            seed=0,
        )

    together = features([0, 1, 2])
    assert together.shape == (2, 3, 8 * 11 * 11)
    np.testing.assert_allclose(together[:, 2:], features([2]), atol=1e-5)


def test_an_encoder_without_gradients_says_so() -> None:
    images, labels, noise, weights = made()
    with pytest.raises(HistobenchError, match="does not pass gradients"):
        attacked(images, labels, lambda x: (x.flatten(1) @ weights.T).detach(), STRONG, noise=noise)


def test_the_probe_under_attack_is_the_linear_probe() -> None:
    draw = torch.Generator().manual_seed(3)
    labels = 1 + torch.arange(90) % 3  # class 0 has no training images
    train = torch.randn(90, 40, generator=draw) + 2 * torch.nn.functional.one_hot(labels, 40)
    present, probe = fitted_linear_probe(train, labels)
    outcome = linear_probe(train, labels, train[:20], n_classes=4)
    assert present.tolist() == [1, 2, 3]
    np.testing.assert_allclose(outcome.probabilities[:, 1:], probe.probabilities(train[:20]), atol=1e-9)


@pytest.mark.nightly
def test_attacks_stand_beside_the_other_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from histobench.roi.plan import stress

    monkeypatch.setenv("HISTOBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(
        stress.run_stress, "__kwdefaults__", {**stress.run_stress.__kwdefaults__, "changes": ()}
    )
    table = write_demo_dataset(tmp_path / "data", train_per_class=3, test_per_class=1, size=64)
    command = ["robustness", "--data", str(table), "--models", "tiny-vl", "--device", "cpu", "--attack"]
    assert main(command) == 2  # an attack is part of the stress
    assert main([*command, "--stress", "-o", str(tmp_path / "r")]) == 0
    (file,) = (tmp_path / "r").rglob("stress.json")
    changes = json.loads(file.read_text())["changes"]
    assert set(changes) == {"attack_1", "attack_2", "attack_3"}
    cosines = [changes[f"attack_{k}"]["cosine"]["value"] for k in (1, 2, 3)]
    assert 1 > cosines[0] > cosines[1] > cosines[2]
