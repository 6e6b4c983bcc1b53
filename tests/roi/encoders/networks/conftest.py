"""Published tensor lists, and the arithmetic of the networks written slowly, in float64."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

MANIFESTS = Path(__file__).resolve().parents[1] / "manifests"
RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")


@dataclass(frozen=True)
class Manifest:
    """The names and shapes of a published checkpoint."""

    parameters: int
    shapes: dict[str, tuple[int, ...]]

    def tensors(self, *, blocks: int, seed: int = 0) -> dict[str, Tensor]:
        """Random tensors under the published names, of the first blocks of every tower (or Swin stage)."""
        generator = torch.Generator().manual_seed(seed)
        state = {}
        for name, shape in self.shapes.items():
            if any(int(index) >= blocks for index in re.findall(r"(?:blocks|layer)\.(\d+)\.", name)):
                continue
            if name.startswith("beit3.encoder.layers.") and int(name.split(".")[3]) >= blocks:
                continue
            if name.endswith(("relative_position_index", "num_batches_tracked")):
                state[name] = torch.zeros(shape, dtype=torch.int64)
            elif name.endswith("running_var"):
                state[name] = torch.rand(shape, generator=generator) + 0.5
            else:
                state[name] = torch.randn(shape, generator=generator) * 0.05
                if len(shape) == 1 and name.endswith("weight"):
                    state[name] += 1
        return state


def read_manifest(name: str) -> Manifest:
    content = json.loads((MANIFESTS / f"{name}.json").read_text(encoding="utf-8"))
    shapes = {}
    for pattern, shape in content["tensors"].items():
        span = RANGE.search(pattern)
        indices = range(int(span[1]), int(span[2]) + 1) if span else [0]
        for index in indices:
            shapes[RANGE.sub(str(index), pattern)] = tuple(shape)
    return Manifest(content["parameters"], shapes)


@pytest.fixture(scope="session")
def manifest() -> Callable[[str], Manifest]:
    return read_manifest


class Slow:
    """Plain formulas on numpy arrays."""

    @staticmethod
    def array(tensor: Tensor) -> np.ndarray:
        return tensor.detach().double().numpy()

    @classmethod
    def layer_norm(cls, x: np.ndarray, norm: nn.LayerNorm, eps: float) -> np.ndarray:
        centred = x - x.mean(-1, keepdims=True)
        spread = np.sqrt((centred**2).mean(-1, keepdims=True) + eps)
        return centred / spread * cls.array(norm.weight) + cls.array(norm.bias)

    @classmethod
    def linear(cls, x: np.ndarray, weight: Tensor, bias: Tensor | None = None) -> np.ndarray:
        out = x @ cls.array(weight).T
        return out if bias is None else out + cls.array(bias)

    @staticmethod
    def gelu(x: np.ndarray) -> np.ndarray:
        return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))

    @staticmethod
    def attention(
        query: np.ndarray,
        key: np.ndarray,
        value: np.ndarray,
        *,
        heads: int,
        sees: Callable[[int, int], bool] = lambda q, k: True,
        bias: Callable[[int, int, int], float] = lambda head, q, k: 0.0,
    ) -> np.ndarray:
        """[queries, d], [keys, d], [keys, d] to [queries, d], one query of one head at a time."""
        width = query.shape[1] // heads
        out = np.zeros((len(query), value.shape[1]))
        for head in range(heads):
            part = slice(head * width, (head + 1) * width)
            for q in range(len(query)):
                open_keys = [k for k in range(len(key)) if sees(q, k)]
                scores = key[open_keys, part] @ query[q, part] / math.sqrt(width)
                scores += np.array([bias(head, q, k) for k in open_keys])
                weights = np.exp(scores - scores.max())
                weights /= weights.sum()
                out[q, part] = weights @ value[open_keys, part]
        return out

    @staticmethod
    def bicubic(grid: np.ndarray, *, rows: int, columns: int, scale: tuple[float, float]) -> np.ndarray:
        """[h, w, d] sampled at (index + 0.5) / scale - 0.5 with Keys' kernel (a = -0.75), edges repeated."""

        def kernel(distance: float) -> float:
            a, t = -0.75, abs(distance)
            if t <= 1:
                return (a + 2) * t**3 - (a + 3) * t**2 + 1
            return a * t**3 - 5 * a * t**2 + 8 * a * t - 4 * a if t < 2 else 0.0

        height, width = grid.shape[:2]
        out = np.zeros((rows, columns, grid.shape[2]))
        for row in range(rows):
            for column in range(columns):
                y, x = (row + 0.5) / scale[0] - 0.5, (column + 0.5) / scale[1] - 0.5
                for i in range(math.floor(y) - 1, math.floor(y) + 3):
                    for j in range(math.floor(x) - 1, math.floor(x) + 3):
                        pixel = grid[min(max(i, 0), height - 1), min(max(j, 0), width - 1)]
                        out[row, column] += kernel(y - i) * kernel(x - j) * pixel
        return out


@pytest.fixture(scope="session")
def slow() -> type[Slow]:
    return Slow


@pytest.fixture(scope="session")
def scramble() -> Callable[[nn.Module], nn.Module]:
    """Gives every parameter a value that matters, biases and norms included."""

    def fill(module: nn.Module, seed: int = 0) -> nn.Module:
        generator = torch.Generator().manual_seed(seed)
        for parameter in module.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            scale = 0.3 if parameter.ndim < 2 else parameter.shape[-1] ** -0.5
            parameter.data = noise * scale + (1.0 if parameter.ndim == 1 else 0.0)
        return module.eval()

    return fill


@pytest.fixture
def byte_level_tokenizer(tmp_path: Path) -> Path:
    """A tokenizer file like CONCH's, with bytes for its vocabulary."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {
        token: i for i, token in enumerate(["<pad>", "<start_of_text>", "<end_of_text>", *alphabet])
    }
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.add_special_tokens(["<pad>", "<start_of_text>", "<end_of_text>"])
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<start_of_text> $A <end_of_text>",
        special_tokens=[("<start_of_text>", 1), ("<end_of_text>", 2)],
    )
    path = tmp_path / "conch_byte_level_bpe_uncased.json"
    tokenizer.save(str(path))
    return path
