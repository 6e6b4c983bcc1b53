"""Counts parameters and GFLOPs of every encoder and writes them into the zoo file.

usage: python scripts/measure_zoo.py [NAME ...]
"""

from __future__ import annotations

import re
import sys

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from histobench.core.errors import HistobenchError
from histobench.core.files import write_text
from histobench.roi.encoders.encoder_spec import Cost, EncoderSpec
from histobench.roi.encoders.families.family import family_of
from histobench.roi.encoders.registry import list_encoders
from histobench.roi.encoders.zoo import BUILT_IN


def counting_device(spec: EncoderSpec) -> str:
    """Where the work is counted: without values, unless the network's steps depend on them."""
    return "cpu" if spec.source.kind == "project" or spec.arch == "Gemma4Vision" else "meta"


def build_network(spec: EncoderSpec, device: str, *, depth: int | None = None) -> nn.Module:
    """The network of a zoo entry with initial weights, without its checkpoint."""
    with torch.device(device):
        return family_of(spec).build(spec, depth=depth).eval()


def measure_cost(spec: EncoderSpec, network: nn.Module | None = None) -> Cost:
    """Parameters that the features depend on, those of a text tower, and GFLOPs of one image.

    GFLOPs are two per multiply-add, at the default size. Nothing is computed: the network is built and run on
    the meta device, where tensors have only shapes. Where values are needed, networks of one and two layers
    tell what all layers cost.
    """
    layers = int(spec.kwargs.get("num_hidden_layers", 0)) if counting_device(spec) == "cpu" else 0
    if layers:
        one, two = (count(spec, build_network(spec, "cpu", depth=depth)) for depth in (1, 2))
        used, rest, flops = (a + (layers - 1) * (b - a) for a, b in zip(one, two, strict=True))
    else:
        used, rest, flops = count(spec, network or build_network(spec, counting_device(spec)))
    gflops = float(f"{flops / 1e9:.4g}")
    return Cost(params=used, gflops=gflops, text_params=rest if spec.text is not None else 0)


def count(spec: EncoderSpec, network: nn.Module) -> tuple[int, int, int]:
    """Parameters that the image uses (those with a gradient), the others, and operations."""
    counter = FlopCounterMode(display=False)
    network.requires_grad_(True)
    with torch.enable_grad(), torch.device(counting_device(spec)):
        with counter:
            features = family_of(spec).encode_image(spec, network, torch.empty(1, 3, spec.size, spec.size))
        features.float().sum().backward()
    every = list(network.parameters())
    used = sum(parameter.numel() for parameter in every if parameter.grad is not None)
    rest = sum(parameter.numel() for parameter in every if parameter.grad is None)
    network.requires_grad_(False).zero_grad()
    return used, rest, counter.get_total_flops()


def with_cost(zoo: str, name: str, cost: Cost) -> str:
    """The zoo file with this encoder's `cost` line replaced or added; everything else stays as it is."""
    entry = re.search(rf"^{re.escape(name)}:\n(?:(?:[ #].*)?\n)*", zoo, re.M)
    if entry is None:
        raise ValueError(f"{name} is not in the zoo file")
    body = re.sub(r"^  cost: .*\n", "", entry[0], flags=re.M)
    lines = body.rstrip("\n").split("\n")
    # Comments and blank lines that follow an entry belong to the next one.
    end = max(index for index, line in enumerate(lines) if line.startswith("  ")) + 1
    text = f", text_params: {cost.text_params}" if cost.text_params else ""
    lines.insert(end, f"  cost: {{params: {cost.params}, gflops: {cost.gflops:g}{text}}}")
    tail = entry[0][len(entry[0].rstrip("\n")) :]
    return zoo[: entry.start()] + "\n".join(lines) + tail + zoo[entry.end() :]


def main(names: list[str]) -> None:
    """Measure the named encoders, or all."""
    costs: dict[str, Cost] = {}
    for spec in list_encoders():
        if names and spec.name not in names:
            continue
        try:
            cost = costs[spec.name] = measure_cost(spec)
        except (HistobenchError, ImportError) as error:
            print(f"{spec.name}: not measured: {error}")
            continue
        print(f"{spec.name}: {cost.params / 1e6:.2f} M parameters, {cost.gflops:g} GFLOPs")
    # The file is read last: it may have been edited in the meantime.
    text = BUILT_IN.read_text(encoding="utf-8")
    for name, cost in costs.items():
        text = with_cost(text, name, cost)
    write_text(BUILT_IN, text)


if __name__ == "__main__":
    main(sys.argv[1:])
