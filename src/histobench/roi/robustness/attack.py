"""An adversary who knows the encoder and the linear probe: projected gradient descent on the image.

By the definition of THUNDER: within the largest change of any pixel (L-infinity), in five steps, both as
shares of the range of values that the image has in a channel, and never outside of that range. Its random
start is not scaled by the range; here it is, so that it lies within the allowed change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from histobench.core.errors import HistobenchError
from histobench.roi.robustness.perturbations import Pixels
from histobench.roi.robustness.stress import generator_of

#: Class scores [b, c] of preprocessed images [b, 3, h, w], differentiable.
Score = Callable[[Tensor], Tensor]
_AT_ONCE = 8


@dataclass(frozen=True)
class Attack:
    """How far a pixel may move (`epsilon`) and moves in one step, as shares of the range of its channel."""

    strength: int
    epsilon: float
    step: float
    steps: int = 5
    family: str = "attack"

    @property
    def name(self) -> str:
        """As other changes are called: family and strength."""
        return f"{self.family}_{self.strength}"


#: The middle one is THUNDER's.
ATTACKS = (Attack(1, 0.75e-3, 0.5e-3), Attack(2, 1.5e-3, 1e-3), Attack(3, 3e-3, 2e-3))


def attacked(images: Tensor, labels: Tensor, score: Score, attack: Attack, *, noise: Tensor) -> Tensor:
    """The images [b, 3, h, w] moved so that the score of their label [b] falls.

    `noise` [b, 3, h, w] between -1 and 1 is the random start, in units of the allowed change.
    """
    low, high = images.amin(dim=(2, 3), keepdim=True), images.amax(dim=(2, 3), keepdim=True)
    most, step = attack.epsilon * (high - low), attack.step * (high - low)
    moved = (images + noise * most).clamp(low, high)
    for _ in range(attack.steps):
        moved.requires_grad_(True)
        with torch.enable_grad():
            loss = torch.nn.functional.cross_entropy(score(moved), labels, reduction="sum")
        if not loss.requires_grad:
            raise HistobenchError("the encoder passes no gradients on; it cannot be attacked")
        (slope,) = torch.autograd.grad(loss, moved)
        moved = moved.detach() + step * slope.sign()
        moved = moved.clamp(images - most, images + most).clamp(low, high)
    return moved


def attacked_features(
    images: Sequence[tuple[str, Pixels]],
    labels: NDArray[np.int64],
    attacks: Sequence[Attack],
    encoder: torch.nn.Module,
    logits: Callable[[Tensor], Tensor],
    *,
    transform: Callable[[Pixels], Tensor],
    device: str,
    seed: int,
) -> NDArray[np.float32]:
    """Features [attacks, n, d] of decoded images after each attack on `logits` [b, c] of the features.

    `labels` [n] are columns of the logits. The random start depends on the seed, the attack and the image's
    name: not on other images.
    """
    for parameter in encoder.parameters():
        parameter.requires_grad_(False)
    parts = []
    for start in range(0, len(images), _AT_ONCE):
        chosen = images[start : start + _AT_ONCE]
        batch = torch.stack([transform(pixels) for _, pixels in chosen]).float().to(device)
        truth = torch.from_numpy(labels[start : start + _AT_ONCE]).to(device)
        features = []
        for attack in attacks:
            noise = np.stack(
                [
                    generator_of(seed, attack.name, name).uniform(-1, 1, tuple(batch.shape[1:]))
                    for name, _ in chosen
                ]
            )
            moved = attacked(
                batch,
                truth,
                lambda x: logits(encoder(x)),
                attack,
                noise=torch.from_numpy(noise.astype(np.float32)).to(device),
            )
            with torch.no_grad():
                features.append(encoder(moved).float().cpu().numpy())
        parts.append(np.stack(features))
    return np.concatenate(parts, axis=1)
