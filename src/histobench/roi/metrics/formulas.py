"""Metrics as functions of a `Tally` of counts; conventions for absent classes are here.

* With exactly two classes every AUROC and AUPRC is that of class 1, and `brier` is halved (0 to 1).
* Means over classes: of recall over the classes of the test set; of precision and F1 over those that occur
  among labels or predictions, 0 for 0/0. `macro_auroc_ovr`, `macro_auprc`: undefined when a class is absent;
  weighted forms give it the weight 0; one-vs-one forms are means over the pairs of present classes.
* Kappas use the distances between class ids, absent classes included; 0/0 is undefined. MCC is 0 for 0/0.
* `ece`, `mce`: the highest probability against whether *its* label is right (also where a rule predicts
  another label), 15 bins of equal width, closed at the right (Guo et al. 2017).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from histobench.roi.metrics.metric_catalogue import METRICS

CALIBRATION_BINS = 15
#: scikit-learn's floor: a probability of zero costs -log(eps), about 36, and not infinity.
SMALLEST_PROBABILITY = float(np.finfo(np.float64).eps)

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Tally:
    """Sufficient statistics of B evaluations over the same c classes. NaN marks what has no value.

    `concordance[:, a, b]` counts the pairs of an image of class a and an image of class b in which score
    column a puts the first one higher (a tie counts one half): the areas under all ROC curves, one-vs-rest
    and one-vs-one, are sums and ratios of it.
    """

    confusion: Floats  # [B, c, c]: true class x predicted class
    concordance: Floats  # [B, c, c]
    average_precision: Floats  # [B, c]
    micro_auroc: Floats  # [B]: all score columns in one ranking
    micro_auprc: Floats  # [B]
    log_loss: Floats  # [B]: mean over images
    squared_error: Floats  # [B]: mean over images of the sum over classes
    calibration: Floats  # [B, bins, 3]: images, sum of confidences, correct images

    @classmethod
    def joined(cls, parts: Sequence[Tally]) -> Tally:
        return cls(*(np.concatenate([getattr(part, each.name) for part in parts]) for each in fields(cls)))


def calibration_bin(confidence: Floats) -> Ints:
    # Vote fractions lie exactly on an edge; the small shift keeps them on one side whatever their rounding.
    bins = np.ceil(confidence * CALIBRATION_BINS - 1e-9).astype(np.int64) - 1
    return np.clip(bins, 0, CALIBRATION_BINS - 1)


@dataclass(frozen=True)
class PerImage:
    """What each image adds to the sums of a tally, [n] each."""

    log_loss: Floats
    squared_error: Floats
    bin: Ints  # of calibration
    confidence: Floats
    correct: Floats  # whether the label that the confidence belongs to is the true one

    @classmethod
    def of(cls, p: Floats, labels: Ints, predicted: Ints) -> PerImage:
        """From probabilities [n, c] without NaN."""
        image = np.arange(len(p))
        own = p[image, labels]
        confidence = p.max(1)
        # A rule may predict another label than the most probable: the confidence is that of the latter.
        named = np.where(p[image, predicted] == confidence, predicted, p.argmax(1))
        return cls(
            log_loss=-np.log(np.clip(own, SMALLEST_PROBABILITY, 1 - SMALLEST_PROBABILITY)),
            squared_error=np.square(p).sum(1) - 2 * own + 1,
            bin=calibration_bin(confidence),
            confidence=confidence,
            correct=(named == labels).astype(np.float64),
        )


def metrics_of(tally: Tally) -> dict[str, Floats]:
    scores = label_metrics_of(tally.confusion)
    with np.errstate(divide="ignore", invalid="ignore"):
        scores |= _ranking_metrics(tally)
        scores |= _calibration_metrics(tally)
    scores["auroc"] = scores["macro_auroc_ovr"]
    return {name: scores[name] for name in METRICS}


#: Short names of macro averages.
_SHORT = {"precision": "macro_precision", "recall": "macro_recall", "f1_score": "macro_f1"}


def label_metrics_of(confusion: Floats, wanted: Collection[str] | None = None) -> dict[str, Floats]:
    """The metrics that follow from confusion matrices [B, c, c] alone; those `wanted`, and maybe more."""
    if wanted is not None:
        wanted = {_SHORT.get(name, name) for name in wanted}
    with np.errstate(divide="ignore", invalid="ignore"):
        scores = _label_metrics(confusion, wanted)
    return scores | {short: scores[name] for short, name in _SHORT.items() if name in scores}


def class_metrics_of(tally: Tally) -> dict[str, Floats]:
    """Precision, recall, F1, AUROC and AUPRC of every class, [B, c] each; NaN where undefined."""
    support, predicted, hits = _margins(tally.confusion)
    with np.errstate(divide="ignore", invalid="ignore"):
        return {
            "precision": hits / predicted,
            "recall": hits / support,
            "f1_score": 2 * hits / (support + predicted),
            "auroc": _class_auroc(tally),
            "auprc": tally.average_precision,
        }


def _margins(confusion: Floats) -> tuple[Floats, Floats, Floats]:
    # Sums of counts over few classes: several times faster this way, and as exact.
    support, predicted = np.einsum("bij->bi", confusion), np.einsum("bij->bj", confusion)
    return support, predicted, np.diagonal(confusion, axis1=1, axis2=2)


def _zero_for_nothing(ratio: Floats) -> Floats:
    return np.where(np.isnan(ratio), 0.0, ratio)


def _label_metrics(confusion: Floats, wanted: Collection[str] | None) -> dict[str, Floats]:
    """Resamples are evaluated by the million: what no one wants is not computed."""

    def needs(*names: str) -> bool:
        return wanted is None or any(name in wanted for name in names)

    support, predicted, hits = _margins(confusion)
    n = support.sum(1)
    scores = {"accuracy": hits.sum(1) / n}
    if needs("balanced_accuracy"):
        scores["balanced_accuracy"] = _zero_for_nothing(hits / support).sum(1) / (support > 0).sum(1)
    both = support + predicted
    ratios = {"precision": (hits, predicted), "recall": (hits, support), "f1": (2 * hits, both)}
    for name, (over, among) in ratios.items():
        if not needs(f"macro_{name}", f"weighted_{name}", f"micro_{name}"):
            continue
        values = _zero_for_nothing(over / among)
        seen = both > 0
        scores[f"macro_{name}"] = (values * seen).sum(1) / seen.sum(1)
        scores[f"weighted_{name}"] = (values * support).sum(1) / n
        # Every image has one label and one prediction, so the micro average is the accuracy.
        scores[f"micro_{name}"] = scores["accuracy"]
    ids = np.arange(support.shape[1], dtype=np.float64)
    distance = np.abs(ids[:, None] - ids[None, :])
    for name, weight in (("linear_kappa", distance), ("quadratic_kappa", distance**2)):
        if needs(name):
            observed = np.einsum("bac,ac->b", confusion, weight)
            expected = ((support @ weight) * predicted).sum(1) / n
            scores[name] = 1 - observed / expected
    if needs("mcc"):
        covariance = hits.sum(1) * n - (support * predicted).sum(1)
        spread = (n**2 - (support**2).sum(1)) * (n**2 - (predicted**2).sum(1))
        scores["mcc"] = np.where(n > 0, np.where(spread > 0, covariance / np.sqrt(spread), 0.0), np.nan)
    return scores


def _class_auroc(tally: Tally) -> Floats:
    support = tally.confusion.sum(2)
    others = support.sum(1, keepdims=True) - support
    off_diagonal = 1.0 - np.eye(support.shape[1])
    with np.errstate(divide="ignore", invalid="ignore"):
        return (tally.concordance * off_diagonal).sum(2) / (support * others)


def _ranking_metrics(tally: Tally) -> dict[str, Floats]:
    support = tally.confusion.sum(2)
    n, c = support.sum(1), support.shape[1]
    auroc, auprc = _class_auroc(tally), tally.average_precision
    if c == 2:
        areas = ("macro_auroc_ovr", "weighted_auroc_ovr", "micro_auroc_ovr", "macro_auroc_ovo")
        scores = dict.fromkeys((*areas, "weighted_auroc_ovo"), auroc[:, 1])
        return scores | {f"{kind}_auprc": auprc[:, 1] for kind in ("macro", "weighted", "micro")}
    present = support > 0
    first, second = np.triu_indices(c, 1)
    area = tally.concordance / (support[:, :, None] * support[:, None, :])
    pair = (area[:, first, second] + area[:, second, first]) / 2
    both = present[:, first] & present[:, second]
    pair = np.where(both, pair, 0.0)
    pair_images = np.where(both, support[:, first] + support[:, second], 0.0)
    return {
        "macro_auroc_ovr": auroc.mean(1),
        "weighted_auroc_ovr": np.where(present, auroc * support, 0.0).sum(1) / n,
        "micro_auroc_ovr": tally.micro_auroc,
        "macro_auroc_ovo": pair.sum(1) / both.sum(1),
        "weighted_auroc_ovo": (pair * pair_images).sum(1) / pair_images.sum(1),
        "macro_auprc": auprc.mean(1),
        "weighted_auprc": np.where(present, auprc * support, 0.0).sum(1) / n,
        "micro_auprc": tally.micro_auprc,
    }


def _calibration_metrics(tally: Tally) -> dict[str, Floats]:
    images, confidence, correct = np.moveaxis(tally.calibration, 2, 0)
    n = images.sum(1)
    gap = np.abs(confidence - correct)
    return {
        "log_loss": tally.log_loss,
        "brier": tally.squared_error / 2 if tally.confusion.shape[1] == 2 else tally.squared_error,
        "ece": gap.sum(1) / n,
        "mce": np.where(n > 0, np.where(images > 0, gap / images, 0.0).max(1), np.nan),
    }
