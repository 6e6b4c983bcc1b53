"""The tools of one episode: what may be asked when, what was asked, and the recorded answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from histobench.consult.case import Case, ToolView
from histobench.consult.cassette import Cassette
from histobench.consult.study import StudyFacts
from histobench.mint.messages.images import load_image
from histobench.mint.tools.base import IllustratedText, Tool, ToolArgumentError

#: Calls of tools in an episode.
MOST_CALLS = 6
SPENT = f"No calls are left: all {MOST_CALLS} have been made. Give your answer."


@dataclass
class Desk:
    """Where an agent asks. `opened` is whether the encoder tools are open."""

    case: Case
    arm: str
    facts: StudyFacts
    cassette: Cassette
    opened: bool = False
    calls: list[str] = field(default_factory=list)

    @property
    def view(self) -> ToolView | None:
        """The arm's encoder for this case; None where there is none."""
        return self.case.arms.get(self.arm)

    def own(self, tool: str, **arguments: Any) -> str:
        """An answer that is the same in every arm."""
        image = "" if tool == "typical" else self.case.id
        return self._counted(tool) or self.cassette.answer(tool, arguments, image=image)

    def encoder(self, tool: str, **arguments: Any) -> str:
        """An answer of the arm's encoder."""
        assert self.view is not None
        return self._counted(tool) or self.cassette.answer(
            tool, arguments, image=self.case.id, encoder=self.view.encoder, arm=self.arm
        )

    def look(self, picture: Path, box: list[float]) -> str:
        """A crop of the picture, at full resolution."""
        return self._counted("look") or _crop(picture, box)

    def _counted(self, tool: str) -> str:
        if len(self.calls) >= MOST_CALLS:
            return SPENT
        self.calls.append(tool)
        return ""


class CaseTool(Tool):
    """A tool that asks at a desk."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk


class EncoderTool(CaseTool):
    """Open once the first answer is given."""

    def is_open(self) -> bool:
        """Whether the encoder is there by now."""
        return self.desk.opened and self.desk.view is not None


class Measure(CaseTool):
    """Classical image analysis of the region."""

    name = "measure"
    signature = "measure() -> str"
    description = "Classical image analysis of the region: stains, share of tissue, nuclei, texture."

    def __call__(self) -> str:
        return self.desk.own("measure")


class Typical(CaseTool):
    """The same numbers over training regions of a class."""

    name = "typical"
    signature = "typical(label: str) -> str"
    description = "Mean, sd and 5-95 % of each measurement over training regions of a diagnosis."

    def __call__(self, label: str) -> str:
        if label not in self.desk.case.options:
            raise ToolArgumentError(f"{label!r} is no option; known: {', '.join(self.desk.case.options)}")
        return self.desk.own("typical", label=label)


class Predict(EncoderTool):
    """The encoder's classifier."""

    name = "predict"
    signature = "predict(n: int = 3) -> str"
    description = "The n most probable diagnoses by a classifier on the image encoder, with probabilities."

    def __call__(self, n: int = 3) -> str:
        return self.desk.encoder("predict", n=min(_positive("n", n), len(self.desk.facts.classes)))


class Neighbours(EncoderTool):
    """The encoder's nearest training regions."""

    name = "neighbours"
    signature = "neighbours(k: int = 5) -> str"
    description = "The k training regions that the image encoder finds most similar, with their diagnoses."

    def __call__(self, k: int = 5) -> str:
        return self.desk.encoder("neighbours", k=min(_positive("k", k), self.desk.facts.most_neighbours))


class ZeroShot(EncoderTool):
    """The encoder's text tower."""

    name = "zero_shot"
    signature = "zero_shot() -> str"
    description = "Scores of the diagnoses by comparing the region with their descriptions, without training."

    def is_open(self) -> bool:
        """Whether this encoder reads text."""
        return super().is_open() and self.desk.view is not None and self.desk.view.zero_shot

    def __call__(self) -> str:
        return self.desk.encoder("zero_shot")


class TrackRecord(EncoderTool):
    """How good the classifier was elsewhere."""

    name = "track_record"
    signature = "track_record() -> str"
    description = "How often the classifier was right on validation regions when it said what it says here."

    def is_open(self) -> bool:
        """Only where it is disclosed."""
        return super().is_open() and self.desk.arm == "disclosed"

    def __call__(self) -> str:
        return self.desk.encoder("track_record")


class Look(CaseTool):
    """A closer look, where agents see pictures."""

    name = "look"
    signature = "look(box: list[float]) -> str"
    description = "Shows the part [left, top, right, bottom] of the region, as shares of its sides (0 to 1)."

    def __init__(self, desk: Desk, picture: Path) -> None:
        super().__init__(desk)
        self._picture = picture

    def __call__(self, box: list[float]) -> str:
        return self.desk.look(self._picture, box)


def desk_tools(desk: Desk, picture: Path | None = None) -> list[Tool]:
    """All tools that may be open in some arm, in the order of the prompt."""
    look: list[Tool] = [Look(desk, picture)] if picture is not None else []
    return [
        Measure(desk),
        Typical(desk),
        *look,
        Predict(desk),
        Neighbours(desk),
        ZeroShot(desk),
        TrackRecord(desk),
    ]


def _positive(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ToolArgumentError(f"{name} must be a whole number of at least 1, not {value!r}")
    return value


def _crop(picture: Path, box: list[float]) -> str:
    import io

    from histobench.roi.data.image import open_rgb
    from histobench.roi.data.image_ref import locate

    try:
        left, top, right, bottom = (float(side) for side in box)
    except (TypeError, ValueError):
        raise ToolArgumentError(f"box must be [left, top, right, bottom], not {box!r}") from None
    if not (0 <= left < right <= 1 and 0 <= top < bottom <= 1):
        raise ToolArgumentError("box must be shares with 0 <= left < right <= 1 and 0 <= top < bottom <= 1")
    whole = open_rgb(locate(picture).read(), name=picture.name)
    width, height = whole.size
    edges = (int(left * width), int(top * height), -int(-right * width // 1), -int(-bottom * height // 1))
    part = whole.crop(edges)
    buffer = io.BytesIO()
    part.save(buffer, "PNG")
    return IllustratedText(f"a crop of {part.width} x {part.height} pixels", [load_image(buffer.getvalue())])
