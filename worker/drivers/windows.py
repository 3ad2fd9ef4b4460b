"""Completion windows: how long an answer may take at its provider, and what that saves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from ..errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Window:
    """A time within which a provider answers.

    Attributes:
        discount: Share of the price that is saved.
        is_batch: It is sold by a provider's batches; otherwise by background responses.
    """

    hours: int
    discount: float
    is_batch: bool = False

    def until(self, since: datetime) -> datetime:
        """When an answer is there at the latest that was asked for at `since`."""
        return since + timedelta(hours=self.hours)

    @property
    def factor(self) -> float:
        """Share of the price that is paid."""
        return 1.0 - self.discount


WINDOWS: Final = {"2h": Window(2, 0.3), "8h": Window(8, 0.4), "24h": Window(24, 0.5, is_batch=True)}
"""The windows by name, with the prices of November 2026."""

_BACKGROUND: Final = ("2h", "8h", "24h")
_SOLD: Final[Mapping[str, Sequence[str]]] = {
    "openai": _BACKGROUND,
    "openai-responses": _BACKGROUND,
    "anthropic": ("24h",),
    "google": ("24h",),
}
"""The windows of each provider, by the prefix of a model's id."""


def windows_of(model: str) -> Sequence[str]:
    """The windows with which a model, as `provider:name`, is sold by its provider itself; none where it sells none."""
    return _SOLD.get(model.partition(":")[0], ())


WINDOW_FAILED: Final = ("fail", "live")


def read_window(field: str, window: object) -> str | None:
    """Check the name of a window.

    Args:
        field: Where it was written, for the error.
    Raises:
        ConfigurationError: There is no such window.
    """
    if window is None or (isinstance(window, str) and window in WINDOWS):
        return window
    raise ConfigurationError(f"{field} {window!r}: write one of {', '.join(map(repr, WINDOWS))}, or None for at once")
