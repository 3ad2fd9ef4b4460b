"""Checks of the numbers that options of capabilities have, made where an agent is defined."""

from __future__ import annotations

from ..errors import ConfigurationError


def check_whole(field: str, value: object, *, least: int = 0, of: str = "") -> None:
    """Refuse what is no whole number from `least`.

    Args:
        of: What it counts, such as " of steps", for the text.
    Raises:
        ConfigurationError: It names the field and the value.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigurationError(f"{field}={value!r:.60}: give a whole number{of}, from {least}")


def check_share(field: str, value: object, *, above_zero: bool = False) -> None:
    """Refuse what is no number from 0 to 1; 0 as well where it has to be above.

    Raises:
        ConfigurationError: It names the field and the value.
    """
    if (
        not isinstance(value, int | float)
        or isinstance(value, bool)
        or not 0 <= value <= 1
        or (above_zero and not value)
    ):
        wanted = "a number above 0, up to 1" if above_zero else "a number from 0 to 1"
        raise ConfigurationError(f"{field}={value!r:.60}: give {wanted}")
