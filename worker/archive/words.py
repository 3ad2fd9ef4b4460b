"""Words of a text, as the archive finds them: the same ones on each database."""

from __future__ import annotations

import re
import sys
import unicodedata
from functools import cache
from typing import Final

_WORD: Final = re.compile(r"[^\W_]+")
# Characters of ASCII that are in words, and blanks for the others: several times as fast as the expression.
_ASCII: Final = {number: chr(number) if chr(number).isalnum() else " " for number in range(128)}
# A page of a book has 500 words. More than this of a conversation is in its document, and is not searched.
_MOST_CHARS: Final = 200_000
_MOST_WORDS: Final = 4_000
_LONGEST_WORD: Final = 64


@cache
def _accents() -> dict[int, None]:
    """All combining characters, for `str.translate`."""
    return {number: None for number in range(sys.maxunicode + 1) if unicodedata.combining(chr(number))}


def words(text: str) -> tuple[str, ...]:
    """The different words of a text in their order, without case and accents; those of the beginning of a long one."""
    plain = text[:_MOST_CHARS].casefold()
    # Each piece is looked at once: to decompose a long text costs as much as all else that its session's row does.
    pieces = " ".join(each if each.isascii() else _fold(each) for each in dict.fromkeys(plain.split()))
    split = pieces.translate(_ASCII).split() if pieces.isascii() else _WORD.findall(pieces)
    found = dict.fromkeys(word[:_LONGEST_WORD] for word in dict.fromkeys(split))
    return tuple(found)[:_MOST_WORDS]


def _fold(piece: str) -> str:
    """The words of a text without case and accents, with blanks between them."""
    return " ".join(_WORD.findall(unicodedata.normalize("NFKD", piece).casefold().translate(_accents())))
