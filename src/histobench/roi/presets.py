"""The named recipes; numbers compare only under the same one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from histobench.core.errors import HistobenchError, did_you_mean
from histobench.roi.metrics.metric_catalogue import metrics_of_target
from histobench.roi.task_catalogue import (
    LINEAR_PROBE,
    MULTILABEL,
    ONCE,
    PATIENT,
    SURVIVAL,
    TARGETS,
    TASKS,
    ZERO_SHOT,
)


@dataclass(frozen=True)
class Preset:
    """A published recipe. What it says nothing about follows `uni`.

    `validation`: what is done without a validation set, on which hyper-parameters are chosen otherwise.
    """

    description: str
    probe: Literal["un-squared", "squared", "nine-heads", "early-stopped", "fixed-cost"] = "un-squared"
    knn: Literal["fixed-k", "k-by-validation"] = "fixed-k"
    few_shot: Literal["episodes", "voted"] = "episodes"
    validation: Literal["joined", "cross-validated", "held-out", "unused"] = "joined"
    targets: Literal["chosen penalty", "elastic-net", "pca-ridge"] = "chosen penalty"
    left_out: tuple[str, ...] = ()  # tasks that are not run

    @property
    def chooses(self) -> bool:
        """Whether hyper-parameters are chosen."""
        return self.validation not in ("joined", "unused")


PRESETS = {
    "uni": Preset(
        "L-BFGS probe with an un-squared penalty, KNN 20, prototypes, episodes; what most papers print"
    ),
    "sklearn": Preset(
        "as uni, but the probe has a squared penalty with C chosen on held-out images",
        probe="squared",
        validation="cross-validated",
        left_out=ONCE,
    ),
    "thunder": Preset(
        "nine heads, k on validation, voted SimpleShot over 1,000 support sets",
        probe="nine-heads",
        knn="k-by-validation",
        few_shot="voted",
        validation="held-out",
        left_out=ONCE,
    ),
    "eva": Preset(
        "a linear head with AdamW, early stopping, mean of five runs",
        probe="early-stopped",
        validation="held-out",
        left_out=tuple(
            task for task in TASKS if task not in (LINEAR_PROBE, ZERO_SHOT, PATIENT, TARGETS[MULTILABEL].task)
        ),
    ),
    "patho-bench": Preset(
        "logistic regression and Cox model of Patho-Bench, with fixed penalties",
        probe="fixed-cost",
        validation="unused",
        targets="elastic-net",
        left_out=tuple(task for task in TASKS if task not in (LINEAR_PROBE, TARGETS[SURVIVAL].task)),
    ),
    "hest": Preset(
        "PCA to 256 dimensions and ridge regression of HEST-Benchmark",
        validation="unused",
        targets="pca-ridge",
        left_out=tuple(task for task in TASKS if task != TARGETS["regression"].task),
    ),
}


def get_preset(name: str) -> Preset:
    if not isinstance(name, str) or name not in PRESETS:
        raise HistobenchError(f"unknown preset {name!r}; {did_you_mean(str(name), PRESETS)}")
    return PRESETS[name]


def target_metrics(target: str, preset: str) -> tuple[str, ...]:
    """The metrics of a target that is not a class, the main one first.

    HEST-Benchmark predicts without an intercept, so that its R2 says nothing.
    """
    first = ("pearson",) if preset == "hest" else ()
    return tuple(dict.fromkeys((*first, *metrics_of_target(target))))


#: How hyper-parameters are chosen where there is no validation set: option -> what it is
CHOICES = {
    "group": "whole patients or slides are held out, where the data names them",
    "image": "single images are held out, as in the published recipes",
}
