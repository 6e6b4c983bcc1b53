"""Error messages in the words of Python 3.8, the Python of the published recordings.

An agent that reads "unexpected EOF while parsing" may act differently from one that reads "was never closed";
whoever compares with recorded episodes wants the former. Syntax errors are in `python38_syntax`, what that
Python could and could not do is in `python38_language`.
"""

from __future__ import annotations

import re
import sys

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
    (r"^TypeError: (%\w format:) a real number", r"TypeError: \1 a number"),
    (r"^(TypeError: string indices must be integers), not '.*'", r"\1"),
    (
        r"^TypeError: (isinstance|issubclass)\(\) arg 2 must be a (type|class), a tuple of (\w+), or a union",
        r"TypeError: \1() arg 2 must be a \2 or tuple of \3",
    ),
    (r"^ZeroDivisionError: integer modulo by zero", "ZeroDivisionError: integer division or modulo by zero"),
    (r"^ZeroDivisionError: float floor division by zero", "ZeroDivisionError: float divmod()"),
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


def as_on_a_terminal(text: str) -> str:
    """What a shell command wrote, as IPython shows it: through a terminal, which ends lines in its own way.

    Errors of bash go without the line number that newer versions add.

    >>> as_on_a_terminal("/bin/bash: line 1: google: command not found\\n")
    '/bin/bash: google: command not found\\r\\n'
    """
    text = re.sub(r"^/bin/bash: line \d+: ", "/bin/bash: ", text, flags=re.MULTILINE)
    return re.sub(r"\r?\n", "\r\n", text)


def print_numbers_plainly() -> None:
    """NumPy scalars print as they did before NumPy 2: 0.5, not np.float64(0.5)."""
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.set_printoptions(legacy="1.25")
