"""Segmentation: patch tokens of train images are read out on test images, beside three references."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from histobench.roi.evaluation.context import TaskResult
from histobench.roi.evaluation.image_context import ImageContext
from histobench.roi.evaluation.mask_tiles import Tiles, random_twin, token_grid
from histobench.roi.protocols.head_training import Encode, Parts, Trainer
from histobench.roi.protocols.segmentation import TokenBank, token_moments
from histobench.roi.task_catalogue import LINEAR, NEIGHBORS

#: The learning rates of the heads that are trained together, epochs at least, tiles per step.
RATES = (1e-2, 1e-3, 1e-4)
EPOCHS, BATCH = 20, 32


def run_segmentation(context: ImageContext) -> Iterator[TaskResult]:
    """The linear readout and the one by neighbors, each with the same readout of the references."""
    parts, choice, warnings = context.parts()
    grid = token_grid(context)
    tiles = Tiles.of(context)
    tile_parts = tiles.parts(parts)
    references = tiles.references(random_twin(context), grid, context.precision)
    networks = {"": tiles.frozen(context.encoder, context.precision), **references}
    found = {name: _read_out(tiles, encode, tile_parts) for name, encode in networks.items()}
    ceiling = tiles.ceiling(grid, tile_parts.test)
    _, readout, learned = found[""]
    for place, setting in enumerate((LINEAR, NEIGHBORS)):
        counts = [pixels[place] for pixels, *_ in found.values()]
        info = {
            "num_train": len(parts.fit),
            "token_grid": list(grid),
            "readout": setting,
            **({**choice, **learned} if setting == LINEAR else {"val_use": "not used"}),
        }
        yield tiles.result(
            setting,
            counts[:1],
            [*counts[1:], ceiling],
            lambda rows, place=place: readout(rows)[:, place],  # type: ignore[misc]
            info,
            warnings,
        )


def _read_out(tiles: Tiles, encode: Encode, parts: Parts) -> tuple[Any, Any, dict[str, Any]]:
    """Pixels of test images by both readouts of a network, these readouts, and how they were trained."""
    context = tiles.context
    request, device = context.request, context.device
    stored = tiles.kept(encode, parts.fit)
    bank = TokenBank(np.random.default_rng([request.seed, 1]))
    moments = token_moments(stored, parts.fit, tiles.masks, tiles.batch, bank)
    steps = math.ceil(len(parts.fit) / BATCH)
    epochs = max(EPOCHS, math.ceil(request.options.head_steps / steps))
    trainer = Trainer(stored, tiles.masks, *moments, epochs, BATCH, tiles.batch)
    heads = trainer.train(parts.fit, RATES, request.seed)
    trainer.encode = encode
    dice = 1 - np.array(tiles.masks.costs(trainer.predict(heads, parts.held_out), parts.held_out))
    if not context.images("val"):  # the images to choose by are training images
        token_moments(encode, parts.held_out, tiles.masks, tiles.batch, bank)
    best, neighbors = int(dice.argmax()), bank.readout(device)

    @torch.no_grad()
    def both(rows: Tensor) -> Tensor:
        tokens = encode(rows)
        return torch.stack([heads(tokens)[:, best], neighbors(tokens)], dim=1)

    batches = ((rows, both(rows)) for rows in torch.from_numpy(parts.test).split(tiles.batch))
    info = {
        "learning_rate": RATES[best],
        "dice_chosen_on": {f"{rate:g}": float(each) for rate, each in zip(RATES, dice, strict=True)},
        "num_train_tiles": len(parts.fit),
        "tokens": "computed again in every epoch" if stored is encode else "kept in a temporary file",
    }
    return tiles.masks.predicted(batches), both, info
