"""The tools of Consult on a folder of one's own, for any assistant that speaks the Model Context Protocol.

A tool that is called before the features are there waits and reports the progress.
"""

from __future__ import annotations

import hashlib
import io
import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import anyio
import numpy as np
from mcp.server.mcpserver import Context, Image, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations
from numpy.typing import NDArray

from histobench.consult.encoder_views import EncoderView, Gallery, Regions, view_encoders
from histobench.consult.measurements import measure, measurement_text
from histobench.consult.study_plan import StudyPlan
from histobench.consult.tool_text import Neighbour, neighbours_text, prediction_text
from histobench.core.errors import HistobenchError, did_you_mean
from histobench.core.progress import Progress
from histobench.core.version import __version__
from histobench.roi.data.roi_dataset import RoiDataset
from histobench.roi.encoders.own_name import label_of

log = logging.getLogger(__name__)

MOST_LISTED = 200
MOST_AT_ONCE = 50
MOST_NEIGHBOURS = 20
#: Longest sides of pictures, in pixels.
SIDE, MOST_SIDE = 512, 2048
PAUSE = 0.5
INSTRUCTIONS = (
    "Image encoders for pathology on a folder of labeled tissue regions. Call list_regions first; the other "
    "tools take a region by its id in that list and an encoder by its name. The first call may take long: "
    "features are computed once. Answers come from linear probes on frozen encoders and are not diagnoses."
)


@dataclass(frozen=True)
class Bench:
    """What encoders say of the test regions of a dataset; a region is asked for by its id in the list.

    Encoders are called A, B, ... unless they are `disclosed`: then by name, with their test accuracy.
    Ids are made from the picture's content: they tell neither its class nor its file, and nothing outside of
    the list can be asked for.
    """

    classes: tuple[str, ...]
    regions: dict[str, Regions]
    views: dict[str, EncoderView]
    disclosed: bool = False

    @cached_property
    def ids(self) -> dict[str, int]:
        test = self.regions["test"]
        found = {region_id(test.images[row]): int(row) for row in test.first_of_each_picture()}
        return dict(sorted(found.items()))

    @cached_property
    def _galleries(self) -> dict[str, Gallery]:
        return {name: view.gallery(self.regions, self.classes) for name, view in self.views.items()}

    def listed(self, first: int = 0, count: int = 50) -> str:
        ids = list(self.ids)
        some = ids[max(first, 0) : max(first, 0) + min(max(count, 1), MOST_LISTED)]
        encoders = list(self.views)
        if self.disclosed:
            accuracy = {name: 100 * view.facts.probe_accuracy for name, view in self.views.items()}
            encoders = [f"{name} (probe {value:.1f}% of test regions)" for name, value in accuracy.items()]
        head = [f"encoders: {', '.join(encoders)}", f"classes: {', '.join(self.classes)}"]
        return "\n".join([*head, f"{len(ids)} regions, from {max(first, 0)}:", *some])

    def predict(self, regions: Sequence[str], encoder: str = "", n: int = 3) -> str:
        if not 1 <= len(regions) <= MOST_AT_ONCE:
            raise HistobenchError(f"give 1 to {MOST_AT_ONCE} regions at once, not {len(regions)}")
        views = {encoder: self._view(encoder)} if encoder else self.views
        return "\n".join(
            f"{region}: "
            + "; ".join(f"{name} {self._said(view.test[row], n)}" for name, view in views.items())
            for region, row in zip(regions, [self._row(region) for region in regions], strict=True)
        )

    def neighbours(self, region: str, encoder: str, k: int = 5) -> str:
        self._view(encoder)
        row, test = self._row(region), self.regions["test"]
        (near,) = self._galleries[encoder].nearest(
            self.views[encoder].features["test"][[row]],
            k=min(max(k, 1), MOST_NEIGHBOURS),
            barred=[test.origin(row)],
        )
        shown = [Neighbour(each.label, region_id(each.image), each.cosine) for each in near]
        return neighbours_text(shown, self._galleries[encoder].percentile(near))

    def picture(self, region: str, side: int = SIDE) -> tuple[bytes, str]:
        from PIL import Image as Pillow

        if not 32 <= side <= MOST_SIDE:
            raise HistobenchError(f"side must be from 32 to {MOST_SIDE} pixels, not {side}")
        picture = Pillow.fromarray(self.regions["test"].pixels(self._row(region)))
        (width, height), buffer = picture.size, io.BytesIO()
        picture.thumbnail((side, side))
        picture.save(buffer, "PNG")
        size = f"{picture.width} x {picture.height} pixels"
        whole = "its full size" if picture.size == (width, height) else f"reduced from {width} x {height}"
        return buffer.getvalue(), f"{region}: {size}, {whole}"

    def zero_shot(self, region: str, encoder: str) -> str:
        scores = self._view(encoder).zero_shot
        # Which encoders have a text tower would identify them.
        all_have = all(view.zero_shot is not None for view in self.views.values())
        if scores is None or not (all_have or self.disclosed):
            raise HistobenchError(
                "zero_shot is not available: it needs `prompts`, and a text tower in every encoder"
            )
        return self._said(scores[self._row(region)], len(self.classes))

    def measure(self, region: str) -> str:
        return measurement_text(measure(self.regions["test"].pixels(self._row(region))))

    def _said(self, scores: NDArray[np.float64], n: int) -> str:
        order = np.argsort(-scores, kind="stable").astype(np.int64)
        return prediction_text(order[: max(n, 1)], scores, self.classes)

    def _row(self, region: str) -> int:
        if region not in self.ids:
            raise HistobenchError(f"no region {region!r} in the list; {did_you_mean(region, self.ids)}")
        return self.ids[region]

    def _view(self, encoder: str) -> EncoderView:
        if encoder not in self.views:
            raise HistobenchError(f"no encoder {encoder!r}; {did_you_mean(encoder, self.views)}")
        return self.views[encoder]


def region_id(image: str) -> str:
    return f"r-{hashlib.sha256(image.encode()).hexdigest()[:10]}"


class OpeningBench(Progress):
    """Makes a bench in a thread of its own, and knows how far it is; `make` gets the display to report to."""

    def __init__(self, make: Callable[[Progress], Bench], *, disclosed: bool = False) -> None:
        self.done, self.total, self.doing = 0, 0, "reading the dataset"
        self._make, self._disclosed = make, disclosed
        self._made: Future[Bench] = Future()

    def start(self) -> OpeningBench:
        threading.Thread(target=self._open, name="features", daemon=True).start()
        return self

    def wait(self, seconds: float | None = None) -> Bench | None:
        try:
            return self._made.result(seconds)
        except TimeoutError:
            return None

    def begin(self, what: str, total: int) -> None:
        self.done, self.total, self.doing = 0, total, "computing features"

    def advance(self, count: int) -> None:
        self.done += count

    def end(self) -> None:
        self.doing = "fitting probes"

    def _open(self) -> None:
        try:
            self._made.set_result(self._make(self))
        except BaseException as error:  # the tool that waits reports it
            log.error("%s", error)
            unnamed = HistobenchError("the encoders cannot be used; the terminal of the server says why")
            self._made.set_exception(error if self._disclosed else unnamed)


def shown_names(names: Sequence[str], *, disclosed: bool, seed: int = 0) -> dict[str, str]:
    """Return what the assistant calls each encoder: its own name, or a letter that the seed deals."""
    if disclosed:
        return {name: label_of(name) for name in names}
    order = np.random.default_rng(seed).permutation(len(names))
    dealt = {names[place]: chr(ord("A") + letter) for letter, place in enumerate(order)}
    return dict(sorted(dealt.items(), key=lambda item: item[1]))


def open_bench(
    dataset: RoiDataset,
    plan: StudyPlan,
    features: Path,
    progress: Progress | None = None,
    *,
    disclosed: bool = False,
) -> Bench:
    names = shown_names(plan.encoders, disclosed=disclosed, seed=plan.seed)
    roles = {shown: name for name, shown in names.items()}
    regions, views = view_encoders(dataset, roles, plan, features, progress=progress)
    return Bench(tuple(dataset.classes), regions, views, disclosed)


def make_server(opening: OpeningBench) -> MCPServer[Any]:
    server: MCPServer[Any] = MCPServer(
        "histobench", instructions=INSTRUCTIONS, version=__version__, log_level="WARNING"
    )
    reads = ToolAnnotations(read_only_hint=True, open_world_hint=False)

    async def ask(context: Context[Any, Any], question: Callable[[Bench], Any]) -> Any:
        try:
            reported = -1.0
            while (bench := opening.wait(0)) is None:
                done = opening.done + 0.0
                if done > reported:  # progress must increase
                    await context.report_progress(done, opening.total or None, opening.doing)
                    reported = done
                await anyio.sleep(PAUSE)
            return await anyio.to_thread.run_sync(question, bench)
        except HistobenchError as error:
            raise ToolError(str(error)) from error

    @server.tool(annotations=reads)
    async def list_regions(ctx: Context[Any, Any], first: int = 0, count: int = 50) -> str:
        """The encoders, the classes, and the ids of regions that can be asked about."""
        return str(await ask(ctx, lambda bench: bench.listed(first, count)))

    @server.tool(annotations=reads)
    async def predict(ctx: Context[Any, Any], regions: list[str], encoder: str = "", n: int = 3) -> str:
        """The n most probable classes of up to 50 regions by a linear probe on each encoder, or on one."""
        return str(await ask(ctx, lambda bench: bench.predict(regions, encoder, n)))

    @server.tool(annotations=reads)
    async def neighbours(ctx: Context[Any, Any], region: str, encoder: str, k: int = 5) -> str:
        """The labels of the k training regions that an encoder finds most similar."""
        return str(await ask(ctx, lambda bench: bench.neighbours(region, encoder, k)))

    @server.tool(annotations=reads, structured_output=False)
    async def region_image(ctx: Context[Any, Any], region: str, side: int = SIDE) -> list[Any]:
        """The region itself as a picture with at most `side` pixels on a side (32 to 2048), and its size."""
        data, size = await ask(ctx, lambda bench: bench.picture(region, side))
        return [size, Image(data=data, format="png")]

    @server.tool(annotations=reads)
    async def zero_shot(ctx: Context[Any, Any], region: str, encoder: str) -> str:
        """Scores of the classes by comparing a region with their descriptions; image-text encoders only."""
        return str(await ask(ctx, lambda bench: bench.zero_shot(region, encoder)))

    @server.tool(annotations=reads)
    async def measure(ctx: Context[Any, Any], region: str) -> str:
        """Classical image analysis of a region: stains, share of tissue, nuclei, texture."""
        return str(await ask(ctx, lambda bench: bench.measure(region)))

    return server
