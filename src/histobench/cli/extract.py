"""Extract features: images through one or more encoders to feature files.

What has been computed before comes from the cache, and an interrupted run goes on where it was.

Examples:
  histobench extract --dataset_split_csv crc.csv --class2id_txt crc.txt --dataset_name CRC-100K \\
      --model_name uni_v1,virchow2 --save_dir features
  histobench extract --dataset_split_csv tiles/ --split 0.7/0.1/0.2 --model_name efficientnet-lite0
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

from histobench.cli.entry import USER_ERROR
from histobench.cli.flag_values import positive, seed
from histobench.cli.source_flags import add_source_flags, source_from
from histobench.cli.terminal import say
from histobench.core.errors import HistobenchError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The documented flags of 00-ROI_Feature_Extract.py, and a few more."""
    data = parser.add_argument_group("dataset")
    data.add_argument(
        "--dataset_split_csv",
        required=True,
        help="CSV of images, labels and splits, or a folder of class folders",
    )
    data.add_argument("--class2id_txt", help="class mapping file (default: from the labels or folder names)")
    data.add_argument("--dataset_name", help="name in the feature files (default: from the CSV's name)")
    add_source_flags(data)
    data.add_argument("--seed", type=seed, default=0, help="seed of the split (default: 0)")
    data.add_argument(
        "--on-bad-image",
        choices=("stop", "skip"),
        default="stop",
        help="unreadable images are one error that lists them (stop, the default) or are left out (skip)",
    )
    model = parser.add_argument_group("model")
    model.add_argument(
        "--model_name",
        required=True,
        help="encoder, or several separated by commas; or my_file.py:MyEncoder, name=my_file.py:MyEncoder",
    )
    model.add_argument(
        "--resize_size",
        type=positive,
        help="image size (default: the encoder's own; 448 in 00-ROI_Feature_Extract.py)",
    )
    model.add_argument(
        "--weights", help="checkpoint, folder of checkpoints, or table like model_weights.json"
    )
    model.add_argument(
        "--allow-revision",
        action="store_true",
        help="take weights that the hub's cache has at another revision than the pinned one",
    )
    inference = parser.add_argument_group("inference")
    inference.add_argument(
        "--batch_size", type=_number_or_auto(1), default=256, help="images per step, or auto (default: 256)"
    )
    inference.add_argument(
        "--num_workers", type=int, default=8, help="loading workers, at most one per core (default: 8)"
    )
    inference.add_argument(
        "--device", help="cpu, cuda:0, or several: cuda:0,cuda:1 (default: the GPU if there is one)"
    )
    inference.add_argument(
        "--precision",
        choices=("auto", "fp32", "bf16", "fp16"),
        default="auto",
        help="auto: what the encoder's authors recommend on a GPU, fp32 on a CPU (default)",
    )
    inference.add_argument(
        "--compile", choices=("auto", "on", "off"), default="auto", help="auto: for long jobs (default)"
    )
    inference.add_argument(
        "--recheck",
        type=_number_or_auto(0),
        default="auto",
        metavar="N|auto",
        help="cached images, drawn at random, that are computed again and compared (default: auto: 8; of "
        "your own encoder up to 300, a 95%% chance to find a change of 1%% of them)",
    )
    inference.add_argument(
        "--no-cache",
        action="store_true",
        help="compute everything anew; neither use cached features nor keep any",
    )
    parser.add_argument(
        "--keep-going",
        action="store_true",
        help="use the other encoders when some are unknown or have no weights (default: begin nothing)",
    )
    parser.add_argument(
        "--save_dir", default="./ROI_Features", help="where feature files go (./ROI_Features)"
    )


def run(args: argparse.Namespace) -> int:
    """Read the dataset, build the encoders, extract, print the files."""
    from histobench.cli.extraction_display import display, print_extractions
    from histobench.roi.data.split import check_learnt
    from histobench.roi.encoders.registry import require_encoders
    from histobench.roi.features.extract import extract
    from histobench.roi.features.settings import EncoderRecipe

    dataset = source_from(args, args.dataset_split_csv).load()
    check_learnt(dataset)
    recipes = [
        EncoderRecipe(name, args.resize_size, args.weights, args.allow_revision)
        for name in _names(args.model_name)
    ]
    reasons = {recipe.name: recipe.unresolved() for recipe in recipes}
    require_encoders(reasons, keep_going=args.keep_going)
    recipes = [recipe for recipe in recipes if not reasons[recipe.name]]
    extractions = extract(
        dataset,
        recipes,
        args.save_dir,
        device=args.device,
        batch_size=args.batch_size,
        num_workers=args.num_workers,
        precision=args.precision,
        compile=args.compile,
        on_bad_image=args.on_bad_image,
        recheck=args.recheck,
        no_cache=args.no_cache,
        progress=display(),
    )
    print_extractions(extractions)
    for name, why in reasons.items():
        if why:
            say(f"FAILED: {name}: {why}")
    return USER_ERROR if any(reasons.values()) else 0


def _names(text: str) -> list[str]:
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise HistobenchError("--model_name names no encoder")
    return names


def _number_or_auto(least: int) -> Callable[[str], int | str]:
    def read(text: str) -> int | str:
        if text == "auto":
            return text
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(
                f"expected auto or a whole number of at least {least}, found {text!r}"
            )
        return int(text)

    return read
