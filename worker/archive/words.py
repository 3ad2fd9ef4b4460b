"""Words of a text, as the archive finds them: the same ones on each database."""

from __future__ import annotations

import re
import sys
import unicodedata
from functools import cache
from typing import Final

_WORD: Final = re.compile(r"[^\W_]+")
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
    if not plain.isascii():
        plain = unicodedata.normalize("NFKD", plain).casefold().translate(_accents())
    found = dict.fromkeys(word[:_LONGEST_WORD] for word in _WORD.findall(plain))
    return tuple(found)[:_MOST_WORDS]
