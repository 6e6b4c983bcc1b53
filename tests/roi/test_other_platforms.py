"""The ROI track without what only Linux has. macOS and Windows themselves were not at hand."""

from __future__ import annotations

import pytest
import torch

from histobench.core.devices import resolve_device


@pytest.mark.parametrize(("available", "expected"), [(True, "mps"), (False, "cpu")])
def test_the_gpu_of_a_mac_is_used_where_torch_has_it_and_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, available: bool, expected: str
) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: available)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_device("mps") == expected
    assert resolve_device(None) == "cpu"  # nobody has compared its numbers yet: only where it is asked for
