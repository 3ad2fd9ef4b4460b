"""Escapes characters that act instead of being read: in a terminal, in a log, or on the order of the text around them.

These are control characters (C0, DEL, C1), overrides and isolates of the writing direction, invisible characters, line
and paragraph separators, and halves of surrogate pairs. Joiners and variants of letters stay: emoji and some scripts
need them.
"""

from __future__ import annotations

import re
from typing import Final

_ACTING: Final = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f"
    "\u3164\ufe00-\ufe0d\ufeff\uffa0\ufff0-\ufffb\U000e0000-\U000e0fff\ud800-\udfff"
)
_TEXT: Final = re.compile(f"[{_ACTING}]")
_LINE: Final = re.compile(f"[\t\n{_ACTING}]")


def escape(text: str) -> str:
    """Write acting characters as Python and JSON do, such as `\\x1b` or `\\u202e`; tabs and line breaks stay."""
    return text if text.isascii() and text.isprintable() else _TEXT.sub(_escape_for_people, text.replace("\r\n", "\n"))


def escape_line(text: str) -> str:
    """Escape as `escape` does, and tabs and line breaks too."""
    return text if text.isascii() and text.isprintable() else _LINE.sub(_escape_for_people, text)


def escape_json(text: str) -> str:
    """Escape acting characters of a JSON text, which stays JSON of the same value."""
    return text if text.isascii() and text.isprintable() else _TEXT.sub(_escape_for_json, text)


def indent(text: str, by: str = "    ") -> str:
    """Escape a text, and indent every line of it but the first, so that none looks like a line of another author."""
    return escape(text).replace("\n", f"\n{by}")


def _escape_for_people(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()


def _escape_for_json(found: re.Match[str]) -> str:
    units = found[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))
