"""Syntax errors as the parser of Python 3.8 reported them: its words and its positions."""

from __future__ import annotations

import ast
import io
import linecache
import re
import string
import sys
import tokenize
from functools import cache
from typing import Any

_PLACEHOLDER = re.compile(r"(?i)\b(f|rf|fr)(?=['\"])")
_STATEMENT = re.compile(r"(?:[^:]*:)?\s*(print|exec) (.*)")

_OF_PARSER = re.compile(r"invalid syntax$|Indentation|while scanning")

Said = tuple[str, int, int]  # message, line, offset


def reword_syntax_error(error: SyntaxError) -> None:
    """Change the error to what the parser of Python 3.8 would have said, and where."""
    source = _source_of(error)
    if not source.strip() or error.lineno is None or isinstance(error, TabError):
        return
    lines = re.split(r"\r\n|\r|\n", source.removesuffix("\n"))  # the parser knows no other line ends
    if (error.msg or "").startswith("f-string: ") and _is_inside_braces(error, lines):
        source = (error.text or "").rstrip("\n")
        lines, error.filename, error.msg = [source], "<fstring>", "invalid syntax"
    elif sys.version_info >= (3, 12) and (field := _wrong_field(source)) is not None:
        source, lines, error.filename, error.msg = field, [field], "<fstring>", "invalid syntax"
        error.lineno, error.offset, error.text = 1, len(field), field
    said = _of_the_tokenizer(error, lines)
    old = _of_the_old_grammar(source, lines)
    # The old parser read token by token: whatever came first in the file was reported.
    if old is not None and (said is None or old[1] < _token_start(error, lines)):
        said = old[0]
    said = said or _of_the_string(error, lines)
    if said is not None and said[1] <= len(lines):
        message, line, offset = said
        text = lines[line - 1] + "\n"
        message = _of_an_old_statement(error, text) or message
        error.msg, error.lineno, error.offset, error.text = message, line, offset, text
        error.end_lineno = error.end_offset = None
        error.args = (message, (error.filename, line, offset, text))


def _is_inside_braces(error: SyntaxError, lines: list[str]) -> bool:
    """Whether the text of the error is the expression of an f-string, not a line of the source."""
    text = (error.text or "").rstrip("\n")
    return text.startswith("(") and text.endswith(")") and text not in (line.rstrip() for line in lines)


def refuse_newer_strings(source: str, filename: str) -> None:
    """Raise a SyntaxError for f-strings that only Python 3.12 and later accept.

    >>> refuse_newer_strings('f"{x[0]}"', "cell")
    """
    if sys.version_info < (3, 12) or not _PLACEHOLDER.search(source):
        return
    try:
        ast.parse(_with_plain_strings(source), filename)
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


def _with_plain_strings(source: str) -> str:
    """The source as the old parser saw it: to it an f-string was a string like any other."""
    return _PLACEHOLDER.sub(lambda prefix: "u" if len(prefix[0]) == 1 else " r", source)


def _wrong_field(source: str) -> str | None:
    """`(a b)` of `f'{a b}'`, if nothing but such an expression is wrong; newer parsers name the line."""
    plain = _with_plain_strings(source)
    try:
        ast.parse(plain)
        tokens = list(tokenize.generate_tokens(io.StringIO(plain).readline))
    except (SyntaxError, ValueError, tokenize.TokenError):
        return None
    lines = source.splitlines()
    for token in tokens:
        line, column = token.start
        prefix = (
            _PLACEHOLDER.search(lines[line - 1], max(column - 1, 0))
            if token.type == tokenize.STRING
            else None
        )
        if prefix is None or prefix.start() > column:
            continue
        try:
            fields = [field for _, field, _, _ in string.Formatter().parse(token.string) if field]
        except ValueError:  # of braces that do not match
            continue
        for field in fields:
            try:
                ast.parse(f"({field})")
            except (SyntaxError, ValueError):
                return f"({field})"
    return None


def _of_the_string(error: SyntaxError, lines: list[str]) -> Said | None:
    """The complaint about an f-string as a whole: it was made at the beginning of the string."""
    if not (error.msg or "").startswith("f-string"):
        return None
    number = min(error.lineno or 1, len(lines))
    for line in range(number, 0, -1):
        end = (error.offset or 1) if line == number else None
        if found := [match.start() for match in _PLACEHOLDER.finditer(lines[line - 1][:end])]:
            return error.msg, line, found[-1] + 1
    return None


def _of_an_old_statement(error: SyntaxError, text: str) -> str | None:
    """Lines of Python 2 had a message of their own."""
    statement = _STATEMENT.match(text) if type(error) is SyntaxError and "(" not in text else None
    if statement is None:
        return None
    if statement[1] == "exec":
        return "Missing parentheses in call to 'exec'"
    shown = statement[2].partition(";")[0].strip()
    shown += ' end=" "' if shown.endswith(",") else ""
    return f"Missing parentheses in call to 'print'. Did you mean print({shown})?"


def load_grammar() -> None:
    """Load the old grammar ahead of time."""
    _grammar()


@cache
def _grammar() -> Any:
    try:
        import parso
    except ImportError:  # a part of IPython's completion; without it the new parser's words stay
        return None
    return parso.load_grammar(version="3.8")  # type: ignore[attr-defined]


def _of_the_tokenizer(error: SyntaxError, lines: list[str]) -> Said | None:
    """(message, line, offset) of an error that concerns single tokens; other errors give None."""
    message, number, offset = error.msg or "", error.lineno or 1, error.offset or 1
    line = lines[min(number, len(lines)) - 1]
    if message.startswith(("unmatched", "closing parenthesis")):
        return message, number, offset
    if message.startswith("leading zeros"):
        digits = re.match(r"[\d_]*", line[offset - 1 :])
        return message, number, offset - 1 + len(digits[0] if digits else "")
    if message.startswith("invalid character"):
        word = re.match(r".\w*", line[offset - 1 :])
        return "invalid character in identifier", number, offset - 1 + len(word[0] if word else "")
    if message.startswith("unexpected character after line continuation"):
        return message, number, len(line) + 1
    if message.endswith("was never closed") or message == "incomplete input":
        return "unexpected EOF while parsing", len(lines), len(lines[-1]) + 1
    if error.filename == "<string>" and message == "invalid syntax" and error.offset == 0:  # its end
        return "unexpected EOF while parsing", number, len(line.rstrip())
    return None


def _source_of(error: SyntaxError) -> str:
    if error.filename == "<string>" and error.lineno == 1:  # the argument of eval
        return error.text or ""
    return "".join(linecache.getlines(error.filename)) if error.filename else ""


def _token_start(error: SyntaxError, lines: list[str]) -> tuple[int, int]:
    message, number, offset = error.msg or "", error.lineno or 1, error.offset or 1
    if message.startswith("unexpected character after line continuation"):
        return number, offset - 1
    if message.endswith("was never closed") or message == "incomplete input":
        return len(lines), len(lines[-1]) + 1
    return number, offset


def _of_the_old_grammar(source: str, lines: list[str]) -> tuple[Said, tuple[int, int]] | None:
    """What the old grammar says, and where it stumbled."""
    grammar = _grammar()
    if grammar is None:
        return None
    tree = grammar.parse(_with_plain_strings(source))
    issues = sorted(grammar.iter_errors(tree), key=lambda issue: issue.start_pos)
    # The parser ran over the whole file before anything looked at targets of assignments and the like.
    of_parser = [issue for issue in issues if _OF_PARSER.search(issue.message)]
    for issue in (of_parser or issues)[:1]:
        message, (line, column) = issue.message.partition(": ")[2], issue.start_pos
        where = (line, column + 1)
        leaf = tree.get_leaf_for_position(where) if where <= tree.end_pos else None
        if message.startswith("EOL while scanning"):
            return (message, line, len(lines[line - 1]) + 1), where
        if message.startswith("EOF while scanning"):
            return (message, len(lines), len(lines[-1]) + 2), where  # beyond the line's end, newline included
        if leaf is not None and leaf.type == "string" and leaf.end_pos[0] > line:
            return (message, leaf.end_pos[0], 1), where  # of a token of several lines it knew the last one
        return (message, line, column + 1), where
    return None
