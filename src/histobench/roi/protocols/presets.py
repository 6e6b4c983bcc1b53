"""The named recipes; numbers compare only under the same one."""

from __future__ import annotations

from histobench.core.errors import HistobenchError, did_you_mean

#: preset -> what it is
PRESETS = {
    "uni": "L-BFGS probe with an un-squared penalty, KNN 20, prototypes, episodes; what most papers print",
    "sklearn": "as uni, but the probe has a squared penalty with C chosen on held-out images",
    "thunder": "nine heads, k on validation, voted SimpleShot over 1,000 support sets",
    "eva": "a linear head with AdamW, early stopping, mean of five runs",
}


def check_preset(name: str) -> str:
    """The name, if it is one."""
    if name not in PRESETS:
        raise HistobenchError(f"unknown preset {name!r}; {did_you_mean(name, PRESETS)}")
    return name


#: How hyper-parameters are chosen where there is no validation set: option -> what it is
CHOICES = {
    "group": "whole patients or slides are held out, where the data names them",
    "image": "single images are held out, as in the published recipes",
}


def check_choice(name: str) -> str:
    """The name, if it is one."""
    if name not in CHOICES:
        raise HistobenchError(f"`choose_by` {name!r} is unknown; {did_you_mean(name, CHOICES)}")
    return name
