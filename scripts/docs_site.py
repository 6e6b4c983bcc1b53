"""Hooks of mkdocs: links to files of the repository, and pages that are made from the code.

These pages are the reference of commands, Python names and public datasets, and the notebooks.
"""

from __future__ import annotations

import argparse
import json
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_LINK = re.compile(r"\]\(((?:\.\./)+[^)#\s]+)")
_REPOSITORY = "https://github.com/histobench/histobench/blob/main/"
_TOP = Path(__file__).resolve().parent.parent


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Called for every page: a link out of docs/ goes to the repository; a missing file fails the build."""
    folder = posixpath.join("docs", posixpath.dirname(page.file.src_uri))

    def outside(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, match[1]))
        if target.startswith("docs/"):
            return match[0]
        if not (_TOP / target).exists():
            raise FileNotFoundError(f"{page.file.src_uri} links to {target}, which is not in the repository")
        return f"]({_REPOSITORY}{target}"

    return _LINK.sub(outside, markdown).replace(".ipynb)", ".md)")  # notebooks are pages here


def on_page_content(html: str, **_: Any) -> str:
    """Called for every page: a flag or a name is not broken at its hyphens."""
    html = re.sub(r"(?<=>)--[a-z][\w-]+", r'<span class="word">\g<0></span>', html)
    return re.sub(r"<code>(?=[\w.-]{1,26}</code>)", '<code class="word">', html)


def on_files(files: Any, *, config: Any, **_: Any) -> Any:
    """Called once: add the pages that are made from the code."""
    from mkdocs.structure.files import File

    made = {
        "reference/cli.md": commands_page(),
        "reference/api.md": api_page(),
        "reference/datasets.md": datasets_page(),
        **{f"notebooks/{path.stem}.md": notebook_page(path) for path in notebooks()},
    }
    for uri, text in made.items():
        files.append(File.generated(config, uri, content=text))
    return files


def commands_page() -> str:
    """Every command with its flags, from the parsers."""
    from histobench.cli.main import GROUPS

    parts = [
        "# Commands\n\nGenerated from the code. Flags may be written with hyphens or underscores. Every "
        "command also takes `--help` and `--debug` (show the traceback of an error).\n"
    ]
    for title, commands in GROUPS.items():
        parts.append(f"## {title.capitalize()}\n")
        for name, command in commands.items():
            parser = argparse.ArgumentParser(prog=f"histobench {name}")
            command.add_flags(parser)
            parts.extend(_command(parser, command.summary))
    return "\n".join(parts)


def _command(parser: argparse.ArgumentParser, summary: str) -> Iterator[str]:
    """The section of a command, then those of its own commands."""
    text, _, examples = re.sub(r"\nExamples?:\n", "\0", parser.description or "").partition("\0")
    said = " ".join((text or f"{summary[0].upper()}{summary[1:]}.").split())
    yield f"### {parser.prog}\n\n{_plain(said)}\n"
    if examples:
        yield "```bash\n" + re.sub(r"^  ", "", examples.rstrip(), flags=re.MULTILINE) + "\n```\n"
    nested: list[tuple[argparse.ArgumentParser, str]] = []
    for group in parser._action_groups:
        rows = []
        for action in group._group_actions:
            if isinstance(action, argparse._SubParsersAction):
                nested.extend(
                    (action.choices[each.dest], each.help or "") for each in action._choices_actions
                )
            elif action.help != argparse.SUPPRESS and action.dest not in ("help", "debug"):
                rows.append(
                    f"| {_spelling(action)} | {_plain((action.help or '') % _values(parser, action))} |"
                )
        if rows:
            yield "\n".join([f"| {group.title or 'options'} | |", "|---|---|", *rows, ""])
    for each, what in nested:
        yield from _command(each, what)


def _spelling(action: argparse.Action) -> str:
    if not action.option_strings:
        return f"`{action.metavar or action.dest}`"
    value = action.metavar or (
        "{" + ",".join(map(str, action.choices)) + "}" if action.choices else action.dest.upper()
    )
    takes = "" if action.nargs == 0 else f" {value}"
    return ", ".join(f"`{flag}{takes}`".replace("|", "\\|") for flag in action.option_strings)


def _values(parser: argparse.ArgumentParser, action: argparse.Action) -> dict[str, Any]:
    return {**vars(action), "prog": parser.prog}


def _plain(text: str) -> str:
    """Text as it is, in a cell of a table."""
    return re.sub(r"([*_|])", r"\\\1", text.replace("<", "&lt;").replace("\n", " "))


def api_page() -> str:
    """Every public name by the name under which it is imported."""
    import histobench

    names = [name for name in histobench.__all__ if name != "__version__"]
    modules = [name for name in names if not isinstance(getattr(histobench, name), type | type(api_page))]
    parts = [
        "# Python API\n\nGenerated from the docstrings. `import histobench as hb` imports nothing heavy; "
        "every name below is an attribute of `hb`. How to use them: [From Python](../how-to/python.md).\n"
    ]
    parts.extend(f"::: histobench.{name}\n" for name in names if name not in modules)
    for name in modules:
        module = getattr(histobench, name)
        parts.append(f"## histobench.{name}\n")
        shown = getattr(module, "__all__", None) or [
            each
            for each, value in vars(module).items()
            if not each.startswith("_") and getattr(value, "__module__", "").startswith("histobench")
        ]
        parts.extend(f"::: histobench.{name}.{each}\n" for each in shown)
    return "\n".join(parts)


def datasets_page() -> str:
    """The public datasets that are known by name."""
    from histobench.roi.registry.dataset_entry import all_datasets

    rows = [
        f"| `{each.name}` | [{_plain(each.title)}]({each.homepage}) | {each.organ} "
        f"| {len(each.classes) or ''} | {sum(each.counts.values()) or ''} "
        f"| {', '.join(f'`@{name}`' for name in each.splits)} "
        f"| {each.access} | {_plain(each.license)} |"
        for each in all_datasets().values()
    ]
    return "\n".join(
        [
            "# Public datasets\n\nGenerated from the registry. `histobench data show NAME` prints the files, "
            "checksums, splits and everything that is not confirmed; how to get one: "
            "[Datasets](../how-to/datasets.md).\n",
            "| name | dataset | organ | classes | images | published splits | access | license |",
            "|---|---|---|---:|---:|---|---|---|",
            *rows,
        ]
    )


def notebooks() -> list[Path]:
    """The notebooks of the documentation."""
    return sorted((_TOP / "docs" / "notebooks").glob("*.ipynb"))


def notebook_page(path: Path) -> str:
    """A notebook as a page: its texts and its code."""
    parts = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
    first, *rest = parts
    place = f"{_REPOSITORY}docs/notebooks/{path.name}"
    return "\n\n".join([first, f"[Open the notebook]({place})", *rest])
