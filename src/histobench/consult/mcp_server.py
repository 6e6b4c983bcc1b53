"""The tools of Consult over the Model Context Protocol, for any assistant; read-only."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from histobench import __version__
from histobench.consult.encoder_views import EncoderView, Gallery, Regions, StudyPlan, view_encoders
from histobench.consult.measurements import measure, measurement_text
from histobench.consult.tool_text import Neighbour, neighbours_text, prediction_text
from histobench.core.errors import HistobenchError, did_you_mean
from histobench.roi.data.dataset import RoiDataset

if TYPE_CHECKING:
    from mcp.server.mcpserver import MCPServer


MOST_LISTED = 200
MOST_NEIGHBOURS = 20
THUMBNAIL = 224


@dataclass(frozen=True)
class Bench:
    """What encoders say of the test regions of a dataset; a region is asked for by its name in the list.

    Names are looked up in that list and never opened as paths: nothing outside of it can be asked for.
    """

    classes: tuple[str, ...]
    regions: dict[str, Regions]
    views: dict[str, EncoderView]
    root: Path

    @cached_property
    def names(self) -> dict[str, int]:
        """Region -> row of the test split; paths below the folder, in the order of the dataset."""
        return {_below(path, self.root): row for row, path in enumerate(self.regions["test"].paths)}

    @cached_property
    def _galleries(self) -> dict[str, Gallery]:
        train = self.regions["train"]
        return {name: view.gallery(train, self.classes) for name, view in self.views.items()}

    def listed(self, first: int = 0, count: int = 50) -> str:
        """Encoders, classes and some of the regions."""
        names = list(self.names)
        some = names[max(first, 0) : max(first, 0) + min(max(count, 1), MOST_LISTED)]
        encoders = ", ".join(
            f"{name} (probe {100 * view.facts.probe_accuracy:.1f} % of test regions)"
            for name, view in self.views.items()
        )
        head = [f"encoders: {encoders}", f"classes: {', '.join(self.classes)}"]
        return "\n".join([*head, f"{len(names)} regions, from {max(first, 0)}:", *some])

    def predict(self, region: str, encoder: str, n: int = 3) -> str:
        """The n most probable classes by the encoder's linear probe, calibrated on validation regions."""
        scores = self._view(encoder).test[self._row(region)]
        return prediction_text(_order(scores)[: max(n, 1)], scores, self.classes)

    def neighbours(self, region: str, encoder: str, k: int = 5) -> str:
        """The k most similar training regions, never of the region's own group or the same picture."""
        return neighbours_text(self._near(region, encoder, k))

    def thumbnails(self, region: str, encoder: str, k: int = 5) -> list[bytes]:
        """The pictures of those neighbours as PNG files."""
        from PIL import Image

        train = self.regions["train"]
        rows = {image: row for row, image in reversed(list(enumerate(train.images)))}
        files = []
        for neighbour in self._near(region, encoder, k):
            picture = Image.fromarray(train.pixels(rows[neighbour.image]))
            picture.thumbnail((THUMBNAIL, THUMBNAIL))
            buffer = io.BytesIO()
            picture.save(buffer, "PNG")
            files.append(buffer.getvalue())
        return files

    def zero_shot(self, region: str, encoder: str) -> str:
        """Scores of the classes by the encoder's text tower."""
        scores = self._view(encoder).zero_shot
        if scores is None:
            raise HistobenchError(f"{encoder} has no text tower, or the server was started without `prompts`")
        row = scores[self._row(region)]
        return prediction_text(_order(row), row, self.classes)

    def measure(self, region: str) -> str:
        """Classical image analysis of the region."""
        return measurement_text(measure(self.regions["test"].pixels(self._row(region))))

    def compare(self, region: str) -> str:
        """What every encoder says of a region, a line for each."""
        return "\n".join(f"{name}: {self.predict(region, name)}" for name in self.views)

    def _near(self, region: str, encoder: str, k: int) -> list[Neighbour]:
        self._view(encoder)
        row, test = self._row(region), self.regions["test"]
        return self._galleries[encoder].nearest(
            self.views[encoder].test_features[row],
            k=min(max(k, 1), MOST_NEIGHBOURS),
            barred_images={test.images[row]},
            barred_groups={test.groups[row]} if test.groups[row] else set(),
        )

    def _row(self, region: str) -> int:
        if region not in self.names:
            raise HistobenchError(f"no region {region!r} in the list; {did_you_mean(region, self.names)}")
        return self.names[region]

    def _view(self, encoder: str) -> EncoderView:
        if encoder not in self.views:
            raise HistobenchError(f"no encoder {encoder!r}; {did_you_mean(encoder, self.views)}")
        return self.views[encoder]


def open_bench(dataset: RoiDataset, plan: StudyPlan, root: Path, features: Path) -> Bench:
    """Extract (or take from the cache) the features of every encoder and fit its probe."""
    regions, views = view_encoders(dataset, {name: name for name in plan.encoders}, plan, features)
    return Bench(tuple(dataset.classes), regions, {view.facts.name: view for view in views.values()}, root)


def _below(path: Path, root: Path) -> str:
    try:
        return path.resolve().relative_to(root.resolve()).as_posix()
    except ValueError:
        return path.name


def _order(scores: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.argsort(-scores, kind="stable").astype(np.int64)


INSTRUCTIONS = (
    "Image encoders for pathology on a folder of labelled tissue regions. Call list_regions first; the other "
    "tools take a region by its name in that list and an encoder by its name. Answers are those of linear "
    "probes on frozen encoders and are no diagnosis."
)


def make_server(bench: Bench) -> MCPServer[Any]:
    """A server whose tools only read."""
    try:
        from mcp.server.mcpserver import Image, MCPServer
        from mcp.server.mcpserver.exceptions import ToolError
        from mcp.types import ToolAnnotations
    except ImportError as error:
        raise HistobenchError(
            "the server needs the mcp package, version 2: pip install histobench[mcp]"
        ) from error

    server: MCPServer[Any] = MCPServer(
        "histobench", instructions=INSTRUCTIONS, version=__version__, log_level="WARNING"
    )
    reads = ToolAnnotations(read_only_hint=True, open_world_hint=False)

    def answer(make: Callable[[], Any]) -> Any:
        try:
            return make()
        except HistobenchError as error:
            raise ToolError(str(error)) from error

    @server.tool(annotations=reads)
    def list_regions(first: int = 0, count: int = 50) -> str:
        """The encoders, the classes, and the names of regions that can be asked about."""
        return str(answer(lambda: bench.listed(first, count)))

    @server.tool(annotations=reads)
    def predict(region: str, encoder: str, n: int = 3) -> str:
        """The n most probable classes of a region by a linear probe on an encoder, with probabilities."""
        return str(answer(lambda: bench.predict(region, encoder, n)))

    @server.tool(annotations=reads, structured_output=False)
    def neighbours(region: str, encoder: str, k: int = 5, thumbnails: bool = False) -> list[Any]:
        """The k training regions that an encoder finds most similar: labels and, if asked, small pictures."""
        said: list[Any] = [answer(lambda: bench.neighbours(region, encoder, k))]
        if thumbnails:
            said += [Image(data=data, format="png") for data in bench.thumbnails(region, encoder, k)]
        return said

    @server.tool(annotations=reads)
    def zero_shot(region: str, encoder: str) -> str:
        """Scores of the classes by comparing a region with their descriptions; image-text encoders only."""
        return str(answer(lambda: bench.zero_shot(region, encoder)))

    @server.tool(annotations=reads)
    def measure(region: str) -> str:
        """Classical image analysis of a region: stains, share of tissue, nuclei, texture."""
        return str(answer(lambda: bench.measure(region)))

    @server.tool(annotations=reads)
    def compare(region: str) -> str:
        """What every encoder says of a region."""
        return str(answer(lambda: bench.compare(region)))

    return server
