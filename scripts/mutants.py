"""Plant faults by rule in a random sample of places, run the nearest tests, and print the faults they miss.

    make mutants MUTANTS="--seed 7 --count 200"        # --only roi/metrics, --rule seed, --list
    python scripts/mutants.py --seed 8 --count 250 --workers 16 --files 60 --minutes 8 --output faults.jsonl

A fault is one change of one place: two arguments or two splits change places, a keyword is dropped, `<`
becomes `<=`, a seed is ignored, a sign or an axis is reversed, a key is left out of a fingerprint. Each is
planted alone, in a copy of the repository, where the tests that import the module, or a module that imports
it, run until one fails: first the nearest that are not slow, at most so many seconds of a processor. A test
that fails without the fault, too, does not count. Read the faults that survive: a fault that a user could
meet needs a test.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import multiprocessing
import os
import pickle
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "histobench"
SPLITS = {"train": "test", "val": "test", "test": "train"}
EDGES = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">"}
#: Functions whose dictionaries make up a fingerprint.
KNOWN_BY = re.compile(r"key|digest|fingerprint|identity|settings|note|spec|evaluation|recipe|info|record")
#: Keywords and functions where a fault changes nothing, or breaks everything.
PLAIN_WORDS = frozenset(
    ["strict", "help", "encoding", "errors", "metavar", "dtype", "exist_ok", "parents", "default", "daemon"]
)
PLAIN_WORDS |= {"memory", "threads"}  # numbers do not depend on these
PLAIN_CALLS = frozenset(["isinstance", "issubclass", "getattr", "hasattr", "option", "field", "suppress"])
PLAIN_CALLS |= {"max", "min", "maximum", "minimum", "intersect1d", "array_equal", "zip", "errstate"}
EVEN = frozenset(["abs", "norm", "square", "hypot"])  # whatever the sign of a difference
#: Drawing and text: a change there is a matter of taste.
LEFT_OUT = re.compile(r"roi/data/demo/|api/plots|cli/terminal|_version|__init__|alfworld")
#: Test files that take minutes, or need more than Python.
SLOW_FILES = re.compile(r"test_(clusters|ray_|wheel|live_model|documentation|browser|docker|benchmarks|gpu)")


class Fault(NamedTuple):
    """The characters from `start` to `end` of `file` (below src/histobench) become `new`."""

    file: str
    line: int
    rule: str
    start: int
    end: int
    new: str
    function: str
    first_line: int  # of the function; 0 outside of functions

    @property
    def place(self) -> tuple[str, int]:
        return self.file, self.first_line

    def planted(self) -> str:
        text = source(self.file)
        return text[: self.start] + self.new + text[self.end :]

    def diff(self) -> str:
        text = source(self.file)
        before = text.rfind("\n", 0, self.start) + 1
        after = text.find("\n", self.end)
        old, new = text[before:after], text[before : self.start] + self.new + text[self.end : after]
        return f"  - {old.strip()}\n  + {new.strip()}"

    def __str__(self) -> str:
        return f"{self.file}:{self.line} [{self.rule}]\n{self.diff()}"


@cache
def source(file: str) -> str:
    return (PACKAGE / file).read_text(encoding="utf-8")


class Places(ast.NodeVisitor):
    """Collects the faults that fit into one file."""

    def __init__(self, file: str) -> None:
        self.file, self.found, self.inside, self.even = file, [], [("", 0)], set[ast.AST]()
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
        self.found.append(Fault(self.file, node.lineno, rule, start, end or last, new, *self.inside[-1]))

    def text(self, node: ast.expr) -> str:
        start, end = self.span(node)
        return self._text[start:end]

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self.inside.append((node.name, min(part.lineno for part in [node, *node.decorator_list])))
        for child in [*node.body, *node.args.defaults, *filter(None, node.args.kw_defaults)]:
            self.visit(child)  # not the annotations
        self.inside.pop()

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self.visit_FunctionDef(node)  # type: ignore[arg-type]

    def visit_Raise(self, node: ast.Raise) -> None:
        """Leave out the words of messages."""

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None and self.inside[-1][0]:
            self.visit(node.value)

    def visit_Call(self, node: ast.Call) -> None:
        called = getattr(node.func, "id", getattr(node.func, "attr", ""))
        if called in EVEN:
            self.even |= {*node.args, getattr(node.func, "value", node)}
        if called in PLAIN_CALLS:
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
            elif name and self.inside[-1][0] and name not in PLAIN_WORDS:
                end = self.span(keyword)[1]
                rest = re.match(r"\s*,\s*", self._text[end:])
                self.add("drop keyword", keyword, "", end + rest.end() if rest else end)
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        # Two times of a clock are never equal, nor a computed number and an allowance for rounding.
        exact = not re.search(r"time\.|1e-", self.text(node))
        if exact and len(node.ops) == 1 and type(node.ops[0]) in EDGES:
            middle = f" {EDGES[type(node.ops[0])]} "
            self.add("edge", node, f"({self.text(node.left)}){middle}({self.text(node.comparators[0])})")
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if isinstance(node.op, ast.Pow) and getattr(node.right, "value", 1) == 2:
            self.even.add(node.left)
        difference = isinstance(node.op, ast.Sub) and node not in self.even
        if difference and not isinstance(node.right, ast.Constant):
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
        if KNOWN_BY.search(self.inside[-1][0]):
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
        lines = re.findall(r"^\s*(?:from|import) (histobench[\w.]*)(?: import (.*))?", text, re.M)
        for module, names in lines:
            for each in (module, *(f"{module}.{part}" for part in re.findall(r"\w+", names))):
                users.setdefault(each, set()).add(name)
        if path.name.startswith("test_") and not SLOW_FILES.match(path.name):
            tests[name] = text
    return users, tests


def nearest(fault: Fault, most: int) -> list[str]:
    """Test files: first those that name the function or its module, then those of modules that import it."""
    users, tests = imports()
    module = "histobench." + fault.file.removesuffix(".py").replace("/", ".")
    near = {file: 4.0 for file in users.get(module, ()) if file in tests}
    reached = users.get(module, set()) - tests.keys()
    for value in (2.0, 1.0, 0.5):
        reached = {
            user
            for middle in reached
            for user in users.get(middle.removeprefix("src/").removesuffix(".py").replace("/", "."), ())
        }
        for file in reached & tests.keys():
            near.setdefault(file, value)
    folder, track = fault.file.rpartition("/")[0], fault.file.split("/")[0]
    stem = Path(fault.file).stem
    for file, text in tests.items():
        walk = "wiring" in file or "test_options" in file
        if f"tests/{folder}/" in file or (walk and (f"/{track}/" in file or track not in ("roi", "mint"))):
            near.setdefault(file, 1.0)
        if file in near:
            near[file] += 3 * (fault.function.strip("_") in text) + 2 * (stem in Path(file).stem)
            near[file] += 2 * (f"tests/{folder}/" in file)
            near[file] += walk - 1e-6 * len(text)
    return sorted(near, key=lambda file: (-near[file], file))[:most]


def processor_seconds() -> float:
    """Of this process and its children that ended: what a busy machine does not change."""
    return sum(os.times()[:4])


class Watch:
    """Pytest plugin: runs what is nearest and not slow first, up to a limit; notes what fails first."""

    def __init__(self, files: list[str], function: str, without: set[str], seconds: float) -> None:
        self._rank = {file: place for place, file in enumerate(files)}
        self._without, self._until, self._function = without, processor_seconds() + seconds, function
        self.failed, self.ran, self.stopped = "", 0, False

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        def place(item: Any) -> tuple[bool, bool, int]:
            rank = self._rank.get(item.nodeid.split("::")[0], 0)
            near = rank < 3 or "wiring" in item.nodeid or self._function in inspect.getsource(item.function)
            return not near, item.get_closest_marker("slow") is not None, rank

        items[:] = sorted((item for item in items if item.nodeid not in self._without), key=place)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.ran += report.when == "call"
        if report.failed and not self.failed:
            self.failed = report.nodeid

    def pytest_runtest_protocol(self, item: pytest.Item) -> None:
        if processor_seconds() > self._until:
            self.stopped = True
            item.session.shouldstop = "tested long enough"


class Tree:
    """A copy of the repository in which faults are planted."""

    def __init__(self, folder: Path) -> None:
        self._root = folder / "repository"
        hidden = shutil.ignore_patterns(".git", ".venv*", ".*_cache", ".hypothesis", "node_modules")
        shutil.copytree(ROOT, self._root, ignore=hidden, symlinks=True)
        if (ROOT.parent / "shared").is_dir():
            (folder / "shared").symlink_to(ROOT.parent / "shared")
        self._moment = int(time.time())

    def write(self, file: str, text: str) -> None:
        path = self._root / "src" / "histobench" / file
        path.write_text(text, encoding="utf-8")
        self._moment += 1  # never the time of the compiled file
        os.utime(path, (self._moment, self._moment))

    def run(
        self, tests: list[str], budget: float, *, function: str = "", without: set[str] = frozenset()
    ) -> tuple[str, int]:
        """Run tests as in `make test`: what failed first (`time`: they did not end), and how many ran.

        The child is a copy of this process, which has imported the libraries: that is most of the time.
        """
        seconds = (60 + 4 * budget) * max(1, os.getloadavg()[0] / (os.cpu_count() or 1))
        answer = self._root.parent / "answer.pickle"
        answer.unlink(missing_ok=True)
        child = os.fork()
        if not child:
            os.setsid()
            output = os.open(self._root.parent / "output.txt", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.chdir(self._root)
            source_folder = self._root / "src"
            sys.path.insert(0, str(source_folder))
            os.environ["PYTHONPATH"] = str(source_folder)
            watch = Watch(tests, function.strip("_") or "no function", without, budget)
            options = ["-m", "not nightly", "-p", "no:cacheprovider", "-p", "no:xdist", "-x"]
            code = int(pytest.main([*options, *tests], plugins=[watch]))
            failed = watch.failed or ("" if watch.stopped or code in (0, 5) else "collection")
            answer.write_bytes(pickle.dumps((failed, watch.ran)))
            os._exit(0)
        until = time.monotonic() + seconds
        while not os.waitpid(child, os.WNOHANG)[0]:
            if time.monotonic() > until:
                os.killpg(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return "time", 0
            time.sleep(0.05)
        return pickle.loads(answer.read_bytes()) if answer.exists() else ("crash", 0)


TREE: Tree


def start_worker(folder: str) -> None:
    global TREE
    TREE = Tree(Path(tempfile.mkdtemp(dir=folder)))


def tried(fault: Fault, files: int, budget: float, until: float) -> dict[str, Any] | None:
    """Plant the fault and run the tests; what fails, or does not end, without the fault does not count."""
    began = time.monotonic()
    if began > until:
        return None
    near, without = nearest(fault, files), set[str]()
    while True:
        TREE.write(fault.file, fault.planted())
        found, ran = TREE.run(near, budget, function=fault.function, without=without)
        TREE.write(fault.file, source(fault.file))
        again = [found] if "::" in found else near
        if not found or TREE.run(again, budget)[0] != found:
            break
        if "::" not in found:  # nothing can be said of it
            return None
        without.add(found)
    result = "survived" if not found else "timeout" if found == "time" else "found"
    return {
        "file": fault.file,
        "line": fault.line,
        "rule": fault.rule,
        "function": fault.function,
        "diff": fault.diff(),
        "result": result,
        "found_by": found,
        "tests": ran,
        "test_files": near,
        "seconds": round(time.monotonic() - began, 1),
    }


def main() -> int:
    """0 if at least `--least` percent of the faults were found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--count", type=int, default=200, help="faults")
    parser.add_argument("--only", default="", help="files whose path contains this")
    parser.add_argument("--rule", default="", help="rules whose name contains this")
    parser.add_argument("--workers", type=int, default=1, help="faults at a time, each in its own copy")
    parser.add_argument("--files", type=int, default=20, help="most test files for a fault")
    parser.add_argument("--budget", type=float, default=120, help="seconds of a processor for a fault")
    parser.add_argument("--minutes", type=float, default=600, help="begin no fault after so many minutes")
    parser.add_argument("--output", help="JSON lines, one for each fault")
    parser.add_argument("--least", type=float, default=85, help="percent to be found")
    parser.add_argument("--list", action="store_true", help="print the faults and their tests, and stop")
    flags = parser.parse_args()
    until = time.monotonic() + 60 * flags.minutes
    faults = sample(flags.seed, flags.count, flags.only, flags.rule)
    if flags.list:
        for fault in faults:
            print(fault, *nearest(fault, flags.files), sep="\n    ")
        return 0
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = "1"
    import numpy, pandas, PIL, scipy.stats, sklearn, torch  # noqa: E401, F401, I001

    counts: dict[str, Counter[str]] = {"result": Counter(), "rule": Counter(), "folder": Counter()}
    with (
        tempfile.TemporaryDirectory(prefix="histobench-mutants-") as folder,
        multiprocessing.get_context("fork").Pool(flags.workers, start_worker, (folder,)) as pool,
        open(flags.output or os.devnull, "w", encoding="utf-8") as output,
    ):
        attempt = partial(tried, files=flags.files, budget=flags.budget, until=until)
        for row in filter(None, pool.imap_unordered(attempt, faults)):
            output.write(json.dumps(row) + "\n")
            output.flush()
            for kind, name in (("result", ""), ("rule", row["rule"]), ("folder", row["file"].split("/")[0])):
                counts[kind][f"{name} {row['result']}".strip()] += 1
            title = f"{row['result']} {row['found_by']}".strip()
            print(f"{title}: {row['file']}:{row['line']} [{row['rule']}]\n{row['diff']}", flush=True)
    for kind in counts.values():
        print(*(f"{name} {n}" for name, n in sorted(kind.items())), sep="; ")
    done = counts["result"].total()
    found = done - counts["result"]["survived"]
    print(f"{found} of {done} found")
    return 0 if found * 100 >= flags.least * done else 1


if __name__ == "__main__":
    sys.exit(main())
