"""Commands that hold sessions and let them go on: suspend, resume."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Annotated

import typer

from .options import AsJson, By, RedisUrl, client_for, duration, find_session, login
from .views import as_json, plural


class Active(StrEnum):
    """Status of a session that can be held."""

    PENDING = "pending"
    IN_PROGRESS = "in_progress"
    WAITING = "waiting"


OneSession = Annotated[
    str | None, typer.Argument(metavar="SESSION", help="Id of one session, or its beginning.", show_default=False)
]
AllSessions = Annotated[bool, typer.Option("--all", help="All sessions instead of one.")]
OfAgent = Annotated[str | None, typer.Option(help="With --all: only this agent's.", show_default=False)]
OfStatus = Annotated[Active | None, typer.Option(help="With --all: only sessions that are this.", show_default=False)]
DryRun = Annotated[bool, typer.Option("--dry-run", help="With --all: only list them.")]


def suspend(
    session: OneSession = None,
    reason: Annotated[str, typer.Option("--reason", "-r", help="Shown to whoever asks why.")] = "suspended by hand",
    during: Annotated[
        timedelta | None,
        typer.Option("--for", parser=duration, metavar="DURATION", help="End it after this; default: 30 days."),
    ] = None,
    all_: AllSessions = False,
    agent: OfAgent = None,
    status: OfStatus = None,
    dry_run: DryRun = False,
    by: By = None,
    json: AsJson = False,
    redis_url: RedisUrl = None,
) -> None:
    """Hold a session until it is resumed. Its running step ends, and nothing begins after it.

    Answers are kept and do not wake it; `stop` ends it all the same. At the end of --for the execution is stopped.

    \b
    Examples:
      celery-agents suspend 3f2a… --reason "the provider bills twice"
      celery-agents suspend --all --agent researcher
    """
    _check(session, all_, [agent is not None, status is not None, dry_run])
    client = client_for(redis_url)
    if session is not None:
        found = find_session(client, session)
        until = None if during is None else datetime.now(UTC) + during
        changed = client.suspend(found, reason=reason, by=by or login(), until=until)
        _print_one(found, "suspended" if changed else "it was suspended before", json)
        return
    if during is not None:
        raise typer.BadParameter("--for goes with one SESSION, not with --all")
    wanted = None if status is None else status.value
    suspended = client.suspend_all(reason=reason, agent=agent, status=wanted, by=by or login(), dry_run=dry_run)
    _print_many(suspended, "to suspend" if dry_run else "suspended", json)


def resume(
    session: OneSession = None,
    all_: AllSessions = False,
    agent: OfAgent = None,
    status: OfStatus = None,
    dry_run: DryRun = False,
    by: By = None,
    json: AsJson = False,
    redis_url: RedisUrl = None,
) -> None:
    """Let a held session go on. The answers that came meanwhile are used.

    \b
    Examples:
      celery-agents resume 3f2a…
      celery-agents resume --all --agent researcher
    """
    _check(session, all_, [agent is not None, status is not None, dry_run])
    client = client_for(redis_url)
    if session is not None:
        found = find_session(client, session)
        _print_one(found, "resumed" if client.resume(found, by=by or login()) else "it was not suspended", json)
        return
    wanted = None if status is None else status.value
    resumed = client.resume_all(agent=agent, status=wanted, by=by or login(), dry_run=dry_run)
    _print_many(resumed, "to resume" if dry_run else "resumed", json)


def _check(session: str | None, all_: bool, bulk_options: list[bool]) -> None:
    if (session is None) != all_:
        raise typer.BadParameter("give a SESSION, or --all")
    if session is not None and any(bulk_options):
        raise typer.BadParameter("--agent, --status and --dry-run go with --all, not with a SESSION")


def _print_one(session: str, what: str, json: bool) -> None:
    print(as_json({"session_id": session, "outcome": what}) if json else what)


def _print_many(sessions: Iterable[str], what: str, json: bool) -> None:
    number = 0
    for session in sessions:
        number += 1
        print(as_json({"session_id": session}) if json else session)
    if not json:
        print(f"{plural(number, 'session')} {what}")
