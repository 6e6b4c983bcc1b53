"""Fine-tuning: a linear head and a LoRA adapter trained together, and its control on the frozen network.

Both heads are trained by the same loop: AdamW, a warm-up and a cosine, one learning rate for all weights,
chosen on held-out images. The network stays in eval mode (no dropout, fixed batch statistics) and images are
not augmented, so that the features of the frozen network are computed once. Features are standardized with
the mean and the standard deviation of the frozen network's training features: learning rates then mean the
same for every encoder.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from histobench.core.errors import HistobenchError
from histobench.roi.encoders.base import BasePatchEncoder
from histobench.roi.encoders.lora import Lora
from histobench.roi.features.inference.forward import PRECISIONS, PixelEncoder, is_out_of_memory
from histobench.roi.options import Options
from histobench.roi.protocols.outcome import Outcome

log = logging.getLogger(__name__)
Ints = NDArray[np.int64]
#: From rows of images to features [b, d].
Encode = Callable[[Tensor], Tensor]

WEIGHT_DECAY = 0.01
#: The share of the steps in which the learning rate grows.
WARM_UP = 0.1
#: Images at a time without gradients.
INFERENCE_BATCH = 128


@dataclass(frozen=True)
class Parts:
    """Rows of the images: to fit and to choose learning rates by, to train on in the end, and to predict."""

    fit: Ints
    held_out: Ints
    train: Ints
    test: Ints


def on_device(
    encoder: BasePatchEncoder, pixels: NDArray[np.generic], *, device: str, precision: str
) -> Encode:
    """From rows of decoded images to features [b, d] of the encoder on its device."""
    dtype, low = PRECISIONS[precision], PRECISIONS[precision] != torch.float32
    run = PixelEncoder(encoder, channels_last=False).to(device).eval()

    def encode(rows: Tensor) -> Tensor:
        images = torch.from_numpy(np.asarray(pixels[rows.numpy()])).to(device, non_blocking=True)
        kind = torch.device(device).type
        with torch.autocast(kind, dtype=dtype if low else torch.bfloat16, enabled=low):
            return run(images).float()

    return encode


@torch.no_grad()
def features_of(encode: Encode, rows: Tensor) -> Tensor:
    """Features [n, d] of many rows, without gradients."""
    return torch.cat([encode(part) for part in rows.split(INFERENCE_BATCH)])


class Head(nn.Module):
    """A linear classifier on standardized features."""

    mean: Tensor
    std: Tensor

    def __init__(self, features: Tensor, n_classes: int, seed: int) -> None:
        super().__init__()
        self.register_buffer("mean", features.mean(dim=0))
        self.register_buffer("std", features.std(dim=0, correction=0).clamp_min(1e-6))
        generator = torch.Generator().manual_seed(seed)
        self.weight = nn.Parameter(0.01 * torch.randn(n_classes, features.shape[1], generator=generator))
        self.bias = nn.Parameter(torch.zeros(n_classes))
        self.to(features.device)

    def forward(self, features: Tensor) -> Tensor:
        """Logits [b, classes]."""
        return nn.functional.linear((features - self.mean) / self.std, self.weight, self.bias)


@dataclass
class Trainer:
    """Trains heads on the features of `encode`; with `lora`, the adapter behind these features as well."""

    encode: Encode
    frozen: Tensor  # [n, d], the features of the frozen network
    labels: Tensor  # [n], on the same device
    n_classes: int
    options: Options
    lora: Lora | None = None
    name: str = ""
    #: Seconds and images of all training steps.
    spent: list[float] = field(default_factory=lambda: [0.0, 0.0])
    #: Images in memory at once: fewer after memory ran out.
    at_once: int = 1 << 20

    def chosen_rate(self, parts: Parts, seed: int) -> tuple[float, dict[str, float]]:
        """The learning rate with the lowest log loss on held-out images, and the loss of each."""
        rates = self.options.tune_rates
        if len(rates) == 1:
            return rates[0], {}
        held_out = torch.from_numpy(parts.held_out)
        losses = {}
        for rate in rates:
            logits = self.logits(self.train(parts.fit, rate, seed), held_out)
            loss = float(cross_entropy(logits, self.labels[held_out.to(logits.device)]))
            losses[f"{rate:g}"] = loss if math.isfinite(loss) else math.inf
        best = min(rates, key=lambda rate: losses[f"{rate:g}"])
        return best, {rate: loss for rate, loss in losses.items() if math.isfinite(loss)}

    def train(self, rows: Ints, rate: float, seed: int) -> Head:
        """Train a new head, and a new adapter with it, on these rows."""
        images = torch.from_numpy(rows)
        head = Head(self.frozen[images.to(self.frozen.device)], self.n_classes, seed)
        weights = list(head.parameters())
        if self.lora is not None:
            self.lora.reset(seed)
            weights += self.lora.weights.values()
        optimizer = torch.optim.AdamW(weights, lr=rate, weight_decay=WEIGHT_DECAY)
        steps = self.options.tune_epochs * math.ceil(len(images) / self.options.tune_batch_size)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate_factor(steps))
        generator = torch.Generator().manual_seed(seed)
        began = time.perf_counter()
        for _ in range(self.options.tune_epochs):
            order = images[torch.randperm(len(images), generator=generator)]
            for batch in order.split(self.options.tune_batch_size):
                self._step(batch, head, optimizer)
                schedule.step()
        if self.frozen.is_cuda:
            torch.cuda.synchronize(self.frozen.device)
        self.spent[0] += time.perf_counter() - began
        self.spent[1] += len(images) * self.options.tune_epochs
        return head

    def _step(self, batch: Tensor, head: Head, optimizer: torch.optim.Optimizer) -> None:
        """One step; where memory runs out, the same step with the batch in smaller pieces."""
        while True:
            optimizer.zero_grad(set_to_none=True)
            try:
                for rows in batch.split(self.at_once):
                    logits = head(self.encode(rows))
                    labels = self.labels[rows.to(logits.device)]
                    (cross_entropy(logits, labels, reduction="sum") / len(batch)).backward()
                break
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                size, device = min(self.at_once, len(batch)), self.frozen.device
                if size == 1:
                    raise HistobenchError(
                        f"{self.name}: training on one image does not fit into the memory of {device}"
                    ) from error
            self.at_once = size // 2
            log.warning(
                "%s: out of memory on %s; training on %d images at a time, with the same steps",
                *(self.name, device, self.at_once),
            )
            if self.frozen.is_cuda:
                torch.cuda.empty_cache()
        optimizer.step()

    @torch.no_grad()
    def logits(self, head: Head, rows: Tensor) -> Tensor:
        """Logits [n, classes], without gradients."""
        return head(features_of(self.encode, rows))


def rate_factor(steps: int) -> Callable[[int], float]:
    """Return the share of the learning rate at each step: a line up, then a cosine down to 0.

    >>> [round(rate_factor(20)(step), 2) for step in (0, 1, 10, 19)]
    [0.5, 0.99, 0.5, 0.01]
    """
    grown = max(1.0, WARM_UP * steps)
    return lambda step: min((step + 1) / grown, (1 + math.cos(math.pi * step / steps)) / 2)


def fine_tune(
    encoder: BasePatchEncoder,
    lora: Lora,
    pixels: NDArray[np.generic],
    labels: Ints,
    parts: Parts,
    *,
    n_classes: int,
    options: Options,
    seed: int = 0,
    device: str = "cpu",
    precision: str = "fp32",
    on_trained: Callable[[int], None] = lambda seed: None,
) -> tuple[list[Outcome], list[Outcome]]:
    """Train and predict with the frozen network and with the adapted one, once for every seed.

    `pixels` [n, ...] are the images as the encoder's transform gives them, `lora` the adapter that is in the
    encoder. `on_trained` is called with the seed while the adapter is the one of that seed.
    """
    encode = on_device(encoder, pixels, device=device, precision=precision)
    lora.reset(seed)  # a new adapter changes nothing: these are the features of the frozen network
    frozen = features_of(encode, torch.arange(len(pixels)))
    common = (frozen, torch.from_numpy(labels).to(device), n_classes, options)
    test = torch.from_numpy(parts.test)

    def outcomes(trainer: Trainer) -> Iterable[Outcome]:
        rate, losses = trainer.chosen_rate(parts, seed)
        trainer.spent[:] = 0.0, 0.0
        for each in range(seed, seed + options.tune_seeds):
            head = trainer.train(parts.train, rate, each)
            probabilities = trainer.logits(head, test).double().softmax(dim=1).cpu().numpy()
            if trainer.lora is not None:
                on_trained(each)
            info = {"seed": each, "learning_rate": rate, "held_out_loss": losses}
            yield Outcome(probabilities, probabilities.argmax(axis=1), info)

    control = list(outcomes(Trainer(lambda rows: frozen[rows.to(frozen.device)], *common)))
    trainer = Trainer(encode, *common, lora, encoder.name)
    adapted = list(outcomes(trainer))
    speed = {"images_per_second": round(trainer.spent[1] / trainer.spent[0], 1)}
    for outcome in adapted:
        outcome.info.update(speed)
    return control, adapted
