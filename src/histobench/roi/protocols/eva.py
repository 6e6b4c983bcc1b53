"""The `eva` preset: one linear head with AdamW, early stopping on validation, five runs."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from histobench.roi.protocols.outcome import Outcome

LEARNING_RATE = 3e-4
WEIGHT_DECAY = 0.01  # the optimiser's own default; the published configuration sets none
WARM_UP_EPOCHS, WARM_UP_FACTOR = 5, 1 / 3
BATCH = 256
STEPS = 12_500
RUNS = 5
SEED = 42
#: The published patience of every dataset is this share of its number of epochs, rounded up.
PATIENCE_SHARE = 0.2


def eva_runs(
    train: Tensor,
    train_labels: Tensor,
    val: Tensor,
    val_labels: Tensor,
    test: Tensor,
    *,
    n_classes: int,
    steps: int = STEPS,
    runs: int = RUNS,
    seed: int = SEED,
    device: str = "cpu",
) -> list[Outcome]:
    """The outcome of each run; a run ends by its steps or by patience, and its best whole epoch counts."""
    x, y, v, t = (part.to(device) for part in (train, train_labels, val, test))
    return [_run(x, y, v, val_labels, t, n_classes, steps, seed + run) for run in range(runs)]


def _run(
    x: Tensor, y: Tensor, v: Tensor, val_labels: Tensor, test: Tensor, n_classes: int, steps: int, seed: int
) -> Outcome:
    generator = torch.Generator().manual_seed(seed)
    binary, device = n_classes == 2, x.device
    head = nn.Linear(x.shape[1], 1 if binary else n_classes)
    bound = x.shape[1] ** -0.5
    with torch.no_grad():
        head.weight.uniform_(-bound, bound, generator=generator)
        head.bias.uniform_(-bound, bound, generator=generator)
    head = head.to(device)
    optimiser = torch.optim.AdamW(head.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    schedule = torch.optim.lr_scheduler.ConstantLR(optimiser, WARM_UP_FACTOR, WARM_UP_EPOCHS)
    per_epoch = math.ceil(len(x) / BATCH)
    patience = math.ceil(PATIENCE_SHARE * steps / per_epoch)
    best, best_epoch, state = -1.0, 0, {}
    taken = epoch = 0
    while epoch < max(1, steps // per_epoch) and epoch - best_epoch < max(1, patience):
        for rows in torch.randperm(len(x), generator=generator).to(device).split(BATCH)[:steps]:
            loss = (
                binary_cross_entropy_with_logits(head(x[rows]).squeeze(1), y[rows].to(x.dtype))
                if binary
                else cross_entropy(head(x[rows]), y[rows])
            )
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            taken += 1
        schedule.step()
        epoch += 1
        with torch.inference_mode():
            score = _macro_recall(_probabilities(head, v, binary).argmax(1).cpu(), val_labels, n_classes)
        if score > best:
            best, best_epoch = score, epoch
            state = {name: value.clone() for name, value in head.state_dict().items()}
    head.load_state_dict(state)
    with torch.inference_mode():
        probabilities = _probabilities(head, test, binary).cpu().numpy()
    info = {"steps": taken, "epoch": best_epoch, "val_balanced_accuracy": best, "patience_epochs": patience}
    return Outcome(probabilities, probabilities.argmax(1), info)


def _probabilities(head: nn.Linear, features: Tensor, binary: bool) -> Tensor:
    logits = head(features).double()
    if binary:
        positive = logits.sigmoid()
        return torch.cat([1 - positive, positive], dim=1)
    return logits.softmax(1)


def _macro_recall(predicted: Tensor, labels: Tensor, n_classes: int) -> float:
    """Mean recall over the classes among labels or predictions; one that is predicted only counts as 0."""
    counts = torch.bincount(labels, minlength=n_classes)
    hits = torch.bincount(labels[predicted == labels], minlength=n_classes)
    occurs = (counts > 0) | (torch.bincount(predicted, minlength=n_classes) > 0)
    return float((hits / counts.clamp_min(1))[occurs].mean())


def mean_outcome(outcomes: list[Outcome]) -> Outcome:
    probabilities = np.mean([outcome.probabilities for outcome in outcomes], axis=0)
    return Outcome(probabilities, probabilities.argmax(1), {"runs": [outcome.info for outcome in outcomes]})
