"""Checks of what a tool says of itself, made where it is defined and not when a model calls it."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any, Final

from ..errors import ConfigurationError
from ..state.values.field_types import is_number
from .effect import Effect
from .protocol import Lookup

NAME_PATTERN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
"""What every provider accepts as the name of a function."""


def check_name(name: str) -> str:
    """The name of a tool, which every provider accepts.

    Raises:
        ConfigurationError: It cannot be used; the text says what to do.
    """
    if not NAME_PATTERN.fullmatch(name):
        raise ConfigurationError(
            f"tool name {name!r}: write 1 to 64 letters, digits, “_” or “-”, not beginning with a digit or “-”; "
            "set it with @tool(name=…)"
        )
    return name


def check_effect(name: str, effect: Effect | str) -> Effect:
    """The effect class of a tool.

    Raises:
        ConfigurationError: It cannot be used; the text says what to do.
    """
    try:
        return Effect(effect)
    except ValueError:
        known = ", ".join(Effect)
        raise ConfigurationError(f"tool {name}: effect {effect!r} is unknown; use one of {known}") from None


def check_lookup(name: str, effect: Effect, lookup: Lookup | None) -> Lookup | None:
    """The lookup of a tool, given exactly when its effect is lookup.

    Raises:
        ConfigurationError: It cannot be used; the text says what to do.
    """
    if (lookup is not None) == (effect is Effect.LOOKUP):
        return lookup
    if lookup is None:
        raise ConfigurationError(f"tool {name}: effect lookup needs lookup=, a function of (idempotency_key, ctx)")
    raise ConfigurationError(f"tool {name}: lookup= is given, but effect is {effect}; set effect='lookup' or drop it")


def check_timeout(name: str, timeout: Any) -> float | None:
    """The timeout of a tool in seconds.

    Raises:
        ConfigurationError: It cannot be used; the text says what to do.
    """
    if timeout is None:
        return None
    seconds: Any = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    if not is_number(seconds) or seconds <= 0:
        raise ConfigurationError(f"tool {name}: timeout {timeout!r} must be seconds above 0, a timedelta, or None")
    return float(seconds)


def check_max_result_chars(name: str, chars: Any) -> int:
    """The characters of a result that a tool keeps.

    Raises:
        ConfigurationError: It cannot be used; the text says what to do.
    """
    if isinstance(chars, bool) or not isinstance(chars, int) or chars < 1:
        raise ConfigurationError(f"tool {name}: max_result_chars {chars!r} must be a whole number above 0")
    return chars


def check_idempotent(tool: str, idempotent: object, result: str) -> bool:
    """Check whether a tool's recorded results may be given again.

    Raises:
        ConfigurationError: It is neither True nor False, or the results come later.
    """
    if not isinstance(idempotent, bool):
        raise ConfigurationError(f"tool {tool}: idempotent={idempotent!r:.60} must be True or False")
    if idempotent and result == "later":
        raise ConfigurationError(f"tool {tool}: a result that comes later cannot be idempotent; leave one of both out")
    return idempotent
