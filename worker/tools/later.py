"""Results that come later: a tool starts work elsewhere, and a service brings the result with a token."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from ..errors import ConfigurationError
from .approval import ExpiryRule, PassOn, check_expiry


@dataclass(frozen=True, slots=True)
class LaterResult:
    """The terms of a result that a service brings.

    Attributes:
        expires: The time in which it must come. None: no end.
        on_expiry: The rule for the end of that time.
    """

    expires: timedelta | None = None
    on_expiry: ExpiryRule = "deny"


def check_later(name: str, result: str, expires: timedelta | None, on_expiry: ExpiryRule) -> LaterResult | None:
    """The terms of a tool's later result; None for a tool that returns its result.

    Raises:
        ConfigurationError: They cannot be used; the text says what to do.
    """
    if result not in ("now", "later"):
        raise ConfigurationError(f"tool {name}: result={result!r:.60} must be 'now' or 'later'")
    if result == "now":
        if expires is not None or on_expiry != "deny":
            raise ConfigurationError(
                f"tool {name}: expires= and on_expiry= belong to result='later'; for an approval, write them into "
                "approval=Ask(…)"
            )
        return None
    check_expiry(f"tool {name}", expires, on_expiry)
    if on_expiry == "approve" or isinstance(on_expiry, PassOn):
        raise ConfigurationError(
            f"tool {name}: on_expiry={on_expiry!r:.60} is for approvals; a result that comes later has 'deny', 'fail' "
            "or UseValue(…)"
        )
    return LaterResult(expires, on_expiry)
