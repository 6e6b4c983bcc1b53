"""`histobench models`: list the encoders, or show everything about one of them."""

from __future__ import annotations

import json

from histobench.cli.flags import WEIGHTS
from histobench.cli.terminal import print_table, say
from histobench.core.errors import HistobenchError
from histobench.core.records import option, record
from histobench.core.text import count_of
from histobench.roi.encoders.encoder_catalogue import describe, markdown_table, rows
from histobench.roi.encoders.encoder_spec import EncoderSpec
from histobench.roi.encoders.registry import get_spec, list_encoders


@record
class ModelsFlags:
    action: str | None = option(
        "show NAME: print all facts of one encoder; list: all encoders (default)",
        default=None,
        positional=True,
        metavar="show",
    )
    name: str | None = option(
        "the encoder, e.g. uni_v2 or virchow2@cls", default=None, positional=True, metavar="NAME"
    )
    present: bool = option("list only encoders whose weights are on this machine", default=False)
    zero_shot: bool = option("list only encoders with a text tower", default=False)
    weights: str | None = option(WEIGHTS, default=None, metavar="PATH")
    markdown: bool = option("print the table as Markdown", default=False)
    json: bool = option("print the facts as JSON", default=False)


def models_command(args: ModelsFlags) -> int:
    """List the encoders, or show everything about one of them.

    Examples:
      histobench models               all encoders
      histobench models show uni_v2   facts, citation, how to get the weights
      histobench models --present     only those whose weights are on this machine
    """
    if args.action not in (None, "list"):
        name = args.name if args.action == "show" else args.action
        if not name:
            raise HistobenchError("name an encoder: histobench models show uni_v2")
        spec = get_spec(name)
        say(json.dumps(describe(spec, args.weights), indent=2) if args.json else _page(spec, args.weights))
        return 0
    specs = [spec for spec in list_encoders() if spec.text is not None or not args.zero_shot]
    if args.markdown:
        say(markdown_table(specs))
        return 0
    table = rows(specs, args.weights)
    if args.present:
        table = [row for row in table if row["weights"] == "yes"]
    if args.json:
        say(json.dumps(table, indent=2))
    else:
        print_table(table, drop=("outputs", "pinned", "license", "px"))
        present = sum(row["weights"] == "yes" for row in table)
        say(f"\n{count_of(len(table), 'encoder')}, weights of {present} on this machine.")
        say("All columns: --json. Details of one encoder: histobench models show NAME")
    return 0


def _page(spec: EncoderSpec, weights: str | None) -> str:
    facts = describe(spec, weights)
    width = max(map(len, facts))
    lines = [f"{key:<{width}}  {value}" for key, value in facts.items() if not isinstance(value, list)]
    steps = facts.get("how to get the weights", [])
    if steps:
        lines += ["", "how to get the weights", *(f"  {step}" for step in steps)]
    return "\n".join(lines)
