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

#: Where the class name goes in a template.
PLACEHOLDERS = ("CLASSNAME", "{}")


@dataclass(frozen=True)
class Prompts:
    """The prompts of every class, arranged as `texts[class][template][synonym]`.

    Plain prompt files have the single template `{}`: their lines are complete prompts.
    """

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

    YAML and JSON: `{"templates": ["a photo of CLASSNAME", ...], "classes": {"TUM": ["tumour", ...], ...}}`,
    with `CLASSNAME` or `{}` as the place of the name. Files of the CONCH repository, which hold numbered
    sets of `classnames` and `templates`, are read too.
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
        (number, line.strip())
        for number, line in enumerate(re.split(r"\r\n|\n|\r", text), start=1)
        if line.strip() and not line.lstrip().startswith("#")
    ]
    if len(lines) < len(classes):
        raise HistobenchError(
            f"{path} has {len(lines)} prompts for {len(classes)} classes; "
            f"the first class without one is {classes[len(lines)]!r} (one line per class, in class map order)"
        )
    if len(lines) > len(classes):
        number, line = lines[len(classes)]
        raise HistobenchError(
            f"{path}:{number}: prompt {len(classes) + 1} of {len(lines)} for {len(classes)} classes; "
            f"{line!r} belongs to none (one line per class, in class map order)"
        )
    return Prompts(classes, ("{}",), tuple(((line,),) for _, line in lines))


def _from_mapping(path: Path, value: Any, classes: tuple[str, ...]) -> Prompts:
    templates: list[str] = []
    rows: list[list[tuple[str, ...]]] = [[] for _ in classes]
    for where, prompt_set in _prompt_sets(path, value):
        set_templates = _templates(path, where, prompt_set)
        names = _synonyms(path, where, prompt_set, classes)
        templates += set_templates
        for label, synonyms in enumerate(names):
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


def _templates(path: Path, where: str, prompt_set: Mapping[Any, Any]) -> list[str]:
    templates = _strings(path, f"{where}templates", prompt_set.get("templates", ["{}"]))
    for template in templates:
        if not any(placeholder in template for placeholder in PLACEHOLDERS):
            raise HistobenchError(
                f"{path}: {where}templates: {template!r} has no place for the class name (CLASSNAME or {{}})"
            )
    if len(set(templates)) < len(templates):
        double = next(template for template in templates if templates.count(template) > 1)
        raise HistobenchError(f"{path}: {where}templates: {double!r} is listed twice")
    return templates


def _synonyms(
    path: Path, where: str, prompt_set: Mapping[Any, Any], classes: tuple[str, ...]
) -> list[list[str]]:
    key = "classes" if "classes" in prompt_set else "classnames"
    named = prompt_set.get(key, {name: [name] for name in classes})
    if not isinstance(named, Mapping):
        raise HistobenchError(f"{path}: {where}{key} must map each class name to its synonyms")
    by_name = {str(name): value for name, value in named.items()}
    unknown = [name for name in by_name if name not in classes]
    if unknown:
        raise HistobenchError(
            f"{path}: {where}{key}: {unknown[0]!r} is not a class; {did_you_mean(unknown[0], classes)}"
        )
    missing = [name for name in classes if name not in by_name]
    if missing:
        raise HistobenchError(f"{path}: {where}{key}: no prompts for class {', '.join(map(repr, missing))}")
    return [_strings(path, f"{where}{key}.{name}", by_name[name]) for name in classes]


def _strings(path: Path, where: str, value: Any) -> list[str]:
    values = [value] if isinstance(value, str) else value
    if not isinstance(values, Sequence) or not values:
        raise HistobenchError(f"{path}: {where} must be a text or a list of texts")
    for text in values:
        if not isinstance(text, str) or not text.strip():
            raise HistobenchError(f"{path}: {where}: expected a text, found {text!r}")
    return [text.strip() for text in values]


def _fill(template: str, name: str) -> str:
    # Not str.format: a template may contain other braces. One pass, so that a name is never filled again.
    return re.sub(r"CLASSNAME|\{\}", lambda _: name, template)
