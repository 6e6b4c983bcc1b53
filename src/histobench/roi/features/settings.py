"""How features are computed; what they are is up to the encoder and the images."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from histobench.roi.encoders.base import BasePatchEncoder


@dataclass(frozen=True)
class EncoderRecipe:
    """An encoder by name, so that another process can make the same one."""

    name: str
    resize_size: int | None = None
    weights: str | None = None
    #: Take what the hub's cache has, where that is another revision than the pinned one.
    allow_revision: bool = False

    def __post_init__(self) -> None:
        from histobench.roi.encoders.registry import zoo_name

        object.__setattr__(self, "name", zoo_name(self.name))

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
        from histobench.roi.encoders.registry import create_encoder

        return create_encoder(self.name, **self._given())

    def stand_in(self) -> BasePatchEncoder | None:
        """Return the encoder without its network, where the zoo says all that names its features."""
        from histobench.roi.encoders.registry import encoder_stand_in

        return encoder_stand_in(self.name, **self._given())

    def zoo_identity(self) -> list[str] | None:
        """Return the entry of the zoo and the hash of its weights; None for other encoders."""
        from histobench.roi.encoders.registry import zoo_identity

        return zoo_identity(self.name, **self._given())

    def _given(self) -> dict[str, Any]:
        weights = str(Path(self.weights).expanduser()) if self.weights else None
        return {"resize_size": self.resize_size, "weights": weights, "allow_revision": self.allow_revision}
