"""Words of a text, as the archive finds them: the same ones on each database."""

from __future__ import annotations

import re
import unicodedata
from typing import Final

_WORD: Final = re.compile(r"[^\W_]+")
# A page of a book has 500 words. More than this of a conversation is in its document, and is not searched.
_MOST_CHARS: Final = 200_000
_MOST_WORDS: Final = 4_000
_LONGEST_WORD: Final = 64


def words(text: str) -> tuple[str, ...]:
    """The different words of a text in their order, without case and accents; those of the beginning of a long one."""
    plain = unicodedata.normalize("NFKD", text[:_MOST_CHARS]).casefold()
    plain = "".join(char for char in plain if not unicodedata.combining(char))
    found = dict.fromkeys(word[:_LONGEST_WORD] for word in _WORD.findall(plain))
    return tuple(found)[:_MOST_WORDS]
