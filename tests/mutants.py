"""Plant faults by rule in a random sample of places, run the nearest tests, and print those not found.

    make mutants MUTANTS="--seed 7 --count 200"        # --only roi/metrics, --rule seed, --list

A fault is one change of one place: two arguments or two splits change places, a keyword is dropped, `<`
becomes `<=`, a seed is ignored, a sign or an axis is reversed, a key is left out of what something is known
by. Each is planted alone in a copy of the package. The nearest tests are those that import the module, or one
that imports it; they run as in `make test`, until one fails. Read the faults that survive: a fault that a
user could meet needs a test.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import count
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "histobench"
SPLITS = {"train": "test", "val": "test", "test": "train"}
EDGES = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">"}
#: Functions whose dictionaries say what something is known by.
KNOWN_BY = re.compile(r"key|digest|fingerprint|identity|settings|note|spec|evaluation|recipe|info|record")
#: Keywords and functions at which a change is seen by nobody, or by everybody.
PLAIN_WORDS = frozenset(
    ["strict", "help", "encoding", "errors", "metavar", "dtype", "exist_ok", "parents", "default"]
)
PLAIN_CALLS = frozenset(
    ["isinstance", "getattr", "hasattr", "max", "min", "zip", "option", "field", "issubclass"]
)
#: Drawing and text: a change there is a matter of taste.
LEFT_OUT = re.compile(r"roi/data/demo/|api/plots|cli/terminal|_version|__init__|alfworld")


class Fault(NamedTuple):
    """The characters from `start` to `end` of `file` (below src/histobench) become `new`."""

    file: str
    line: int
    rule: str
    start: int
    end: int
    new: str
    function: str

    def planted(self) -> str:
        text = source(self.file)
        return text[: self.start] + self.new + text[self.end :]

    def __str__(self) -> str:
        text = source(self.file)
        before = text.rfind("\n", 0, self.start) + 1
        after = text.find("\n", self.end)
        old, new = text[before:after], text[before : self.start] + self.new + text[self.end : after]
        return f"{self.file}:{self.line} [{self.rule}]\n  - {old.strip()}\n  + {new.strip()}"


@cache
def source(file: str) -> str:
    return (PACKAGE / file).read_text(encoding="utf-8")


class Places(ast.NodeVisitor):
    """Collects the faults that fit into one file."""

    def __init__(self, file: str) -> None:
        self.file, self.found, self.inside = file, [], [""]
        text = source(file)
        self._text = text
        self._lines = [0]
        for line in text.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))
        self._source = text.splitlines(keepends=True)
        self.visit(ast.parse(text))

    def _at(self, line: int, column: int) -> int:  # columns are counted in bytes
        return self._lines[line - 1] + len(self._source[line - 1].encode()[:column].decode())

    def span(self, node: ast.expr | ast.keyword) -> tuple[int, int]:
        return self._at(node.lineno, node.col_offset), self._at(
            node.end_lineno or 0, node.end_col_offset or 0
        )

    def add(self, rule: str, node: ast.expr | ast.keyword, new: str, end: int | None = None) -> None:
        start, last = self.span(node)
        self.found.append(Fault(self.file, node.lineno, rule, start, end or last, new, self.inside[-1]))

    def text(self, node: ast.expr) -> str:
        start, end = self.span(node)
        return self._text[start:end]

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self.inside.append(node.name)
        for child in [*node.body, *node.args.defaults, *filter(None, node.args.kw_defaults)]:
            self.visit(child)  # not the annotations
        self.inside.pop()

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self.visit_FunctionDef(node)  # type: ignore[arg-type]

    def visit_Raise(self, node: ast.Raise) -> None:
        """Words of messages are no places."""

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None and self.inside[-1]:
            self.visit(node.value)

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Name) and node.func.id in PLAIN_CALLS:
            self.generic_visit(node)
            return
        for one, other in zip(node.args, node.args[1:], strict=False):
            if isinstance(one, ast.Name) and isinstance(other, ast.Name) and one.id != other.id:
                _, end = self.span(other)
                between = self._text[self.span(one)[1] : self.span(other)[0]]
                self.add("swap arguments", one, other.id + between + one.id, end)
        for keyword in node.keywords:
            name, value = keyword.arg or "", self.text(keyword.value)
            if name == "seed" and value != "0":
                self.add("seed", keyword.value, "0")
            elif name in ("axis", "dim") and re.fullmatch(r"-?\d", value):
                self.add("axis", keyword.value, "1" if value == "0" else "0")
            elif name and self.inside[-1] and name not in PLAIN_WORDS:
                end = self.span(keyword)[1]
                rest = re.match(r"\s*,\s*", self._text[end:])
                self.add("drop keyword", keyword, "", end + rest.end() if rest else end)
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        if len(node.ops) == 1 and type(node.ops[0]) in EDGES:
            middle = f" {EDGES[type(node.ops[0])]} "
            self.add("edge", node, self.text(node.left) + middle + self.text(node.comparators[0]))
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if isinstance(node.op, ast.Sub) and not isinstance(node.right, ast.Constant):
            self.add("sign", node, f"({self.text(node.right)} - ({self.text(node.left)}))")
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.USub) and not isinstance(node.operand, ast.Constant):
            self.add("sign", node, f"({self.text(node.operand)})")
        self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if node.attr in SPLITS and isinstance(node.ctx, ast.Load):
            self.add("splits", node, f"{self.text(node.value)}.{SPLITS[node.attr]}")
        self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        if isinstance(node.slice, ast.Constant) and node.slice.value in SPLITS:
            self.add("splits", node.slice, repr(SPLITS[node.slice.value]))
        self.generic_visit(node)

    def visit_Dict(self, node: ast.Dict) -> None:
        if KNOWN_BY.search(self.inside[-1]):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant):
                    end = self.span(value)[1]
                    rest = re.match(r"\s*,\s*", self._text[end:])
                    self.add("drop key", key, "", end + rest.end() if rest else end)
        self.generic_visit(node)


def is_program(text: str) -> bool:
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True


def sample(seed: int, count: int, only: str, rule: str) -> list[Fault]:
    """So many faults: folders in turn, and in each a rule that occurs there, so that no rule is rare."""
    folders: dict[str, dict[str, list[Fault]]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        file = path.relative_to(PACKAGE).as_posix()
        if only in file and not LEFT_OUT.search(file):
            parts = file.split("/")
            folder = "/".join(parts[: 2 if parts[0] in ("roi", "mint") and len(parts) > 2 else 1])
            for fault in Places(file).found:
                if rule in fault.rule:
                    folders.setdefault(folder, {}).setdefault(fault.rule, []).append(fault)
    draw, chosen = random.Random(seed), []
    while len(chosen) < count and folders:
        for folder in sorted(folders):
            rules = folders[folder]
            name = draw.choice(sorted(rules))
            fault = rules[name].pop(draw.randrange(len(rules[name])))
            if is_program(fault.planted()):
                chosen.append(fault)
            if not rules[name]:
                del rules[name]
            if not rules:
                del folders[folder]
    return chosen[:count]


@cache
def imports() -> tuple[dict[str, set[str]], dict[str, str]]:
    """Module -> files (of the package and of the tests) that import it; test file -> its text."""
    users: dict[str, set[str]] = {}
    tests: dict[str, str] = {}
    for path in [*sorted(PACKAGE.rglob("*.py")), *sorted((ROOT / "tests").rglob("*.py"))]:
        text = path.read_text(encoding="utf-8")
        name = path.relative_to(ROOT).as_posix()
        for module in re.findall(r"^\s*(?:from|import) (histobench[\w.]*)", text, re.M):
            users.setdefault(module, set()).add(name)
        if path.name.startswith("test_"):
            tests[name] = text
    return users, tests


def nearest(fault: Fault, most: int) -> list[str]:
    """Test files: first those that name the function or its module, then those of modules that import it."""
    users, tests = imports()
    module = "histobench." + fault.file.removesuffix(".py").replace("/", ".")
    near = {file: 4.0 for file in users.get(module, ()) if file in tests}
    for user in users.get(module, ()):
        if user not in tests:
            higher = user.removeprefix("src/").removesuffix(".py").replace("/", ".")
            for file in users.get(higher, ()):
                if file in tests:
                    near[file] = max(near.get(file, 0), 2.0)
    folder = fault.file.rpartition("/")[0]
    stem = Path(fault.file).stem
    for file, text in tests.items():
        if f"tests/{folder}/" in file and file not in near:
            near[file] = 1.0
        if file in near:
            near[file] += 3 * (fault.function.strip("_") in text) + 2 * (stem in Path(file).stem)
            near[file] += ("wiring" in file or "options" in file) - 1e-6 * len(text)
    return sorted(near, key=lambda file: (-near[file], file))[:most]


def run_tests(files: list[str], copy: Path, seconds: float, without: set[str]) -> str:
    """What failed first: a test, `time` for tests that did not end; empty if all passed.

    The child is a copy of this process, which has imported the libraries: that is most of the time.
    """
    output = copy / "output.txt"
    child = os.fork()
    if not child:
        os.setsid()
        with output.open("w") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        os.chdir(ROOT)
        sys.path.insert(0, str(copy))
        os.environ["PYTHONPATH"] = str(copy)
        import pytest

        arguments = ["-x", "-q", "-m", "not nightly", "-p", "no:cacheprovider", "-rfE", *files]
        arguments += [f"--deselect={test}" for test in without]
        os._exit(int(pytest.main(arguments)))
    until = time.monotonic() + seconds
    while not (ended := os.waitpid(child, os.WNOHANG))[0]:
        if time.monotonic() > until:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return "time"
        time.sleep(0.1)
    if os.waitstatus_to_exitcode(ended[1]) in (0, 5):
        return ""
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", output.read_text(errors="replace"), re.M)
    return failed[0] if failed else "an error while collecting"


def tried(faults: list[Fault], most: int, seconds: float) -> Iterator[tuple[Fault, str]]:
    """Each fault with what found it."""
    import numpy, pandas, PIL, pytest, scipy.stats, sklearn, torch  # noqa: E401, F401, I001

    with tempfile.TemporaryDirectory(prefix="histobench-mutants-") as folder:
        copy = Path(folder)
        shutil.copytree(PACKAGE, copy / "histobench")
        moments = count(int(time.time()))
        broken: set[str] = set()  # fails without any fault

        def write(file: str, text: str) -> None:
            path = copy / "histobench" / file
            path.write_text(text, encoding="utf-8")
            now = next(moments)  # another time than the compiled file's
            os.utime(path, (now, now))

        for fault in faults:
            files = nearest(fault, most)
            while True:
                write(fault.file, fault.planted())
                found = run_tests(files, copy, seconds, broken) if files else ""
                write(fault.file, source(fault.file))
                if "::" not in found or not run_tests([found], copy, seconds, broken):
                    break
                broken.add(found)
            yield fault, found


def main() -> int:
    """0 if at least `--least` percent of the faults were found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--count", type=int, default=200, help="faults")
    parser.add_argument("--only", default="", help="files whose path contains this")
    parser.add_argument("--rule", default="", help="rules whose name contains this")
    parser.add_argument("--files", type=int, default=8, help="most test files for a fault")
    parser.add_argument("--seconds", type=float, default=300, help="time for the tests of a fault")
    parser.add_argument("--least", type=float, default=85, help="percent to be found")
    parser.add_argument("--list", action="store_true", help="print the faults and their tests, and stop")
    flags = parser.parse_args()
    faults = sample(flags.seed, flags.count, flags.only, flags.rule)
    if flags.list:
        for fault in faults:
            print(fault, *nearest(fault, flags.files), sep="\n    ")
        return 0
    counts: dict[str, Counter[str]] = {"rule": Counter(), "folder": Counter(), "found": Counter()}
    for number, (fault, found) in enumerate(tried(faults, flags.files, flags.seconds), start=1):
        print(f"{number}/{len(faults)} {'found by ' + found if found else 'SURVIVED'}: {fault}", flush=True)
        counts["found"]["found" if found else "survived"] += 1
        for kind, name in (("rule", fault.rule), ("folder", fault.file.split("/")[0])):
            counts[kind][f"{name}: {'found' if found else 'survived'}"] += 1
    for kind in ("rule", "folder"):
        print(*(f"{name} {n}" for name, n in sorted(counts[kind].items())), sep="; ")
    print(f"{counts['found']['found']} of {len(faults)} found")
    return 0 if counts["found"]["found"] * 100 >= flags.least * len(faults) else 1


if __name__ == "__main__":
    sys.exit(main())
