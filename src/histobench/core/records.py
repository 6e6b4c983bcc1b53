"""Options declared once: `n_neighbors: int = option("neighbors of KNN", default=20, least=1)` in a `@record`.

From that line come the check, the flag with its help, the key of plan files, the JSON schema and the docs.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
import reprlib
import types
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from functools import cache
from pathlib import Path
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

from histobench.core.errors import HistobenchError, InvalidParameterError, did_you_mean, located
from histobench.core.text import listed

_KEY = "histobench option"
#: The largest whole number that tables can hold, and so the largest seed.
LARGEST = 2**63 - 1
R = TypeVar("R")


@dataclass(frozen=True)
class Option:
    """What a field of a record says about itself, beside its name, type and default."""

    help: str  # what the option does, in one line; the default is added to it
    least: float | None = None  # bounds of a number, or of each number of a list
    above: float | None = None
    most: float | None = None
    below: float | None = None
    choices: tuple[str, ...] = ()  # the allowed words; those of a `Literal` type are taken from it
    flag: str = ""  # the flag, where it is not the field's name
    also: tuple[str, ...] = ()  # further names of the flag
    old: tuple[str, ...] = ()  # names that still work and that help does not show; scripts show the first
    positional: bool = False  # given without a flag (the flag works, too)
    required: bool = False
    metavar: str | None = None  # how help shows the value
    group: str = ""  # the heading in help; what most people need has none and comes first
    takes_value: bool = False  # a flag that is given as `--flag True`, as HistoROIBench's scripts do
    default_text: str | None = None  # what help shows as the default ("the GPU if there is one")
    read: Callable[[str], Any] | None = None  # how a value is read that is not simply a number or a text
    separator: str = ","  # between the items of a list that is written as one text; a regular expression
    regex: bool = False  # a text may have several lines and begin with a hyphen: a regular expression
    script_default: Any = None  # the default of HistoROIBench's script, where it is another one


def option(
    help: str, *, default: Any, choices: Iterable[str] = (), kw_only: bool = False, **said: Any
) -> Any:
    """Declare a field of a record, with what `Option` has to say about it."""
    about = Option(help, choices=tuple(choices), **said)
    keyword: Any = kw_only or dataclasses.MISSING  # then what comes below `_: KW_ONLY` is
    return field(default=default, kw_only=keyword, metadata={_KEY: about})


@dataclass_transform(frozen_default=True, field_specifiers=(option, field))
def record(cls: type[R]) -> type[R]:
    """Make a frozen dataclass whose options are checked when an instance is made, then by its `check`."""

    def check_all(self: Any) -> None:
        made: type = type(self)
        for each in options_of(made):
            value = getattr(self, each.name)
            if value is not each.default:
                object.__setattr__(self, each.name, each.checked(value, f"`{each.name}`"))
        if hasattr(self, "check"):
            self.check()

    cls.__post_init__ = check_all  # type: ignore[attr-defined]
    return dataclass(frozen=True)(cls)


@dataclass(frozen=True)
class Declared:
    """One option of a record: name, type, default and what its field says."""

    name: str
    kind: type  # int, float, bool, str or Path; of a list, the kind of its items
    is_list: bool
    optional: bool
    words: tuple[str, ...]  # the allowed words; beside numbers in `int | Literal["auto"]`
    default: Any
    said: Option

    @property
    def flag(self) -> str:
        """The flag as documented: `n_neighbors` is --n-neighbors."""
        return self.said.flag or f"--{self.name.replace('_', '-')}"

    @property
    def expected(self) -> str:
        """What a value must be, in words: "a whole number of at least 1"."""
        if self.kind is bool:
            return "True or False"
        if self.kind is Path:
            return "a path"
        if self.kind is str:
            return f"one of {', '.join(self.words)}" if self.words else "a text"
        said = self.said
        bounds = {"of at least": said.least, "above": said.above, "at most": said.most, "below": said.below}
        named = [f"{word} {bound:g}" for word, bound in bounds.items() if bound is not None]
        number = "a whole number" if self.kind is int else "a number"
        return " or ".join([*self.words, " ".join([number, " and ".join(named)]).strip()])

    def checked(self, value: Any, name: str) -> Any:
        """The value as the option's type; an error names the option, what it expects and what it found."""
        from pydantic import ValidationError

        if self.said.read is not None and isinstance(value, str):
            value = self.said.read(value)
        try:
            return _adapter(self).validate_python(value)
        except ValidationError as error:
            wrong = error.errors()[-1]["input"] if self.is_list else value
        raise self._refused(wrong, name, is_whole=self.is_list and wrong is value)

    def _refused(self, wrong: Any, name: str, *, is_whole: bool = False) -> InvalidParameterError:
        if self.kind is str and self.words and isinstance(wrong, str):
            return InvalidParameterError(
                f"`{self.name}` {wrong!r} is unknown; {did_you_mean(wrong, self.words)}"
            )
        if is_whole:
            kind = "texts" if self.kind is str else self.expected.replace("a whole number", "whole numbers")
            example = "['a', 'b']" if self.kind is str else f"[{self.said.least or 1:g}]"
            return _error(name, f"a list of {kind}, such as {example}", wrong)
        return _error(name, self.expected, wrong)

    def parsed(self, written: str) -> Any:
        """The value of a flag, from what is written on the command line."""
        parts = [part.strip() for part in re.split(self.said.separator, written) if part.strip()]
        given = list(map(self.one, parts)) if self.is_list else self.one(written)
        if self.is_list and not given:
            raise argparse.ArgumentTypeError("empty: give at least one")
        try:
            return self.checked(given, self.flag)
        except HistobenchError as error:
            own = self.is_list or not isinstance(error, InvalidParameterError)
            message = str(error if own else self._refused(written, self.flag))
            message = message.removeprefix(f"{self.flag}: ").removeprefix(f"`{self.name}` ")
            raise argparse.ArgumentTypeError(message) from None

    def one(self, written: str) -> Any:
        """One value from what is written, not yet checked."""
        if self.kind is bool and written.lower() in _TRUTH:
            return _TRUTH[written.lower()]
        if self.kind in (int, float) and written not in self.words and self.said.read is None:
            try:
                return self.kind(written)
            except (ValueError, OverflowError):
                return written  # refused in words
        return written


_TRUTH = {
    **dict.fromkeys(("true", "1", "yes", "y", "on"), True),
    **dict.fromkeys(("false", "0", "no", "n", "off"), False),
}


@cache
def options_of(cls: type) -> tuple[Declared, ...]:
    """The options of a record, in the order of its fields."""
    hints = get_type_hints(cls)
    return tuple(
        Declared(each.name, *_kind(hints[each.name], said), each.default, said)
        for each in dataclasses.fields(cls)
        if (said := each.metadata.get(_KEY)) is not None
    )


def _kind(hint: Any, said: Option) -> tuple[type, bool, bool, tuple[str, ...]]:
    """Kind, whether it is a list, whether None is allowed, and the allowed words."""
    parts = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    optional, is_list, words, kind = type(None) in parts, False, said.choices, str
    for part in parts:
        if get_origin(part) is tuple:
            is_list, kind = True, get_args(part)[0]
        elif get_origin(part) is Literal:
            words = (*words, *get_args(part))
        elif part is not type(None) and not (part is str and words):  # `int | str`: a number or a word
            kind = part
    return kind, is_list, optional, words


@cache
def _adapter(each: Declared) -> Any:
    from pydantic import BeforeValidator, Field, TypeAdapter

    said = each.said
    item: Any
    if each.kind in (int, float):
        most = LARGEST if said.most is None and each.kind is int else said.most
        bounds = Field(strict=True, ge=said.least, gt=said.above, le=most, lt=said.below)
        item = Annotated[each.kind, bounds, BeforeValidator(_plain_number)]
        item = Union[item, Literal[each.words]] if each.words else item  # noqa: UP007 (made at run time)
    elif each.kind is bool:
        item = Annotated[bool, Field(strict=True), BeforeValidator(_plain_number)]
    elif each.kind is Path:
        item = Annotated[Path, BeforeValidator(_path)]
    elif each.words:
        item = Annotated[Literal[each.words], BeforeValidator(_word)]
    elif said.regex:
        item = Annotated[str, Field(strict=True, min_length=1)]
    else:
        item = Annotated[str, BeforeValidator(_line)]
    if each.is_list:
        item = Annotated[tuple[item, ...], BeforeValidator(_plain_list)]
    return TypeAdapter(item | None if each.optional else item)


def _plain_number(value: Any) -> Any:
    """NumPy's numbers and flags as Python's."""
    return value.item() if hasattr(value, "item") and getattr(value, "ndim", 1) == 0 else value


def _plain_list(value: Any) -> Any:
    """Ranges, arrays and lists as a tuple; a text is not its letters."""
    if isinstance(value, str | bytes | Mapping) or not hasattr(value, "__iter__"):
        raise ValueError("not a list")
    return tuple(value.tolist() if hasattr(value, "tolist") else value)


def _line(value: Any) -> str:
    """A text of one line that a file can hold."""
    if not isinstance(value, str) or not value.strip() or len(value.splitlines()) > 1 or "\0" in value:
        raise ValueError("not a line of text")
    value.encode()  # halves of characters, of broken file names, are a ValueError
    return str(value)


def _path(value: Any) -> Path:
    if not isinstance(value, str | os.PathLike) or not str(value).strip() or "\0" in str(value):
        raise ValueError("not a path")
    return Path(os.path.expanduser(value))


def _error(name: str, expected: str, value: Any) -> InvalidParameterError:
    found = reprlib.repr(value)
    if "\n" in found or len(found) > 80:
        found = f"{type(value).__module__}.{type(value).__qualname__}"
    return InvalidParameterError(f"{name}: expected {expected}, found {found}")


def checked(kind: type[R], value: Any, name: str, **said: Any) -> R:
    """Return a parameter that is not an option of a record, checked as if it were one.

    >>> checked(int, 5, "k", least=1), checked(tuple[str, ...], "KNN", "tasks")
    (5, ('KNN',))
    """
    about = Option("", **said)
    each = Declared(name, *_kind(kind, about), None, about)
    if each.is_list and isinstance(value, str):
        value = (value,)
    found: R = each.checked(value, name)
    if each.is_list and not found:
        raise InvalidParameterError(f"{name}: give at least one")
    return found


def _word(value: Any) -> Any:
    """YAML reads the words on and off as true and false."""
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else value


def check_keys(values: Iterable[object], known: Collection[str], where: str = "") -> None:
    """Raise for a key that no option has."""
    for key in values:
        if key not in known:
            raise HistobenchError(located(where, f"unknown key {key!r}; {did_you_mean(str(key), known)}"))


def values_from(options: Iterable[Declared], values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The checked values of those options that a file or a call gives; None means that nothing is given.

    A list may be written as one text with commas.
    """
    found: dict[str, Any] = {}
    for each in options:
        value = values.get(each.name)
        if value is None:
            continue
        if each.is_list and isinstance(value, str):
            value = list(map(each.one, listed(value)))
        elif each.is_list and hasattr(value, "tolist"):
            value = value.tolist()
        elif each.kind is int and each.words and str(value).isdecimal():
            value = int(str(value))
        if each.is_list and not value:
            raise HistobenchError(located(where, f"'{each.name}' must be a list with at least one entry"))
        if each.kind is str and not each.words and isinstance(value, float | int | date | os.PathLike):
            value = str(value)  # YAML reads 5e2 or 2024-01-01 as something else than a text
        try:
            found[each.name] = each.checked(value, each.name)
        except InvalidParameterError as error:
            raise InvalidParameterError(located(where, error)) from None
    return found


def from_values(cls: type[R], values: Mapping[str, Any], *, only: bool = False) -> R:
    """Make a record from the parameters of a call; other keys are left alone, or refused with `only`."""
    made: type = cls
    options = options_of(made)
    if only:
        check_keys(values, [each.name for each in options])
    named = [each for each in options if each.name in values]
    given = {each.name: values[each.name] for each in named if values[each.name] is not each.default}
    return cls(**values_from(options, given, ""))


class Entry:
    """A dataclass that is written by hand in a file; `words` in a field's metadata are the allowed ones."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid", "str_strip_whitespace": True}

    def __post_init__(self) -> None:
        for each in dataclasses.fields(self):  # type: ignore[arg-type]
            value, words = getattr(self, each.name), each.metadata.get("words")
            if words and value and value not in words:
                raise ValueError(f"{each.name} is {value!r}; {did_you_mean(str(value), words)}")


def read_entry(kind: type[R], entry: Any, where: str) -> R:
    """Make a dataclass from a mapping of a file; an error names the place and the field."""
    from pydantic import ValidationError

    if not isinstance(entry, Mapping):
        raise HistobenchError(f"{where}: expected fields (key: value), found {type(entry).__name__}")
    hashable: Any = kind
    try:
        made: R = _entry_adapter(hashable).validate_python(entry)
        return made
    except ValidationError as error:
        # A misspelled field comes before the one that is therefore missing.
        first = min(error.errors(), key=lambda each: each["type"] != "unexpected_keyword_argument")
    *above, name = first["loc"] or ("",)
    place = ": ".join(map(str, (where, *above)))
    if first["type"] == "unexpected_keyword_argument":
        known = [] if above else [each.name for each in dataclasses.fields(kind)]  # type: ignore[arg-type]
        raise HistobenchError(f"{place}: unknown field {name!r}; {did_you_mean(str(name), known)}")
    if first["type"] in ("missing", "missing_argument"):
        raise HistobenchError(f"{place}: the field {name!r} is missing")
    if first["type"] == "value_error":
        raise HistobenchError(f"{located(place, name)}: {first['ctx']['error']}".replace(": : ", ": "))
    found = reprlib.repr(first["input"])
    raise HistobenchError(f"{place}: {name}: {first['msg'].lower()}, found {found}")


@cache
def _entry_adapter(kind: Any) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def add_flags(parser: Any, options: Iterable[Declared], *, as_script: bool = False) -> None:
    """Add a flag for every option; one that is not given is None, so that the default stays with the record.

    `as_script` shows the spelling of HistoROIBench's scripts.
    """
    groups: dict[str, Any] = {"": parser}
    for each in options:
        title = each.said.group if isinstance(parser, argparse.ArgumentParser) else ""
        if title not in groups:
            groups[title] = parser.add_argument_group(title)
        default = each.said.script_default if as_script else None
        if default is not None:
            each = replace(each, default=default, said=replace(each.said, default_text=None))
        shown = "" if each.said.required else default_text(each)
        text = f"{each.said.help} (default: {shown})" if shown else each.said.help
        settings: dict[str, Any] = {"default": default, "help": text.replace("%", "%%")}
        if each.kind is bool and not each.said.takes_value:
            settings["action"] = "store_true"
        else:
            settings["type"] = each.parsed
            settings["metavar"] = each.said.metavar or _metavar(each)
            if each.kind is bool:
                settings |= {"nargs": "?", "const": True}
            if each.is_list:
                settings["action"] = _Joined
        names = [each.flag, *each.said.also]
        hidden = list(each.said.old)
        if as_script:
            script = each.said.old[0] if each.said.old else f"--{each.flag[2:].replace('-', '_')}"
            names, hidden = [script], [*names, *hidden[1:]]
        if each.said.positional and not (as_script and each.said.old):
            many = ("+" if each.said.required else "*") if each.is_list else None
            settings |= {
                "nargs": many or (None if each.said.required else "?"),
                "metavar": each.said.metavar or each.name.upper(),
                "action": settings.get("action", _Given),
            }
            hidden, names = [*names, *hidden], [each.name]
        else:
            settings |= {"dest": each.name, "required": each.said.required}
        action = groups[title].add_argument(*names, **settings)
        action.is_regex = each.said.regex
        groups[title]._option_string_actions.update(dict.fromkeys(hidden, action))


def given_flags(args: argparse.Namespace, options: Iterable[Declared]) -> dict[str, Any]:
    """What was given on the command line, by the names of the options."""
    given = {each.name: getattr(args, each.name) for each in options}
    return {name: value for name, value in given.items() if value is not None}


def from_flags(cls: type[R], args: argparse.Namespace) -> R:
    """Make a record from the command line; what is not given has its default."""
    names = [each.name for each in dataclasses.fields(cls) if each.init]  # type: ignore[arg-type]
    given = {name: getattr(args, name, None) for name in names}
    return cls(**{name: value for name, value in given.items() if value is not None})


class _Joined(argparse.Action):
    """A list that is given in several flags or arguments is one list."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: Any = None) -> None:
        parts = values if isinstance(values, list) else [values]  # several arguments, or one flag
        found = tuple(item for part in parts for item in part)
        before = getattr(namespace, self.dest)
        if found:
            setattr(namespace, self.dest, found if before is self.default else (*before, *found))


class _Given(argparse.Action):
    """An argument that may also be given as a flag: where it is absent, the flag counts."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: Any = None) -> None:
        if values is not None:
            setattr(namespace, self.dest, values)


def spelled_as_declared(parser: argparse.ArgumentParser, argv: Sequence[str]) -> list[str]:
    """The arguments with hyphens and underscores of flags as the parser has them.

    >>> parser = argparse.ArgumentParser()
    >>> _ = parser.add_argument("--batch-size")
    >>> spelled_as_declared(parser, ["--batch_size=8", "my_file"])
    ['--batch-size=8', 'my_file']
    """
    actions = dict(flags_of(parser))
    declared = {flag.replace("_", "-"): flag for flag in actions}
    found: list[Any] = []
    for place, word in enumerate(argv):
        if word == "--":
            return [*found, *argv[place:]]
        name, equals, value = word.partition("=")
        known = declared.get(name.replace("_", "-")) if word.startswith("--") else None
        regex = bool(found) and getattr(actions.get(found[-1]), "is_regex", False)
        if regex and word.startswith("-") and not word.startswith("--"):
            found[-1] = f"{found[-1]}={word}"  # an expression such as -(p[0-9]+)_, which is not a flag
            continue
        found.append(f"{known}{equals}{value}" if known else word)
    return found


def flags_of(parser: argparse.ArgumentParser) -> Iterable[tuple[str, argparse.Action]]:
    """Every flag of a parser and of its sub-parsers, and what it does."""
    yield from parser._option_string_actions.items()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from flags_of(below)


def default_text(each: Declared) -> str:
    """The default as a person writes it; nothing for a flag that is off or a value that is not given."""
    if each.said.default_text is not None:
        return each.said.default_text
    if each.default is None or each.default is False or each.default == ():
        return ""
    if each.is_list:
        return ",".join(map(str, each.default))
    return f"{each.default:g}" if each.kind is float else str(each.default)


def _metavar(each: Declared) -> str:
    if each.words and each.kind is str:
        return "{" + ",".join(each.words) + "}"
    one = {int: "N", float: "X", Path: "FILE", bool: "True|False"}.get(each.kind, "TEXT")
    return f"{one},..." if each.is_list else "|".join([*each.words, one])


def schema_of(options: Iterable[Declared]) -> dict[str, Any]:
    """The properties of a JSON schema: what editors complete and check plan files by."""
    properties = {}
    for each in options:
        found = _adapter(each).json_schema()
        if "anyOf" in found and each.optional:  # a key that is not needed is left out, not null
            forms = [form for form in found["anyOf"] if form != {"type": "null"}]
            found = forms[0] if len(forms) == 1 else {"anyOf": forms}
        for form in (found, found.get("items", {}), *found.get("anyOf", ())):
            if form.get("maximum") == LARGEST:
                del form["maximum"]
        if each.is_list and each.kind is str:
            found = {**found, "type": ["array", "string"]}
        if {"on", "off"} <= set(each.words):
            found = {"enum": [*found["enum"], True, False]}
        default = list(each.default) if isinstance(each.default, tuple) else each.default
        properties[each.name] = {
            "description": each.said.help,
            **found,
            **({} if default is None or default == [] else {"default": default}),
        }
    return properties
