"""`histobench evaluate`: evaluate stored features of one encoder."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from histobench.cli.entry import USER_ERROR
from histobench.cli.terminal import Busy, in_flags, labelled, open_terminal, print_table
from histobench.core.records import option, record
from histobench.core.text import natural_order
from histobench.roi.metrics.metric_catalogue import metrics_of_target
from histobench.roi.options import IMAGE_KEYS, Options, SplitOptions, feature_options
from histobench.roi.task_catalogue import FEW_SHOT, ROBUSTNESS, TARGETS, TASKS

if TYPE_CHECKING:
    from histobench.roi.evaluation.evaluation_request import EvaluationRequest
    from histobench.roi.evaluation.evaluation_run import EvaluationOutcome, TaskRow
    from histobench.roi.options import Scheme


_MORE = "general"


@record
class EvaluateFlags(SplitOptions, Options):
    WITHOUT: ClassVar = IMAGE_KEYS  # these options need images

    tasks: tuple[str, ...] = option(
        f"tasks: {', '.join(TASKS)}", default=(), old=("--TASK",), metavar="TASK,...", required=True
    )
    train: str = option("training features (.pt)", default="", old=("--train_feature_file",), required=True)
    test: str = option("test features (.pt)", default="", old=("--test_feature_file",), required=True)
    results: str = option("results folder", default="./results", old=("--log_dir",))
    val: str | None = option(
        "validation features (.pt); added to the training data by the preset uni",
        default=None,
        old=("--val_feature_file",),
        group=_MORE,
    )
    classes: str | None = option("class mapping file", default=None, old=("--class2id_txt",), group=_MORE)
    description: str = option(
        "description of this experiment, stored with the results",
        default="",
        old=("--log_description",),
        group=_MORE,
    )
    device: str | None = option(
        "cpu, cuda:0, ...", default=None, default_text="the GPU if there is one", group=_MORE
    )
    preset: str = option("evaluation recipe: uni, sklearn, thunder, eva", default="uni", group=_MORE)
    seed: int = option("seed of everything random", default=0, least=0, group=_MORE)
    weights: str | None = option(
        "checkpoint of the zero-shot encoder",
        default=None,
        metavar="PATH",
        default_text="as configured",
        group="zero-shot",
    )
    num_workers: int = option("ignored; kept for older commands", default=4, group=_MORE)


def evaluate_command(args: EvaluateFlags) -> int:
    """Evaluate stored features of one encoder: linear probe, KNN, prototypes,
    few-shot, zero-shot and more.

    Example:
      histobench evaluate --tasks Linear-Probe,KNN --train train.pt --test test.pt --results results
    """
    from histobench.roi.data.class_map import read_class_map
    from histobench.roi.evaluation.evaluation_request import EvaluationRequest
    from histobench.roi.evaluation.evaluation_run import evaluate
    from histobench.roi.features.feature_file import load

    request = EvaluationRequest(
        tasks=args.tasks,
        train=load(args.train),
        test=load(args.test),
        val=load(args.val) if args.val else None,
        classes=read_class_map(args.classes) if args.classes else None,
        results_dir=Path(args.results),
        description=args.description,
        preset=args.preset,
        seed=args.seed,
        device=args.device,
        weights=args.weights,
        options=Options(**{each.name: getattr(args, each.name) for each in feature_options()}),
    )
    with Busy("evaluating") as busy:
        outcome = evaluate(request, on_task=lambda task: busy.update(f"evaluating {task}"))
    print_outcome(outcome)
    # A night's run that measured nothing must not look like one that did.
    done = not outcome.failed and (outcome.rows or outcome.unchanged)
    if args.scheme is not None:
        done = _over_splits(request, args.scheme) and done
    return 0 if done else USER_ERROR


def _over_splits(request: EvaluationRequest, scheme: Scheme) -> bool:
    from histobench.roi.evaluation.over_splits import evaluate_over_splits

    console = open_terminal()
    with console.status("splits") as status:
        every = evaluate_over_splits(
            request, scheme, on_split=lambda split, count: status.update(f"{split.name} of {count} splits")
        )
    for part in every:
        for task, reason in part.failed.items():
            console.print(in_flags(f"FAILED: {part.results_dir.name}: {task}: {reason}"))
    console.print(f"{len(every)} splits ({scheme.name}): histobench compare {request.results_dir} --splits")
    return not any(part.failed for part in every)


_SHOWN = (
    ("balanced_accuracy", "bal. acc."),
    ("accuracy", "accuracy"),
    ("f1_score", "macro F1"),
    ("auroc", "AUROC"),
)


#: More few-shot settings than this are not all printed.
_MOST_SETTINGS = 9


def print_outcome(outcome: EvaluationOutcome) -> None:
    console = open_terminal()
    caveats = list(dict.fromkeys(text for row in outcome.rows for text in row.caveats))
    measured = [row for row in outcome.rows if row.task == ROBUSTNESS]
    rows = [row for row in outcome.rows if row.task != ROBUSTNESS]
    hidden = _further_settings(rows)
    targets = [kind for kind in TARGETS.values() if any(row.task == kind.task for row in rows)]
    shown = tuple((name, name) for kind in targets for name in metrics_of_target(kind.name)) or _SHOWN
    lines = []
    for row in rows:
        if row in hidden:
            continue
        values = {title: row.metrics.get(name) for name, title in shown}
        marks = ",".join(str(1 + caveats.index(text)) for text in row.caveats)
        lines.append(
            {
                "task": f"{row.task} ({marks})" if marks else row.task,
                "setting": row.setting,
                **{title: "-" if value is None else f"{value:.4f}" for title, value in values.items()},
                "images": str(row.n),
            }
        )
    if lines:
        title = f"{outcome.encoder} on {outcome.dataset} (preset {outcome.preset})"
        print_table(lines, console, title=title)
    if hidden:
        console.print(f"{len(hidden)} more settings of Few-shot are in the results folder")
    for row in measured:
        known = [f"{name} {value:.4f}" for name, value in row.metrics.items() if value is not None]
        console.print(f"robustness by {row.setting}: {', '.join(known) or 'no number'}")
    for number, text in enumerate(caveats, start=1):
        console.print(f"({number}) {text}")
    for task, reason in outcome.skipped.items():
        console.print(labelled("skipped", "yellow", f"{task}: {reason}"))
    for task, reason in outcome.failed.items():
        console.print(labelled("failed", "red", f"{task}: {reason}"))
    console.print(f"results: {outcome.results_dir}")
    if outcome.rows:
        console.print(
            f"Next: histobench compare {shlex.quote(str(outcome.results_dir))}   (intervals, other encoders)",
            style="bold",
        )


def _further_settings(rows: Sequence[TaskRow]) -> list[TaskRow]:
    """The few-shot settings that are not printed: of many, those with fewer classes than the most."""
    few = [row for row in rows if row.task == FEW_SHOT]
    if len(few) <= _MOST_SETTINGS:
        return []
    most = max(few, key=lambda row: natural_order(row.setting)).setting.partition("way_")[0]
    return [row for row in few if row.setting.partition("way_")[0] != most]
