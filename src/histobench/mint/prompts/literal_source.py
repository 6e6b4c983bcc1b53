"""Reads texts out of Python source without running it."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path

from histobench.core.errors import HistobenchError
from histobench.core.plain_file import HAND_WRITTEN, read_plain_text
from histobench.core.python_syntax import parse_python

_METHODS = {"strip", "lstrip", "rstrip"}


class LiteralSource:
    """One Python file. Understands constants, names, `+`, `.format(...)` and `.strip()` of texts alone."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._tree = parse_python(read_plain_text(path, limit=HAND_WRITTEN))
        except (OSError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise HistobenchError(f"cannot read the published prompts from {path}: {error}") from error
        self._names = self._texts(self._tree.body, {})

    def class_texts(self, attribute: str = "name") -> dict[str, dict[str, str]]:
        """The texts of every class that has `attribute`, by its value."""
        found = {}
        for node in self._tree.body:
            if isinstance(node, ast.ClassDef):
                texts = self._texts(node.body, self._names)
                if texts.get(attribute):
                    found[texts[attribute]] = texts
        return found

    def prefix_in_class(self, name: str) -> str:
        """The first text that the code of a class puts before something: `"text" + ...`."""
        for node in self._tree.body:
            if isinstance(node, ast.ClassDef) and node.name == name:
                return self._prefix(node)
        raise HistobenchError(f"{self._path}: no class {name}")

    def first_text_in_function(self, name: str, containing: str) -> str:
        """The first text of some length in a function that contains `containing`."""
        for node in self._tree.body:
            if isinstance(node, ast.FunctionDef) and node.name == name:
                for part in _in_order(node):
                    if (
                        isinstance(part, ast.Constant)
                        and isinstance(part.value, str)
                        and containing in part.value
                    ):
                        return part.value
        raise HistobenchError(f"{self._path}: no text with {containing!r} in a function {name}")

    def _prefix(self, node: ast.ClassDef) -> str:
        for part in _in_order(node):
            match part:
                case ast.BinOp(left=ast.Constant(value=str(text)), op=ast.Add()) if len(text) > 2:
                    return text
        raise HistobenchError(f"{self._path}: no text is put before the prompt in {node.name}")

    def _texts(self, body: list[ast.stmt], names: Mapping[str, str]) -> dict[str, str]:
        texts = dict(names)
        own: dict[str, str] = {}
        for statement in body:
            match statement:
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    text = self._text(value, texts)
                    if text is not None:
                        texts[name] = own[name] = text
        return own

    def _text(self, node: ast.expr, names: Mapping[str, str]) -> str | None:
        match node:
            case ast.Constant(value=str(text)):
                return text
            case ast.Name(id=name):
                return names.get(name)
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                parts = [self._text(part, names) for part in (left, right)]
                return None if None in parts else "".join(part or "" for part in parts)
            case ast.Call(func=ast.Attribute(value=value, attr=method), args=[], keywords=keywords):
                subject = self._text(value, names)
                values = {keyword.arg or "": self._text(keyword.value, names) for keyword in keywords}
                if subject is None or None in values.values():
                    return None
                if method == "format":
                    return _filled_in(subject, values)
                return str(getattr(subject, method)()) if method in _METHODS and not values else None
        return None


def _filled_in(template: str, values: Mapping[str, str | None]) -> str | None:
    try:
        return template.format(**values)
    except (LookupError, ValueError, AttributeError):  # wants what the source does not say in place
        return None


def _in_order(node: ast.AST) -> list[ast.AST]:
    """All parts of a tree, from top to bottom of the file."""
    parts = [part for part in ast.walk(node) if hasattr(part, "lineno")]
    return sorted(parts, key=lambda part: (part.lineno, part.col_offset))  # type: ignore[attr-defined]
