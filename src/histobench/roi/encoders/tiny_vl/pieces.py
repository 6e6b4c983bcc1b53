"""From any text to numbers: words, and pieces of words hashed into a fixed table."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

#: Rows of the embedding table; row 0 is padding, row 1 the start mark that every text begins with.
TABLE = 4096
PADDING, START = 0, 1
_RESERVED = 2
MAX_WORDS = 40
MAX_PIECES = 14
_WORD = re.compile(r"[^\W_]+")


def encode_texts(texts: Sequence[str]) -> NDArray[np.int64]:
    """Piece ids [texts, words, pieces], padded with 0; words past the fortieth are left out.

    >>> encode_texts(["Tumour epithelium", ""]).shape[:2]
    (2, 3)
    """
    words = [[word.casefold() for word in _WORD.findall(text)[: MAX_WORDS - 1]] for text in texts]
    longest = 1 + max((len(line) for line in words), default=0)
    ids = np.full((len(texts), longest, MAX_PIECES), PADDING, np.int64)
    ids[:, 0, 0] = START
    for row, line in enumerate(words):
        for column, word in enumerate(line, start=1):
            pieces = pieces_of(word)
            ids[row, column, : len(pieces)] = pieces
    return ids


@lru_cache(maxsize=20_000)
def pieces_of(word: str) -> tuple[int, ...]:
    """The table rows of a word: the word itself, then its beginnings and its runs of four letters.

    Words that share a stem share rows, so `tumour` and `tumours` are close without having been seen.
    """
    marked = f"<{word[:24]}>"
    parts = [marked, *(marked[start : start + 4] for start in range(max(1, len(marked) - 3)))]
    return tuple(_row(part) for part in dict.fromkeys(parts))[:MAX_PIECES]


def _row(part: str) -> int:
    # crc32 is the same in every process and on every machine; Python's own hash is not.
    return _RESERVED + zlib.crc32(part.encode("utf-8", "surrogatepass")) % (TABLE - _RESERVED)
