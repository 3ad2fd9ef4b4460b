"""Takes secrets out of texts that are stored, logged or shown: exception texts above all.

It knows the shapes of keys and tokens, and the secrets of this process (`known_secrets`).
"""

from __future__ import annotations

import re
import sysconfig
import traceback
from pathlib import Path
from typing import Final

from .errors import CeleryAgentsError, DriverError
from .known_secrets import REDACTED, current_matcher
from .state.values.error_info import ErrorInfo
from .state.values.frozen import FrozenDict

MAX_READ_CHARS: Final = 20_000
"""Characters of a text that are looked at; the rest is left out, since nothing shows that much of an error."""

MAX_MESSAGE_CHARS: Final = 500
"""Characters kept of a foreign exception's text."""

MAX_OWN_MESSAGE_CHARS: Final = 4_000
"""Characters kept of an error text of this package, which is written to be read."""

_OWN_FOLDERS: Final = tuple(f"{Path(__file__).parents[1] / name}/" for name in ("worker", "tasks", "config"))
_LIBRARIES: Final = tuple({f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_MAX_FRAMES: Final = 3

_NAME: Final = (
    r"api[_-]?key|access[_-]?key(?:[_-]?id)?|secret(?:[_-]?(?:access[_-]?)?key)?|client[_-]?secret|private[_-]?key"
    r"|password|passwd|passphrase|pwd|(?:access|refresh|id|auth|session)?[_-]?token|signature|credential"
)

_VENDOR_KEY: Final = (
    r"\b(?:sk|pk|rk)[-_][\w-]{8,}|\bAIza[\w-]{20,}|\bya29\.[\w-]{10,}|\bgsk_\w{8,}|\bgh[opusr]_\w{8,}"
    r"|\bgithub_pat_\w{8,}|\bglpat-[\w-]{8,}|\bxox[a-z]-[\w-]{8,}|\b(?:AKIA|ASIA|AGPA|AROA)[A-Z0-9]{12,}|\bhf_\w{8,}"
    r"|\bxai-\w{8,}|\bpplx-\w{8,}|\br8_\w{8,}|\bnpm_\w{20,}|\bpypi-[\w-]{16,}|\btvly-[\w-]{8,}|\bnvapi-[\w-]{8,}"
)
_PRIVATE_KEY: Final = r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----.*?(?:-----END [A-Z ]{0,40}PRIVATE KEY-----|\Z)"
_AUTHORIZATION: Final = r"(\b(?:proxy-)?authorization[\"']?\s*[:=]\s*[\"']?)(?:[A-Za-z]+\s+)?[^\s\"',;}]+"
_ASSIGNMENT: Final = rf"((?:{_NAME})[\"']?\s*[:=]\s*)(?!\[redacted\])(\"[^\"]*\"|'[^']*'|[^\s\"',;&}}\])]+)"

_RULES: Final[tuple[tuple[re.Pattern[str], str], ...]] = (
    (re.compile(_PRIVATE_KEY, re.DOTALL), REDACTED),
    (re.compile(r"(\b[a-z][a-z0-9+.-]{0,30}://)[^\s/\"'<>]*@", re.IGNORECASE), rf"\1{REDACTED}@"),
    (re.compile(r"(?<![\w-])eyJ[\w-]{5,}\.[\w-]{5,}(?:\.[\w-]*){0,3}"), REDACTED),
    (re.compile(_AUTHORIZATION, re.IGNORECASE), rf"\1{REDACTED}"),
    (re.compile(r"(\bbearer\s+)[\w.~+/=-]{6,}", re.IGNORECASE), rf"\1{REDACTED}"),
    (re.compile(r"(\bbasic\s+)[A-Za-z0-9+/]{12,}={0,2}", re.IGNORECASE), rf"\1{REDACTED}"),
    (re.compile(_VENDOR_KEY), REDACTED),
    (re.compile(rf"([?&][\w.-]{{0,60}}(?:{_NAME}|sig|key)=)[^&\s\"'<>]+", re.IGNORECASE), rf"\1{REDACTED}"),
    (re.compile(_ASSIGNMENT, re.IGNORECASE), rf"\1{REDACTED}"),
    (re.compile(r"(?<![\w.])/(?:home|Users)/[^/\s\"':]+"), "~"),
    (re.compile(r"\b[A-Za-z]:\\Users\\[^\\\s\"':]+"), "~"),
)


def redact(text: str) -> str:
    """Replace what looks like a secret, or is one of this process, by `[redacted]`, and home directories by `~`.

    Longer texts than 20 000 characters lose their end. Rather too much is replaced than too little.
    """
    matcher = current_matcher(fresh=True)
    # A secret that begins before the cut is read to its end.
    shortened = matcher.redact(text[: MAX_READ_CHARS + matcher.longest])[:MAX_READ_CHARS]
    for pattern, replacement in _RULES:
        shortened = pattern.sub(replacement, shortened)
    return _without_own_home(shortened)


def describe_exception(error: BaseException) -> ErrorInfo:
    """An exception as data that may be stored and shown: its name and the first line of its text, without secrets.

    Errors of this package keep all lines, being written to be read. Never the traceback, the arguments or the cause.
    """
    error = _only_one(error)
    name = type(error).__name__
    details: dict[str, str | int] = {"type": whole_unicode(f"{type(error).__module__}.{type(error).__qualname__}")}
    if isinstance(error, DriverError):
        details |= _facts(error)
        return _info(error.kind, _text_of(error, MAX_OWN_MESSAGE_CHARS), details, retryable=error.transient)
    if isinstance(error, CeleryAgentsError):
        return _info(name, _text_of(error, MAX_OWN_MESSAGE_CHARS), details)
    text = _first_line(_text_of(error, MAX_MESSAGE_CHARS))
    return _info(name, f"{name}: {text}" if text else name, details)


def place_of(error: BaseException) -> str:
    """The place at which an exception was raised, for the log of the worker: " (shop/agents.py:31 in refund)".

    The innermost frame of the code that this package has called, behind up to two that lead there; frames of the
    service itself go before those of libraries, however deep it was raised in one. Neither their source nor their
    values are in it. Empty where there is none.
    """
    places: list[tuple[bool, str]] = []
    for frame, line in reversed([*traceback.walk_tb(_only_one(error).__traceback__)]):
        code = frame.f_code
        if not code.co_filename.startswith(_OWN_FOLDERS):
            is_of_library = code.co_filename.startswith(_LIBRARIES)
            places.append((is_of_library, f"{code.co_filename}:{line} in {code.co_name}"))
        elif places:
            break
    if not places:
        return ""
    leading = sorted(range(1, len(places)), key=lambda index: places[index][0])[: _MAX_FRAMES - 1]
    named = [places[index][1] for index in sorted((0, *leading), reverse=True)]
    return f" ({_clean(', '.join(named))})"


def _info(kind: str, message: str, details: dict[str, str | int], *, retryable: bool = False) -> ErrorInfo:
    return ErrorInfo(kind=whole_unicode(kind), message=message, retryable=retryable, details=FrozenDict(details))


def _facts(error: DriverError) -> dict[str, str | int]:
    facts = {"status": error.status, "code": error.code, "request_id": error.request_id}
    return {key: _clean(value) if isinstance(value, str) else value for key, value in facts.items() if value}


def _only_one(error: BaseException) -> BaseException:
    """Take the exception out of a group that holds a single one: that is what happened."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
        error = error.exceptions[0]  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
    return error  # pyright: ignore[reportUnknownVariableType]


def _text_of(error: BaseException, limit: int) -> str:
    """Its text without secrets. They are taken out before it is cut: half a key would not be recognised."""
    try:
        text = _clean(str(error))
    except Exception as broken:  # noqa: BLE001 - a foreign __str__ may raise anything
        return f"its text cannot be read, {type(broken).__name__}"
    return text if len(text) <= limit else f"{text[:limit]}…"


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def _clean(text: str) -> str:
    """Without secrets, and as text that UTF-8 can hold."""
    return redact(whole_unicode(text[: 2 * MAX_READ_CHARS]))


def whole_unicode(text: str) -> str:
    """A text that UTF-8 can hold; the same object where it is one.

    Halves of a surrogate pair that lie side by side are joined, as where a stream was cut between them; a half alone
    becomes U+FFFD.
    """
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _without_own_home(text: str) -> str:
    try:
        home = str(Path.home())
    except RuntimeError:
        return text
    return text.replace(f"{home}/", "~/") if len(home) > 1 else text
