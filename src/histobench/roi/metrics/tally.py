"""The counts from which every metric follows, for many evaluations (episodes or resamples) at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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


def calibration_bin(confidence: Floats) -> Ints:
    """The bin of each top-label confidence: 15 of equal width, closed at the right (Guo et al. 2017).

    Vote fractions such as 12/20 lie exactly on an edge; the small shift keeps them on the same side of it
    whatever the rounding of the division was.
    """
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
