"""Commands that read sessions: watch, show, list."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Annotated

import typer

from .exits import ExitCode
from .options import AsJson, RedisUrl, SessionArgument, client_for, duration
from .progress import follow
from .session_views import HEAD, header_value, row, session_lines, session_value
from .views import as_json, clean, event_value, result_value, table


class Status(StrEnum):
    """Status of a session, as `list` shows it."""

    PENDING = "pending"
    IN_PROGRESS = "in_progress"
    WAITING = "waiting"
    COMPLETED = "completed"
    STOPPED = "stopped"
    FAILED = "failed"
    PARKED = "parked"
    UNREADABLE = "unreadable"


def register(program: typer.Typer) -> None:
    """Add this module's commands."""
    program.command()(watch)
    program.command()(show)
    program.command(name="list")(list_sessions)


def watch(
    session: SessionArgument,
    from_id: Annotated[
        str | None, typer.Option("--from", metavar="EVENT", help="Only what came after this event id.")
    ] = None,
    timeout: Annotated[
        timedelta | None, typer.Option(parser=duration, metavar="DURATION", help="No longer than this (90s, 30m).")
    ] = None,
    json: AsJson = False,
    redis_url: RedisUrl = None,
) -> None:
    """Watch a session's execution until it ends, and end as it ended. Ctrl-C only stops watching.

    With --json each event is an object on a line and the result the last; an event's id, given to --from, resumes after
    it.

    \b
    Examples:
      celery-agents watch 3f2a…
      celery-agents watch 3f2a… --json --from 1737000000000-0
    """
    job = client_for(redis_url).job(session)
    seconds = None if timeout is None else timeout.total_seconds()
    if json:
        for event in job.events(from_id=from_id, timeout=seconds):
            print(as_json(event_value(event)), flush=True)
        result = job.result(timeout=seconds)
        print(as_json(result_value(result)))
    else:
        result = follow(job, seconds, from_id=from_id)
        print(f"\n{clean(result.final_response)}" if result.final_response else "")
    raise typer.Exit(ExitCode.DONE if result.status == "completed" else ExitCode.FAILED)


def show(session: SessionArgument, json: AsJson = False, redis_url: RedisUrl = None) -> None:
    """Show a session: its execution, the steps with their tools, what was said, and what went wrong.

    \b
    Examples:
      celery-agents show 3f2a…
      celery-agents show 3f2a… --json | jq .state.execution.usage
    """
    client = client_for(redis_url)
    header, stored = client.header(session), client.show(session)
    if json:
        print(as_json(session_value(header, stored.state)))
    else:
        print("\n".join(session_lines(header, stored.state)))


def list_sessions(
    status: Annotated[Status | None, typer.Option(help="Only sessions that are this.", show_default=False)] = None,
    agent: Annotated[str | None, typer.Option(help="Only sessions of this agent.", show_default=False)] = None,
    since: Annotated[
        timedelta | None, typer.Option(parser=duration, metavar="DURATION", help="Changed within the last 1h, 7d, …")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=10_000, help="Most sessions.")] = 50,
    cursor: Annotated[
        str | None, typer.Option(help="Where the next page begins, as the page before says.", show_default=False)
    ] = None,
    json: AsJson = False,
    redis_url: RedisUrl = None,
) -> None:
    """List sessions, the last changed first.

    With --json each session is an object on a line; where there are more, a last object holds the cursor.

    \b
    Examples:
      celery-agents list
      celery-agents list --status failed --since 1h --agent researcher
      celery-agents list --json | jq -r .session_id
    """
    oldest = None if since is None else datetime.now(UTC) - since
    page = client_for(redis_url).list(
        status=None if status is None else status.value, agent=agent, since=oldest, limit=limit, cursor=cursor
    )
    if json:
        lines = [as_json(header_value(header)) for header in page.items]
        lines += [as_json({"cursor": page.cursor})] if page.cursor else []
    else:
        lines = table(HEAD, [row(header) for header in page.items])
        lines += [f"more with: --cursor {page.cursor}"] if page.cursor else []
    for line in lines:
        print(line)
