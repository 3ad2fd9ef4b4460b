"""The command `delete`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Final

import typer

from ...worker.errors import SessionDeleted
from .options import AsJson, By, RedisUrl, client_for, duration, find_session, login
from .views import as_json, plural

if TYPE_CHECKING:
    from ..client.client import AgentClient

_WAIT_SECONDS: Final = 30.0
_BEFORE: Final = "it was deleted before"


class Ended(StrEnum):
    """Status of a session of which nothing runs."""

    COMPLETED = "completed"
    STOPPED = "stopped"
    FAILED = "failed"
    PARKED = "parked"
    UNREADABLE = "unreadable"


def delete(
    session: Annotated[
        str | None, typer.Argument(metavar="SESSION", help="Id of one session, or its beginning.", show_default=False)
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="All sessions that have ended, instead of one.")] = False,
    older_than: Annotated[
        timedelta | None,
        typer.Option(parser=duration, metavar="DURATION", help="With --all, required: changed last before this time."),
    ] = None,
    agent: Annotated[str | None, typer.Option(help="With --all: only this agent's.", show_default=False)] = None,
    status: Annotated[
        Ended | None, typer.Option(help="With --all: only sessions that are this.", show_default=False)
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="With --all: only list them.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="With --all: do not ask.")] = False,
    timeout: Annotated[
        timedelta | None,
        typer.Option(parser=duration, metavar="DURATION", help="How long to wait for what runs; default: 30s."),
    ] = None,
    by: By = None,
    json: AsJson = False,
    redis_url: RedisUrl = None,
) -> None:
    """Delete a session and everything that is stored of it.

    The sessions that its agents have started are deleted, too.

    A running execution is stopped first. Callbacks not made yet are dropped. The id stays unused for the retention.

    \b
    Examples:
      celery-agents delete 3f2a…
      celery-agents delete --all --older-than 30d --status completed
    """
    _check(session, all_, older_than, bulk_options=[agent is not None, status is not None, dry_run, yes])
    client = client_for(redis_url)
    if session is not None:
        seconds = _WAIT_SECONDS if timeout is None else timeout.total_seconds()
        found, outcome = _delete_one(client, session, seconds, by or login())
        print(as_json({"session_id": found, "outcome": outcome}) if json else outcome)
        return
    assert older_than is not None
    before, wanted = datetime.now(UTC) - older_than, None if status is None else status.value
    if not dry_run and not yes:
        count = sum(1 for _ in client.delete_all(before=before, agent=agent, status=wanted, dry_run=True))
        typer.confirm(f"Delete {plural(count, 'session')} for good?", abort=True, err=True)
    number = 0
    for each in client.delete_all(before=before, agent=agent, status=wanted, by=by or login(), dry_run=dry_run):
        number += 1
        print(as_json({"session_id": each}) if json else each)
    if not json:
        print(f"{plural(number, 'session')} {'to delete' if dry_run else 'deleted'}")


def _delete_one(client: AgentClient, name: str, seconds: float, by: str | None) -> tuple[str, str]:
    """Delete one session; gives its id, and what came of it."""
    try:
        session = find_session(client, name)
        return session, "deleted" if client.delete(session, timeout=seconds, by=by) else _BEFORE
    except SessionDeleted as gone:
        return gone.session_id, _BEFORE


def _check(session: str | None, all_: bool, older_than: timedelta | None, *, bulk_options: list[bool]) -> None:
    if (session is None) != all_:
        raise typer.BadParameter("give a SESSION, or --all")
    if session is not None and (any(bulk_options) or older_than is not None):
        raise typer.BadParameter("--older-than, --agent, --status, --dry-run and --yes go with --all")
    if all_ and older_than is None:
        raise typer.BadParameter("--all goes with --older-than, such as --older-than 30d")
