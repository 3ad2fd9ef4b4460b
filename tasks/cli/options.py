"""Options that several commands share, and the values they stand for."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ...config.settings import Settings

if TYPE_CHECKING:
    from ..client.client import AgentClient

_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_AGE: Final = re.compile(r"(\d{1,6}(?:\.\d{1,3})?)\s*([smhdw])", re.IGNORECASE)

RedisUrl = Annotated[
    str | None,
    typer.Option(
        "--redis-url", metavar="URL", help="Redis to use instead of CELERY_AGENTS_REDIS_URL.", show_default=False
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="JSON instead of text, for programs.")]
SessionArgument = Annotated[str, typer.Argument(metavar="SESSION", help="Id of the session, as submit prints it.")]


def duration(text: str) -> timedelta:
    """Parse a duration like `90s`, `30m`, `1h`, `7d` or `2w`; several add up, like `1h30m`.

    Raises:
        typer.BadParameter: The text is no duration, or it is zero.
    """
    parts = _AGE.findall(text)
    if not parts or _AGE.sub("", text).strip():
        raise typer.BadParameter(f"{text!r} is no duration; write it like 90s, 30m, 1h or 7d")
    try:
        total = sum((timedelta(**{_UNITS[unit.lower()]: float(number)}) for number, unit in parts), timedelta())
    except OverflowError:
        raise typer.BadParameter(f"{text!r} is too long") from None
    if not total:
        raise typer.BadParameter("a duration must be more than zero")
    return total


def settings_for(redis_url: str | None, **overrides: Any) -> Settings:
    """Read the settings of the environment; options of the command line replace them.

    Raises:
        SettingsError: One of them is wrong.
    """
    return Settings.from_environment(redis_url=redis_url, **overrides)


def client_for(redis_url: str | None) -> AgentClient:
    """Make a client for the Redis that the option or the environment names.

    Raises:
        SettingsError: A setting is wrong.
    """
    from ..client.client import AgentClient

    return AgentClient(settings=settings_for(redis_url))
