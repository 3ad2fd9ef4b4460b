"""The secrets that this process knows by their value, and the matcher that finds them in any of their usual forms.

Known are the secrets of the environment (`secret_values`) and those of the settings. The matcher looks for each value
as it is, as URLs, HTML, JSON and Python write it, in Base64 and in hexadecimal.
"""

from __future__ import annotations

import base64
import bisect
import html
import json
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, cast
from urllib.parse import quote, quote_plus

from .secret_values import passwords_of, secrets_in, secrets_of_variables

REDACTED: Final = "[redacted]"

MIN_SECRET_CHARS: Final = 8
"""Shorter values are not searched for: they would blank out ordinary words."""

_ESCAPED_BYTE: Final = re.compile("%[0-9A-F]{2}")
# The hot path looks at the environment again after this long.
_FRESH_SECONDS: Final = 1.0
# Each costs a search in every text.
_MOST_PASSING: Final = 100
# From here on one combined pattern is quicker than a search for each form.
_LONG_TEXT_CHARS: Final = 50_000


class SecretMatcher:
    """Replaces known secrets in texts. Never changes."""

    __slots__ = ("_forms", "_in_order", "_pattern", "longest")

    def __init__(self, secrets: Iterable[str]) -> None:
        """
        Args:
            secrets: Values; those shorter than `MIN_SECRET_CHARS` are left out.
        """
        forms = {form for secret in secrets for form in _forms_of(secret)}
        # The longest first, so that one which contains another is replaced whole.
        self._forms = tuple(sorted(forms, key=len, reverse=True))
        self._in_order = tuple(sorted(forms))
        self._pattern: re.Pattern[str] | None = None
        self.longest = len(self._forms[0]) if self._forms else 0

    def redact(self, text: str) -> str:
        """Replace every known secret by `[redacted]`."""
        if len(text) >= _LONG_TEXT_CHARS and self._forms:
            return self._combined.sub(REDACTED, text)
        for form in self._forms:
            if form in text:
                text = text.replace(form, REDACTED)
        return text

    def find_cut(self, text: str) -> int:
        """Find how far a text may be shown when more of it follows: not into a secret that it ends within.

        Returns:
            Characters before the first place from which on the text may be the beginning of a secret.
        """
        start = max(0, len(text) - self.longest + 1)
        cut = next((at for at in range(start, len(text)) if self._begins(text[at:])), len(text))
        for form in self._forms if cut < len(text) else ():  # a whole one that reaches over this place is not cut
            at = text.find(form, max(0, cut - len(form) + 1))
            if 0 <= at < cut < at + len(form):
                return at + len(form) + self.find_cut(text[at + len(form) :])
        return cut

    def _begins(self, text: str) -> bool:
        """Whether a secret begins with this text, and is longer."""
        at = bisect.bisect_right(self._in_order, text)
        return at < len(self._in_order) and self._in_order[at].startswith(text)

    @property
    def _combined(self) -> re.Pattern[str]:
        """All forms as one pattern; made for the first long text, since that takes longer than to search short ones."""
        if self._pattern is None:
            self._pattern = re.compile(_combine(self._forms))
        return self._pattern


class SecretStream:
    """Redacts a text that comes in pieces, also a secret that is cut over several of them.

    It holds the end of a piece back only as far as a known secret begins with it.
    """

    __slots__ = ("_held", "_matcher")

    def __init__(self, matcher: SecretMatcher | None = None) -> None:
        """
        Args:
            matcher: None: that of this process, as it is when a piece comes.
        """
        self._matcher = matcher
        self._held = ""

    def feed(self, piece: str) -> str:
        """Take the next piece, and get what may be shown by now."""
        matcher = self._matcher or current_matcher()
        text = self._held + piece
        cut = matcher.find_cut(text)
        self._held = text[cut:]
        return matcher.redact(text[:cut])

    def flush(self) -> str:
        """Get what was held back: nothing follows."""
        held, self._held = self._held, ""
        return (self._matcher or current_matcher()).redact(held)


def redact_known(text: str) -> str:
    """Replace the secrets that this process knows, and nothing else; for texts that must stay as they are otherwise."""
    return current_matcher().redact(text)


def redact_known_json(text: str) -> str:
    """The same JSON text without the secrets that this process knows. Numbers stay, also with the digits of one."""
    if redact_known(text) == text:
        return text
    return json.dumps(redact_known_in(json.loads(text)), ensure_ascii=False)


def redact_known_in(value: Any) -> Any:
    """The same JSON value without the secrets that this process knows, in keys and texts at every depth."""
    return _redact_in(value, current_matcher())


def remember_secrets(secrets: Iterable[str | None]) -> None:
    """Add values of the settings to the secrets of this process.

    Args:
        secrets: Secrets, and URLs whose passwords are; None is left out.
    """
    given = [value for value in secrets if value]
    found = frozenset(each for value in given for each in (passwords_of if "://" in value else secrets_in)(value))
    _state.remembered |= found
    _state.checked_at = float("-inf")


def remember_passing_secrets(secrets: Iterable[str]) -> None:
    """Add secrets that live for a while, such as tokens of sessions; the oldest of many are forgotten."""
    new = [each for each in secrets if each not in _state.passing]
    for each in new:
        _state.passing[each] = None
    while len(_state.passing) > _MOST_PASSING:
        _state.passing.pop(next(iter(_state.passing)))
    if new:
        _state.checked_at = float("-inf")


def current_matcher(*, fresh: bool = False) -> SecretMatcher:
    """The matcher of this process; made again when the environment has changed.

    Args:
        fresh: Look at the environment now. Otherwise the last look may be a second old.
    """
    now = time.monotonic()
    if fresh or now - _state.checked_at > _FRESH_SECONDS:
        _state.checked_at = now
        secrets = _state.remembered | frozenset(_state.passing) | frozenset(secrets_of_variables(os.environ))
        if secrets != _state.secrets:
            _state.secrets, _state.matcher = secrets, SecretMatcher(secrets)
    return _state.matcher


NO_SECRETS: Final = SecretMatcher(())
"""Finds nothing."""


class _State:
    """The secrets that this process has found so far, and their matcher."""

    __slots__ = ("checked_at", "matcher", "passing", "remembered", "secrets")

    def __init__(self) -> None:
        self.checked_at = float("-inf")
        self.remembered: frozenset[str] = frozenset()
        self.passing: dict[str, None] = {}
        self.secrets: frozenset[str] = frozenset()
        self.matcher = SecretMatcher(())


_state: Final = _State()


def _redact_in(value: Any, matcher: SecretMatcher) -> Any:
    if isinstance(value, str):
        return matcher.redact(value)
    if isinstance(value, Mapping):
        items = cast("Mapping[str, Any]", value).items()
        return {matcher.redact(name): _redact_in(item, matcher) for name, item in items}
    if isinstance(value, (list, tuple)):
        return [_redact_in(item, matcher) for item in cast("Iterable[Any]", value)]
    return value


def _combine(forms: Sequence[str]) -> str:
    """One pattern for all forms, as a tree of their beginnings, after a quick look at the first characters.

    Each of those has to be one that some form has at its place: that leaves few places to try.
    """
    tree: dict[str, Any] = {}
    for form in forms:
        node = tree
        for char in form:
            node = node.setdefault(char, {})
        node[""] = {}
    firsts = ({form[at] for form in forms} for at in range(MIN_SECRET_CHARS))
    look = "".join(f"[{''.join(map(re.escape, sorted(chars)))}]" for chars in firsts)
    return f"(?={look}){_write_branches(tree)}"


def _write_branches(node: Mapping[str, Any]) -> str:
    """The pattern of what may follow at a node of the tree, the longest form first."""
    branches: list[str] = []
    for char, following in sorted(node.items()):
        if char == "":
            continue
        text, below = re.escape(char), following
        while len(below) == 1 and "" not in below:  # a stretch without branches is one text
            ((following_char, below),) = below.items()
            text += re.escape(following_char)
        branches.append(text + _write_branches(below))
    if not branches:
        return ""
    joined = "|".join(branches)
    return f"(?:{joined}){'?' if '' in node else ''}" if len(branches) > 1 or "" in node else joined


@lru_cache(maxsize=256)
def _forms_of(secret: str) -> frozenset[str]:
    """The secret as texts write it."""
    if len(secret) < MIN_SECRET_CHARS:
        return frozenset()
    raw = secret.encode("utf-8", "surrogatepass")
    in_urls = {quote(raw, safe=""), quote(raw), quote_plus(raw)}
    in_urls |= {form for each in in_urls for form in (quote(each), quote(each, safe=""))}  # a URL within a URL
    in_urls |= {_ESCAPED_BYTE.sub(lambda found: found[0].lower(), each) for each in in_urls}
    in_html = (html.escape(secret), html.escape(secret, quote=False))
    in_json = {json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]}
    in_quotes = (repr(secret)[1:-1], repr(raw)[2:-1], *(json.dumps(each)[1:-1] for each in in_json))
    in_base64 = [
        form
        for each in {raw, *(written.encode("utf-8", "surrogatepass") for written in in_json)}
        for form in _base64_forms(each)
    ]
    forms = {secret, *in_urls, *in_html, *in_json, *in_quotes, *in_base64, raw.hex(), raw.hex().upper()}
    return frozenset(form for form in forms if len(form) >= MIN_SECRET_CHARS)


def _base64_forms(raw: bytes) -> Iterator[str]:
    """The part of each Base64 text that a secret alone decides, at each of the three places it may begin at."""
    for offset in range(3):
        encoded = base64.b64encode(bytes(offset) + raw).decode()
        first = (0, 2, 3)[offset]
        kept = encoded.rstrip("=")[first:]
        if (offset + len(raw)) % 3:
            kept = kept[:-1]  # its last character also depends on what follows
        if len(kept) >= MIN_SECRET_CHARS:
            yield kept
            yield kept.translate(str.maketrans("+/", "-_"))
