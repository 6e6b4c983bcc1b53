"""Judges an answer as a careful reader does: find the final statement, then compare all of what it states.

Denial, doubt, several candidates and leftovers (but for a unit, words or a reason) are wrong.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterator, Mapping

from histobench.mint.tasks.written_numbers import (
    COMMENT,
    MAGNITUDE,
    REASON,
    letters_in,
    number_in,
    plain,
    same_number,
    same_value,
    structure_of,
    value_of,
)

LONGEST = 1000  # characters of a statement
_MARK = re.compile(
    r"\banswer(?:[ \t]+to[ \t][^\n.:]{1,120}?)?[ \t\"'*_]*+(?:\bis\b|\bwas\b|:)[ \t]*+(?:\bis\b)?[\s:]*+"
    r"(?:actually\s+)?",
    re.I,
)
#: What follows takes back what was said before.
_CORRECTION = re.compile(
    r"(?i)(?:(?:\.\.\.|…|—|\s-|\?)\s{0,3}no\b|\b(?:no,?\s{1,3}wait\b|wait\s?[,.:!—-]{1,3}(?:\s{0,3}no\b)?|oops\b"
    r"|scratch that\b|correction\b|on second thought\b|i made an? (?:mistake|error)\b)"
    r"|(?:^|(?<=[.!?…—\n]))[ \t]{0,3}actually\b)[\s.,:;!…—-]*+"
    r"(?!(?:that|this|it)\b\W{0,3}\w{0,3}\s{1,3}(?:correct|right)\b)(?=\W{0,40}\w)"
)
#: "I do not think that" before "the answer is".
_DISTANCE = re.compile(
    r"(?i)(?:\b(?:not|never|cannot|doubt|false|impossible|unlikely|unsure|untrue|incorrect|wrong)\b|n['’]t\b)"
    r"[^.,;:\n]{0,40}\b(?:that|think|believe|say|whether|if|sure|confirm|doubt)\s+(?:[\w']+\s+){0,3}$"
    r"|\b(?:wrong|incorrect)\s+$"
)
_TAG = re.compile(r"(?i)<(?:solution|answer)>\s*+([^<]*+)")
_BOX = re.compile(r"\\(?:boxed|fbox)\{((?:[^{}]++|\{(?:[^{}]++|\{[^{}]*+\})*+\})*+)\}")
_SENTENCE = re.compile(r"(?<=[\w)\]%][.!?])\s+(?=[^\sa-z])")
_CONTRAST = re.compile(
    r"(?i)(?<=\S)\s*[,(]\s*(?:and\s+)?not\s+[^,.;()]+(?:\([^()]*\)\s*)?(?:\)|(?=$|[,.;]))"
    r"|\s(?:rather than|instead of)\s+[^,.;]+"
    r"|(?:\bnot|n['’]t)\s+[^,.;]{1,80}?(?:,?\s+but\s+(?:rather\s+)?|[,;]\s+it(?:['’]s|\s+is)(?=\s))"
)
_DENIAL = re.compile(
    r"(?i)\b(?:not|never|neither|nor|cannot|none|wrong|incorrect|impossible|no way|too|except)\b"
    r"|n['’]t\b"
)
_DOUBT = re.compile(
    r"(?i)\b(?:maybe|perhaps|possibly|probably|might|may be|could be|unsure|uncertain|unknown|unclear|i guess"
    r"|my guess|whether|not sure|i doubt|doubtful|unable|no idea|would (?:be|have)\b.*\b(?:if|unless))\b|\?"
    r"|\b(?:can(?:not|['’]t)|couldn['’]t)\s+(?:\w+\s+)?(?:determin|sa(?:y|id)|tell|decid|know|comput|calculat|answer"
    r"|find|solve|figure|verif)|\b(?:don|doesn|didn)['’]t\b"
)
_CONCLUSION = re.compile(r"(?i)(?:^|[\s,;.])(?:so|therefore|thus|hence)\b[\s,:]*(?=\S)")
_TOTAL = re.compile(r"(?i)\b(?:for|making|is) an? total of\b")
_COPULA = re.compile(r"(?i)\b(?:is|are|was|were|equals?|be|gives?|makes?)\b")
#: What keeps the only number of a sentence from being its value: operators, variables, functions, bounds.
_SYMBOLS = re.compile(
    r"[+*/^\\{}\[\]()_|=<>≥≠±]|(?<!['’])\b(?![aAI]\b)[^\W\d]\b(?!['’])|\b(?:sin|cos|tan|log|half)\b"
    r"|\b(?:least|most|(?:more|less|fewer|greater) than|over|under|up to|between|of the)\s+\W?\d"
    r"|\bor (?:more|less)"
)


def final_statement(solution: str) -> tuple[str, bool]:
    """What follows the last tag or "the answer is", or is in the last box (True); else the last line."""
    solution = re.sub(r"(?m)^[ \t]*(?:```\w*|\$\$|\\[\[\]])[ \t]*$", "", solution)
    solution = re.sub(r"\\(?:text|textbf|mathrm)\{([^{}]*)\}", r"\1", solution)
    solution = _CORRECTION.split(solution)[-1]
    found = [(match.start(), match[1]) for kind in (_TAG, _BOX) for match in kind.finditer(solution)]
    for mark in _MARK.finditer(solution):
        distant = _DISTANCE.search(solution, max(0, mark.start() - 80), mark.start())
        found.append((mark.start(), "?" if distant else solution[mark.end() :].partition("\n")[0]))
    stated = [text for _, text in sorted(found) if text.strip()]
    lines = [line.strip() for line in (stated or [solution])[-1].split("\n") if line.strip()] or [""]
    return (lines[-1] if len(lines[-1]) <= LONGEST else ""), bool(stated)


def normalized(text: str) -> str:
    """Lower case, without punctuation and articles: the normalization of HotpotQA (and SQuAD)."""
    text = "".join(character for character in text.lower() if character not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def stated_number(solution: str) -> list[float]:
    """The readings of the one number that an answer states; empty if there is none, or more than one.

    >>> stated_number("She buys 3 boxes of 4, so the answer is 12."), stated_number("12 or 13")
    ([12.0], [])
    """
    statement, marked = final_statement(solution)
    short = not marked and len(solution) <= LONGEST
    lines = [value_of(plain(line)) for line in solution.split("\n") if line.strip()] if short else []
    if all(lines) and len({line[0][0] for line in lines if line}) > 1:
        return []
    statement = _CONTRAST.sub("", re.sub(r"(?:\bUS)?\\?[$`]", "", statement))
    sentence = plain(_TOTAL.split(_SENTENCE.split(statement)[0 if marked else -1])[-1])
    if _DOUBT.search(statement) or _DENIAL.search(_CONCLUSION.split(sentence)[-1]):
        return []
    if whole := value_of(sentence):
        return whole[0]
    parts = re.split(r"\s*(?:[,;]|\bor\b|\band\b)\s*", sentence)
    values = [value_of(part) for part in parts]
    if len(parts) > 1 and all(values):
        return sorted(set.intersection(*(set(value[0]) for value in values if value)))
    if sum(bool(re.search(r"(?:^|\s)[A-Za-z]\w?\s*=", part)) for part in parts) > 1:
        return []  # x = 1, y = 2
    return next((value[0] for part in _closing_parts(sentence) if (value := value_of(part))), [])


def _closing_parts(sentence: str) -> Iterator[str]:
    """Where a sentence has its value: behind a label, equals sign, conclusion or verb; or its only number."""
    sentence = COMMENT.sub("", sentence)
    if len(label := re.split(r"(?<=[^\W\d_])\s*:\s", sentence)) == 2:
        yield label[1]
    if equals := list(re.finditer(r"(?<![<>!])=|≈", sentence)):
        left, right = sentence[: equals[-1].start()], sentence[equals[-1].end() :]
        yield left if re.fullmatch(r"\s*[A-Za-z]\W*", right) else right
    yield from (pattern.split(sentence)[-1] for pattern in (_CONCLUSION, _COPULA) if pattern.search(sentence))
    alone = re.findall(rf"(?<![\w.])-?\d+(?:\.\d+)?(?:{MAGNITUDE})?(?![\w^*/!])", sentence)
    numbers = re.findall(r"\d+(?:\.\d+)?", sentence)
    if len(set(alone)) == 1 and len(alone) == len(numbers) and not _SYMBOLS.search(sentence):
        yield alone[0]


def same_text(reference: str, solution: str) -> bool:
    """Compare a numeral by its value, a list, interval or expression by its parts, other texts as phrases.

    >>> same_text("10.0", "$10 units"), same_text("1110", "1080"), same_text("0.63", "0.634")
    (True, False, True)
    >>> same_text("the late 12th century", "12 apples"), same_text("Venice", "It is Venice.")
    (False, True)
    """
    reference = re.sub(r"^\\text\{([^{}]*)\}$", r"\1", reference.strip())
    reference = re.sub(r"(?<=\d)\s*(?:\^\s*\{?\\circ\}?|°|\\text\{[^{}]*\}|\\?%)$|^\\?\$", "", reference)
    if numeral := re.fullmatch(r"[-+]?\d+(?:\.(\d+))?", reference.strip()):
        return same_number(stated_number(solution), float(reference), len((numeral[1] or "").rstrip("0")))
    if re.search(r"[\d\\^()\[\]{}]", reference) and structure_of(reference):
        return _same_mathematics(reference, solution)
    if re.fullmatch(r"\d+", number := plain(reference)):
        return same_number(stated_number(solution), float(number))
    phrase = normalized(reference)
    return any(normalized(text) == phrase for text in _phrases(solution, phrase))


def _phrases(solution: str, reference: str) -> list[str]:
    """The texts that an answer may mean: its statement, or what one sentence says that something is."""
    statement, marked = final_statement(re.sub(r"</?(?!solution|answer)\w+>", "", solution))
    text = _CONTRAST.sub("", statement)
    if reference in ("yes", "no"):
        said = re.findall(r"\b(?:yes|no)\b", (text if marked else solution).lower())
        return (
            said[:1]
            if len(set(said)) == 1 and normalized(_CONCLUSION.split(text)[-1]).startswith(said[0])
            else [text]
        )
    if _DENIAL.search(text) or _DOUBT.search(text) or re.search(r"\bor\b", text):
        return [] if statement.endswith("?") else [statement]
    parts = [part for part in re.split(r"(?i)\b(?:is|was|are|were)\b", text) if part.strip()]
    found = [statement, text, _SENTENCE.split(text)[0], *([parts[0], parts[-1]] if len(parts) > 1 else [])]
    return found + [
        re.split(r"(?i),\s+(?:the|an?)\b|,?\s+(?:who|which|whose|because|since)\b|\s+\(", each)[0]
        for each in found
    ]


def _same_mathematics(reference: str, solution: str) -> bool:
    statement, wanted = re.split(r",?\s+where\b", final_statement(solution)[0])[0], structure_of(reference)
    statement = _CONTRAST.sub("", statement)
    brackets, items = wanted[0]
    if len(wanted) == len(items) == 1 and not letters_in(items[0]):
        value = number_in(items[0])
        return value is not None and same_number(stated_number(solution), value)
    if brackets == "{}" and "{" not in statement:
        statement = re.sub(r"\bor\b", "and", statement)  # the elements of a set of solutions
    if _DENIAL.search(statement) or _DOUBT.search(statement) or re.search(r"\bor\b", statement):
        return False
    given = structure_of(statement) or structure_of(_COPULA.split(statement)[-1])
    return len(given) == len(wanted) and all(map(_same_items, wanted, given))


def _same_items(wanted: tuple[str, list[str]], given: tuple[str, list[str]]) -> bool:
    (brackets, ours), (found, theirs) = wanted, given
    if (found != brackets and (found or brackets in ("[)", "(]"))) or len(ours) != len(theirs):
        return False
    if brackets == "{}":
        return all(any(same_value(one, other) for other in theirs) for one in ours)
    return all(map(same_value, ours, theirs))


def stated_list(solution: str) -> list[float] | None:
    statement = re.sub(r"\bor\b", "and", final_statement(solution)[0])
    if _DENIAL.search(statement) or _DOUBT.search(statement):
        return None
    given = structure_of(statement) or structure_of(_COPULA.split(statement)[-1])
    values = [number_in(item) for _, items in given[:1] for item in items]
    return [value for value in values if value is not None] if None not in values else None


def stated_truth(solution: str) -> bool | None:
    """What "true", "not true", "yes" and the like say, if they all say the same."""
    sentence = _SENTENCE.split(final_statement(solution)[0])[0].lower()
    word = r"\b(?:not true|not false|true|false|yes|no)\b"
    said = re.findall(word, REASON.split(sentence)[0]) or re.findall(word, sentence)
    truths = {word in ("true", "yes", "not false") for word in said}
    return truths.pop() if len(truths) == 1 and not _DOUBT.search(sentence) else None


def chosen_option(options: Mapping[str, str], solution: str) -> str | None:
    """The letter of the one option that an answer names by letter or text; None if there is not one."""
    one = f"([{''.join(options)}])"
    lines = [line for line in solution.split("\n") if line.strip()]
    starts = [re.match(rf"(?i)\W*{one}\s*(?:[).:\]]|$)", line) for line in lines]
    statement, marked = final_statement(re.sub(r"\*\*|[`$]", " ", solution))
    if not marked and all(starts) and len({start[1].lower() for start in starts if start}) > 1:
        return None
    statement = re.sub(r"\s+is\s+(?:the\s+)?(?:correct|right)(?:\s+\w+)?\W*$", "", statement).strip(' .{}<>"')
    lettered = re.match(rf"(?is)\W*{one}\s*[).:\]]\s*(.+)", statement)
    if lettered and _option_of_text(options, lettered[2]) == lettered[1].lower():
        return lettered[1].lower()
    if whole := _option_of_text(options, statement):
        return whole
    for letter, option in options.items():  # a text that looks like a denial: "It cannot be determined."
        if _DENIAL.search(option):
            words = r"\s+".join(map(re.escape, option.split()))
            statement = re.sub(rf"(?i)\b{words}(?!\w)", letter.upper(), statement)
    text = re.split(r"\b(?:because|since)\b", _CONCLUSION.split(_CONTRAST.sub("", statement))[-1])[0]
    clauses = re.split(r"(?<=[\w)][.;])\s+", text)
    denied = [clause for clause in clauses if _DENIAL.search(clause)]
    chosen = _named_option(options, " ".join(clause for clause in clauses if clause not in denied))
    taken_back = (
        rf"\b{chosen}\b|{re.escape(options.get(chosen or '') or '$^')}|\b(?:right|correct|true|answer)\b"
    )
    again = any(re.search(rf"(?i){taken_back}", clause) for clause in denied)
    return None if again or _DOUBT.search(text) else chosen


def _named_option(options: Mapping[str, str], text: str) -> str | None:
    one = f"([{''.join(options)}])"
    after = r"(?=\s*(?:[).:\],;(]|$)|\s+(?:is|and|or|as|but)\b|\s[-–—]\s)"
    before = r"^\W*|\b(?i:with|choose|pick|select|option)\s+"
    named = re.findall(rf"(?:{before})(?i:{one}){after}|\b(?i:{one})\s*[)\]]|\b{one.upper()}{after}", text)
    if letters := {letter.lower() for match in named for letter in match if letter}:
        letter = letters.pop()
        rest = re.sub(rf"(?is)^.*?\b{letter}\b[\s).:\]–—-]*", "", text)
        return None if letters or _option_of_text(options, rest) not in (None, letter) else letter
    words = {key: normalized(option) for key, option in options.items() if re.search(r"[^\W\d_]{2}", option)}
    held = {key: option for key, option in words.items() if f" {option} " in f" {normalized(text)} "}
    longest = [key for key, each in held.items() if not any(each in other != each for other in held.values())]
    if held or value_of(plain(text)):
        return longest[0] if len(longest) == 1 else None
    number = "".join(map(str, stated_number(text)[:1]))
    return _option_of_text(options, number) or _option_of_text(options, _COPULA.split(text)[-1])


def _option_of_text(options: Mapping[str, str], text: str) -> str | None:
    given, found = value_of(plain(text)), []
    for letter, option in options.items():
        wanted = value_of(plain(option))
        same = "".join(text.lower().strip(" .").split()) == "".join(option.split()) != ""
        if wanted and given:
            same = same_number(given[0], wanted[0][0]) and (given[1] in ("", wanted[1]) or not wanted[1])
        elif "\\" in option:
            same = bool(structure_of(option)) and _same_mathematics(option, text)
        elif not re.search(r"\d", option):
            same = normalized(text.replace("-", " ")) == normalized(option.replace("-", " ")) != ""
        found += [letter] if same else []
    return found[0] if len(found) == 1 else None
