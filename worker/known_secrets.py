"""The secrets that this process knows by their value, and the matcher that finds them in any of their usual forms.

Known are: the values of environment variables whose names say so (`OPENAI_API_KEY`, `DB_PASS`, `GH_PAT`), the password
of every URL in the environment, and the secrets of the settings. The matcher looks for each value as it is, as URLs,
HTML, JSON and Python write it, and in Base64.
"""

from __future__ import annotations

import base64
import html
import json
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import quote, quote_plus, unquote, urlsplit

REDACTED: Final = "[redacted]"

MIN_SECRET_CHARS: Final = 8
"""Shorter values are not searched for: they would blank out ordinary words."""

# A long line of a value with several lines, such as a private key, is a secret by itself.
_LONG_LINE_CHARS: Final = 24
_ESCAPED_BYTE: Final = re.compile("%[0-9A-F]{2}")
# The hot path looks at the environment again after this long.
_FRESH_SECONDS: Final = 1.0

_SECRET_NAME: Final = re.compile(
    r"(?:^|_)(?:API_?)?(?:KEYS?|TOKENS?|SECRETS?|PASS|PASSWD|PWD|PAT|PASSPHRASE|CREDENTIALS?|AUTH|COOKIE|DSN)$"
    r"|PASSWORDS?$|PASSWD$|APIKEY$|SECRET_KEY|(?:^|_)(?:PASSWORD|SECRET|TOKEN)_",
    re.IGNORECASE,
)
# The shell's folders have a name that ends like a password's, and some names say where a secret is, not what.
_NO_SECRET_NAME: Final = re.compile(r"^(?:OLD)?PWD$|_(?:FILE|PATH|DIR|URL|URI|HOST|PORT|USER|NAME|SECONDS)$", re.I)


class SecretMatcher:
    """Replaces known secrets in texts. Never changes."""

    __slots__ = ("_forms", "longest")

    def __init__(self, secrets: Iterable[str]) -> None:
        """
        Args:
            secrets: Values; those shorter than `MIN_SECRET_CHARS` are left out.
        """
        forms = {form for secret in secrets for form in _forms_of(secret)}
        # The longest first, so that one which contains another is replaced whole.
        self._forms = tuple(sorted(forms, key=len, reverse=True))
        self.longest = len(self._forms[0]) if self._forms else 0

    def redact(self, text: str) -> str:
        """Replace every known secret by `[redacted]`."""
        for form in self._forms:
            if form in text:
                text = text.replace(form, REDACTED)
        return text


def redact_known(text: str) -> str:
    """Replace the secrets that this process knows, and nothing else; for texts that must stay as they are otherwise."""
    return current_matcher().redact(text)


def redact_known_in(value: Any) -> Any:
    """The same JSON value without the secrets that this process knows, in keys and texts at every depth."""
    return _redact_in(value, current_matcher())


def remember_secrets(secrets: Iterable[str | None]) -> None:
    """Add values of the settings to the secrets of this process.

    Args:
        secrets: Secrets, and URLs whose passwords are; None is left out.
    """
    given = [value for value in secrets if value]
    found = frozenset(each for value in given for each in (_passwords_of if "://" in value else _secrets_in)(value))
    _state.remembered |= found
    _state.checked_at = float("-inf")


def current_matcher(*, fresh: bool = False) -> SecretMatcher:
    """The matcher of this process; made again when the environment has changed.

    Args:
        fresh: Look at the environment now. Otherwise the last look may be a second old.
    """
    now = time.monotonic()
    if fresh or now - _state.checked_at > _FRESH_SECONDS:
        _state.checked_at = now
        secrets = _state.remembered | frozenset(_secrets_of_environment(os.environ))
        if secrets != _state.secrets:
            _state.secrets, _state.matcher = secrets, SecretMatcher(secrets)
    return _state.matcher


NO_SECRETS: Final = SecretMatcher(())
"""Finds nothing."""


class _State:
    """The secrets that this process has found so far, and their matcher."""

    __slots__ = ("checked_at", "matcher", "remembered", "secrets")

    def __init__(self) -> None:
        self.checked_at = float("-inf")
        self.remembered: frozenset[str] = frozenset()
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


def _secrets_of_environment(environment: Mapping[str, str]) -> Iterator[str]:
    for name, value in environment.items():
        if _is_secret_name(name):
            yield from _secrets_in(value)
        elif "://" in value:
            yield from _passwords_of(value)


@lru_cache(maxsize=1024)
def _is_secret_name(name: str) -> bool:
    return _SECRET_NAME.search(name) is not None and _NO_SECRET_NAME.search(name) is None


def _secrets_in(value: str) -> Iterator[str]:
    """The secrets of a secret value: itself, its long lines, the part behind a user's name; of a URL its password."""
    passwords = list(_passwords_of(value)) if "://" in value else []
    if passwords or (value.startswith("/") and Path(value).exists()):  # the second is a file that holds the secret
        yield from passwords
        return
    yield value.strip()
    yield from (line.strip() for line in value.splitlines()[1:-1] if len(line) >= _LONG_LINE_CHARS)
    user, colon, password = value.partition(":")
    if colon and user and "\n" not in value:
        yield password


def _passwords_of(urls: str) -> Iterator[str]:
    """The passwords of one URL, or of several with semicolons or commas between them, as written and as meant."""
    for url in re.split(r"[;,\s]+(?=[a-z][a-z0-9+.-]*://)", urls, flags=re.IGNORECASE):
        try:
            parts = urlsplit(url)
            password = parts.password
        except ValueError:
            continue
        if password:
            yield from (password, unquote(password))
            yield parts.netloc  # finds a short password too, where it stands in its URL


@lru_cache(maxsize=256)
def _forms_of(secret: str) -> frozenset[str]:
    """The secret as texts write it."""
    if len(secret) < MIN_SECRET_CHARS:
        return frozenset()
    raw = secret.encode("utf-8", "surrogatepass")
    in_urls = {quote(raw, safe=""), quote(raw), quote_plus(raw)}
    in_urls |= {_ESCAPED_BYTE.sub(lambda found: found[0].lower(), each) for each in in_urls}
    in_html = (html.escape(secret), html.escape(secret, quote=False))
    in_quotes = (json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1], repr(secret)[1:-1])
    forms = {secret, *in_urls, *in_html, *in_quotes, *_base64_forms(raw)}
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
