"""Prepare a study: choose cases, ask every encoder once, and record all answers of all tools in all arms.

Encoders are named in the order strong, weak, random. Features come from the cache where they are known.
What is written can be shared without the pictures: runs on it need neither a GPU nor images.

Examples:
  histobench consult prepare crc.csv --encoders uni_v1,efficientnet-lite0,random-vit --out study/
  histobench consult prepare tiles/ --split 0.6/0.2/0.2 --encoders uni_v1,random-vit --arms none,strong
"""

from __future__ import annotations

import argparse
from pathlib import Path

from histobench.cli.flag_values import positive, seed
from histobench.cli.terminal import say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The dataset, the encoders, the arms and the words of the cases."""
    parser.add_argument("dataset", help="CSV file, folder of class folders, TAR shards, or a public name")
    data = parser.add_argument_group("dataset")
    data.add_argument("--classes", help="class mapping file")
    data.add_argument("--split", help="shares of train/val/test where the data has none, e.g. 0.6/0.2/0.2")
    data.add_argument("--group-regex", help="finds the patient or slide in a path")
    data.add_argument("--group-column", help="column of the CSV with the patient or slide")
    what = parser.add_argument_group("study")
    what.add_argument(
        "--encoders", required=True, help="STRONG[,WEAK[,RANDOM]], such as uni_v1,resnet50,random-vit"
    )
    what.add_argument(
        "--arms",
        default="default",
        help="arms, separated by commas; `default` are those of the registered contrasts and each encoder's "
        "own, `all` is every one (default: default)",
    )
    what.add_argument(
        "--similarity",
        choices=("percentile", "none"),
        default="percentile",
        help="what neighbours() tells about the nearest one (default: percentile)",
    )
    what.add_argument(
        "--sequences", type=positive, default=8, help="sequences of the sequence arms (default: 8)"
    )
    what.add_argument(
        "--sequence-length", type=positive, default=40, help="cases in each sequence (default: 40)"
    )
    what.add_argument(
        "--contrasts", type=Path, help="JSON file of contrasts to register (default: the protocol's four)"
    )
    what.add_argument("--cases", type=positive, default=300, help="how many test regions (default: 300)")
    what.add_argument("--seed", type=seed, default=0, help="of every draw (default: 0)")
    what.add_argument("--blind", action="store_true", help='call the classes "class A", "class B", ...')
    what.add_argument("--organ", default="", help="what the prompt says about the organ")
    what.add_argument("--region", help="what the prompt says the picture is")
    what.add_argument("--mpp", type=float, help="microns per pixel, if known")
    what.add_argument(
        "--prompts", type=Path, help="prompt file: zero_shot(), if every encoder has a text tower"
    )
    what.add_argument(
        "--measured",
        type=positive,
        default=50,
        help="regions of each class measured for typical() (default: 50)",
    )
    what.add_argument("--out", default="consult", help="folder of the study (default: consult)")
    how = parser.add_argument_group("inference")
    how.add_argument("--weights", help="checkpoint, folder of checkpoints, or table like model_weights.json")
    how.add_argument("--device", help="cpu, cuda:0, ... (default: the GPU if there is one)")
    how.add_argument("--num_workers", type=int, default=8, help="loading workers (default: 8)")
    how.add_argument(
        "--compile", default="auto", help="auto, on or off, as in the run whose features are to be used"
    )


def run(args: argparse.Namespace) -> int:
    """Prepare and say what was written."""
    from histobench.cli.extraction_display import display
    from histobench.consult.arms import parse_arms
    from histobench.consult.encoder_views import StudyPlan, assign_roles
    from histobench.consult.prepare import prepare
    from histobench.roi.data.source import load_dataset

    names = tuple(name.strip() for name in args.encoders.split(",") if name.strip())
    arms = tuple(parse_arms(args.arms, list(assign_roles(names))))
    dataset = load_dataset(
        args.dataset,
        classes_file=args.classes,
        split=args.split,
        group_regex=args.group_regex,
        group_column=args.group_column,
        seed=args.seed,
    )
    plan = StudyPlan(
        names,
        arms,
        cases=args.cases,
        seed=args.seed,
        blind=args.blind,
        organ=args.organ,
        microns_per_pixel=args.mpp,
        prompts=args.prompts,
        measured=args.measured,
        weights=args.weights,
        device=args.device,
        num_workers=args.num_workers,
        compile=args.compile,
        similarity=args.similarity,
        sequences=args.sequences,
        sequence_length=args.sequence_length,
        contrasts=args.contrasts,
        **({"region": args.region} if args.region else {}),
    )
    study = prepare(dataset, plan, args.out, progress=display())
    for encoder in study.facts.encoders:
        say(
            f"{encoder.role:<7} {encoder.name}: probe {100 * encoder.probe_accuracy:.1f} %, "
            f"KNN {100 * encoder.knn_accuracy:.1f} % of test images, temperature {encoder.temperature:.3g}"
        )
    for caution in study.facts.cautions:
        say(f"caution: {caution}", error=True)
    say(
        f"{len(study.cases)} cases, {len(study.cassette.rows)} recorded answers, "
        f"{len(study.facts.arms)} arms in {args.out}; leak audit passed"
    )
    for check in study.facts.blinding:
        say(
            f"blinding: the form of answers tells {check.first} from {check.second} with AUC {check.auc:.2f} "
            f"[{check.low:.2f}, {check.high:.2f}]"
        )
    return 0
