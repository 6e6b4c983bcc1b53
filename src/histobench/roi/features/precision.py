"""In which arithmetic an encoder runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from histobench.core.errors import HistobenchError, did_you_mean

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def resolve_precision(asked: str, recommended: torch.dtype, device: str) -> str:
    """`auto` is what the encoder's authors recommend on a GPU, and fp32 elsewhere.

    >>> resolve_precision("auto", torch.float16, "cpu")
    'fp32'
    """
    if asked in PRECISIONS:
        return asked
    if asked != "auto":
        raise HistobenchError(f"unknown precision {asked!r}; {did_you_mean(asked, ['auto', *PRECISIONS])}")
    if torch.device(device).type != "cuda":
        return "fp32"
    name = next((key for key, dtype in PRECISIONS.items() if dtype == recommended), "fp32")
    return "fp16" if name == "bf16" and not torch.cuda.is_bf16_supported() else name


@contextmanager
def arithmetic(device: str, precision: str) -> Iterator[None]:
    """No gradients; autocast below fp32; and fp32 means fp32 (not the shortened products of tensor cores)."""
    kind = torch.device(device).type
    allowed = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    try:
        with (
            torch.no_grad(),  # and not inference_mode, whose tensors have compiled networks compile again
            torch.autocast(kind, dtype=PRECISIONS[precision], enabled=precision != "fp32"),
        ):
            yield
    finally:
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = allowed
