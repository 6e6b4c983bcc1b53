"""The zero-shot task: prompts, the encoder's text tower, and how much the choice of prompt matters."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from histobench.core.errors import HistobenchError
from histobench.roi.data.prompts import Prompts, read_prompts
from histobench.roi.metrics.classification import evaluate
from histobench.roi.protocols.outcome import Outcome
from histobench.roi.results.writer import mean_and_std

if TYPE_CHECKING:
    from histobench.roi.encoders.base import BasePatchEncoder
    from histobench.roi.encoders.encoder_spec import EncoderSpec
    from histobench.roi.evaluation.context import Context

#: Metrics whose spread over templates is reported.
_SPREAD = ("accuracy", "balanced_accuracy", "f1_score", "auroc")


def zero_shot_outcome(context: Context) -> Outcome:
    """Probabilities of the test images against the prompts of the request."""
    from histobench.roi.encoders.registry import create_encoder
    from histobench.roi.evaluation.context import TaskSkippedError

    options = context.request.options
    about = context.request.test.metadata
    own = str(about.get("encoder") or "")
    name = options.zeroshot_model_name or own
    if not name:
        raise TaskSkippedError("give `zeroshot_model_name`: the feature file does not name its encoder")
    made = about.get("provenance")
    if made and not options.zeroshot_model_name:
        raise TaskSkippedError(f"zero-shot needs the encoder's own features; these are not ({made})")
    spec = _zoo_entry(name)
    if spec is not None and not spec.supports_zero_shot:
        raise TaskSkippedError(f"{name} has no text tower; zero-shot needs an image-text encoder")
    if options.zeroshot_prompt_file is None:
        raise TaskSkippedError(
            "no prompts: give a file with one prompt per class (`zeroshot_prompt_file`; "
            "`prompts` for a whole run)"
        )
    if own and name != own and (spec is None or spec != _zoo_entry(own)):
        raise HistobenchError(
            f"zero-shot with {name} needs the features of {name}, but the test features are of {own}: "
            f"extract them with the encoder {name}"
        )
    prompts = read_prompts(options.zeroshot_prompt_file, context.classes)
    weights = context.request.weights
    # The text tower is the same at every image size.
    given: dict[str, Any] = {"weights": str(Path(weights).expanduser()) if weights else None}
    identity = about.get("identity") or {}
    if identity.get("revision"):
        given["allow_revision"] = True  # as it was for the features; their bytes are compared below
    encoder = create_encoder(name, **given)
    stored, here = identity.get("weights"), encoder.identity.get("weights")
    if stored and here and stored != here:  # one checkpoint has to make both images and texts
        raise HistobenchError(
            f"the test features were made with other weights of {encoder.name} ({stored}) than its text "
            f"tower would have ({here}): give the same checkpoint (`weights`) to both steps"
        )
    if not encoder.supports_zero_shot:
        raise TaskSkippedError(f"{name} has no text tower; zero-shot needs an image-text encoder")
    probabilities = _probabilities(encoder, prompts, context)
    info: dict[str, Any] = {
        "zeroshot_model": name,
        "prompt_file": str(options.zeroshot_prompt_file),
        "prompts": [list(prompts.of(label)) for label in range(len(context.classes))],
    }
    if len(prompts.templates) > 1:
        info["prompt_spread"] = _spread(encoder, prompts, context)
    return Outcome(probabilities, np.argmax(probabilities, axis=1), info)


def _zoo_entry(name: str) -> EncoderSpec | None:
    """The entry behind a name or an alias; None for the user's own encoders, which are known once built."""
    from histobench.roi.encoders.registry import get_spec

    try:
        return get_spec(name)
    except HistobenchError:
        return None


def zero_shot(
    encoder: BasePatchEncoder, texts: Sequence[str], test: Tensor, *, device: str = "cpu"
) -> NDArray[np.float64]:
    """Class probabilities of image features [n, d], from the encoder itself: one prompt per class."""
    with torch.inference_mode():
        found = encoder.run_zero_shot(list(texts), test, device)
    probabilities = torch.as_tensor(found).double().cpu().numpy()
    if probabilities.shape != (len(test), len(texts)):
        raise HistobenchError(
            f"{type(encoder).__name__}.run_zero_shot gave shape {probabilities.shape} for {len(test)} images "
            f"and {len(texts)} prompts; it must give one row per image and one column per prompt"
        )
    return probabilities


def _probabilities(encoder: BasePatchEncoder, prompts: Prompts, context: Context) -> np.ndarray:
    test = context.request.test.embeddings
    batch = context.request.options.zeroshot_batch_size
    texts: Any = [list(prompts.of(label)) for label in range(len(context.classes))]
    if not prompts.is_ensemble:
        texts = list(prompts.first)
    elif not hasattr(encoder, "encode_prompts"):
        raise HistobenchError(
            f"{type(encoder).__name__} takes one prompt per class (run_zero_shot of the user's own class); "
            "give a prompt file with one line per class"
        )
    encoder.to(context.device).eval()
    return np.concatenate([zero_shot(encoder, texts, x, device=context.device) for x in test.split(batch)])


def _spread(encoder: BasePatchEncoder, prompts: Prompts, context: Context) -> dict[str, Any]:
    """How the metrics vary when each template is used alone."""
    labels = context.request.test.labels.numpy()
    values: dict[str, list[float | None]] = {name: [] for name in _SPREAD}
    for index in range(len(prompts.templates)):
        probabilities = _probabilities(encoder, prompts.with_template(index), context)
        found = evaluate(probabilities, labels, classes=context.classes).values
        for name in _SPREAD:
            values[name].append(found[name])
    # An undefined value, None, becomes NaN.
    metrics = {name: mean_and_std(np.array(each, dtype=np.float64)) for name, each in values.items()}
    return {"templates": list(prompts.templates), "metrics": metrics}
