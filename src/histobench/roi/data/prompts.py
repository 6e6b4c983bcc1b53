"""Zero-shot prompts: for every class, its names put into every template."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from histobench.core.errors import HistobenchError, did_you_mean
from histobench.core.plain_data import read_json, read_yaml
from histobench.roi.data.tables import read_text


@dataclass(frozen=True)
class Prompts:
    """The prompts of every class, arranged as `texts[class][template][synonym]`."""

    classes: tuple[str, ...]
    templates: tuple[str, ...]
    texts: tuple[tuple[tuple[str, ...], ...], ...]

    def of(self, label: int) -> tuple[str, ...]:
        return tuple(text for row in self.texts[label] for text in row)

    @property
    def is_ensemble(self) -> bool:
        return any(len(self.of(label)) > 1 for label in range(len(self.classes)))

    @property
    def first(self) -> tuple[str, ...]:
        """One prompt per class: the first synonym in the first template."""
        return tuple(rows[0][0] for rows in self.texts)

    def with_template(self, index: int) -> Prompts:
        """The same classes and synonyms with one template only, for the spread over templates."""
        return Prompts(self.classes, (self.templates[index],), tuple((rows[index],) for rows in self.texts))


def read_prompts(path: str | Path, classes: Sequence[str]) -> Prompts:
    """The prompts of `classes` from a text file (one line per class), or YAML/JSON (names x templates).

    `CLASSNAME` or `{}` is the place of the name. Numbered sets, as of the CONCH repository, are read too.
    """
    path = Path(path)
    text = read_text(path, what="prompt file")
    if path.suffix.lower() in (".yaml", ".yml"):
        import yaml

        # BaseLoader leaves every scalar a text: a class called NO or 1 is neither false nor a number.
        return _from_mapping(path, read_yaml(text, where=str(path), loader=yaml.BaseLoader), tuple(classes))
    if path.suffix.lower() == ".json" or text.lstrip().startswith("{"):
        return _from_mapping(path, read_json(text, where=str(path)), tuple(classes))
    return _from_lines(path, text, tuple(classes))


def _from_lines(path: Path, text: str, classes: tuple[str, ...]) -> Prompts:
    lines = [
        line.strip()
        for line in re.split(r"\r\n|\n|\r", text)
        if line.strip() and not line.lstrip().startswith("#")
    ]
    if len(lines) != len(classes):
        raise HistobenchError(
            f"{path} has {len(lines)} prompts for {len(classes)} classes: one per line, in class map order"
        )
    return Prompts(classes, ("{}",), tuple(((line,),) for line in lines))


def _from_mapping(path: Path, value: Any, classes: tuple[str, ...]) -> Prompts:
    templates: list[str] = []
    rows: list[list[tuple[str, ...]]] = [[] for _ in classes]
    for where, prompt_set in _prompt_sets(path, value):
        set_templates = _strings(path, f"{where}templates", prompt_set.get("templates", ["{}"]))
        for template in set_templates:
            if not any(placeholder in template for placeholder in ("CLASSNAME", "{}")):
                what = f"{template!r} has no place for the class name (CLASSNAME or {{}})"
                raise HistobenchError(f"{path}: {where}templates: {what}")
        templates += set_templates
        for label, synonyms in enumerate(_synonyms(path, where, prompt_set, classes)):
            rows[label] += [tuple(_fill(template, name) for name in synonyms) for template in set_templates]
    return Prompts(classes, tuple(templates), tuple(map(tuple, rows)))


def _prompt_sets(path: Path, value: Any) -> list[tuple[str, Mapping[Any, Any]]]:
    """The sets of names and templates in the file with their place in it; most files hold one."""
    if not isinstance(value, Mapping):
        raise HistobenchError(f"{path}: expected a mapping with 'templates' and 'classes' at the top")
    if "templates" in value or "classes" in value or "classnames" in value:
        return [("", value)]
    if value and all(isinstance(part, Mapping) and "classnames" in part for part in value.values()):
        return [(f"{key}.", part) for key, part in value.items()]
    # Without templates the names are complete prompts.
    return [("", {"classes": value})]


def _synonyms(
    path: Path, where: str, prompt_set: Mapping[Any, Any], classes: tuple[str, ...]
) -> list[list[str]]:
    key = "classes" if "classes" in prompt_set else "classnames"
    named = prompt_set.get(key, {name: [name] for name in classes})
    if not isinstance(named, Mapping):
        raise HistobenchError(f"{path}: {where}{key} must map each class name to its synonyms")
    by_name = {str(name): value for name, value in named.items()}
    for name in by_name:
        if name not in classes:
            raise HistobenchError(
                f"{path}: {where}{key}: {name!r} is not a class; {did_you_mean(name, classes)}"
            )
    missing = [name for name in classes if name not in by_name]
    if missing:
        raise HistobenchError(f"{path}: {where}{key}: no prompts for class {', '.join(map(repr, missing))}")
    return [_strings(path, f"{where}{key}.{name}", by_name[name]) for name in classes]


def _strings(path: Path, where: str, value: Any) -> list[str]:
    values = [value] if isinstance(value, str) else value
    is_list = isinstance(values, list) and len(values) > 0
    if not is_list or not all(isinstance(text, str) and text.strip() for text in values):
        raise HistobenchError(f"{path}: {where} must be a text or a list of texts")
    return [text.strip() for text in values]


def _fill(template: str, name: str) -> str:
    # Not str.format: a template may contain other braces. One pass, so that a name is never filled again.
    return re.sub(r"CLASSNAME|\{\}", lambda _: name, template)
