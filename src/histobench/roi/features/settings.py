"""How features are computed; what they are is up to the encoder and the images."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from histobench.core.parameters import InvalidParameterError, flag, one_of, text, whole_number

if TYPE_CHECKING:
    from histobench.roi.encoders.base import BasePatchEncoder


@dataclass(frozen=True)
class Settings:
    """Everything that may change the speed, and at most the last bits of the features."""

    device: str | None = None
    batch_size: int | str = 256
    num_workers: int = 8
    precision: str = "auto"
    compile: str = "auto"
    on_bad_image: str = "stop"
    #: Cached images that are computed again and compared before the others are used; `auto`: enough of them.
    recheck: int | str = "auto"
    #: Neither use cached features nor keep any.
    no_cache: bool = False
    #: Copy images to this machine's own disk before they are decoded: `local`, or a folder by its full path.
    stage: str | None = None

    def __post_init__(self) -> None:
        for name, known in (
            ("precision", ("auto", "fp32", "bf16", "fp16")),
            ("compile", ("auto", "on", "off")),
            ("on_bad_image", ("stop", "skip")),
        ):
            one_of(getattr(self, name), f"`{name}`", known)
        if self.device is not None:
            text(self.device, "`device`")
        checked = {"num_workers": whole_number(self.num_workers, "`num_workers`", least=0)}
        for name, least in (("batch_size", 1), ("recheck", 0)):
            value = getattr(self, name)
            if value != "auto":
                try:
                    checked[name] = whole_number(value, f"`{name}`", least=least)
                except InvalidParameterError:
                    raise InvalidParameterError(
                        f"`{name}` must be 'auto' or a whole number from {least} up, not {value!r}"
                    ) from None
        flag(self.no_cache, "`no_cache`")
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        if self.stage not in (None, "local") and not os.path.isabs(
            os.path.expanduser(text(self.stage, "`stage`"))
        ):
            raise InvalidParameterError(
                f"`stage` must be 'local', or a folder of every node by its full path, not {self.stage!r}"
            )

    def is_exact(self, precision: str) -> bool:
        """Whether nothing may touch the arithmetic: plain fp32, bit for bit the same in every run."""
        return precision == "fp32" and self.compile == "off"

    @property
    def devices(self) -> tuple[str | None, ...]:
        """The devices of a list such as `cuda:0,cuda:1`."""
        names = tuple(name.strip() for name in (self.device or "").split(",") if name.strip())
        return names or (None,)


@dataclass(frozen=True)
class EncoderRecipe:
    """An encoder by name, so that another process can make the same one."""

    name: str
    resize_size: int | None = None
    weights: str | None = None
    #: Take what the hub's cache has, where that is another revision than the pinned one.
    allow_revision: bool = False

    def unresolved(self, *, download: bool = True) -> str:
        """Why the encoder cannot be made: its name, file, packages, weights; empty if nothing is missing."""
        from histobench.roi.encoders.registry import why_unresolved

        return why_unresolved(
            self.name,
            resize_size=self.resize_size,
            weights=self.weights,
            allow_revision=self.allow_revision,
            download=download,
        )

    def build(self) -> BasePatchEncoder:
        """The encoder itself."""
        from histobench.roi.encoders.registry import create_encoder

        weights = str(Path(self.weights).expanduser()) if self.weights else None
        return create_encoder(
            self.name,
            resize_size=self.resize_size,
            weights=weights,
            allow_revision=self.allow_revision,
        )
