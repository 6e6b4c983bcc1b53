"""The shell of the public recordings: errors in the words of Python 3.8, commands on a terminal.

An agent that reads "unexpected EOF while parsing" may act differently from one that reads "was never closed".
`prelude` is the cell that installs this file in a session; what that Python could and could not do is in
`python38_language.py`, because submissions are tested under the same rules.
"""

from __future__ import annotations

import ast
import io
import linecache
import re
import string
import subprocess
import sys
import tokenize
from functools import cache
from pathlib import Path
from typing import Any

if "python38_language" in sys.modules:  # inside the sandbox
    python38_language = sys.modules["python38_language"]
else:
    from reproduction import python38_language

with_plain_strings = python38_language.with_plain_strings
_PLACEHOLDER = python38_language._PLACEHOLDER
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


def _wrong_field(source: str) -> str | None:
    """`(a b)` of `f'{a b}'`, if nothing but such an expression is wrong; newer parsers name the line."""
    plain = with_plain_strings(source)
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
    tree = grammar.parse(with_plain_strings(source))
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


# Other error messages.

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


# In the session: the shell that is there already changes its ways.


def install(shell: Any, first_cell_number: int, *, old: bool = True) -> None:
    """Make a fresh session behave like the recorded ones; its next cell has the given number.

    Runs of newer Pythons (`old=False`) differ in the number alone.
    """

    def renumber(*_: object) -> None:
        shell.events.unregister("post_run_cell", renumber)
        history = shell.history_manager
        for cells in (history.input_hist_parsed, history.input_hist_raw):
            cells[:] = [""] * first_cell_number
        shell.execution_count = first_cell_number

    shell.events.register("post_run_cell", renumber)  # when the cell that runs this has been counted
    if not old:
        return
    from IPython.core.compilerop import CachingCompiler

    class OldCompiler(CachingCompiler):
        def ast_parse(self, source: str, filename: str = "<unknown>", symbol: str = "exec") -> Any:
            tree = super().ast_parse(source, filename, symbol)
            python38_language.refuse_newer_strings(source, filename)
            return tree

    show_syntax_error, show_traceback = shell.showsyntaxerror, shell._showtraceback

    def showsyntaxerror(filename: str | None = None, running_compiled_code: bool = False) -> None:
        error = sys.exc_info()[1]
        if not isinstance(error, SyntaxError):
            return show_syntax_error(filename, running_compiled_code)
        reword_syntax_error(error)
        if type(error) in (SyntaxError, IndentationError, TabError):
            return show_syntax_error(filename, running_compiled_code)
        trace = error.__traceback__  # newer Pythons have a class of their own for input that is not complete
        try:
            raise SyntaxError(*error.args)
        except SyntaxError as plain:
            plain.__traceback__ = trace
            return show_syntax_error(filename, running_compiled_code)

    def showtraceback(etype: type, evalue: BaseException, stb: list[str]) -> None:
        parts = list(stb)
        if parts:
            parts[-1] = reword_message(parts[-1], failing_frame="\n".join(parts[-2:-1]))
        show_traceback(etype, evalue, parts)

    def system(cmd: str) -> None:
        done = subprocess.run(
            ["/bin/bash", "-c", shell.var_expand(cmd, depth=1)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        sys.stdout.write(as_on_a_terminal(done.stdout.decode("utf-8", "replace")))
        shell.user_ns["_exit_code"] = done.returncode

    print_numbers_plainly()
    python38_language.use_old_library()
    shell.ast_transformers.append(python38_language.PlainClasses())
    shell.compile = OldCompiler()
    shell.showsyntaxerror, shell._showtraceback, shell.system = showsyntaxerror, showtraceback, system


def prelude(first_cell_number: int, *, old: bool = True) -> str:
    """The cell that installs this file in a session."""
    source = (
        python38_language.loader()
        + f"exec(compile({Path(__file__).read_text(encoding='utf-8')!r}, 'python38_shell', 'exec'))"
    )
    names = {"__name__": "python38_shell", "__file__": "python38_shell.py"}
    call = f"\ninstall(shell, {first_cell_number}, old={old})"
    # The namespace of the episode stays as it was.
    return (
        f"exec(compile({source + call!r}, 'python38_shell', 'exec'), {{**{names!r}, 'shell': get_ipython()}})"
    )
