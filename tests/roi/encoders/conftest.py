"""What is published about the encoders (`manifests/`); these tests never reach the network."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor

from histobench.roi.encoders.construct import construct
from histobench.roi.encoders.registry import get_spec

FOLDER = Path(__file__).parent / "manifests"


@dataclass(frozen=True)
class Published:
    """One encoder's published facts; `state` writes a checkpoint in its original layout."""

    name: str
    facts: dict[str, Any]
    layout: dict[str, Any] | None

    def shapes(self, depth: int | None = None) -> dict[str, tuple[int, ...]]:
        """Published tensor names and shapes, with `depth` blocks per tower."""
        assert self.layout is not None
        numbers = {key: value for key, value in self.facts.items() if isinstance(value, int)}
        tensors = dict(self.layout["tensors"])
        for part in self.facts.get("parts", []):
            tensors |= self.layout["parts"][part]
        expanded: dict[str, tuple[int, ...]] = {}
        for pattern, sides in tensors.items():
            # {k} and {12}: a number of blocks; [3*d, d]: products of the numbers of this encoder.
            shape = tuple(eval(str(side), {"__builtins__": {}}, numbers) for side in sides)
            blocks = re.search(r"\{(\w+)\}", pattern)
            if blocks is None:
                expanded[pattern] = shape
                continue
            count = numbers[blocks[1]] if blocks[1] in numbers else int(blocks[1])
            for index in range(min(count, depth or count)):
                expanded[pattern.replace(blocks[0], self._block(index, depth or count))] = shape
        return expanded

    def narrowed(self) -> Published:
        """The same layout with the widths of a narrow network (see `narrow` in the contract test)."""
        facts = dict(self.facts)
        if facts["layout"] in ("open_clip", "open_clip_coca"):
            facts |= {"d": 64, "t": 64, "e": 32}
        elif facts["layout"] == "gemma4_vision":
            facts |= {"d": 48, "h": 192, "c": 24}
        elif facts["layout"] == "transformers_clip":
            facts |= {"d": 48, "t": 48, "e": 32}
        elif facts["layout"] != "open_clip_bert":
            facts |= {"d": 48, "h": 128 if "swiglu" in facts.get("parts", []) else 192}
        return replace(self, facts=facts)

    def _block(self, index: int, count: int) -> str:
        # Training files of DINOv2 cut the blocks into chunks and keep the running number.
        chunks = self.facts.get("chunks")
        return f"{index // max(count // chunks, 1)}.{index}" if chunks else str(index)

    def state(self, *, depth: int | None = None, device: str = "cpu", seed: int = 0) -> dict[str, Tensor]:
        """Random tensors under the published names; large enough values that every one of them matters."""
        generator = torch.Generator().manual_seed(seed)
        state = {}
        for name, shape in self.shapes(depth).items():
            if device == "meta":
                state[name] = torch.empty(shape, device="meta")
            elif name.endswith(("put_min", "put_max")):
                state[name] = torch.tensor(2.0 if name.endswith("max") else -2.0)
            elif name.endswith("position_ids"):
                state[name] = torch.arange(shape[-1])[None]
            else:
                scale = 0.3 if len(shape) < 2 else 0.05
                state[name] = torch.randn(shape, generator=generator) * scale
        return state

    def wrapped(self, state: dict[str, Tensor]) -> dict[str, Any]:
        """The state inside the dictionary and behind the prefix that the published file has."""
        heads = ("head.", "dino_head.")
        prefix = self.facts.get("prefix", "")
        named = {
            name if name.startswith(heads) else f"{prefix}{name}": tensor for name, tensor in state.items()
        }
        container = self.facts.get("container")
        return {container: named, "epoch": 7} if container else named


def read(name: str) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((FOLDER / name).read_text(encoding="utf-8"))
    return content


@pytest.fixture(scope="session")
def published() -> Callable[[str], Published]:
    """The published facts of an encoder by name."""
    encoders, layouts = read("encoders.yaml"), read("layouts.yaml")

    def find(name: str) -> Published:
        facts = encoders[name]
        return Published(name, facts, layouts.get(facts.get("layout", "")))

    return find


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """No test may reach the network, read the user's weights, or write to the user's cache."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path_factory.getbasetemp() / "hf-home"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path_factory.getbasetemp() / "hf-cache"))
    monkeypatch.setenv("HISTOBENCH_CACHE", str(tmp_path_factory.getbasetemp() / "histobench-cache"))
    monkeypatch.delenv("HISTOBENCH_WEIGHTS", raising=False)
    monkeypatch.delenv("HISTOBENCH_ZOO", raising=False)
    monkeypatch.chdir(tmp_path_factory.getbasetemp())


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A checkpoint of one block in the layout of lunit-vits16."""
    path = tmp_path / "somewhere" / "lunit.pth"
    path.parent.mkdir()
    network = construct(get_spec("lunit-vits16"), allow_random=True, depth=1).network
    torch.save(network.state_dict(), path)
    return path
