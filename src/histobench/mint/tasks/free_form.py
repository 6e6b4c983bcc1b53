"""Checkers for free-form answers: a number or a phrase (gsm8k, math, hotpotqa)."""

from __future__ import annotations

import math
import re
import string

from histobench.mint.tasks.arithmetic import MATHEMATICS, NotArithmeticError, evaluate

#: Of the published rule; the strict one has none.
PUBLISHED_TOLERANCE = 0.05
#: No number, and no answer with a number in it, is longer than this.
LONGEST_NUMBER = 10_000
_NUMBER = re.compile(
    r"(?:[-+−]?(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d++)(?:\.\d++)?|\.\d++)(?:e[-+]?\d++)?|e[-+]?\d++)"
    r"(?:\s*+/\s*+\d++(?:\.\d++)?)?"
    r"|/\s*+\d++(?:\.\d++)?",  # what divides something else is no number of its own
    re.IGNORECASE,
)
_IMAGINARY = re.compile(r"[ij](?![^\W\d_])")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_ARTICLES = {"a", "an", "the"}
_PUNCTUATION = frozenset(string.punctuation)
_NUMERAL = re.compile(r"[-+]?\d+(?:\.(\d+))?")
_BOX = "\\boxed{"
_TAG = re.compile(r"</?(?:solution|answer)>")
_STATEMENT = re.compile(
    r"\banswer(?:[ \t]++to[ \t][^\n.:]{1,80}?)?"
    r"[ \t]*+(?:\bis\b|\bwas\b|:)[ \t]*+(?:\bis\b)?[ \t:]*+\n?([^\n]++)",
    re.IGNORECASE,
)
_UNSURE = re.compile(r"\b(?:not|never|neither|nor|or|cannot|unknown|unclear)\b|n['’]t\b", re.IGNORECASE)
_COPULA = re.compile(r"\b(?:is|was|are|were)\b", re.IGNORECASE)


def published(reference: str, solution: str, *, recorded: bool = False) -> bool:
    """The benchmark's rule: both are numbers and within 5 %, else the reference occurs in the answer.

    `recorded` leaves out the absolute value in the tolerance, as the runs of 2023 did.
    """
    expected = reference.strip().lower()
    answer = solution.lower().strip()
    try:
        wanted, given = float(expected), float(answer)
    except ValueError:
        return expected in answer
    return abs(wanted - given) <= PUBLISHED_TOLERANCE * (wanted if recorded else abs(wanted))


def strict(reference: str, solution: str) -> bool:
    """Numbers exactly, decimals to the places of the reference, words by the exact match of HotpotQA.

    A reference that is a numeral is compared with the one number that the answer states; any other is a
    phrase, even if there is a number in it.

    >>> strict("10.0", "$10 units"), strict("1110", "1080"), strict("0.63", "0.634"), strict("0.63", "0.64")
    (True, False, True, False)
    >>> strict("the late 12th century", "12 apples"), strict("no", "No."), strict("Venice", "It is Venice.")
    (False, True, True)
    """
    places = decimal_places(reference)
    if places is not None:
        given = parse_number(boxed(solution) or without_tags(solution))
        return given is not None and same_number(given, float(reference), places)
    expected = normalized(reference)
    return any(normalized(phrase) == expected for phrase in stated_phrases(solution, expected))


def decimal_places(reference: str) -> int | None:
    """Places after the point of a numeral, of which zeros at the end say nothing; None for other texts.

    >>> decimal_places("10.0"), decimal_places("0.63"), decimal_places("12th") is None
    (0, 2, True)
    """
    match = _NUMERAL.fullmatch(reference.strip())
    return len((match[1] or "").rstrip("0")) if match else None


def same_number(given: float, wanted: float, places: int) -> bool:
    """Whether `given`, rounded to the places of `wanted`, is that number; a whole number is met exactly."""
    slack = 1e-9 * max(1.0, abs(wanted))  # a third, times three
    return abs(given - wanted) <= (0.5 * 10.0**-places if places else 0.0) + slack


def normalized(text: str) -> str:
    """Lower case, without punctuation and articles: the normalization of HotpotQA (and SQuAD).

    >>> normalized('The "Beatles".')
    'beatles'
    """
    text = "".join(character for character in text.lower() if character not in _PUNCTUATION)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def stated_phrases(solution: str, expected: str = "") -> list[str]:
    """What an answer may mean as its phrase: the text, or what one sentence says the answer is.

    "The answer is X" counts before all else. A sentence of the form "... is X" or "X is ..." states X unless
    it denies or leaves a choice; of a sentence that begins with yes or no, that word is the answer.

    >>> stated_phrases("The director is Brad Silberling.")
    ['The director is Brad Silberling.', ' Brad Silberling.', 'The director ']
    """
    text = last_statement(solution)
    lines = {normalized(line): line for line in text.split("\n") if normalized(line)}
    if len(lines) == 1:  # the same, said twice
        (text,) = lines.values()
    if expected in ("yes", "no"):
        said = [word for word in words(text) if word in ("yes", "no")]
        first = words(text)[:1]
        return said[:1] if len(set(said)) == 1 and first == said[:1] else [text]
    if _UNSURE.search(text) or len(lines) != 1:
        return [text]
    parts = [part for part in _COPULA.split(text) if part.strip()]
    return [text, parts[-1], parts[0]] if len(parts) > 1 else [text]


def last_statement(solution: str) -> str:
    """What is boxed, or follows the last "the answer is" on its line; the whole text where nothing does.

    >>> last_statement("It is not A. So the correct answer is: B"), last_statement("B")
    ('B', 'B')
    """
    text = boxed(solution) or without_tags(solution)
    found = [match[1] for match in _STATEMENT.finditer(text)]
    return found[-1] if found else text


def boxed(solution: str) -> str:
    """What is in the last box of LaTeX, as the authors of MATH read an answer; "" without one.

    >>> boxed(r"The answer is $\\boxed{\\frac{1}{2}}$, since ...")
    '\\\\frac{1}{2}'
    """
    start = solution.rfind(_BOX)
    depth = 0
    for position in range(start + len(_BOX) - 1, len(solution)) if start >= 0 else ():
        depth += {"{": 1, "}": -1}.get(solution[position], 0)
        if depth == 0:
            return solution[start + len(_BOX) : position].strip()
    return ""


def without_tags(solution: str) -> str:
    """The answer after a tag of the protocol that was opened twice.

    >>> without_tags("The answer is <solution> Venice")
    'The answer is  Venice'
    """
    return _TAG.sub("", solution).strip()


def parse_number(text: str) -> float | None:
    """The one number that a text states, or `None` if there is none or it is not clear which.

    Units, currency signs, thousands commas, percent signs, LaTeX wrappers and what stands before the last
    equals sign are left aside.

    >>> parse_number("x = $1,200$ dollars"), parse_number("3/4"), parse_number("between 2 and 5") is None
    (1200.0, 0.75, True)
    """
    if len(text) > LONGEST_NUMBER:
        return None
    cleaned = plain_arithmetic(text)
    for plain in dict.fromkeys((cleaned, without_last_words(cleaned))):
        try:
            value = evaluate(_THOUSANDS.sub("", plain), MATHEMATICS)
        except NotArithmeticError:
            continue
        if isinstance(value, list | tuple | set) and len(value) == 1:
            (value,) = value
        if isinstance(value, complex) and value.imag == 0:
            value = value.real
        if not isinstance(value, str):  # a number in quotes is looked for below
            return _finite(value)
    if is_more_than_a_number(cleaned):
        return None
    found = {
        value
        for match in _NUMBER.finditer(cleaned)
        if (value := _fraction(match.group())) is not None and _stands_alone(cleaned, match)
    }
    return found.pop() if len(found) == 1 else None


def words(text: str) -> list[str]:
    """Lower-case words without articles and punctuation."""
    return [word for word in re.findall(r"[^\W_]+", text.lower()) if word not in _ARTICLES]


def contains_phrase(answer: list[str], phrase: list[str]) -> bool:
    """Whether the words of `phrase` occur in `answer` one after the other."""
    size = len(phrase)
    return size > 0 and any(answer[start : start + size] == phrase for start in range(len(answer) - size + 1))


def _finite(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _fraction(text: str) -> float | None:
    above, _, below = text.replace(",", "").partition("/")
    try:
        return _finite(float(above) / float(below)) if below else _finite(float(above))
    except (ValueError, ZeroDivisionError):
        return None


def _stands_alone(text: str, match: re.Match[str]) -> bool:
    # The 2 of "H2O" and of "x2" is not a number of its own, nor is the 3 of an imaginary "3i".
    before = text[match.start() - 1] if match.start() else " "
    return not before.isalpha() and _IMAGINARY.match(text, match.end()) is None


# The number in an answer, as people and LaTeX write it, rewritten to plain arithmetic.

_DEGREES = re.compile(r"\^\s*\{?\\circ\}?|°")
#: A unit in LaTeX; a power belongs to the unit, not to the number before it.
_LATEX_UNIT = re.compile(r"\\(?:text|mathrm|textbf)\{[^{}]*\}(?:\s*\^\s*(?:\{[^{}]*\}|-?\d))?")
_UNIT_POWER = re.compile(r"(?<=\d)(\s+(?:[kcdmn]?m|in|ft|yd|mi|s))\s*\^\s*\{?-?\d\}?")
_BOLD = re.compile(r"(?<![\w)])\*\*([^*]+)\*\*(?![\w(])")
_IMPLICIT_PRODUCT = re.compile(r"(?<=[\d)])\s*(?=(?:pi|sqrt)\b)")
_FIRST_STEPS: tuple[tuple[re.Pattern[str], str], ...] = (
    (_DEGREES, " "),
    (_BOLD, r"\1"),
    # A dash that does not join a range, or the word for it, is a minus sign.
    (re.compile(r"−|(?<![\w)])[–‒‑]\s*(?=[\d.$\\])|\b(?:minus|negative)\s+(?=[\d.$\\])", re.I), "-"),
    (re.compile(r"(?<=\d)(?:\\,|\{,\}|[\u00a0\u2009\u202f])(?=\d{3}(?!\d))"), ""),
)
_STEPS: tuple[tuple[re.Pattern[str], str], ...] = (
    (_LATEX_UNIT, " "),
    (_UNIT_POWER, r"\1"),
    (re.compile(r"\\(?:left|right)\b|\\[,;! ()\[\]]|[$£€]|\\?%"), " "),
    (re.compile(r"\\times|\\cdot|×|·"), "*"),
    (re.compile(r"\\pi\b|π"), " pi "),
    (re.compile(r"\\[dt]?frac\s*(\d)\s*(\d)"), r"((\1)/(\2))"),
)
#: From the inside out: each round opens one more level of braces.
_NESTED: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"\\sqrt\s*\[([^\[\]{}]+)\]\s*\{([^{}]+)\}"), r"((\2)**(1/(\1)))"),
    (re.compile(r"\\sqrt\s*\{([^{}]+)\}"), r" sqrt(\1)"),
    (re.compile(r"\^\s*\{([^{}]+)\}"), r"**(\1)"),
    (re.compile(r"\\[dt]?frac\s*\{([^{}]+)\}\s*\{([^{}]+)\}"), r"((\1)/(\2))"),
)
_LEVELS = 3


def plain_arithmetic(text: str) -> str:
    """What stands after the last equals sign, without units, currency and LaTeX.

    >>> plain_arithmetic(r"A = 2\\sqrt{3}\\,\\text{cm}^2"), plain_arithmetic("about −5")
    ('2*sqrt(3)', 'about -5')
    """
    text = re.split(r"[=≈~∼]", text)[-1]
    for pattern, replacement in _FIRST_STEPS:
        text = pattern.sub(replacement, text)
    text = "\n".join(map(_without_box, text.split("\n")))
    for pattern, replacement in _STEPS:
        text = pattern.sub(replacement, text)
    for _ in range(_LEVELS):
        for pattern, replacement in _NESTED:
            text = pattern.sub(replacement, text)
    return _IMPLICIT_PRODUCT.sub("*", text.replace("^", "**")).strip()


def _without_box(line: str) -> str:
    """The line without its first box: what stands between its brace and the last one."""
    start, end = line.find(_BOX), line.rfind("}")
    inside = start + len(_BOX)
    return line[:start] + line[inside:end] + line[end + 1 :] if start >= 0 and inside <= end else line


def is_more_than_a_number(text: str) -> bool:
    """Whether plain arithmetic holds an operation, so that no number in it is the answer by itself."""
    return re.search(r"\*\*|\bsqrt\b|\bpi\b", text) is not None


def without_last_words(text: str) -> str:
    """The arithmetic without the unit or the words after it.

    >>> without_last_words("2*sqrt(3) square metres.")
    '2*sqrt(3)'
    """
    return re.sub(r"(?<=[\d)i])[ \t]+[A-Za-z][A-Za-z .,²³/]{0,40}$", "", text)
