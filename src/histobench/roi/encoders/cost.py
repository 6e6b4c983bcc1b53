"""What an encoder costs: its parameters, and the arithmetic for one image."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from histobench.roi.encoders.families.family import family_of
from histobench.roi.encoders.registry import build_network
from histobench.roi.encoders.spec import Cost, EncoderSpec


def counting_device(spec: EncoderSpec) -> str:
    """Where the work is counted: without values, unless the network's steps depend on them."""
    return "cpu" if spec.source.kind == "project" or spec.arch == "Gemma4Vision" else "meta"


def measure_cost(spec: EncoderSpec, network: nn.Module | None = None) -> Cost:
    """Parameters of the whole network and GFLOPs (two per multiply-add) of one image at the default size.

    Nothing is computed: the network is built and run on the meta device, where tensors have only shapes.
    """
    device = counting_device(spec)
    network = (network or build_network(spec, device=device)).requires_grad_(False)
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), torch.device(device), counter:
        family_of(spec).encode_image(spec, network, torch.empty(1, 3, spec.size, spec.size))
    params = sum(parameter.numel() for parameter in network.parameters())
    return Cost(params=params, gflops=float(f"{counter.get_total_flops() / 1e9:.4g}"))
