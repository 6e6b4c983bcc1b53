"""The published benchmark's words, read from the user's download of its repository; none of it is run."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path

from histobench.core.errors import HistobenchError
from histobench.core.files import read_plain_text
from histobench.core.text import parse_python
from histobench.mint.tasks.base import Task
from histobench.mint.tools.base import Tool

_METHODS = {"strip", "lstrip", "rstrip"}


class LiteralSource:
    """One Python file. Understands constants, names, `+`, `.format(...)` and `.strip()` of texts alone."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._tree = parse_python(read_plain_text(path))
        except (OSError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise HistobenchError(f"cannot read the published prompts from {path}: {error}") from error
        self._names = self._texts(self._tree.body, {})

    def class_texts(self) -> dict[str, dict[str, str]]:
        found = {}
        for node in self._tree.body:
            if isinstance(node, ast.ClassDef):
                texts = self._texts(node.body, self._names)
                if texts.get("name"):
                    found[texts["name"]] = texts
        return found

    def first_text(self, name: str, wanted: Callable[[ast.AST], str | None]) -> str:
        """The first text that `wanted` finds in the class or function `name`, from top to bottom."""
        for node in self._tree.body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
                parts = [part for part in ast.walk(node) if hasattr(part, "lineno")]
                parts.sort(key=lambda part: (part.lineno, part.col_offset))  # type: ignore[attr-defined]
                if text := next(filter(None, map(wanted, parts)), None):
                    return text
        raise HistobenchError(f"{self._path}: no text in {name}")

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


def _prefix(node: ast.AST) -> str | None:
    match node:
        case ast.BinOp(left=ast.Constant(value=str(text)), op=ast.Add()) if len(text) > 2:
            return text
    return None


def _line(node: ast.AST) -> str | None:
    match node:
        case ast.Constant(value=str(text)) if "\n" in text:
            return text
    return None


TEMPLATE = Path("mint/prompt/templates/template_with_tool.txt")
EXAMPLES = Path("mint/tasks/in_context_examples")
TOOL_FILES = (Path("mint/tools/wikipedia_search.py"), Path("mint/tools/alfworld.py"))
TOOL_LIST = (Path("mint/tools/__init__.py"), "get_toolset_description")
#: Task classes whose prompt starts with a sentence of the benchmark's.
PREFIXES = {
    "TheoremqaTask": Path("mint/tasks/reasoning.py"),
    "HumanEvalTask": Path("mint/tasks/codegen.py"),
    "AlfWorldTask": Path("mint/tasks/alfworld.py"),
}


class PublishedWording:
    """Prompts as in the published runs; `folder` is a clone of the benchmark's repository."""

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)
        if not (self._folder / TEMPLATE).is_file():
            raise HistobenchError(
                f"{folder} is not a download of the published benchmark: {TEMPLATE} is missing; "
                "clone github.com/xingyaoww/mint-bench and name its folder with `prompts_dir`"
            )

    def template(self) -> str:
        return self._read(TEMPLATE)

    def tools(self, tools: Sequence[Tool]) -> str:
        """The published list of tools; a tool that it does not know keeps its own words."""
        if not tools:
            return ""
        text = self._heading
        for number, tool in enumerate(tools, start=1):
            words = self._tool_texts.get(tool.name, {})
            signature = words.get("signature", tool.signature)
            text += f"[{number}] {signature}\n{words.get('description', tool.description)}\n"
        return text

    def example(self, task: Task, *, with_feedback: bool) -> str:
        name = "with_tool_and_feedback.txt" if with_feedback else "with_tool.txt"
        return self._read(EXAMPLES / task.task_name / name)

    def task(self, task: Task) -> str:
        name = type(task).__name__
        path = PREFIXES.get(name)
        prefix = LiteralSource(self._folder / path).first_text(name, _prefix) if path else ""
        return prefix + task.bare_prompt

    @cached_property
    def _heading(self) -> str:
        path, function = TOOL_LIST
        return LiteralSource(self._folder / path).first_text(function, _line)

    @cached_property
    def _tool_texts(self) -> dict[str, dict[str, str]]:
        first, second = (LiteralSource(self._folder / path).class_texts() for path in TOOL_FILES)
        return first | second

    def _read(self, path: Path) -> str:
        return read_plain_text(self._folder / path)
