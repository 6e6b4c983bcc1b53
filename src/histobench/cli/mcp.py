"""`histobench mcp`: offer encoders as tools to an assistant (Model Context Protocol)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from histobench.cli.flags import DATA, WEIGHTS
from histobench.cli.terminal import say
from histobench.core.errors import needing
from histobench.core.records import option, record
from histobench.roi.options import DataOptions

HOST = "127.0.0.1"
_INFERENCE = "inference"


@record
class McpFlags(DataOptions):
    data: str = option(DATA, default="", required=True)
    encoders: tuple[str, ...] = option("encoders", default=(), required=True, metavar="NAME,...")
    disclose: bool = option(
        "show the assistant the encoders' names and test accuracies",
        default=False,
        default_text="A, B, ... without",
    )
    http: int | None = option(
        f"serve HTTP on {HOST}:PORT/mcp",
        default=None,
        least=1,
        metavar="PORT",
        default_text="standard input and output",
    )
    prompts: Path | None = option("prompt file for zero_shot", default=None, group=_INFERENCE)
    weights: str | None = option(WEIGHTS, default=None, metavar="PATH", group=_INFERENCE)
    device: str | None = option(
        "cpu, cuda:0, ...", default=None, default_text="the GPU if there is one", group=_INFERENCE
    )
    num_workers: int = option("loading workers", default=8, least=0, group=_INFERENCE)


def mcp_command(args: McpFlags) -> int:
    """Offer encoders as tools to any assistant that supports the Model Context
    Protocol (MCP).

    Tools: list_regions, predict, neighbours, region_image, zero_shot, measure. They
    are read-only and limited to the test images of the folder. Encoders are called
    A, B, ... so that the assistant judges their answers and not their names;
    --disclose names them. The server starts at once; a call that needs features
    waits for them and reports progress. Uses standard input and output, or HTTP on
    127.0.0.1 with --http.

    Examples:
      histobench mcp --data tiles/ --encoders uni_v1,efficientnet-lite0
      histobench mcp --data crc.csv --encoders conch_v1 --prompts prompts.txt --http 8000
    """
    import tempfile

    from histobench.consult.study_plan import StudyPlan
    from histobench.core.progress import Progress
    from histobench.roi.data.source import DatasetSource
    from histobench.roi.options import Settings

    with needing("the server needs the mcp package, version 2: pip install histobench[mcp]"):
        from histobench.consult.mcp_server import Bench, OpeningBench, make_server, open_bench, shown_names

    names = tuple(dict.fromkeys(args.encoders))
    place = Path(args.data)
    is_plain_folder = place.is_dir() and not (place / "test").is_dir()
    split = args.split or ("0.6/0.2/0.2" if is_plain_folder else None)
    dataset = replace(DatasetSource.asked(args.data, args), split=split).load()
    plan = StudyPlan(
        names,
        (),
        seed=args.seed,
        prompts=args.prompts,
        weights=args.weights,
        settings=Settings(device=args.device, num_workers=args.num_workers),
    )

    def make(progress: Progress) -> Bench:
        with tempfile.TemporaryDirectory(prefix="histobench-mcp-") as features:
            return open_bench(dataset, plan, Path(features), progress, disclosed=args.disclose)

    opening = OpeningBench(make, disclosed=args.disclose)
    server = make_server(opening)
    opening.start()
    # Standard output belongs to the protocol: what is for people goes to standard error.
    where = f"http://{HOST}:{args.http}/mcp" if args.http else "standard input and output"
    shown = shown_names(names, disclosed=args.disclose, seed=args.seed)
    encoders = ", ".join(name if args.disclose else f"{letter} = {name}" for name, letter in shown.items())
    say(f"encoders: {encoders}; serving on {where} while features are computed", error=True)
    if args.http:
        server.run("streamable-http", host=HOST, port=args.http)
    else:
        server.run("stdio")
    return 0
