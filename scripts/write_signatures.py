"""Writes the options of the records into the signatures and docstrings of the Python API (`hb.run`, ...).

An editor reads the source, so every parameter has to be written there; the records remain
the one place where an option is declared. A test fails until this was run after a change.

usage: python scripts/write_signatures.py
"""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from histobench.consult.study_plan import StudyPlan, extraction_options
from histobench.core.files import write_text
from histobench.core.records import Declared, default_text, options_of
from histobench.mint.runs.run_options import RunOptions
from histobench.roi.options import (
    ENGINE_GROUP,
    SETTINGS_OF_PLANS,
    Plan,
    Settings,
    feature_options,
    plan_options,
)
from histobench.roi.result_options import ChooseOptions, CompareOptions, PowerOptions

SOURCE = Path(__file__).resolve().parents[1] / "src" / "histobench"
#: In a signature, the options of the records follow this line.
MARK = "    # The options below are written by scripts/write_signatures.py from the records.\n"
WIDTH = 110
#: Headings of options that belong to one task or preset.
TASK_GROUPS = ("linear probe", "KNN", "few-shot", "zero-shot", "fine-tune", "patho-bench")


def options_of_run() -> list[Declared]:
    """Every option of a plan that does not choose jobs of a cluster."""
    found = [each for each in plan_options() if each.said.group != ENGINE_GROUP]
    seed = next(each for each in found if each.name == "seed")
    text = "0, or the seed with which `data` was split"
    found[found.index(seed)] = replace(
        seed, optional=True, default=None, said=replace(seed.said, default_text=text)
    )
    return found


def options_of_extract() -> list[Declared]:
    """How features are computed."""
    plan = {each.name: each for each in options_of(Plan)}
    settings = [
        replace(each, default=SETTINGS_OF_PLANS.get(each.name, each.default)) for each in options_of(Settings)
    ]
    return [plan["size"], plan["weights"], *settings]


def options_of_agents() -> list[Declared]:
    """Every option of a run of agents besides those that `hb.mint.run` takes in other forms."""
    paths = ("data", "output", "config", "prompts_dir", "cache", "prices")
    found = [each for each in options_of(RunOptions) if each.name not in ("agent", "tasks", "k")]
    return [
        replace(each, kind=Path if each.name in paths else each.kind, said=replace(each.said, group=""))
        for each in found
    ]


def options_of_consult() -> list[Declared]:
    """How the model writes and how its provider is asked, as in `hb.mint.run`."""
    found = {each.name: each for each in options_of_agents()}
    sampling = ("temperature", "top_p", "seed", "reasoning_effort", "reasoning_history", "constrain")
    asking = ("cache", "prices", "attempts", "timeout", "rpm", "tpm")
    return [found[name] for name in (*sampling, *asking)]


def options_of_prepare() -> list[Declared]:
    """What a study is to be, and how its features are computed."""
    found = [*options_of(StudyPlan), *extraction_options()]
    return [replace(each, said=replace(each.said, group="")) for each in found]


def updated(text: str, function: str, options: Sequence[Declared]) -> str:
    """The source with the options in the signature and in the docstring of a function."""
    start = text.index(f"\ndef {function}(")
    head, body = text[:start], text[start:]
    parameters = "".join(f"    {each.name}: {annotation(each)} = {written(each)},\n" for each in options)
    own, _, rest = body.partition(MARK)
    named = re.findall(r"^    (\w+):", own, flags=re.M)
    _, closing, rest = f"\n{rest}".partition("\n)")
    # In the docstring, the options follow the entry of the last parameter that is not one of them.
    before, found, after = rest.partition("\n\n    Returns\n")
    last = f"([^\n]*, )?{named[-1]} : [^\n]*\n(        [^\n]*\n)+" if named else "Parameters\n    -+\n"
    entry_of_last = re.search(f"\n    {last}", before + "\n")
    assert found, f"{function}: the docstring has no section Returns"
    assert entry_of_last is not None, f"{function}: the docstring does not describe {named[-1:]}"
    entries = "".join(map(entry, options)).rstrip("\n")
    docstring = f"{before}\n"[: entry_of_last.end()] + entries
    return f"{head}{own}{MARK}{parameters.rstrip()}{closing}{docstring}{found}{after}"


def updated_method(text: str, method: str, options: Sequence[Declared]) -> str:
    """The source with the options in a method, whose name is unique with its first parameter."""
    start = text.index(f"\n    def {method}(\n        self,")
    end = text.index("\n    def ", start + 1)
    done = updated(textwrap.dedent(text[start:end]), method, options)
    return text[:start] + textwrap.indent(done, "    ").rstrip(" ") + text[end:]


def annotation(each: Declared) -> str:
    """The type as it is written in a signature."""
    quoted = ", ".join(f'"{word}"' for word in each.words)
    words = f"Literal[{quoted}]" if each.words else ""
    if each.is_list:
        kind = "str | Sequence[str]" if each.kind is str else f"Sequence[{each.kind.__name__}]"
    elif each.kind is Path or each.said.metavar == "PATH":
        kind = "str | Path"
    elif each.kind is str:
        kind = words or "str"
    else:
        kind = " | ".join(filter(None, (each.kind.__name__, words)))
    return f"{kind} | None" if each.optional else kind


def written(each: Declared) -> str:
    """The default as Python writes it."""
    default = str(each.default) if isinstance(each.default, Path) else each.default
    return repr(default).replace("'", '"')


def entry(each: Declared) -> str:
    """The option in a docstring: name, type and default, then the meaning."""
    kinds = annotation(each).replace("Sequence[", "list[").removesuffix(" | None").split(" | ")
    shown = " or ".join(re.sub(r"list\[(\w+)\]", r"list of \1", kind) for kind in kinds)
    shown = re.sub(r"Literal\[(.*)\]", r"{\1}", shown)
    default = "optional" if each.default is None else f"default {written(each)}"
    help_text = re.sub(r"--([a-z][a-z-]*)", lambda found: f"`{found[1].replace('-', '_')}`", each.said.help)
    # Options of one task name it: "number of neighbors" is of KNN.
    group = each.said.group
    named = group in TASK_GROUPS and not help_text.lower().startswith(group.lower())
    meaning = f"{group}: {help_text}" if named else help_text
    meaning = meaning[0].upper() + meaning[1:]
    if each.said.default_text:
        meaning += f" (default: {default_text(each)})"
    lines = textwrap.wrap(f"{meaning}.", WIDTH - 8)
    first = textwrap.wrap(f"{each.name} : {shown}, {default}", WIDTH - 4, subsequent_indent="    ")
    return "".join(f"    {line}\n" for line in first) + "".join(f"        {line}\n" for line in lines)


def sources() -> dict[Path, str]:
    """Each file with what should be in it, before ruff has formatted it."""
    benchmark, features = SOURCE / "api" / "benchmark.py", SOURCE / "api" / "features.py"
    agents, consult = SOURCE / "mint" / "agent_runs.py", SOURCE / "consult" / "consult_runs.py"
    found = {
        benchmark: updated(benchmark.read_text(encoding="utf-8"), "run", options_of_run()),
        features: updated(features.read_text(encoding="utf-8"), "extract", options_of_extract()),
        agents: updated(agents.read_text(encoding="utf-8"), "run", options_of_agents()),
        consult: updated(consult.read_text(encoding="utf-8"), "run", options_of_consult()),
    }
    found[benchmark] = updated(found[benchmark], "choose", options_of(ChooseOptions))
    found[benchmark] = updated(found[benchmark], "compare", options_of(CompareOptions))
    found[benchmark] = updated_method(found[benchmark], "compare", options_of(CompareOptions))
    checks = SOURCE / "api" / "checks.py"
    found[checks] = updated(checks.read_text(encoding="utf-8"), "power", options_of(PowerOptions))
    found[features] = updated(found[features], "evaluate", feature_options())
    found[consult] = updated(found[consult], "prepare", options_of_prepare())
    return {path: formatted(text) for path, text in found.items()}


def formatted(text: str) -> str:
    """The source as `make check` wants it."""
    done = subprocess.run(
        [sys.executable, "-m", "ruff", "format", "--line-length", str(WIDTH), "-"],
        input=text,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def main() -> None:
    """Write the files."""
    for path, text in sources().items():
        write_text(path, text)


if __name__ == "__main__":
    main()
