"""`histobench mcp`: offer encoders as tools to an assistant (Model Context Protocol)."""

from __future__ import annotations

import argparse
from pathlib import Path

from histobench.cli.flags import positive, required, seed
from histobench.cli.terminal import say
from histobench.core.errors import HistobenchError

HOST = "127.0.0.1"


def mcp_flags(parser: argparse.ArgumentParser) -> None:
    """The folder, the encoders and the transport."""
    parser.add_argument(
        "--data", required=True, help="folder of class folders, or a CSV of images and labels"
    )
    parser.add_argument("--encoders", required=True, help="encoders, separated by commas")
    parser.add_argument(
        "--disclose",
        action="store_true",
        help="show the assistant the encoders' names and test accuracies (default: A, B, ... without)",
    )
    parser.add_argument("--classes", help="class mapping file")
    parser.add_argument(
        "--split", help="shares of train/val/test if the data has no split (default: 0.6/0.2/0.2 for folders)"
    )
    parser.add_argument("--group-regex", help="regular expression that finds the patient or slide in a path")
    parser.add_argument("--seed", type=seed, default=0, help="seed of the split (default: 0)")
    parser.add_argument("--prompts", type=Path, help="prompt file for zero_shot")
    parser.add_argument(
        "--weights", help="checkpoint, folder of checkpoints, or table like model_weights.json"
    )
    parser.add_argument("--device", help="cpu, cuda:0, ... (default: the GPU if there is one)")
    parser.add_argument("--num_workers", type=int, default=8, help="loading workers (default: 8)")
    parser.add_argument(
        "--http",
        type=positive,
        metavar="PORT",
        help=f"serve HTTP on {HOST}:PORT/mcp (default: standard input and output)",
    )


def mcp_command(args: argparse.Namespace) -> int:
    """Offer encoders as tools to any assistant that supports the Model Context
    Protocol (MCP).

    Tools: list_regions, predict, predict_many, neighbours, region_image,
    zero_shot, measure, compare. They are read-only and limited to the test images
    of the folder. Encoders are called A, B, ... so that the assistant judges their
    answers and not their names; --disclose names them. The server starts at once; a
    call that needs features waits for them and reports progress. Uses standard input
    and output, or HTTP on 127.0.0.1 with --http.

    Examples:
      histobench mcp --data tiles/ --encoders uni_v1,efficientnet-lite0
      histobench mcp --data crc.csv --encoders conch_v1 --prompts prompts.txt --http 8000
    """
    import tempfile

    from histobench.consult.study_plan import StudyPlan
    from histobench.core.progress import Progress
    from histobench.roi.data.source import load_dataset
    from histobench.roi.options import Settings

    try:
        from histobench.consult.mcp_server import Bench, OpeningBench, make_server, open_bench, shown_names
    except ImportError as error:
        raise HistobenchError(
            "the server needs the mcp package, version 2: pip install histobench[mcp]"
        ) from error

    names = tuple(dict.fromkeys(required(args.encoders, "--encoders", "encoder")))
    place = Path(args.data)
    split = args.split or ("0.6/0.2/0.2" if place.is_dir() and not (place / "test").is_dir() else None)
    dataset = load_dataset(
        place, classes_file=args.classes, split=split, group_regex=args.group_regex, seed=args.seed
    )
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

    opening = OpeningBench(make)
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
