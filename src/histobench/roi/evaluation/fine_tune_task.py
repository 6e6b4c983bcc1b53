"""The task Fine-tune: images are decoded once, the encoder is adapted, the frozen network is the control.

Where classes are predicted the heads are on features, where masks are predicted on patch tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from histobench.core.threads import stream
from histobench.roi.data.image import open_rgb
from histobench.roi.data.roi_dataset import RoiImage
from histobench.roi.encoders.base import BasePatchEncoder
from histobench.roi.encoders.lora import NotAdaptableError, add_lora
from histobench.roi.encoders.transform import TransformSpec
from histobench.roi.evaluation.context import TaskResult, TaskSkippedError
from histobench.roi.evaluation.image_context import ImageContext
from histobench.roi.evaluation.probe_tasks import mean_of_runs
from histobench.roi.evaluation.segmentation_task import Tiles, random_twin, token_grid
from histobench.roi.features.loading.loader import useful_workers
from histobench.roi.protocols.head_training import (
    Encode,
    Labels,
    Parts,
    Trainer,
    features_of,
    on_device,
)
from histobench.roi.protocols.outcome import Outcome
from histobench.roi.protocols.segmentation import file_array, survey
from histobench.roi.task_catalogue import ADAPTED, FINE_TUNE, OF_TOKENS, UNADAPTED

#: Where adapters are saved, in the folder of the task.
ADAPTERS = "adapters"
#: What is predicted after each training, with how it was trained.
Runs = list[tuple[NDArray[Any], dict[str, Any]]]


@dataclass(frozen=True)
class _Work:
    """What is trained on and predicted: classes of images, or masks of tiles."""

    control: Trainer  # of the frozen network
    encode: Encode  # with gradients, through the adapter
    parts: Parts
    rows: str  # what is encoded, in words
    ending: str  # of the settings
    result: Callable[[str, Trainer, Runs, dict[str, Any]], TaskResult]


def run_fine_tune(context: ImageContext) -> Iterator[TaskResult]:
    """Adapt the encoder to the training images; the results are `frozen` and `lora` (of masks `-tokens`)."""
    options, seed, target = context.request.options, context.request.seed, context.request.data.target
    parts, info, warnings = context.parts(chooses=len(options.tune_rates) > 1)
    untrained = None if target is None else (token_grid(context), random_twin(context))
    encoder = context.encoder.to(context.device)
    forward = encoder if target is None else encoder.patch_tokens
    try:
        lora = add_lora(encoder, rank=options.lora_rank, alpha=options.lora_alpha, forward=forward)
    except NotAdaptableError as error:
        raise TaskSkippedError(str(error)) from error
    lora.reset(seed)  # a new adapter changes nothing: what it gives now is that of the frozen network
    recipe = asdict(context.request.recipe) | {"name": encoder.origin or context.request.recipe.name}
    recipe["weights"] = recipe["weights"] and str(Path(recipe["weights"]).expanduser().absolute())
    # Results of another seed or size may be beside these; the digest tells their adapters apart.
    folder = context.request.results_dir.absolute() / FINE_TUNE / ADAPTERS / context.digest[:8]

    def save(each: int) -> None:
        if options.save_adapters:
            lora.save(folder / f"seed-{each}", recipe)

    precision = context.request.settings.precision
    if precision not in ("fp32", "bf16"):
        is_cuda = torch.device(context.device).type == "cuda"
        precision = "bf16" if is_cuda and torch.cuda.is_bf16_supported() else "fp32"
    info |= {"training_precision": precision}
    if untrained is None:
        work = _on_classes(context, parts, precision)
    else:
        work = _on_masks(context, parts, precision, *untrained)
    seeds = range(seed, seed + options.tune_seeds)
    runs = list(work.control.runs(work.parts, options.tune_rates, seeds))
    yield replace(work.result(UNADAPTED + work.ending, work.control, runs, info), warnings=warnings)
    trainer = replace(work.control, encode=work.encode, lora=lora)
    runs = list(trainer.runs(work.parts, options.tune_rates, seeds, save))
    info |= {
        "adapted_modules": len(lora.modules),
        "trainable_parameters": lora.count,
        "total_parameters": sum(weight.numel() for weight in encoder.parameters()) - lora.count,
        f"{work.rows}_per_second": round(trainer.spent[1] / trainer.spent[0], 1),
        "peft": version("peft"),
        **({"adapters": str(folder)} if options.save_adapters else {}),
    }
    yield replace(work.result(ADAPTED + work.ending, trainer, runs, info), warnings=warnings)


def _on_classes(context: ImageContext, parts: Parts, precision: str) -> _Work:
    """Heads on the features of images."""

    def result(setting: str, trainer: Trainer, runs: Runs, info: dict[str, Any]) -> TaskResult:
        outcomes = [Outcome(each, each.argmax(axis=1), about) for each, about in runs]
        return mean_of_runs(context, outcomes, setting=setting, info=info)

    pixels = decoded(context)
    encode = on_device(context.encoder, pixels, device=context.device, precision=precision)
    features = features_of(encode, torch.arange(len(pixels)))
    fitted = features[torch.from_numpy(parts.fit).to(features.device)]
    labels = torch.tensor([image.label for image in context.every], device=context.device)
    control = Trainer(
        lambda rows: features[rows.to(features.device)],
        Labels(labels, len(context.classes)),
        fitted.mean(dim=0),
        fitted.std(dim=0, correction=0),
        context.request.options.tune_epochs,
        context.request.options.tune_batch_size,
        name=context.encoder.name,
    )
    return _Work(control, encode, parts, "images", "", result)


def _on_masks(
    context: ImageContext, images: Parts, precision: str, grid: tuple[int, int], twin: BasePatchEncoder
) -> _Work:
    """Heads on the patch tokens of tiles, as Segmentation has them, and the same three references."""
    tiles, encoder = Tiles.of(context), context.encoder
    parts, every = tiles.parts(images), np.arange(len(tiles.pixels))
    options, seed = context.request.options, context.request.seed

    def control(encode: Encode) -> Trainer:
        stored = tiles.kept(encode, every)
        mean, std = survey(stored, parts.fit, tiles.masks, tiles.batch)
        tuned = (options.tune_epochs, options.tune_batch_size)
        return Trainer(stored, tiles.masks, mean, std, *tuned, tiles.batch, encoder.name)

    references = []
    for encode in tiles.references(twin, grid, precision).values():
        runs = control(encode).runs(parts, options.tune_rates, [seed])
        references.append(next(runs)[0])
    references.append(tiles.ceiling(grid, parts.test))

    def result(setting: str, trainer: Trainer, runs: Runs, info: dict[str, Any]) -> TaskResult:
        said = {"num_runs": len(runs), "runs": [each for _, each in runs], "token_grid": list(grid)}

        def readout(rows: Tensor) -> Tensor:
            return trainer.heads(trainer.encode(rows))[:, 0]

        return tiles.result(setting, [each for each, _ in runs], references, readout, said | info)

    frozen, adapted = tiles.frozen(encoder, precision), tiles.encode(encoder, precision)
    return _Work(control(frozen), adapted, parts, "tiles", OF_TOKENS, result)


def decoded(context: ImageContext) -> NDArray[Any]:
    """All images as the encoder's transform makes them, in a temporary file."""
    transform, settings = context.encoder.eval_transforms, context.request.settings

    def read(image: RoiImage) -> NDArray[Any]:
        picture = open_rgb(image.path)
        if isinstance(transform, TransformSpec):
            return np.asarray(transform.crop_pixels(picture))
        return np.asarray(transform(picture), dtype=np.float32)

    workers = useful_workers(settings.num_workers, on_cpu=False)
    with TemporaryFile() as file, closing(stream(read, context.every, threads=workers)) as images:
        for pixels in images:
            pixels.tofile(file)
        return file_array(file, pixels.dtype, (len(context.every), *pixels.shape))
