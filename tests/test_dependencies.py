"""Dependencies point one way, and importing is cheap."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import histobench

SOURCE = Path(histobench.__file__).parent
#: room -> rooms it may import, besides itself
ALLOWED = {
    "cli": {"api", "report", "consult", "roi", "mint", "statistics", "core"},
    "api": {"report", "consult", "roi", "mint", "statistics", "core"},
    "report": {"consult", "roi", "mint", "statistics", "core"},
    "consult": {"roi", "mint", "statistics", "core"},
    "roi": {"statistics", "core"},
    "mint": {"statistics", "core"},
    "statistics": {"core"},
    "core": set(),
}
NAMES_THAT_EXPLAIN_NOTHING = {"utils", "util", "helpers", "helper", "common", "misc", "manager"}


@cache
def _nodes(path: Path) -> list[ast.AST]:
    """Imports, calls and conditions: all that these tests look at."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [
        node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom | ast.Call | ast.If)
    ]


@cache
def _is_module(name: str) -> bool:
    path = SOURCE.parent / name.replace(".", "/")
    return path.is_dir() or path.with_suffix(".py").exists()


def _imports(path: Path) -> set[str]:
    names: set[str] = set()
    for node in _nodes(path):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add("" if node.level else node.module or "")
    return names


def test_no_file_has_a_name_that_explains_nothing() -> None:
    assert not {path.stem for path in SOURCE.rglob("*.py")} & NAMES_THAT_EXPLAIN_NOTHING


@pytest.mark.slow
@pytest.mark.parametrize("room", sorted(ALLOWED))
def test_a_room_imports_only_the_rooms_below_it(room: str) -> None:
    paths = sorted((SOURCE / room).rglob("*.py"))
    assert paths
    for path in paths:
        relative = path.relative_to(SOURCE).as_posix()
        for name in _imports(path):
            parts = name.split(".")
            if parts[0] == "histobench" and len(parts) > 1 and parts[1] in ALLOWED:
                assert parts[1] == room or parts[1] in ALLOWED[room], f"{relative} imports {name}"


@cache
def _modules(*, types: bool = False) -> dict[str, set[str]]:
    """Module -> modules of this package that it imports, at once or when it is used; with `types`, also those
    that it imports for the type checker alone.

    The packages that hand out names when asked (the face) import nothing by themselves.
    """
    found: dict[str, set[str]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        name = ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__")
        if name in ("histobench", "histobench.mint"):
            continue
        typing = {
            id(inner)
            for node in _nodes(path)
            if isinstance(node, ast.If)
            and isinstance(node.test, ast.Name)
            and node.test.id == "TYPE_CHECKING"
            for inner in ast.walk(node)
        }
        found[name] = set()
        for node in _nodes(path):
            if id(node) in typing and not types:
                continue
            if isinstance(node, ast.Import):
                found[name] |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
                for alias in node.names:
                    inner = f"{node.module}.{alias.name}"
                    found[name].add(inner if _is_module(inner) else node.module)
    return {name: (imported & set(found)) - {name} for name, imported in found.items()}


def _circle(arrows: dict[str, set[str]]) -> list[str]:
    """Names from which one comes back to where one was; none if there are none."""
    left = {name: set(to) for name, to in arrows.items()}
    while ends := [name for name, to in left.items() if not to & set(left)]:
        for name in ends:
            del left[name]
    return sorted(left)


@pytest.mark.slow
def test_files_do_not_import_in_circles() -> None:
    assert _circle({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}) == ["a", "b", "c"]
    assert _circle(_modules()) == []


@pytest.mark.slow
def test_files_do_not_import_each_other_for_types_either() -> None:
    assert _circle(_modules(types=True)) == []


@pytest.mark.slow
def test_folders_of_a_room_do_not_import_in_circles() -> None:
    folders: dict[str, set[str]] = {}
    for name, imported in _modules().items():
        folder = ".".join(name.split(".")[:3])
        others = {".".join(other.split(".")[:3]) for other in imported}
        folders.setdefault(folder, set()).update(others - {folder})
    assert _circle(folders) == []


@pytest.mark.slow
def test_nothing_private_is_imported_from_another_package() -> None:
    """Such names change without notice; attributes are checked by ruff (SLF001)."""
    found = set()
    for path in sorted(SOURCE.rglob("*.py")):
        for node in _nodes(path):
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
            elif isinstance(node, ast.Import):
                names = [part for alias in node.names for part in alias.name.split(".")]
            else:
                continue
            found |= {f"{path.relative_to(SOURCE).as_posix()}: {name}" for name in names if _is_private(name)}
    assert found == set()


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_"


def _consoles(path: Path) -> list[str]:
    """Where a file opens a console, or takes brackets in a text for markup; ruff watches over `print`."""
    found = []
    for node in _nodes(path):
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if name not in ("Console", "from_markup", "render_markup", "TextColumn") and not any(
            keyword.arg == "markup" for keyword in node.keywords
        ):
            continue
        keywords = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
        if name in ("Console", "from_markup", "render_markup") or keywords.get("markup") == "True":
            found.append(f"{node.lineno}: {ast.unparse(node)[:60]}")
        if name == "TextColumn" and "{" in ast.unparse(node.args[0]) and keywords.get("markup") != "False":
            found.append(f"{node.lineno}: {ast.unparse(node)[:60]} without markup=False")
    return found


@pytest.mark.slow
def test_no_file_opens_a_console_of_its_own(tmp_path: Path) -> None:
    """`say`, `open_terminal` and `labelled` of cli/terminal.py: foreign text is escaped there."""
    sample = tmp_path / "sample.py"
    sample.write_text("rich.console.Console()\nTextColumn('{task}')\nshow('[b]', markup=True)\n")
    assert len(_consoles(sample)) == 3
    paths = [path for path in SOURCE.rglob("*.py") if path.parent.name != "guest"]
    found = {path.relative_to(SOURCE).as_posix(): places for path in paths if (places := _consoles(path))}
    assert not found


@pytest.mark.parametrize(
    "statement", ["import histobench", "from histobench.cli.main import main; main(['--help'])"]
)
def test_starting_up_imports_nothing_heavy(statement: str) -> None:
    heavy = {"torch", "timm", "numpy", "sklearn", "transformers", "pyarrow", "PIL", "scipy", "pandas", "rich"}
    code = f"{statement}\nimport sys; print(sorted(set(sys.modules) & {heavy!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.slow
def test_a_report_is_built_without_the_deep_learning_libraries() -> None:
    code = (
        "import histobench.report.site, sys; print(sorted({'torch', 'timm', 'sklearn'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["[]"]
