"""Options that several commands share, and the values they stand for."""

from __future__ import annotations

import getpass
import re
import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TextIO

import typer

from ...config.settings import Settings
from .hidden_arguments import HIDDEN_REDIS_URL
from .named_app import chosen_app

if TYPE_CHECKING:
    from ..client.client import AgentClient

_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_MOST_MATCHES: Final = 300  # more than the sessions of a tree
_SHOWN_MATCHES: Final = 5
_AGE: Final = re.compile(r"(\d{1,6}(?:\.\d{1,3})?)\s*([smhdw])", re.IGNORECASE)

Cursor = Annotated[str | None, typer.Option(help="Where the next page begins, as the page before says.")]
RedisUrl = Annotated[
    str | None,
    typer.Option(
        "--redis-url",
        metavar="URL",
        help="Redis to use instead of CELERY_AGENTS_REDIS_URL.",
        envvar=HIDDEN_REDIS_URL,
        show_envvar=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="JSON instead of text, for programs.")]
SessionArgument = Annotated[
    str, typer.Argument(metavar="SESSION", help="Id of the session, or its beginning as far as it is unique.")
]
OneSession = Annotated[str | None, typer.Argument(metavar="SESSION", help="Id of one session, or its beginning.")]
By = Annotated[str | None, typer.Option(help="Who asks, for the events; default: the login name.")]

# The filter of a listing.
Status = Literal["idle", "pending", "in_progress", "waiting", "completed", "stopped", "failed", "parked", "unreadable"]
Asked = Literal["approval", "question", "external"]
OfStatus = Annotated[Status | None, typer.Option(help="Only sessions that are this.")]
OfAgent = Annotated[str | None, typer.Option(help="Only sessions of this agent.")]
OfLabel = Annotated[list[str] | None, typer.Option(help="Only with this label, KEY=VALUE; repeat it.")]
WithText = Annotated[
    str | None,
    typer.Option(
        help="Only where the first message, at its beginning, has this; in the archive, words of the conversation."
    ),
]
WithError = Annotated[str | None, typer.Option(help="Only those that failed with an error that contains this.")]
WaitsFor = Annotated[Asked | None, typer.Option(help="Only those that wait for this.")]


def login() -> str | None:
    """The name of the user who runs the command, for the events; None where the machine does not tell."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return None


_LONGEST = timedelta(days=18_250)
"""So long ago is behind 1970, before which no session was changed."""


def duration(text: str) -> timedelta:
    """Parse a duration like `90s`, `30m`, `1h`, `7d` or `2w`; several add up, like `1h30m`.

    Raises:
        typer.BadParameter: The text is no duration, or it is zero, or so long that no calendar has its end.
    """
    parts = _AGE.findall(text)
    if not parts or _AGE.sub("", text).strip():
        raise typer.BadParameter(f"{text!r} is no duration; write it like 90s, 30m, 1h or 7d")
    try:
        total = sum((timedelta(**{_UNITS[unit.lower()]: float(number)}) for number, unit in parts), timedelta())
    except OverflowError:
        total = timedelta.max
    if total > _LONGEST:
        raise typer.BadParameter(f"{text!r} is too long; give {_LONGEST.days} days at most")
    if not total:
        raise typer.BadParameter("a duration must be more than zero")
    return total


def time_option(text: str, *names: str) -> Any:
    """Make an option that takes a duration.

    Args:
        text: Its help.
        names: As they are typed; without any, that of the parameter.
    """
    return typer.Option(*names, parser=duration, metavar="DURATION", help=text)


Since = Annotated[timedelta | None, time_option("Changed within the last 1h, 7d, …")]
Until = Annotated[timedelta | None, time_option("Not changed within the last 1h, 7d, …")]


def moment_option(value: datetime | None) -> datetime | None:
    """A time as it was typed, with its offset; without one it is local time.

    Raises:
        typer.BadParameter: It is of no year that a calendar has, here or in UTC.
    """
    if value is None:
        return None
    try:
        return value.astimezone(UTC).astimezone()
    except (OverflowError, ValueError):
        raise typer.BadParameter(f"{value.isoformat()!r}: give a time from 1970 to the year 9999") from None


def check_between(since: timedelta | None, until: timedelta | None) -> None:
    """Refuse a time that would begin behind its end.

    Raises:
        typer.BadParameter: It does, and nothing can be in it.
    """
    if since is not None and until is not None and since <= until:
        raise typer.BadParameter("give a longer time than --until, such as --since 2h --until 1h", param_hint="--since")


def read_stdin() -> str:
    """Read standard input to its end.

    Raises:
        typer.BadParameter: It is closed, or no text.
    """
    if sys.__stdin__ is None:  # it was closed before the start
        raise typer.BadParameter("standard input is closed")
    return read_text(sys.stdin, "standard input")


def read_text(file: TextIO, hint: str) -> str:
    """Read a file to its end.

    Args:
        hint: The name that the error gives it.
    Raises:
        typer.BadParameter: It cannot be read, or is no text.
    """
    try:
        return file.read()
    except OSError as error:
        raise typer.BadParameter(f"it cannot be read: {error.strerror}", param_hint=hint) from None
    except UnicodeDecodeError as error:
        raise typer.BadParameter(f"it is no {error.encoding} text: {error.reason}", param_hint=hint) from None


def now(client: AgentClient) -> datetime:
    """The time by Redis's clock, by which sessions live; this machine's may be off."""
    from ...worker.moments import moment

    return moment(client.store.housekeeping.now_ms())


def ago(client: AgentClient, age: timedelta | None) -> datetime | None:
    """The time so long ago; None for none."""
    return None if age is None else now(client) - age


def settings_for(redis_url: str | None, **overrides: Any) -> Settings:
    """Read the settings of the environment, or those of the app that `--app` names; further options replace them.

    Raises:
        SettingsError: One of them is wrong.
        ConfigurationError: The app cannot be imported, or has no agents.
    """
    existing = chosen_app()
    if existing is None:
        return Settings.from_environment(redis_url=redis_url, **overrides)
    from ..producer import settings_of

    given = {name: value for name, value in {"redis_url": redis_url, **overrides}.items() if value is not None}
    settings = settings_of(existing)
    return Settings.build(**{**settings.model_dump(exclude_unset=True), **given}) if given else settings


def client_for(redis_url: str | None) -> AgentClient:
    """Make a client for the Redis that `--redis-url`, the app of `--app` or the environment names.

    Raises:
        SettingsError: A setting is wrong.
        ConfigurationError: The app cannot be imported, or has no agents.
    """
    from ..client.client import AgentClient

    return AgentClient(settings=settings_for(redis_url), app=chosen_app())


def find_session(client: AgentClient, text: str) -> str:
    """Find the session that an id or the beginning of an id names, before those below it and its forks.

    Raises:
        SessionNotFound: There is none, or it was deleted, or is in an archive that this process does not know.
        InvalidInput: Several begin like this, or it is no id.
    """
    from ...worker.errors import InvalidInput, SessionArchived, SessionDeleted, SessionNotFound

    wanted = text.rstrip(".…")
    try:
        return client.header(wanted).session_id
    except (SessionDeleted, SessionArchived):
        raise
    except SessionNotFound:
        found: list[str] = []
        for each in client.store.sessions.find_matching(wanted, _MOST_MATCHES):
            if not any(each.startswith(f"{other}.") for other in found):
                found.append(each)
        if not found:
            raise
    if len(found) > 1:
        more = " and more" if len(found) > _SHOWN_MATCHES else ""
        shown = ", ".join(found[:_SHOWN_MATCHES])
        raise InvalidInput("SESSION", wanted, f"several ids begin like this: {shown}{more}; write more of it.")
    return found[0]
