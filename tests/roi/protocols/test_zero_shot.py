from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from histobench.core.errors import HistobenchError
from histobench.roi.evaluation.zero_shot_task import zero_shot


def test_a_wrong_shape_is_named() -> None:
    class Broken:
        def run_zero_shot(
            self, texts: Sequence[str], image_features: torch.Tensor, device: str
        ) -> torch.Tensor:
            return torch.ones(len(texts), 2)

    with pytest.raises(HistobenchError, match=r"Broken.run_zero_shot gave shape \(3, 2\) for 5 images"):
        zero_shot(Broken(), ["a", "b", "c"], torch.zeros(5, 1))
