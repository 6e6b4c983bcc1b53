from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

PublishedProbe = Callable[[Tensor, Tensor, Tensor, int], tuple[Tensor, float]]


@pytest.fixture
def published_probe() -> PublishedProbe:
    """The linear probe as UNI's code trains it: probabilities of the test rows, and the objective reached."""

    def train(rows: Tensor, labels: Tensor, test: Tensor, n_classes: int) -> tuple[Tensor, float]:
        x = rows.float()
        head = nn.Linear(x.shape[1], n_classes)
        for parameter in head.parameters():
            nn.init.zeros_(parameter)
        optimiser = torch.optim.LBFGS(head.parameters(), line_search_fn="strong_wolfe", max_iter=1000)

        def loss() -> Tensor:
            optimiser.zero_grad()
            penalty = 0.5 * head.weight.norm(p=2) / (x.shape[1] * n_classes / 100)
            value = nn.functional.cross_entropy(head(x), labels) + penalty
            value.backward()
            return value

        optimiser.step(loss)
        return head(test.float()).double().softmax(1).detach(), float(loss().detach())

    return train
