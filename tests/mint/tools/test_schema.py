"""Tools as functions of a provider: schemas from signatures, and what is wrong with a call."""

from __future__ import annotations

from typing import Any

import pytest

from histobench.mint.tools.alfworld import household_tools
from histobench.mint.tools.base import Tool
from histobench.mint.tools.tool_schema import complaint, tool_spec
from histobench.mint.tools.wikipedia_search import WikipediaQueryRun

SIGNATURE = (
    "crop(name: str, box: list[int], scale: float = 1.0, mode: Literal['rgb', 'grey'] = 'rgb', "
    "limit: int | None = None, flags: Optional[list[str]] = None, deep: bool = False, anything=3) -> str"
)


class Crop(Tool):
    name = "crop"
    signature = SIGNATURE
    description = "Cuts."

    def __call__(self, *args: Any, **kwargs: Any) -> str:
        return ""


class Prose(Tool):
    name = "prose"
    signature = "just call it with a query"
    description = "Prose."

    def __call__(self, query: str, n: int = 2) -> str:
        return query * n


def test_a_signature_becomes_a_schema() -> None:
    parameters = tool_spec(Crop()).parameters
    assert parameters["required"] == ["name", "box"]
    assert parameters["properties"] == {
        "name": {"type": "string"},
        "box": {"type": "array", "items": {"type": "integer"}},
        "scale": {"type": "number", "default": 1.0},
        "mode": {"enum": ["rgb", "grey"], "default": "rgb"},
        "limit": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None},
        "flags": {
            "anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}],
            "default": None,
        },
        "deep": {"type": "boolean", "default": False},
        "anything": {"default": 3},
    }


def test_a_signature_in_prose_gives_way_to_that_of_the_call() -> None:
    parameters = tool_spec(Prose()).parameters
    assert parameters["properties"]["query"] == {"type": "string"}
    assert parameters["required"] == ["query"]


@pytest.mark.slow
def test_every_tool_of_the_benchmark_has_a_schema_that_json_schema_accepts() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    tools = [WikipediaQueryRun(), Crop(), Prose(), *household_tools(None)]  # type: ignore[arg-type]
    for tool in tools:
        jsonschema.Draft202012Validator.check_schema(tool_spec(tool).parameters)


VALUES: tuple[Any, ...] = ("a", "rgb", 3, 3.5, True, None, [1, 2], [1, "b"], ["b"], {}, [True])


@pytest.mark.parametrize("argument", ["name", "box", "scale", "mode", "limit", "flags", "deep", "anything"])
def test_complaints_agree_with_a_json_schema_validator(argument: str) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    spec = tool_spec(Crop())
    validator = jsonschema.Draft202012Validator(spec.parameters)
    for value in VALUES:
        arguments = {"name": "a", "box": [1], argument: value}
        if isinstance(value, float) and argument in ("box", "limit"):
            continue
        assert (complaint(spec, arguments) is None) == validator.is_valid(arguments), (argument, value)
