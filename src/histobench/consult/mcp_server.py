"""The tools of Consult over the Model Context Protocol, for any assistant; read-only."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from histobench import __version__
from histobench.consult.bench import Bench
from histobench.core.errors import HistobenchError

if TYPE_CHECKING:
    from mcp.server.mcpserver import MCPServer

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
