"""What Python 3.8, the Python of the published recordings, could not do yet, and what it still could.

A model that writes `-> list[int]` or calls `math.lcm` met an error there, in cells and in submissions. Only
code of the episode is held to it, libraries are not. `loader` is the code that puts this file into a session.
"""

from __future__ import annotations

import ast
import collections.abc
import fractions
import math
import random
import re
import sys
from collections.abc import Set
from pathlib import Path
from typing import Any

_CLASSES = frozenset({"dict", "frozenset", "list", "set", "tuple", "type"})
_NEWER_IN_MATH = ("cbrt", "exp2", "lcm", "nextafter", "ulp")
_PLACEHOLDER = re.compile(r"(?i)\b(f|rf|fr)(?=['\"])")


class PlainClasses(ast.NodeTransformer):
    """Makes `list[int]` and its like fail as the index of a class without one; `x[0]` of a list called `list`
    stays what it is.

    >>> exec(compile(PlainClasses().visit(ast.parse("list = [7]; assert list[0] == 7")), "cell", "exec"))
    """

    def visit_Subscript(self, node: ast.Subscript) -> ast.Subscript:
        """The name is looked at when the line runs: it may mean anything by then."""
        self.generic_visit(node)
        name = node.value
        if isinstance(node.ctx, ast.Load) and isinstance(name, ast.Name) and name.id in _CLASSES:
            # If it is a class, take its metaclass's neighbour `int`, which has no index; no name is used that
            # the cell could have changed.
            chosen = ast.parse(
                f"0 .__class__ if {name.id}.__class__ is ().__class__.__class__ else {name.id}", mode="eval"
            ).body
            for part in ast.walk(chosen):
                ast.copy_location(part, name)
            node.value = chosen
        return node


def refuse_newer_strings(source: str, filename: str) -> None:
    """Raise a SyntaxError for f-strings that only Python 3.12 and later accept.

    >>> refuse_newer_strings('f"{x[0]}"', "cell")
    """
    if sys.version_info < (3, 12) or not _PLACEHOLDER.search(source):
        return
    try:
        ast.parse(with_plain_strings(source), filename)
    except SyntaxError as error:
        lines = source.splitlines()
        text = lines[min(error.lineno or 1, len(lines)) - 1]
        raise SyntaxError(error.msg, (filename, error.lineno, error.offset, text)) from None
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FormattedValue) and "\\" in (
            ast.get_source_segment(source, node.value) or ""
        ):
            text = source.splitlines()[node.value.lineno - 1]
            where = (filename, node.value.lineno, node.value.col_offset + 1, text)
            raise SyntaxError("f-string expression part cannot include a backslash", where)


def with_plain_strings(source: str) -> str:
    """The source as the old parser saw it: to it an f-string was a string like any other."""
    return _PLACEHOLDER.sub(lambda prefix: "u" if len(prefix[0]) == 1 else " r", source)


def use_old_library() -> None:
    """Take from the standard library what came later, and give it back what it had.

    Packages that use the newer functions have them already.
    """
    for name in _NEWER_IN_MATH:
        if hasattr(math, name):
            delattr(math, name)
    math.factorial = _factorial
    random.sample = _sample
    fractions.gcd = _gcd  # type: ignore[attr-defined]
    for name in collections.abc.__all__:
        setattr(collections, name, getattr(collections.abc, name))


def loader() -> str:
    """Return code that makes this file the module `python38_language` of a sandboxed session.

    Tracebacks leave out its frames, as those of all files in the folder of the guest.
    """
    source = Path(__file__).read_text(encoding="utf-8")
    return (
        "import sys, types\n"
        "module = sys.modules['python38_language'] = types.ModuleType('python38_language')\n"
        "place = sys.modules['guest'].__path__[0] + '/python38_language.py'\n"
        f"exec(compile({source!r}, place, 'exec'), vars(module))\n"
    )


def prelude(first_cell_number: int, *, old: bool = True) -> str:
    """Return the cell that makes a fresh session behave like the recorded ones, with the given next number.

    Runs of newer Pythons (`old=False`) differ in the number alone.
    """
    code = f"{loader()}module.install(shell, {first_cell_number}, old={old})"
    return f"exec(compile({code!r}, '<python38>', 'exec'), {{'shell': get_ipython()}})"


def install(shell: Any, first_cell_number: int, *, old: bool) -> None:
    """Change the shell that is there already."""

    def renumber(*_: object) -> None:
        shell.events.unregister("post_run_cell", renumber)
        history = shell.history_manager
        for cells in (history.input_hist_parsed, history.input_hist_raw):
            cells[:] = [""] * first_cell_number
        shell.execution_count = first_cell_number

    shell.events.register("post_run_cell", renumber)  # when the cell that runs this has been counted
    if not old:
        return

    def refuse(lines: list[str]) -> list[str]:
        refuse_newer_strings("".join(lines), "<cell>")
        return lines

    shell.input_transformers_post.append(refuse)
    shell.ast_transformers.append(PlainClasses())
    if numpy := sys.modules.get("numpy"):
        numpy.set_printoptions(legacy="1.25")  # 0.5, not np.float64(0.5)
    use_old_library()


def python38_program(source: str) -> str:
    """Return a program that runs `source` as that Python would have."""
    code = f"{loader()}module.run({source!r}, names)"
    return f"exec(compile({code!r}, '<python38>', 'exec'), {{'names': globals()}})"


def run(source: str, names: dict[str, Any]) -> None:
    """Execute a submission in `names`."""
    use_old_library()
    tree = PlainClasses().visit(ast.parse(source, "<submission>"))
    refuse_newer_strings(source, "<submission>")
    exec(compile(tree, "<submission>", "exec", dont_inherit=True), names)


def _factorial(x: Any, /) -> int:
    if isinstance(x, float):
        if not x.is_integer():
            raise ValueError("factorial() only accepts integral values")
        x = int(x)
    return _plain_factorial(x)


def _sample(population: Any, k: int, **options: Any) -> list[Any]:
    return _plain_sample(tuple(population) if isinstance(population, Set) else population, k, **options)


def _gcd(a: Any, b: Any) -> Any:
    """With the sign of the last divisor, as it was."""
    while b:
        a, b = b, a % b
    return a


_factorial.__name__ = _factorial.__qualname__ = "factorial"
_sample.__name__ = _sample.__qualname__ = "sample"
_gcd.__name__ = _gcd.__qualname__ = "gcd"
_plain_factorial, _plain_sample = math.factorial, random.sample
