"""Random weights that are the same on every machine."""

from __future__ import annotations

import zlib

import numpy as np
import torch
from torch import nn
from torch.overrides import TorchFunctionMode


def fill_with_seed(network: nn.Module, seed: int) -> None:
    """Fill every weight from NumPy generators: one per tensor, seeded by `seed` and the tensor's name.

    Matrices and kernels get standard deviation fan_in ** -0.5, tokens and positions 0.02, biases 0;
    other vectors (norm and layer scales) stay as they were constructed.
    """
    with torch.no_grad():
        for name, tensor in network.named_parameters():
            is_table = any(word in name.rsplit(".", 1)[-1] for word in ("token", "embed"))
            if tensor.ndim >= 2 or is_table:
                scale = 0.02 if is_table else (tensor.numel() / tensor.shape[0]) ** -0.5
                generator = np.random.default_rng([seed, zlib.crc32(name.encode())])
                values = generator.standard_normal(tuple(tensor.shape), dtype=np.float32) * np.float32(scale)
                tensor.copy_(torch.from_numpy(values))
            elif name.endswith("bias"):
                tensor.zero_()


class SkipRandomInit(TorchFunctionMode):
    """Fills new layers with zeros instead of random numbers: their weights are about to be replaced anyway.

    A network of a billion weights takes a minute to initialise and a second without. Only parameters are
    skipped: rejection samplers draw again into plain tensors until they are content, and must really draw.
    """

    FILLS = frozenset(
        {"normal_", "uniform_", "erfinv_", "kaiming_uniform_", "kaiming_normal_", "xavier_uniform_"}
    )

    def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") in self.FILLS:
            # `torch.nn.init` passes its tensor by name, tensor methods by position.
            tensor = args[0] if args else kwargs.get("tensor")
            if isinstance(tensor, nn.Parameter):
                with torch.no_grad():
                    return tensor.zero_()
        return func(*args, **kwargs)
