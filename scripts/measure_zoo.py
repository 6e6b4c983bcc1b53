"""Counts parameters and GFLOPs of every encoder and writes them into the zoo file.

usage: python scripts/measure_zoo.py [NAME ...]
"""

from __future__ import annotations

import re
import sys

from histobench.core.errors import HistobenchError
from histobench.core.files import write_text
from histobench.roi.encoders.cost import measure_cost
from histobench.roi.encoders.registry import list_encoders
from histobench.roi.encoders.spec import Cost
from histobench.roi.encoders.zoo import BUILT_IN


def with_cost(text: str, name: str, cost: Cost) -> str:
    """The zoo file with this encoder's `cost` line replaced or added; everything else stays as it is."""
    entry = re.search(rf"^{re.escape(name)}:\n(?:(?:[ #].*)?\n)*", text, re.M)
    if entry is None:
        raise ValueError(f"{name} is not in the zoo file")
    body = re.sub(r"^  cost: .*\n", "", entry[0], flags=re.M)
    lines = body.rstrip("\n").split("\n")
    # Comments and blank lines that follow an entry belong to the next one.
    end = max(index for index, line in enumerate(lines) if line.startswith("  ")) + 1
    lines.insert(end, f"  cost: {{params: {cost.params}, gflops: {cost.gflops:g}}}")
    tail = entry[0][len(entry[0].rstrip("\n")) :]
    return text[: entry.start()] + "\n".join(lines) + tail + text[entry.end() :]


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
