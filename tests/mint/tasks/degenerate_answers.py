"""Answers that no person would give, from a small grammar: repeated, nested, huge, and mixed."""

from __future__ import annotations

import random
from collections.abc import Iterator

_UNITS = [
    *("The answer is ", "the correct option is: ", "I choose ", "A or ", "a & ", "a) ", "a )", "option "),
    *("((", "(", ")", "[", "]", "{", "}", "[[", "{{1:", "-", "+", "~", "not ", "**", "*", "/", "1", "9"),
    *("0", "1,", "1,111,", "1.", "..", ".1", "1e", "1e9", "e5", "1/", "1 / ", "/ 5", " ", "\t", "\n"),
    *(" \n", "=", "≈", "$", "%", "°", "\\boxed{", "\\frac{", "\\frac{1}{", "\\sqrt{", "\\sqrt[3]{"),
    *("\\sqrt[", "^{", "^", "10^", "10^1", "\\text{", "\\text{a}", "\\,", "\\", "minus ", "pi", "1 pi "),
    *("sqrt(", "round(", "factorial(", "comb(", "2**", "9**", "math.pow(", "lambda:", "f'{", "true "),
    *("yes ", "no ", " or ", "approximately ", "1 km ", "1 m^2 ", "1 x ", " × ", "1j", "1i ", "red fox "),
    *("the ", "a", "A", "٣", "½", "²", "𝟗", "−", "–", "é", "\u200b", "\x00", "�", "<execute>"),
    *("</execute>", "<solution>", "</solution>", "```", "```\n", "``` ", '"', "'", "#", "`"),
]
_HUGE = (
    *("10**400", "-10**400", "10**10**10", "2**4000*2**4000", "9**9**9**9", "round(1,-10**9)"),
    *("round(10**300,-10**18)", "round(1.5,-10**9)", "round(1,10**9)", "factorial(10**9)"),
    *("factorial(factorial(200))", "comb(10**9,5*10**8)", "comb(1000,500)**100", "int('9'*10**9)"),
    *("int(1e308)**9", "float(10**400)", "10^400", "10^10^10", "math.pow(10, 400)", "1e400", "-1e400"),
    *("[10**400]", "(10**400, 2)", "{10**400}", "exp(10**6)", "'a'*10**9", "[0]*10**9", "1%10**400"),
    *("10**400//3", "(2**4000)%(2**3999+1)", "abs(-10**400)", "~10**400", "1<<10**9", "𝟗**𝟗**𝟗"),
    *("sqrt(-1)**10**9",),
)


def degenerate_answers(count: int, *, seed: int) -> Iterator[str]:
    """`count` answers; most are short, one in a hundred is as long as an answer may be and longer."""
    source = random.Random(seed)
    for number in range(count):
        length = 25_000 if number % 100 == 99 else 2000 if number % 10 == 9 else 300
        yield _answer(source, length)


def _answer(source: random.Random, length: int) -> str:
    way = source.randrange(5)
    if way == 0:
        return _repeated(source, length)
    if way == 1:
        return "".join(source.choices(_UNITS, k=max(1, length // 4)))
    if way == 2:  # nested, closed or not
        depth = source.randrange(1, max(2, length // 8))
        opening, closing = source.choice(
            [("(", ")"), ("[", "]"), ("\\sqrt{", "}"), ("\\frac{1}{", "}"), ("^{", "}"), ("round(", ")")]
        )
        inside = source.choice([*_HUGE, *_UNITS])
        return opening * depth + inside + closing * source.choice([0, depth - 1, depth])
    if way == 3:
        joint = source.choice(["*", "+", "-", "//", "%", "**", ",", " ", "=", "/"])
        return joint.join(source.choices(_HUGE, k=source.randrange(1, max(2, length // 20))))
    return source.choice(_UNITS) + _repeated(source, length) + source.choice([*_UNITS, *_HUGE])


def _repeated(source: random.Random, length: int) -> str:
    unit = "".join(source.choices(_UNITS, k=source.choice([1, 1, 1, 2, 3])))
    return unit * max(1, length // len(unit))
