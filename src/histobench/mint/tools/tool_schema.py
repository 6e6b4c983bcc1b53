"""A tool as a provider's function: its JSON schema, read from the signature that the agent is shown."""

from __future__ import annotations

import ast
import inspect
import reprlib
from collections.abc import Mapping
from typing import Any

from histobench.core.errors import HistobenchError
from histobench.core.text import parse_python
from histobench.mint.messages.parts import ToolSpec
from histobench.mint.tools.base import Tool

_TYPES: dict[str, dict[str, Any]] = {
    "str": {"type": "string"},
    "int": {"type": "integer"},
    "float": {"type": "number"},
    "bool": {"type": "boolean"},
    "list": {"type": "array"},
    "tuple": {"type": "array"},
    "Sequence": {"type": "array"},
    "dict": {"type": "object"},
    "Mapping": {"type": "object"},
    "None": {"type": "null"},
}
_FITS: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}


def tool_spec(tool: Tool) -> ToolSpec:
    """Name, description and parameters of a tool.

    The parameters come from `tool.signature`; one that is no Python (some describe themselves in prose) gives
    way to the signature of `__call__`. A parameter without an annotation takes any value.
    """
    of_call = f"{tool.name}{inspect.signature(tool.__call__)}"
    written = _written_signature(tool.signature) or _written_signature(of_call)
    if written is None:
        raise HistobenchError(f"the tool {tool.name!r} has no signature that a function call could follow")
    return ToolSpec(tool.name, tool.description, _parameters(written))


def complaint(spec: ToolSpec, arguments: Mapping[str, Any] | None) -> str | None:
    """What is wrong with the arguments of a call, in words for the agent; None if nothing is.

    >>> spec = ToolSpec("goto", "", {"properties": {"place": {"type": "string"}}, "required": ["place"]})
    >>> complaint(spec, {"place": "desk 1"}), complaint(spec, {})
    (None, 'the argument place is missing')
    >>> complaint(spec, {"place": 3})
    'the argument place must be string, not 3'
    """
    if arguments is None:
        return "the arguments are not a JSON object"
    properties = spec.parameters.get("properties", {})
    for name in spec.parameters.get("required", ()):
        if name not in arguments:
            return f"the argument {name} is missing"
    for name, value in arguments.items():
        if name not in properties:
            return f"there is no argument {name}; known: {', '.join(properties) or 'none'}"
        if (problem := _misfit(properties[name], value)) is not None:
            return f"the argument {name} must be {problem}, not {reprlib.repr(value)}"
    return None


def _misfit(schema: Mapping[str, Any], value: Any) -> str | None:
    if "anyOf" in schema:
        wanted = [_misfit(choice, value) for choice in schema["anyOf"]]
        return None if None in wanted else " or ".join(filter(None, wanted))
    if "enum" in schema:
        fits = any(value == choice and type(value) is type(choice) for choice in schema["enum"])
        return None if fits else f"one of {schema['enum']}"
    kind = schema.get("type")
    if kind is None:
        return None
    fitting = isinstance(value, _FITS[kind])
    if not fitting or (isinstance(value, bool) and kind in ("integer", "number")):
        return str(kind)
    if kind == "array" and "items" in schema:
        problems = filter(None, (_misfit(schema["items"], item) for item in value))
        return next((f"array of {problem}" for problem in problems), None)
    return None


def _written_signature(text: str) -> ast.arguments | None:
    try:
        function = parse_python(f"def {text}: ...").body[0]
    except (SyntaxError, ValueError):
        return None
    return function.args if isinstance(function, ast.FunctionDef) else None


def _parameters(arguments: ast.arguments) -> dict[str, Any]:
    plain = [*arguments.posonlyargs, *arguments.args]
    defaults: list[ast.expr | None] = [None] * (len(plain) - len(arguments.defaults))
    defaults += [*arguments.defaults, *arguments.kw_defaults]
    properties: dict[str, Any] = {}
    required: list[str] = []
    for argument, default in zip([*plain, *arguments.kwonlyargs], defaults, strict=True):
        schema = _schema(argument.annotation)
        if default is None:
            required.append(argument.arg)
        else:
            schema = {**schema, **_default(default)}
        properties[argument.arg] = schema
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _default(expression: ast.expr) -> dict[str, Any]:
    try:
        return {"default": ast.literal_eval(expression)}
    except ValueError:
        return {}


def _schema(annotation: ast.expr | None) -> dict[str, Any]:
    match annotation:
        case ast.Constant(value=None):
            return dict(_TYPES["None"])
        case ast.Constant(value=str(text)):
            return _schema(parse_python(text, mode="eval").body)
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return dict(_TYPES.get(name, {}))
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _any_of(_schema(left), _schema(right))
        case ast.Subscript(value=outer, slice=inner):
            return _generic(outer, inner)
        case _:
            return {}


def _generic(outer: ast.expr, inner: ast.expr) -> dict[str, Any]:
    name = outer.attr if isinstance(outer, ast.Attribute) else outer.id if isinstance(outer, ast.Name) else ""
    if name == "Literal":
        return {"enum": [ast.literal_eval(item) for item in _items(inner)]}
    if name == "Optional":
        return _any_of(_schema(inner), dict(_TYPES["None"]))
    if name == "Union":
        return _any_of(*map(_schema, _items(inner)))
    if name in ("list", "List", "Sequence", "tuple", "Tuple"):
        item = _schema(_items(inner)[0])
        return {"type": "array", "items": item} if item else {"type": "array"}
    return dict(_TYPES.get(name, _TYPES["dict"] if name == "Dict" else {}))


def _items(expression: ast.expr) -> list[ast.expr]:
    return list(expression.elts) if isinstance(expression, ast.Tuple) else [expression]


def _any_of(*schemas: dict[str, Any]) -> dict[str, Any]:
    flat = [choice for schema in schemas for choice in schema.get("anyOf", [schema])]
    return {"anyOf": flat} if all(flat) else {}
