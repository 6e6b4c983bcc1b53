"""Every metric: name, description, labels, direction and how its interval is computed.

To add a metric, add a record to `CATALOGUE` or `OF_TARGETS` here and its value to the function of its kind in
`formulas` or `target_metrics`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from histobench.core.errors import HistobenchError, did_you_mean

#: What a metric is computed from: the confusion matrix alone, or probabilities in one of four ways.
#: Those of targets that are not classes are computed in `target_metrics`.
Kind = Literal["labels", "auroc", "auprc", "loss", "calibration", "target"]


@dataclass(frozen=True)
class Metric:
    """One metric; the defaults are those of most metrics."""

    name: str
    description: str
    kind: Kind = "labels"
    lower_is_better: bool = False
    #: A share of all images.
    share: bool = False
    #: The scale on which it is closest to normal.
    scale: Literal["logit", "fisher", "log", "unexplained", "sum of squares"] = "logit"
    #: Whether classes enter by their size, so that a rare class hardly counts in its interval.
    by_size: bool = False
    #: A mean over the classes that occur: on a resample without a class it would be one over fewer.
    over_present_classes: bool = False
    #: The targets, other than classes, that it is a metric of.
    targets: tuple[str, ...] = ()
    #: What a run's own page calls it; unless given, its name in words.
    label: str = ""
    #: What leaderboards call it, where that is more than the label.
    title: str = ""

    def __post_init__(self) -> None:
        words = [_WORDS.get(word, word) for word in self.name.split("_")]
        object.__setattr__(self, "label", self.label or " ".join(words))
        object.__setattr__(self, "title", self.title or self.label)


_WORDS = {
    **{word: word.upper() for word in ("auroc", "auprc", "mcc", "ece", "mce", "f1")},
    "ovr": "(one vs rest)",
    "ovo": "(one vs one)",
}


def _of_target(targets: str, name: str, title: str, description: str, **more: Any) -> Metric:
    return Metric(
        name, description, "target", by_size=True, title=title, targets=tuple(targets.split()), **more
    )


#: In the order in which tables show them. The first six are the documented names.
CATALOGUE: tuple[Metric, ...] = (
    Metric("accuracy", "share of the images that are right", share=True, by_size=True),
    Metric("balanced_accuracy", "mean recall of the classes of the test set", over_present_classes=True),
    Metric("precision", "the same as `macro_precision`", over_present_classes=True),
    Metric("recall", "the same as `macro_recall`", over_present_classes=True),
    Metric("f1_score", "the same as `macro_f1`", over_present_classes=True, label="F1", title="macro F1"),
    Metric("auroc", "the same as `macro_auroc_ovr`", "auroc", title="macro AUROC"),
    Metric("macro_precision", "mean precision of the classes", over_present_classes=True),
    Metric("weighted_precision", "mean precision, classes weighted by their images", by_size=True),
    Metric("micro_precision", "the same as `accuracy`", share=True, by_size=True),
    Metric("macro_recall", "mean recall of the classes", over_present_classes=True),
    Metric("weighted_recall", "mean recall, classes weighted by their images", share=True, by_size=True),
    Metric("micro_recall", "the same as `accuracy`", share=True, by_size=True),
    Metric("macro_f1", "mean F1 of the classes", over_present_classes=True),
    Metric("weighted_f1", "mean F1, classes weighted by their images", by_size=True),
    Metric("micro_f1", "the same as `accuracy`", share=True, by_size=True),
    Metric("macro_auroc_ovr", "mean area under the ROC curve of each class against the rest", "auroc"),
    Metric("weighted_auroc_ovr", "the same, classes weighted by their images", "auroc", by_size=True),
    Metric("micro_auroc_ovr", "area under the ROC curve of all classes in one ranking", "auroc",
           by_size=True),
    Metric("macro_auroc_ovo", "mean area under the ROC curve of each pair of classes", "auroc",
           over_present_classes=True),
    Metric("weighted_auroc_ovo", "the same, pairs weighted by their images", "auroc",
           over_present_classes=True),
    Metric("macro_auprc", "mean area under the precision-recall curve of each class (average precision)",
           "auprc"),
    Metric("weighted_auprc", "the same, classes weighted by their images", "auprc", by_size=True),
    Metric("micro_auprc", "area under the precision-recall curve of all classes in one ranking", "auprc",
           by_size=True),
    Metric("quadratic_kappa", "Cohen's kappa, weighted by squared distances of class ids (for levels)",
           scale="fisher", targets=("ordinal",)),
    Metric("linear_kappa", "Cohen's kappa, weighted by distances of class ids", scale="fisher"),
    Metric("mcc", "Matthews correlation", scale="fisher", title="Matthews correlation"),
    Metric("log_loss", "mean negative logarithm of the true class's probability", "loss",
           lower_is_better=True, scale="log", by_size=True),
    Metric("brier", "mean squared error of the probabilities", "loss", lower_is_better=True,
           scale="sum of squares", by_size=True, label="Brier score"),
    Metric("ece", "expected calibration error of the most probable class, 15 bins", "calibration",
           lower_is_better=True, title="calibration error (ECE)"),
    Metric("mce", "largest calibration error of a bin", "calibration", lower_is_better=True),
)  # fmt: skip


def chance_level(metric: str, classes: int) -> float | None:
    """What guessing gives, where that does not depend on how many images each class has."""
    return {"balanced_accuracy": 1 / max(classes, 1), "auroc": 0.5, "mcc": 0.0}.get(metric)


#: Metrics of one class that the catalogue does not name.
_OF_CLASSES = (Metric("auprc", "area under the precision-recall curve of the class", "auprc"),)
#: Of targets that are not classes.
OF_TARGETS: tuple[Metric, ...] = (
    _of_target("regression", "r2", "R2",
               "share of the variance that is predicted (coefficient of determination)",
               scale="unexplained"),
    _of_target("regression", "pearson", "Pearson correlation",
               "Pearson correlation of true and predicted values", scale="fisher"),
    _of_target("regression", "spearman", "Spearman correlation",
               "Spearman correlation of true and predicted values", scale="fisher"),
    _of_target("survival", "harrell_c", "Harrell's C",
               "share of comparable pairs of patients whose risks are in the right order"),
    _of_target("survival", "uno_c", "Uno's C",
               "the same, weighted by the inverse probability of censoring in training"),
    _of_target("multilabel", "macro_auroc", "macro AUROC of labels",
               "mean area under the ROC curve of the labels"),
    _of_target("multilabel", "micro_auroc", "micro AUROC of labels",
               "area under the ROC curve of all labels in one ranking"),
    _of_target("multilabel", "macro_ap", "macro average precision",
               "mean average precision of the labels"),
    _of_target("multilabel", "micro_ap", "micro average precision",
               "average precision of all labels in one ranking"),
    _of_target("mask", "dice", "Dice", "mean Dice of the classes in truth or prediction of an image, "
               "without background, averaged over images"),
    _of_target("mask", "pooled_dice", "pooled Dice",
               "mean Dice of the classes, of the pixels of all images together"),
    _of_target("mask", "iou", "IoU", "intersection over union, averaged as `dice`"),
    _of_target("mask", "miou", "mIoU",
               "mean intersection over union of all classes, of all pixels together"),
    _of_target("mask", "dice_with_background", "Dice with background",
               "as `dice`, with the background as a class"),
    _of_target("mask", "random_dice", "Dice of random weights",
               "`dice` of the same network with random weights"),
    _of_target("mask", "color_dice", "Dice of mean colors", "`dice` of the mean color of every patch"),
    _of_target("mask", "ceiling_dice", "Dice of the grid",
               "`dice` of the true mask through the grid of tokens"),
    _of_target("regression ordinal", "mae", "mean absolute error",
               "mean absolute error; of ordered levels, how many apart", lower_is_better=True,
               scale="log"),
)  # fmt: skip
_BY_NAME = {metric.name: metric for metric in (*CATALOGUE, *_OF_CLASSES, *OF_TARGETS)}


def metrics_of_target(target: str) -> tuple[str, ...]:
    """The metrics of a target that is not a class, the main one first."""
    return tuple(metric.name for metric in (*CATALOGUE, *OF_TARGETS) if target in metric.targets)


def metric_of(name: str) -> Metric:
    return _BY_NAME[name]


def described(name: str) -> Metric:
    """The same for a metric of stored results, which may be of another version or a package of your own."""
    return _BY_NAME.get(name) or Metric(name, "")


def _names(wanted: Callable[[Metric], bool]) -> frozenset[str]:
    return frozenset(metric.name for metric in (*CATALOGUE, *OF_TARGETS) if wanted(metric))


METRICS: tuple[str, ...] = tuple(metric.name for metric in CATALOGUE)
#: Metrics for which less is better.
LOWER_IS_BETTER = _names(lambda metric: metric.lower_is_better)
#: Metrics that follow from the confusion matrix alone and so take a fraction of the time of the others.
LABEL_METRICS = _names(lambda metric: metric.kind == "labels")
#: Means over the classes that occur.
CLASS_MEANS = _names(lambda metric: metric.over_present_classes)
#: Too high by an amount that depends on the number of images: no error of such a metric is known.
CALIBRATION_METRICS = _names(lambda metric: metric.kind == "calibration")


#: What people call metrics beside their names.
_ALSO = {"acc": "accuracy", "bacc": "balanced_accuracy", "balanced_acc": "balanced_accuracy", "auc": "auroc",
         "roc_auc": "auroc", "f1": "f1_score", "kappa": "quadratic_kappa"}  # fmt: skip


def known_metric(metric: str) -> str:
    """Return the name of a metric as results have it; refuse one that does not exist.

    >>> known_metric("acc"), known_metric("Balanced accuracy")
    ('accuracy', 'balanced_accuracy')
    """
    known = (*METRICS, *(each.name for each in OF_TARGETS))
    name = metric.strip().lower().replace(" ", "_").replace("-", "_")
    name = _ALSO.get(name, name)
    if name not in known:
        raise HistobenchError(f"unknown metric {metric!r}; {did_you_mean(metric, known)}")
    return name
