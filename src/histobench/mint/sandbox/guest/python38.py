"""Error messages in the words of Python 3.8, the Python of the published recordings.

An agent that reads "unexpected EOF while parsing" may act differently from one that reads "was never closed";
whoever compares with recorded episodes wants the former. What that Python could not do is in
`python38_language`.
"""

from __future__ import annotations

import linecache
import re
import sys
from functools import cache
from typing import Any

_QUALIFIED = r"(?:[\w<>]+\.)+"
_MESSAGES: tuple[tuple[str, str], ...] = (
    (
        r"^UnboundLocalError: cannot access local variable ('.*?') where it is not associated with a value",
        r"UnboundLocalError: local variable \1 referenced before assignment",
    ),
    (
        r"^NameError: cannot access free variable ('.*?') where it is not associated with a value "
        r"in enclosing scope",
        r"NameError: free variable \1 referenced before assignment in enclosing scope",
    ),
    (
        rf"^TypeError: {_QUALIFIED}(\w+|<lambda>)\(\) (takes|missing|got|argument|expected)",
        r"TypeError: \1() \2",
    ),
    (r"^TypeError: (int|float|complex)\(\) (.*)a real number", r"TypeError: \1() \2a number"),
    (r"^ZeroDivisionError: integer modulo by zero", "ZeroDivisionError: integer division or modulo by zero"),
    (r"^(ImportError: cannot import name .*) \([^()]*\.cpython-[^()]*\.so\)", r"\1 (unknown location)"),
    (r"^(IndentationError: expected an indented block) after .*", r"\1"),
    (r"^TypeError: type '[\w.]+' is not subscriptable", "TypeError: 'type' object is not subscriptable"),
)
# `chr` and its like had a message of their own; what follows the arrow is the failing line.
_WRONG_INTEGER = re.compile(r"^TypeError: '(\w+)' object cannot be interpreted as an integer", re.MULTILINE)
_COMPILED = tuple((re.compile(pattern, re.MULTILINE), words) for pattern, words in _MESSAGES)


def reword_message(text: str, *, failing_frame: str = "") -> str:
    """The last part of a traceback, reworded; `failing_frame` is the part before it.

    >>> reword_message("TypeError: A.f() missing 1 required positional argument: 'x'")
    "TypeError: f() missing 1 required positional argument: 'x'"
    """
    for pattern, words in _COMPILED:
        text = pattern.sub(words, text)
    if re.search(r"^-+> \d+ .*\bchr\(", failing_frame, re.MULTILINE):
        text = _WRONG_INTEGER.sub(r"TypeError: an integer is required (got type \1)", text)
    return text


def reword_syntax_error(error: SyntaxError) -> None:
    """Change the error to what the parser of Python 3.8 would have said, and where."""
    source = _source_of(error)
    if not source.strip() or error.lineno is None:
        return
    lines = source.splitlines()
    said = _of_the_tokenizer(error, lines)
    old = _of_the_old_grammar(source)
    # The old parser read token by token: whatever came first in the file was reported.
    if old is not None and (said is None or old[1:] < _token_start(error, lines)):
        said = old
    if said is not None and said[1] <= len(lines):
        message, line, offset = said
        text = lines[line - 1] + "\n"
        error.msg, error.lineno, error.offset, error.text = message, line, offset, text
        error.end_lineno = error.end_offset = None
        error.args = (message, (error.filename, line, offset, text))


def reword_shell_error(text: str) -> str:
    """An error of bash without the line number that newer versions add.

    >>> reword_shell_error("/bin/bash: line 1: google: command not found")
    '/bin/bash: google: command not found'
    """
    return re.sub(r"^/bin/bash: line \d+: ", "/bin/bash: ", text, flags=re.MULTILINE)


def print_numbers_plainly() -> None:
    """NumPy scalars print as they did before NumPy 2: 0.5, not np.float64(0.5)."""
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.set_printoptions(legacy="1.25")


def load_grammar() -> None:
    """Load the old grammar ahead of time."""
    _grammar()


@cache
def _grammar() -> Any:
    try:
        import parso
    except ImportError:  # a part of IPython's completion; without it the new parser's words stay
        return None
    return parso.load_grammar(version="3.8")


def _of_the_tokenizer(error: SyntaxError, lines: list[str]) -> tuple[str, int, int] | None:
    """(message, line, offset) of an error that concerns single tokens; other errors give None."""
    message, number, offset = error.msg or "", error.lineno or 1, error.offset or 1
    line = lines[min(number, len(lines)) - 1]
    if message.startswith(("unmatched", "closing parenthesis")):
        return message, number, offset
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


def _of_the_old_grammar(source: str) -> tuple[str, int, int] | None:
    grammar = _grammar()
    if grammar is None:
        return None
    issues = sorted(grammar.iter_errors(grammar.parse(source)), key=lambda issue: issue.start_pos)
    # The parser ran over the whole file before anything looked at targets of assignments and the like.
    of_parser = [i for i in issues if i.message.endswith("invalid syntax") or "Indentation" in i.message]
    for issue in (of_parser or issues)[:1]:
        return issue.message.partition(": ")[2], issue.start_pos[0], issue.start_pos[1] + 1
    return None
