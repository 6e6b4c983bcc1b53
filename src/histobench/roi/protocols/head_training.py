"""Linear heads on features or patch tokens of a network, with or without a LoRA adapter: one loop."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from histobench.core.errors import HistobenchError
from histobench.roi.encoders.base import PRECISIONS, BasePatchEncoder
from histobench.roi.encoders.lora import Lora
from histobench.roi.features.inference.forward import PixelEncoder, is_out_of_memory

log = logging.getLogger(__name__)
Ints = NDArray[np.int64]
#: From rows of images to features [b, d], or from rows of tiles to tokens [b, d, h, w].
Encode = Callable[[Tensor], Tensor]
#: What is predicted after a training, and how it was trained.
Run = tuple[NDArray[Any], dict[str, Any]]

#: The decay of AdamW, the share of steps in which learning rates grow, images at a time without gradients.
WEIGHT_DECAY, WARM_UP, INFERENCE_BATCH = 0.01, 0.1, 128


@dataclass(frozen=True)
class Parts:
    """Rows of the images: to fit and to choose learning rates by, to train on in the end, and to predict."""

    fit: Ints
    held_out: Ints
    train: Ints
    test: Ints


def on_device(
    encoder: BasePatchEncoder, pixels: NDArray[Any], *, device: str, precision: str, tokens: bool = False
) -> Encode:
    """From rows of decoded images to features of the encoder on its device, or to its patch tokens."""
    run = PixelEncoder(encoder, channels_last=False, tokens=tokens).to(device).eval()
    kind, dtype = torch.device(device).type, PRECISIONS[precision]

    def encode(rows: Tensor) -> Tensor:
        images = torch.from_numpy(np.asarray(pixels[rows.numpy()])).to(device, non_blocking=True)
        try:
            with torch.autocast(kind, dtype=dtype, enabled=precision != "fp32"):
                return run(images).float()
        except Exception as error:
            if is_out_of_memory(error):
                raise
            raise HistobenchError(f"{encoder.name} fails on {len(images)} images: {error!r}") from error

    return encode


@torch.no_grad()
def features_of(encode: Encode, rows: Tensor) -> Tensor:
    return torch.cat([encode(part) for part in rows.split(INFERENCE_BATCH)])


class Heads(nn.Module):
    """Linear maps of standardized features, or of standardized tokens, one for each learning rate."""

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Tensor, std: Tensor, n_classes: int, n_heads: int, seed: int) -> None:
        super().__init__()
        if not (mean + std).isfinite().all():
            raise HistobenchError("the network gives values that are not finite; try `precision` fp32")
        self.register_buffer("mean", mean[:, None])
        self.register_buffer("std", std.clamp_min(1e-6)[:, None])
        start = 0.01 * torch.randn(n_classes, len(mean), generator=torch.Generator().manual_seed(seed))
        self.weights = nn.ParameterList(start.clone() for _ in range(n_heads))
        self.biases = nn.ParameterList(torch.zeros(n_classes, 1) for _ in range(n_heads))
        self.to(mean.device)

    def forward(self, values: Tensor) -> Tensor:
        """Logits [b, heads, classes] of features [b, d], or [b, heads, classes, h, w] of tokens."""
        standard = (values.float().reshape(*values.shape[:2], -1) - self.mean) / self.std
        logits = torch.cat(list(self.weights)) @ standard + torch.cat(list(self.biases))
        return logits.reshape(len(values), len(self.weights), -1, *values.shape[2:])


class Goal(Protocol):
    """What heads are trained for."""

    @property
    def classes(self) -> Sequence[str]: ...

    def loss(self, logits: Tensor, rows: Tensor) -> Tensor:
        """The mean loss of rows [b], added up over heads."""

    def predicted(self, batches: Iterable[tuple[Tensor, Tensor]]) -> NDArray[Any]:
        """What is predicted by each head [heads, ...], from rows and logits."""

    def costs(self, predicted: NDArray[Any], rows: Ints) -> list[float]:
        """How wrong each head is on these rows."""


@dataclass(frozen=True)
class Labels:
    """The class of each image; predicted are probabilities [heads, n, classes]."""

    labels: Tensor  # [n], on the device
    classes: Sequence[str]

    def loss(self, logits: Tensor, rows: Tensor) -> Tensor:
        labels = self.labels[rows.to(logits.device), None].expand(-1, logits.shape[1])
        return cross_entropy(logits.transpose(1, 2), labels, reduction="sum") / len(rows)

    def predicted(self, batches: Iterable[tuple[Tensor, Tensor]]) -> NDArray[np.float64]:
        logits = torch.cat([each for _, each in batches])
        return logits.transpose(0, 1).double().softmax(dim=2).cpu().numpy()

    def costs(self, predicted: NDArray[np.float64], rows: Ints) -> list[float]:
        with np.errstate(divide="ignore"):
            said = np.log(predicted[:, np.arange(len(rows)), self.labels.cpu().numpy()[rows]])
        return (-said.mean(axis=1)).tolist()


@dataclass
class Trainer:
    """Trains heads on what `encode` gives; with `lora`, the adapter behind it as well."""

    encode: Encode
    goal: Goal
    mean: Tensor  # [d], as `std` of what the frozen network gives of the images that are fitted
    std: Tensor
    epochs: int
    batch_size: int
    inference_batch: int = INFERENCE_BATCH  # rows at a time without gradients
    name: str = ""
    lora: Lora | None = None
    spent: list[float] = field(default_factory=lambda: [0.0, 0.0])  # seconds and rows of training steps
    at_once: int = 1 << 20  # rows in memory at once: fewer after memory ran out
    heads: Heads = field(init=False)  # those that were trained last

    def runs(self, parts: Parts, rates: Sequence[float], seeds: Sequence[int]) -> Iterator[Run]:
        """Train once with each seed, and predict the test rows."""
        costs = self.costs(parts, rates, seeds[0]) if len(rates) > 1 else {}
        rate = min(rates, key=lambda rate: costs.get(rate, 0.0))
        losses = {f"{rate:g}": cost for rate, cost in costs.items() if math.isfinite(cost)}
        self.spent[:] = 0.0, 0.0
        for seed in seeds:
            self.heads = self.train(parts.train, [rate], seed)
            predicted = self.predict(self.heads, parts.test)[0]
            yield predicted, {"seed": seed, "learning_rate": rate, "held_out_loss": losses}

    def costs(self, parts: Parts, rates: Sequence[float], seed: int) -> dict[float, float]:
        costs: dict[float, float] = {}
        for some in [rates] if self.lora is None else [[rate] for rate in rates]:
            self.heads = self.train(parts.fit, some, seed)
            found = self.goal.costs(self.predict(self.heads, parts.held_out), parts.held_out)
            found = np.nan_to_num(found, nan=math.inf, posinf=math.inf).tolist()
            costs |= zip(some, found, strict=True)
        return costs

    def train(self, rows: Ints, rates: Sequence[float], seed: int) -> Heads:
        """Train new heads, and a new adapter with them, on these rows."""
        images = torch.from_numpy(rows)
        heads = Heads(self.mean, self.std, len(self.goal.classes), len(rates), seed)
        pairs = zip(heads.weights, heads.biases, rates, strict=True)
        groups = [{"params": [weight, bias], "lr": rate} for weight, bias, rate in pairs]
        if self.lora is not None:
            self.lora.reset(seed)
            groups.append({"params": list(self.lora.weights.values()), "lr": rates[0]})
        optimizer = torch.optim.AdamW(groups, weight_decay=WEIGHT_DECAY)
        steps = self.epochs * math.ceil(len(images) / self.batch_size)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate_factor(steps))
        generator = torch.Generator().manual_seed(seed)
        began = time.perf_counter()
        for _ in range(self.epochs):
            for batch in images[torch.randperm(len(images), generator=generator)].split(self.batch_size):
                self._step(batch, heads, optimizer)
                schedule.step()
        if self.mean.is_cuda:
            torch.cuda.synchronize(self.mean.device)
        self.spent[0] += time.perf_counter() - began
        self.spent[1] += len(images) * self.epochs
        return heads

    def _step(self, batch: Tensor, heads: Heads, optimizer: torch.optim.Optimizer) -> None:
        """One step; where memory runs out, the same step with the batch in smaller pieces."""
        optimizer.zero_grad(set_to_none=True)
        try:
            for rows in batch.split(self.at_once):
                # Without a name: nothing of it is in memory where the step is tried again.
                (self.goal.loss(heads(self.encode(rows)), rows) * (len(rows) / len(batch))).backward()
            optimizer.step()
            return
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            self.at_once = min(self.at_once, len(batch)) // 2
            if not self.at_once:
                raise HistobenchError(
                    f"{self.name}: training on one image does not fit into the memory of {self.mean.device}"
                ) from error
        log.warning("%s: out of memory; training on %d images at a time", self.name, self.at_once)
        torch.cuda.empty_cache()
        self._step(batch, heads, optimizer)

    @torch.no_grad()
    def predict(self, heads: Heads, rows: Ints) -> NDArray[Any]:
        parts = torch.from_numpy(rows).split(self.inference_batch)
        return self.goal.predicted((part, heads(self.encode(part))) for part in parts)


def rate_factor(steps: int) -> Callable[[int], float]:
    """Return the share of the learning rate at each step: a line up, then a cosine down to 0.

    >>> [round(rate_factor(20)(step), 2) for step in (0, 1, 10, 19)]
    [0.5, 0.99, 0.5, 0.01]
    """
    grown = max(1.0, WARM_UP * steps)
    return lambda step: min((step + 1) / grown, (1 + math.cos(math.pi * step / steps)) / 2)
