"""Extract features: images through one or more encoders to feature files.

What has been computed before comes from the cache, and an interrupted run goes on where it was.

Examples:
  histobench extract --dataset_split_csv crc.csv --class2id_txt crc.txt --dataset_name CRC-100K \\
      --model_name uni_v1,virchow2 --save_dir features
  histobench extract --dataset_split_csv tiles/ --split 0.7/0.1/0.2 --model_name efficientnet-lite0
"""

from __future__ import annotations

import argparse

from histobench.cli.entry import USER_ERROR
from histobench.cli.flag_values import positive, seed
from histobench.cli.source_flags import add_source_flags, source_from
from histobench.cli.terminal import say
from histobench.core.errors import HistobenchError
from histobench.core.records import add_flags, given_flags, options_of
from histobench.roi.options import Settings


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
    add_flags(inference, options_of(Settings))
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
    from histobench.roi.encoders.zoo import require_encoders
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
        dataset, recipes, args.save_dir, **given_flags(args, options_of(Settings)), progress=display()
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
