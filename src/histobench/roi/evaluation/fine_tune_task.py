"""The task Fine-tune: images are decoded once, the encoder is adapted, the frozen network is the control."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from histobench.roi.data.image import open_rgb
from histobench.roi.data.roi_dataset import RoiImage
from histobench.roi.encoders.base import BasePatchEncoder
from histobench.roi.encoders.lora import NotAdaptableError, add_lora
from histobench.roi.encoders.transform import TransformSpec
from histobench.roi.evaluation.context import TaskResult, TaskSkippedError
from histobench.roi.evaluation.image_context import Arrays, ImageContext
from histobench.roi.evaluation.probe_tasks import mean_of_runs
from histobench.roi.evaluation.segmentation_task import Tiles, random_twin, token_grid
from histobench.roi.protocols.head_training import Encode, Labels, Parts, Run, Trainer, features_of, on_device
from histobench.roi.protocols.outcome import Outcome
from histobench.roi.protocols.segmentation import survey
from histobench.roi.task_catalogue import ADAPTED, FINE_TUNE, OF_TOKENS, UNADAPTED

#: Trains the frozen network; encodes with gradients, through the adapter; what is trained on; the result.
Work = tuple[Trainer, Encode, Parts, Callable[[str, Trainer, list[Run], dict[str, Any]], TaskResult]]


def run_fine_tune(context: ImageContext) -> Iterator[TaskResult]:
    """Adapt the encoder to the training images; the results are `frozen` and `lora` (of masks `-tokens`)."""
    options, seed, target = context.request.options, context.request.seed, context.asked.data.target
    parts = context.parts(chooses=len(options.tune_rates) > 1)
    untrained = None if target is None else (token_grid(context), random_twin(context))
    encoder = context.encoder.to(context.device)
    forward = encoder if target is None else encoder.patch_tokens
    try:
        lora = add_lora(encoder, rank=options.lora_rank, alpha=options.lora_alpha, forward=forward)
    except NotAdaptableError as error:
        raise TaskSkippedError(str(error)) from error
    lora.reset(seed)  # a new adapter changes nothing: what it gives now is that of the frozen network
    recipe = asdict(context.asked.recipe) | {"name": encoder.origin or context.asked.recipe.name}
    recipe["weights"] = recipe["weights"] and str(Path(recipe["weights"]).expanduser().absolute())
    # Results of another seed or size may be beside these; the digest tells their adapters apart.
    folder = context.request.results_dir.absolute() / FINE_TUNE / "adapters" / context.digest(FINE_TUNE)[:8]
    precision = context.asked.settings.precision
    if precision not in ("fp32", "bf16"):
        is_cuda = torch.device(context.device).type == "cuda"
        precision = "bf16" if is_cuda and torch.cuda.is_bf16_supported() else "fp32"
    info: dict[str, Any] = {"training_precision": precision}
    if untrained is None:
        rows, ending = "images", ""
        control, adapted, parts, result = _on_classes(context, parts, precision)
    else:
        rows, ending = "tiles", OF_TOKENS
        control, adapted, parts, result = _on_masks(context, parts, precision, *untrained)
    seeds = range(seed, seed + options.tune_seeds)
    runs = list(control.runs(parts, options.tune_rates, seeds))
    yield result(UNADAPTED + ending, control, runs, info)
    trainer = replace(control, encode=adapted, lora=lora)
    runs = []
    for run in trainer.runs(parts, options.tune_rates, seeds):
        runs.append(run)
        if options.save_adapters:
            lora.save(folder / f"seed-{run[1]['seed']}", recipe)
    info |= {
        "adapted_modules": len(lora.modules),
        "trainable_parameters": lora.count,
        "total_parameters": sum(weight.numel() for weight in encoder.parameters()) - lora.count,
        f"{rows}_per_second": round(trainer.spent[1] / trainer.spent[0], 1),
        "peft": version("peft"),
        **({"adapters": str(folder)} if options.save_adapters else {}),
    }
    yield result(ADAPTED + ending, trainer, runs, info)


def _on_classes(context: ImageContext, parts: Parts, precision: str) -> Work:
    def result(setting: str, trainer: Trainer, runs: list[Run], info: dict[str, Any]) -> TaskResult:
        outcomes = [Outcome(each, each.argmax(axis=1), about) for each, about in runs]
        return mean_of_runs(context, outcomes, setting=setting, info=info, warnings=context.choice_warnings)

    pixels, options = decoded(context), context.request.options
    encode = on_device(context.encoder, pixels, device=context.device, precision=precision)
    features = features_of(encode, torch.arange(len(pixels)))
    fitted = features[torch.from_numpy(parts.fit).to(features.device)]
    labels = torch.tensor([image.label for image in context.every], device=context.device)
    control = Trainer(
        lambda rows: features[rows.to(features.device)],
        Labels(labels, context.classes),
        *(fitted.mean(dim=0), fitted.std(dim=0, correction=0)),
        *(options.tune_epochs, options.tune_batch_size),
        name=context.encoder.name,
    )
    return control, encode, parts, result


def _on_masks(
    context: ImageContext, images: Parts, precision: str, grid: tuple[int, int], twin: BasePatchEncoder
) -> Work:
    """Heads on the patch tokens of tiles, as Segmentation has them, and the same three references."""
    tiles, encoder = Tiles.of(context), context.encoder
    parts, every = tiles.parts(images), np.arange(len(tiles.pixels))
    options, seed = context.request.options, context.request.seed

    def control(encode: Encode) -> Trainer:
        stored = tiles.kept(encode, every)
        moments = survey(stored, parts.fit, tiles.masks, tiles.batch)
        tuned = (options.tune_epochs, options.tune_batch_size, tiles.batch)
        return Trainer(stored, tiles.masks, *moments, *tuned, name=encoder.name)

    untrained = map(control, tiles.references(twin, grid, precision))
    references = [next(each.runs(parts, options.tune_rates, [seed]))[0] for each in untrained]
    references.append(tiles.ceiling(grid, parts.test))

    def result(setting: str, trainer: Trainer, runs: list[Run], info: dict[str, Any]) -> TaskResult:
        said = {"num_runs": len(runs), "runs": [each for _, each in runs], "token_grid": list(grid)}
        first, *others = (each for each, _ in runs)
        every = [first, *references, *others]
        return tiles.result(setting, every, lambda rows: trainer.heads(trainer.encode(rows)), said | info)

    frozen, adapted = tiles.frozen(encoder, precision), tiles.encode(encoder, precision)
    return control(frozen), adapted, parts, result


def decoded(context: ImageContext) -> NDArray[Any]:
    """All images as the encoder's transform makes them, in a temporary file."""
    transform = context.encoder.eval_transforms

    def read(image: RoiImage) -> Arrays:
        picture = open_rgb(image.path)
        if isinstance(transform, TransformSpec):
            return (np.asarray(transform.crop_pixels(picture))[None],)
        return (np.asarray(transform(picture), dtype=np.float32)[None],)

    return context.stored(read)[0][0]
