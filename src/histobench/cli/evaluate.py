"""Evaluate stored features: linear probe, KNN, prototypes, few-shot, zero-shot and more.

Example:
  histobench evaluate --TASK Linear-Probe,KNN,Proto,Few-shot \\
      --train_feature_file train.pt --test_feature_file test.pt --log_dir results
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from histobench.cli.entry import USER_ERROR
from histobench.cli.flag_names import in_flags
from histobench.cli.flag_values import add_split_arguments, boolean, positive, positives, seed
from histobench.core.errors import HistobenchError
from histobench.roi.task_catalogue import TASKS

if TYPE_CHECKING:
    from histobench.roi.data.cross_validation import Scheme
    from histobench.roi.evaluation.request import EvaluationRequest


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The documented flags of 01-ROI_BenchMark_Main.py, and a few more."""
    general = parser.add_argument_group("general")
    general.add_argument(
        "--TASK",
        required=True,
        help=f"comma-separated: {','.join(TASKS)}",
    )
    general.add_argument("--class2id_txt", help="class mapping file")
    general.add_argument("--train_feature_file", required=True, help="training features (.pt)")
    general.add_argument("--test_feature_file", required=True, help="test features (.pt)")
    general.add_argument(
        "--val_feature_file", help="validation features (.pt); joins the training data under `uni`"
    )
    general.add_argument("--log_dir", default="./results", help="where the results go (default: ./results)")
    general.add_argument("--log_description", default="", help="a sentence about this experiment")
    general.add_argument("--device", help="cpu, cuda:0, ... (default: the GPU if there is one)")
    general.add_argument(
        "--preset", default="uni", help="evaluation recipe: uni (default), sklearn, thunder, eva"
    )
    general.add_argument("--seed", type=seed, default=0, help="seed of everything random (default: 0)")
    general.add_argument(
        "--choose-by",
        choices=("group", "image"),
        default="group",
        help="what is held out to choose by without a validation set (presets sklearn, thunder, eva): whole "
        "groups where there are any (default), or single images as published",
    )
    add_split_arguments(general)
    probe = parser.add_argument_group("linear probe")
    probe.add_argument("--max_iteration", type=positive, default=1000, help="most iterations (default: 1000)")
    probe.add_argument(
        "--use_sklearn",
        type=boolean,
        nargs="?",
        const=True,
        default=False,
        help="use scikit-learn (default: False)",
    )
    knn = parser.add_argument_group("KNN")
    knn.add_argument("--n_neighbors", type=positive, default=20, help="neighbours (default: 20)")
    few = parser.add_argument_group("few-shot")
    few.add_argument("--n_iter", type=positive, default=100, help="episodes per setting (default: 100)")
    few.add_argument(
        "--use_all_way",
        type=boolean,
        nargs="?",
        const=True,
        default=True,
        help="add the all-classes way (True)",
    )
    few.add_argument("--n_way", type=positives, default="2,3,4,5,6,7,8,9,10", help="ways (default: 2,...,10)")
    few.add_argument(
        "--n_shot", type=positives, default="1,2,4,8,16,32,64,128,256", help="shots (1,2,4,...,256)"
    )
    few.add_argument(
        "--keep_probabilities",
        type=boolean,
        nargs="?",
        const=True,
        default=False,
        help="keep those of every episode, for intervals of AUROC and log loss over images, too (False)",
    )
    zero = parser.add_argument_group("zero-shot")
    zero.add_argument(
        "--zeroshot_model_name", help="an encoder with a text tower; default: the features' encoder"
    )
    zero.add_argument(
        "--zeroshot_prompt_file", help="one prompt per class, or templates x names as YAML/JSON"
    )
    zero.add_argument("--weights", help="its checkpoint, as for the extraction (default: as configured)")
    zero.add_argument(
        "--zeroshot_batch_size", type=positive, default=32, help="images per step (default: 32)"
    )
    zero.add_argument(
        "--num_workers", type=int, default=4, help="kept for old command lines; features are in memory"
    )


def run(args: argparse.Namespace) -> int:
    """Read the feature files, run the tasks, print where the results are."""
    from histobench.cli.result_table import print_outcome
    from histobench.roi.data.class_map import read_class_map
    from histobench.roi.data.cross_validation import scheme_of
    from histobench.roi.evaluation.request import EvaluationRequest, Options
    from histobench.roi.evaluation.run import evaluate
    from histobench.roi.features.feature_file import load

    request = EvaluationRequest(
        tasks=_names(args.TASK),
        train=load(args.train_feature_file),
        test=load(args.test_feature_file),
        val=load(args.val_feature_file) if args.val_feature_file else None,
        classes=read_class_map(args.class2id_txt) if args.class2id_txt else None,
        results_dir=Path(args.log_dir),
        description=args.log_description,
        preset=args.preset,
        seed=args.seed,
        device=args.device,
        weights=args.weights,
        options=Options(
            max_iteration=args.max_iteration,
            use_sklearn=args.use_sklearn,
            n_neighbors=args.n_neighbors,
            n_iter=args.n_iter,
            use_all_way=args.use_all_way,
            n_way=args.n_way,
            n_shot=args.n_shot,
            keep_probabilities=args.keep_probabilities,
            zeroshot_model_name=args.zeroshot_model_name,
            zeroshot_prompt_file=Path(args.zeroshot_prompt_file) if args.zeroshot_prompt_file else None,
            zeroshot_batch_size=args.zeroshot_batch_size,
            choose_by=args.choose_by,
        ),
    )
    scheme = scheme_of(args.splits, args.folds, args.repeats)
    outcome = evaluate(request)
    print_outcome(outcome)
    # A night's run that measured nothing must not look like one that did.
    done = not outcome.failed and (outcome.rows or outcome.unchanged)
    if scheme is not None:
        done = _over_splits(request, scheme) and done
    return 0 if done else USER_ERROR


def _over_splits(request: EvaluationRequest, scheme: Scheme) -> bool:
    from histobench.cli.terminal import open_terminal
    from histobench.roi.evaluation.over_splits import evaluate_over_splits

    console = open_terminal()
    with console.status("splits") as status:
        every = evaluate_over_splits(
            request, scheme, on_split=lambda split, count: status.update(f"{split.name} of {count} splits")
        )
    for part in every:
        for task, reason in part.failed.items():
            console.print(in_flags(f"FAILED: {part.results_dir.name}: {task}: {reason}"), soft_wrap=True)
    console.print(
        f"{len(every)} splits ({scheme.name}): histobench compare {request.results_dir} --splits",
        soft_wrap=True,
    )
    return not any(part.failed for part in every)


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise HistobenchError("--TASK names no task")
    return names
