"""Judges an answer as a careful reader does: find the final statement, then compare all of what it states.

Denial, doubt and several candidates are wrong, and so is what is left over beside a value, but for a unit,
words or a reason. Nothing is executed: `arithmetic.evaluate` reads values and is bounded in size.
"""

from __future__ import annotations

import math
import re
import string
from collections.abc import Iterator, Mapping, Sequence

from histobench.mint.tasks.arithmetic import MATHEMATICS, NotArithmeticError, evaluate
from histobench.mint.tasks.written_numbers import SCALES, plain

LONGEST = 1000  # characters of a statement
_MARK = re.compile(
    r"\banswer(?:[ \t]+to[ \t][^\n.:]{1,120}?)?[ \t]*+(?:\bis\b|\bwas\b|:)[ \t]*+(?:\bis\b)?[\s:]*+", re.I
)
_TAG = re.compile(r"(?i)<(?:solution|answer)>\s*+([^<]*+)")
_BOX = re.compile(r"\\boxed\{((?:[^{}]++|\{(?:[^{}]++|\{[^{}]*+\})*+\})*+)\}")
_SENTENCE = re.compile(r"(?<=[\w)\]%][.!?])\s+(?=\S)")
_CONTRAST = re.compile(
    r"(?i)(?<=\S)\s*[,(]\s*(?:and\s+)?not\s+[^,.;()]+(?:\)|(?=$|[,.;]))"
    r"|\s(?:rather than|instead of)\s+[^,.;]+"
    r"|\bnot\s+[^,.;]{1,80}?(?:,?\s+but\s+(?:rather\s+)?|[,;]\s+it(?:['’]s|\s+is)\s+)"
)
_DENIAL = re.compile(r"(?i)\b(?:not|never|neither|nor|cannot|none|wrong|incorrect|too|except)\b|n['’]t\b")
_DOUBT = re.compile(
    r"(?i)\b(?:maybe|perhaps|possibly|probably|might|may be|could be|unsure|uncertain|unknown|unclear|i guess"
    r"|my guess|whether|not sure|cannot|unable|no idea)\b|\b(?:can|don|doesn|couldn)['’]t\b|\?"
)
_CONCLUSION = re.compile(r"(?i)(?:^|[\s,;.])(?:so|therefore|thus|hence)\b[\s,:]*(?=\S)")
_TOTAL = re.compile(r"(?i)\b(?:for|making|is) an? total of\b")
_COPULA = re.compile(r"(?i)\b(?:is|are|was|were|equals?|be|gives?|makes?)\b")
_REASON = re.compile(r"(?i)\s*[,;.:(]?\s*\b(?:because|since|as|which|given|where|when|due|after|for|if)\b")
#: What keeps the only number of a sentence from being its value: operators, variables, functions, bounds.
_SYMBOLS = re.compile(
    r"[+*/^\\{}\[\]()_|=<>≥≠±]|(?<!['’])\b(?![aAI]\b)[^\W\d]\b(?!['’])|\b(?:sin|cos|tan|log|half)\b"
    r"|\b(?:least|most|(?:more|less|fewer|greater) than|over|under|up to|between)\s+\W?\d|\bor (?:more|less)"
)
_UNIT = re.compile(
    r"(?:[msgLlhJNKVAWCFT]|[cmknµ]m|[kmµ]g|m[lL]|min|hr|ft|in|yd|mi|lb|oz|k?Pa|k?Hz|eV|mol|rad|k[JWV])\b"
)
_NOT_UNIT = re.compile(r"(?i)(?:[^\W\d_]|and|to|sin|cos|tan|log|ln|exp)\b")
_VALUE = re.compile(
    r"(?i)(?:(?:\d+(?:\.\d*)?|\.\d+)(?:e[-+]?\d+)?|\b(?:sqrt|log|ln|exp|sin|cos|tan|factorial)\s*(?=\()"
    r"|\b(?:pi|inf)\b|\^(?=\s*[\d(-])|[-+*/()\s])+"
)


def final_statement(solution: str) -> tuple[str, bool]:
    """What follows the last tag or "the answer is", or is in the last box (True); else the last line."""
    found = [(match.start(), match[1]) for kind in (_TAG, _BOX) for match in kind.finditer(solution)]
    found += [(mark.start(), solution[mark.end() :].partition("\n")[0]) for mark in _MARK.finditer(solution)]
    stated = [text for _, text in sorted(found) if text.strip()]
    lines = [line.strip() for line in (stated or [solution])[-1].split("\n") if line.strip()] or [""]
    return (lines[-1] if len(lines[-1]) <= LONGEST else ""), bool(stated)


def normalized(text: str) -> str:
    """Lower case, without punctuation and articles: the normalization of HotpotQA (and SQuAD)."""
    text = "".join(character for character in text.lower() if character not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def _number(text: str, names: Mapping[str, float] | None = None) -> float | None:
    """The value of plain arithmetic, or None if it is not arithmetic."""
    text = re.sub(r"(?<![\w.])0+(?=\d)", "", text.replace("^", "**").strip())
    text = re.sub(r"(?<=[\d)])\s*(?=[A-Za-z(])(?!e[-+]?\d)", "*", text)
    try:
        value = evaluate(text, {**MATHEMATICS, "inf": math.inf, **(names or {})})
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
    except (NotArithmeticError, OverflowError):
        return None


def _value(text: str) -> tuple[list[float], str] | None:
    """The value of a plain text (a percentage has two readings) and its unit; None if there is more to it."""
    text = re.sub(r"^\W*?(?:(?:about|approximately|around|roughly|exactly|only)\s+|[~≈=:]\s*)+", "", text)
    text = re.sub(r"(?<=[^\s(])\s+\([^()]*[^\W\d_]{2}[^()]*\)", "", text).strip(" \t\n*'\"")  # a comment
    if inside := re.fullmatch(r"[\[{]([^\[\]{},]*)[\]}]", text):
        text = inside[1].strip()
    if again := re.fullmatch(r"(.*[\w.])\s+\(([^()]*)\)\W*", text):  # 1/2 (0.5)
        one, other = _value(plain(again[1])), _value(again[2])
        return one if one and other and set(one[0]) & set(other[0]) else None
    found = _VALUE.match(text)
    if found is None or re.match(r"\d{4}s\b", text):
        return None
    written, rest = found[0].rstrip(), text[len(found[0].rstrip()) :]
    if (value := _number(written)) is None:
        return None
    if scale := re.match(rf"(?i)\s*({'|'.join(SCALES)})\b", rest):
        value, rest = value * SCALES[scale[1].lower()], rest[scale.end() :]
    percent = re.match(r"\s*percent\b", rest)
    values, rest = ([value, value / 100], rest[percent.end() :]) if percent else ([value], rest)
    return None if _is_more(rest) else (values, "" if _REASON.match(rest) else rest.strip(" .,;:!'\")*"))


def _is_more(rest: str) -> bool:
    """Whether what follows a value is more than a unit, other words or a reason."""
    words = re.findall(r"[^\W\d_]+", rest)
    if _REASON.match(rest) or not words:
        return not words and bool(re.search(r"[^\s.,;:!'\")]", rest))
    powers = re.sub(r"(?<=[^\W\d_])(?:\s?\^)?\(?-?[1-3]\b\)?", "", rest)
    if re.search(r"[^\w\s.,;:!'’\")*/·-]|[\d_]|\b(?:or|half|plus|minus|times)\b", powers):
        return True
    adjacent = rest[0].isalpha() and len(words[0]) < 3
    return not _UNIT.match(words[0]) and (adjacent or bool(_NOT_UNIT.match(words[0])))


def stated_number(solution: str) -> list[float]:
    """The readings of the one number that an answer states; empty if there is none, or more than one.

    >>> stated_number("She buys 3 boxes of 4, so the answer is 12."), stated_number("12 or 13")
    ([12.0], [])
    """
    statement, marked = final_statement(solution)
    short = not marked and len(solution) <= LONGEST
    lines = [_value(plain(line)) for line in solution.split("\n") if line.strip()] if short else []
    if all(lines) and len({line[0][0] for line in lines if line}) > 1:
        return []
    statement = _CONTRAST.sub("", re.sub(r"\\?[$`]", "", statement))
    sentence = plain(_TOTAL.split(_SENTENCE.split(statement)[0 if marked else -1])[-1])
    if _DOUBT.search(statement) or _DENIAL.search(sentence):
        return []
    if whole := _value(sentence):
        return whole[0]
    parts = re.split(r"\s*(?:[,;]|\bor\b|\band\b)\s*", sentence)
    values = [_value(part) for part in parts]
    if len(parts) > 1 and all(values):
        return sorted(set.intersection(*(set(value[0]) for value in values if value)))
    if sum(bool(re.search(r"(?:^|\s)[A-Za-z]\w?\s*=", part)) for part in parts) > 1:
        return []  # x = 1, y = 2
    return next((value[0] for part in _closing_parts(sentence) if (value := _value(part))), [])


def _closing_parts(sentence: str) -> Iterator[str]:
    """Where a sentence has its value: behind the last equals sign, conclusion or verb; or its only number."""
    if equals := list(re.finditer(r"(?<![<>!])=|≈", sentence)):
        left, right = sentence[: equals[-1].start()], sentence[equals[-1].end() :]
        yield left if re.fullmatch(r"\s*[A-Za-z]\W*", right) else right
    yield from (pattern.split(sentence)[-1] for pattern in (_CONCLUSION, _COPULA) if pattern.search(sentence))
    alone = re.findall(r"(?<![\w.])-?(?:\d+(?:\.\d+)?)(?![\w^*/!])", sentence)
    numbers = re.findall(r"\d+(?:\.\d+)?", sentence)
    if len(set(alone)) == 1 and len(alone) == len(numbers) and not _SYMBOLS.search(sentence):
        yield alone[0]


def same_number(given: Sequence[float], wanted: float, places: int = 0) -> bool:
    """Whether a reading, rounded to the places of the reference, is that number; whole numbers exactly."""
    slack = 1e-9 * max(1.0, abs(wanted)) + (0.5 * 10.0**-places if places else 0.0)
    return any(value == wanted or abs(value - wanted) <= slack for value in given)


def same_text(reference: str, solution: str) -> bool:
    """Compare a numeral by its value, a list, interval or expression by its parts, other texts as phrases."""
    if numeral := re.fullmatch(r"[-+]?\d+(?:\.(\d+))?", reference.strip()):
        places = len((numeral[1] or "").rstrip("0"))
        return same_number(stated_number(solution), float(reference), places)
    if re.search(r"[\d\\^()\[\]{}]", reference) and _structure(reference):
        return _same_mathematics(reference, solution)
    phrase = normalized(reference)
    return any(normalized(text) == phrase for text in _phrases(solution, phrase))


def _phrases(solution: str, reference: str) -> list[str]:
    """The texts that an answer may mean: its statement, or what one sentence says that something is."""
    statement, marked = final_statement(re.sub(r"</?(?!solution|answer)\w+>", "", solution))
    text = _CONTRAST.sub("", statement)
    if reference in ("yes", "no"):
        said = re.findall(r"\b(?:yes|no)\b", (text if marked else solution).lower())
        return said[:1] if len(set(said)) == 1 and normalized(text).startswith(said[0]) else [text]
    if _DENIAL.search(text) or _DOUBT.search(text) or re.search(r"\bor\b", text):
        return [statement]
    parts = [part for part in re.split(r"(?i)\b(?:is|was|are|were)\b", text) if part.strip()]
    found = [statement, text, _SENTENCE.split(text)[0], *([parts[0], parts[-1]] if len(parts) > 1 else [])]
    return found + [re.split(r"(?i),\s+(?:the|an?|who|which|whose)\b", each)[0] for each in found]


def _structure(text: str) -> list[tuple[str, list[str]]]:
    """Brackets and items of a list, set or interval; several for a union; one item for an expression."""
    text = re.sub(r"^\s*\w+\s*∈\s*", "", plain(text, lists=True)).strip(" .")
    if between := re.fullmatch(r"([^<>=]+)<(=?)\s*[A-Za-z]\s*<(=?)([^<>=]+)", text):
        text = f"{'[' if between[2] else '('}{between[1]},{between[4]}{']' if between[3] else ')'}"
    found = []
    for piece in text.split("∪"):
        listed = re.fullmatch(r"\s*([\[({])([^\[\]{}]*,[^\[\]{}]*)([\])}])\s*", piece)
        items = re.split(r"\s*,\s*(?:and\s+)?|\s+and\s+", listed[2] if listed else piece)
        items = [item.rpartition("=")[2].strip() for item in items]
        if not all(items) or any(re.search(r"[^\W\d_]{3}", item) and _number(item) is None for item in items):
            return []
        found.append((listed[1] + listed[3] if listed else "", items))
    return found


def _same_mathematics(reference: str, solution: str) -> bool:
    statement, wanted = re.split(r",?\s+where\b", final_statement(solution)[0])[0], _structure(reference)
    statement = _CONTRAST.sub("", statement)
    brackets, items = wanted[0]
    if len(wanted) == len(items) == 1 and not _letters(items[0]):
        value = _number(items[0])
        return value is not None and same_number(stated_number(solution), value)
    if brackets == "{}" and "{" not in statement:
        statement = re.sub(r"\bor\b", "and", statement)  # the elements of a set of solutions
    if _DENIAL.search(statement) or _DOUBT.search(statement) or re.search(r"\bor\b", statement):
        return False
    given = _structure(statement) or _structure(_COPULA.split(statement)[-1])
    return len(given) == len(wanted) and all(map(_same_items, wanted, given))


def _same_items(wanted: tuple[str, list[str]], given: tuple[str, list[str]]) -> bool:
    (brackets, ours), (found, theirs) = wanted, given
    if (found != brackets and (found or brackets in ("[)", "(]"))) or len(ours) != len(theirs):
        return False
    if brackets == "{}":
        return all(any(_same_value(one, other) for other in theirs) for one in ours)
    return all(map(_same_value, ours, theirs))


def _letters(text: str) -> set[str]:
    return set(re.findall(r"(?<![^\W\d_])[^\W\d_](?![^\W\d_])", text)) - {"e"}


def _same_value(reference: str, given: str) -> bool:
    """Whether two expressions agree at five points; nothing is simplified, so the time is bounded."""
    names = sorted(_letters(reference))
    for point in (0.37, 0.83, 1.29, 1.71, 2.53):
        values = {name: point + 0.11 * number for number, name in enumerate(names)}
        wanted, found = _number(reference, values), _number(given, values)
        if wanted is None or found is None or not same_number([found], wanted):
            return False
    return set(names) == _letters(given)


def stated_list(solution: str) -> list[float] | None:
    """The numbers of a list, set, tuple or "1 and 2"."""
    statement = re.sub(r"\bor\b", "and", final_statement(solution)[0])
    if _DENIAL.search(statement) or _DOUBT.search(statement):
        return None
    given = _structure(statement) or _structure(_COPULA.split(statement)[-1])
    values = [_number(item) for _, items in given[:1] for item in items]
    return [value for value in values if value is not None] if None not in values else None


def stated_truth(solution: str) -> bool | None:
    """What "true", "not true", "yes" and the like say, if they all say the same."""
    sentence = _SENTENCE.split(final_statement(solution)[0])[0].lower()
    said = re.findall(r"\b(?:not true|not false|true|false|yes|no)\b", sentence)
    truths = {word in ("true", "yes", "not false") for word in said}
    return truths.pop() if len(truths) == 1 and not _DOUBT.search(sentence) else None


def chosen_option(options: Mapping[str, str], solution: str) -> str | None:
    """The letter of the one option that an answer names by letter or text; None if there is not one."""
    one = f"([{''.join(options)}])"
    lines = [line for line in solution.split("\n") if line.strip()]
    starts = [re.match(rf"(?i)\W*{one}\s*(?:[).:\]]|$)", line) for line in lines]
    statement, marked = final_statement(re.sub(r"\\(?:text|textbf|mathrm)\b|\*\*|[`$]", " ", solution))
    if not marked and all(starts) and len({start[1].lower() for start in starts if start}) > 1:
        return None
    statement = re.sub(r"\s+is\s+(?:the\s+)?(?:correct|right)(?:\s+\w+)?\W*$", "", statement).strip(" .{}")
    lettered = re.match(rf"(?is)\W*{one}\s*[).:\]]\s*(.+)", statement)
    if lettered and _option_of_text(options, lettered[2]) == lettered[1].lower():
        return lettered[1].lower()
    if whole := _option_of_text(options, statement):
        return whole
    text = re.split(r"\b(?:because|since)\b", _CONCLUSION.split(_CONTRAST.sub("", statement))[-1])[0]
    if _DENIAL.search(text) or _DOUBT.search(text):
        return None
    after = r"(?=\s*(?:[).:\],;]|$)|\s+(?:is|and|or|as|but)\b|\s[-–—]\s)"
    before = r"^\W*|\b(?i:with|choose|pick|select|option)\s+"
    named = re.findall(rf"(?:{before})(?i:{one}){after}|\b(?i:{one})\s*[)\]]|\b{one.upper()}{after}", text)
    if letters := {letter.lower() for match in named for letter in match if letter}:
        letter = letters.pop()
        rest = re.sub(rf"(?is)^.*?\b{letter}\b[\s).:\]–—-]*", "", text)
        return None if letters or _option_of_text(options, rest) not in (None, letter) else letter
    words = {key: normalized(option) for key, option in options.items() if re.search(r"[^\W\d_]{2}", option)}
    held = {key: option for key, option in words.items() if f" {option} " in f" {normalized(text)} "}
    longest = [key for key, each in held.items() if not any(each in other != each for other in held.values())]
    if held or _value(plain(text)):
        return longest[0] if len(longest) == 1 else None
    return _option_of_text(options, "".join(map(str, stated_number(text)[:1])))


def _option_of_text(options: Mapping[str, str], text: str) -> str | None:
    """The option whose text, or value with its unit, is this text."""
    given, found = _value(plain(text)), []
    for letter, option in options.items():
        wanted = _value(plain(option))
        same = text.lower().strip(" .") == option != ""
        if wanted and given:
            same = same_number(given[0], wanted[0][0]) and given[1] in ("", wanted[1])
        elif "\\" in option:
            same = bool(_structure(option)) and _same_mathematics(option, text)
        elif not re.search(r"\d", option):
            same = normalized(text) == normalized(option) != ""
        found += [letter] if same else []
    return found[0] if len(found) == 1 else None
