from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from histobench.core.errors import HistobenchError
from histobench.roi.protocols.zero_shot import zero_shot


class LengthEncoder:
    """Scores an image by how well its first feature matches the length of the prompt."""

    def run_zero_shot(self, texts: Sequence[str], image_features: torch.Tensor, device: str) -> torch.Tensor:
        lengths = torch.tensor([float(len(text)) for text in texts])
        return torch.softmax(-(image_features[:, :1] - lengths).abs(), dim=1)


def test_probabilities_are_the_encoders_own() -> None:
    outcome = zero_shot(LengthEncoder(), ["a", "bbbb"], torch.tensor([[1.0], [4.0], [2.5]]))
    assert outcome.predicted.tolist() == [0, 1, 0]
    assert outcome.probabilities.dtype == np.float64
    np.testing.assert_allclose(outcome.probabilities.sum(1), 1, atol=1e-6)


def test_a_wrong_shape_is_named() -> None:
    class Broken(LengthEncoder):
        def run_zero_shot(
            self, texts: Sequence[str], image_features: torch.Tensor, device: str
        ) -> torch.Tensor:
            return torch.ones(len(texts), 2)

    with pytest.raises(HistobenchError, match=r"Broken.run_zero_shot gave shape \(3, 2\) for 5 images"):
        zero_shot(Broken(), ["a", "b", "c"], torch.zeros(5, 1))
