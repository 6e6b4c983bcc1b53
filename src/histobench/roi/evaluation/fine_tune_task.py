"""The task Fine-tune: images are decoded once, the encoder is adapted, the frozen network is the control."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from histobench.core.devices import free_memory
from histobench.core.errors import HistobenchError
from histobench.roi.data.image_ref import locate
from histobench.roi.encoders.lora import NotAdaptableError, add_lora
from histobench.roi.encoders.transform import TransformSpec
from histobench.roi.evaluation.context import TaskResult, TaskSkippedError
from histobench.roi.evaluation.image_context import ImageContext
from histobench.roi.evaluation.probe_tasks import mean_of_runs
from histobench.roi.features.inference.device_runner import shape_of
from histobench.roi.features.loading.loader import Loader, LoadRequest, open_pool, useful_workers
from histobench.roi.protocols.fine_tuning import fine_tune
from histobench.roi.task_catalogue import ADAPTED, FINE_TUNE, UNADAPTED

#: Where adapters are saved, in the folder of the task.
ADAPTERS = "adapters"
#: Images per decoded batch.
BATCH = 64
#: Of the free memory, the share that decoded images may take; more of them go to a temporary file.
SHARE_OF_MEMORY = 0.5


def run_fine_tune(context: ImageContext) -> Iterable[TaskResult]:
    """Adapt the encoder to the training images; the results are `frozen` and `lora`."""
    options, seed = context.request.options, context.request.seed
    parts, info, warnings = context.parts(chooses=len(options.tune_rates) > 1)
    try:
        lora = add_lora(context.encoder.to(context.device), rank=options.lora_rank, alpha=options.lora_alpha)
    except NotAdaptableError as error:
        raise TaskSkippedError(str(error)) from error
    recipe = asdict(context.request.recipe) | {"name": context.encoder.origin or context.request.recipe.name}
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
    with decoded(context) as pixels:
        frozen, adapted = fine_tune(
            context.encoder,
            lora,
            pixels,
            np.array([image.label for image in context.every], dtype=np.int64),
            parts,
            n_classes=len(context.classes),
            options=options,
            seed=seed,
            device=context.device,
            precision=precision,
            on_trained=save,
        )
    info |= {"training_precision": precision}
    yield mean_of_runs(context, frozen, setting=UNADAPTED, info=info, warnings=warnings)
    info |= {
        "adapted_modules": len(lora.modules),
        "trainable_parameters": lora.count,
        "total_parameters": sum(weight.numel() for weight in context.encoder.parameters()) - lora.count,
        "peft": version("peft"),
        **({"adapters": str(folder)} if options.save_adapters else {}),
    }
    yield mean_of_runs(context, adapted, setting=ADAPTED, info=info, warnings=warnings)


@contextmanager
def decoded(context: ImageContext) -> Iterator[NDArray[Any]]:
    """Give all images as the encoder's transform makes them: in memory where they fit, else in a file."""
    images = context.every
    transform, settings = context.encoder.eval_transforms, context.request.settings
    shape = (len(images), *shape_of(transform))
    dtype = np.uint8 if isinstance(transform, TransformSpec) else np.float32
    size, free = int(np.prod(shape)) * np.dtype(dtype).itemsize, free_memory()
    requests = (
        LoadRequest(tuple(locate(i.path) for i in part), tuple(context.keys[i.path] for i in part))
        for part in (images[start : start + BATCH] for start in range(0, len(images), BATCH))
    )
    workers = useful_workers(settings.num_workers, on_cpu=False)
    with tempfile.TemporaryDirectory(prefix="histobench-") as folder:
        pixels: NDArray[Any]
        if free is not None and size > SHARE_OF_MEMORY * free:
            pixels = np.memmap(Path(folder) / "pixels", dtype=dtype, mode="w+", shape=shape)
        else:
            pixels = np.empty(shape, dtype=dtype)
        start = 0
        with closing(open_pool(workers)) as pool:
            loader = Loader(pool, [transform], [shape[1:]], batch=BATCH)
            for batch in loader.batches(requests):
                for row, failure in batch.failures.items():
                    raise HistobenchError(f"{images[start + row].path}: {failure.reason}")
                pixels[start : start + batch.count] = batch.pixels[0][: batch.count]
                start += batch.count
                loader.release(batch)
        yield pixels
