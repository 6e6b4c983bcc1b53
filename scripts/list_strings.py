"""List every text that a user can read: messages, help, table headings, pages of the report.

    python scripts/list_strings.py [--docstrings] [--words 2] [PATH ...]

Prints `file:line: text`, with `{...}` for the values of an f-string: the string constants of `src` with at
least `--words` words (or its docstrings), and the texts of `report-frontend/src`.
"""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PLACES = (ROOT / "src/histobench", ROOT / "report-frontend/src")
#: Between tags, in quotes or in backquotes.
_PAGE_TEXT = re.compile(r">([^<>{}=;()]{3,})<|\"([^\"\n]{3,})\"|'([^'\n]{3,})'|`([^`]{3,})`", re.DOTALL)


def main() -> None:
    """Print the texts of the given files and folders (default: all)."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("paths", nargs="*", type=Path, default=PLACES)
    parser.add_argument("--docstrings", action="store_true", help="docstrings instead of messages")
    parser.add_argument("--words", type=int, default=2, help="fewest words of a text (default: 2)")
    args = parser.parse_args()
    for path in sorted(file for place in args.paths for file in _files(place)):
        found = _python(path, args.docstrings) if path.suffix == ".py" else _page(path)
        for line, text in found:
            plain = " ".join(text.split())
            if len(re.findall(r"[A-Za-z]{2,}", plain)) >= args.words and " " in plain:
                print(f"{path.resolve().relative_to(ROOT)}:{line}: {plain}")


def _files(place: Path) -> Iterator[Path]:
    if place.is_file():
        yield place
        return
    for path in place.rglob("*"):
        if (
            path.suffix in {".py", ".js", ".jsx", ".ts", ".tsx"}
            and ".test." not in path.name
            and "assets" not in path.parts
        ):
            yield path


def _python(path: Path, docstrings: bool) -> Iterator[tuple[int, str]]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    documented = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
        and isinstance(node.body[0].value, ast.Constant)
    }
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr) and not docstrings:
            yield node.lineno, "".join(map(_part, node.values))
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in inside
            and (id(node) in documented) == docstrings
        ):
            yield node.lineno, node.value


def _part(part: ast.expr) -> str:
    if isinstance(part, ast.FormattedValue):
        return "{" + ast.unparse(part.value) + "}"
    return str(part.value) if isinstance(part, ast.Constant) else ""


def _page(path: Path) -> Iterator[tuple[int, str]]:
    source = path.read_text(encoding="utf-8")
    for found in _PAGE_TEXT.finditer(source):
        text = next(part for part in found.groups() if part is not None)
        yield source.count("\n", 0, found.start()) + 1, text


if __name__ == "__main__":
    main()
