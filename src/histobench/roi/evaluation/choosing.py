"""What is held out of the training set where hyper-parameters are chosen and there is no validation set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from histobench.roi.features.feature_set import FeatureSet


@dataclass(frozen=True)
class Choosing:
    """Groups that stay together while something is chosen; None: images are held out one by one."""

    groups: tuple[str, ...] | None
    warning: str = ""

    @property
    def chosen_by(self) -> str:
        """The word for it in results files: "group" or "image"."""
        return "image" if self.groups is None else "group"


def choosing(train: FeatureSet, choose_by: str, classes: Sequence[str]) -> Choosing:
    """Whole groups where the data names them, unless `choose_by` is "image" or groups cannot be divided.

    Patients whose images are in both parts make the larger part look right on the smaller one, whatever is
    chosen: the choice would be for the patients at hand and not for those of the test set.
    """
    if choose_by == "image" or not any(train.groups or ()):
        return Choosing(None)
    assert train.groups is not None
    members: dict[int, set[str]] = {}
    for row, (label, group) in enumerate(zip(train.labels.tolist(), train.groups, strict=True)):
        members.setdefault(label, set()).add(f"g{group}" if group else f"i{row}")
    single = [label for label in sorted(members) if len(members[label]) == 1]
    if len(single) == len(members):
        return Choosing(
            None,
            "hyper-parameters were chosen by images: every class has the training images of one group only, "
            "so that no group can be held out",
        )
    if single:
        names = ", ".join(classes[label] for label in single)
        return Choosing(
            train.groups,
            f"{'class' if len(single) == 1 else 'classes'} {names}: the training images come from one group, "
            "which cannot be both trained on and held out; hyper-parameters were chosen without it",
        )
    return Choosing(train.groups)
