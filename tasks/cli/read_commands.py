"""Commands that read sessions: watch, show, list."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Annotated

import typer

from ...config.escaping import indent
from ..client.json_values import event_value, result_value, session_value
from .exits import ExitCode
from .options import AsJson, Cursor, RedisUrl, SessionArgument, client_for, duration, find_session
from .progress import follow
from .session_views import HEAD, Beside, row, session_lines, step_lines, step_numbers
from .tree_views import follow_tree, show_tree
from .views import as_json, table


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


def watch(
    session: SessionArgument,
    from_id: Annotated[
        str | None, typer.Option("--from", metavar="EVENT", help="Only what came after this event id.")
    ] = None,
    timeout: Annotated[
        timedelta | None, typer.Option(parser=duration, metavar="DURATION", help="No longer than this (90s, 30m).")
    ] = None,
    tree: Annotated[bool, typer.Option("--tree", help="With the sessions that its agents have started.")] = False,
    json: AsJson = False,
    redis_url: RedisUrl = None,
) -> None:
    """Watch a session's execution until it ends.

    The exit code says how it ended. Ctrl-C only stops watching.

    With --json each event is an object on a line and the result the last; an event's id, given to --from, resumes after
    it.

    \b
    Examples:
      celery-agents watch 3f2a…
      celery-agents watch 3f2a… --tree
      celery-agents watch 3f2a… --json --from 1737000000000-0
    """
    client = client_for(redis_url)
    job = client.job(find_session(client, session))
    seconds = None if timeout is None else timeout.total_seconds()
    if tree:
        if from_id is not None:
            raise typer.BadParameter("--from names an event of one session; leave it out with --tree")
        result = follow_tree(client, job, seconds, json=json)
        print(as_json(result_value(result)) if json else f"\n    {indent(result.final_response)}")
    elif json:
        for event in job.events(from_id=from_id, timeout=seconds):
            print(as_json(event_value(event)), flush=True)
        result = job.result(timeout=seconds)
        print(as_json(result_value(result)))
    else:
        result = follow(job, seconds, from_id=from_id)
        print(f"\n    {indent(result.final_response)}" if result.final_response else "")
    raise typer.Exit(ExitCode.DONE if result.status == "completed" else ExitCode.FAILED)


def show(
    session: SessionArgument,
    step: Annotated[
        int | None, typer.Option(min=1, help="Only this step, with nothing shortened.", show_default=False)
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Shorten nothing.")] = False,
    tree: Annotated[bool, typer.Option("--tree", help="With the sessions below it, as a table.")] = False,
    json: AsJson = False,
    redis_url: RedisUrl = None,
) -> None:
    """Show a session: why it waits, its steps, and what went wrong.

    Each step has its model, cost and tool calls; what was said follows.

    \b
    Examples:
      celery-agents show 3f2a…
      celery-agents show 3f2a… --step 2
      celery-agents show 3f2a… --tree
      celery-agents show 3f2a… --json | jq .state.execution.usage
    """
    from ..observability.waiting_reasons import waiting_reason

    client = client_for(redis_url)
    header = client.header(find_session(client, session))
    if tree:
        show_tree(client, header.session_id, json=json)
        return
    stored = client.show(header.session_id)
    reason = waiting_reason(client.store, header)
    if step is not None and step not in step_numbers(stored.state):
        numbers = ", ".join(map(str, step_numbers(stored.state))) or "none yet"
        raise typer.BadParameter(f"the execution has no step {step} that is done; there are {numbers}")
    if json:
        waiting = client.store.sessions.waiting_operations(header.session_id)
        shown = [{"kind": each.kind.value, "message": each.payload.get("message")} for each in waiting]
        print(as_json({**session_value(header, stored.state, reason), "waiting_for_step": shown}))
    elif step is not None:
        print("\n".join(step_lines(stored.state, step)))
    else:
        beside = Beside(
            requests=client.requests(header.session_id, status=None, tree=False).requests,
            waiting=client.store.sessions.waiting_operations(header.session_id),
        )
        print("\n".join(session_lines(header, stored.state, reason, beside, verbose=verbose)))


def list_(
    status: Annotated[Status | None, typer.Option(help="Only sessions that are this.", show_default=False)] = None,
    agent: Annotated[str | None, typer.Option(help="Only sessions of this agent.", show_default=False)] = None,
    since: Annotated[
        timedelta | None, typer.Option(parser=duration, metavar="DURATION", help="Changed within the last 1h, 7d, …")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=10_000, help="Most sessions.")] = 50,
    cursor: Cursor = None,
    json: AsJson = False,
    redis_url: RedisUrl = None,
) -> None:
    """List sessions, the last changed first.

    With --json each session is an object on a line; where there are more, the last one holds the cursor.

    \b
    Examples:
      celery-agents list
      celery-agents list --status failed --since 1h --agent researcher
      celery-agents list --json | jq -r .session_id
    """
    from ..observability.listed_sessions import listed_sessions, listed_value

    oldest = None if since is None else datetime.now(UTC) - since
    client = client_for(redis_url)
    page = client.list(
        status=None if status is None else status.value, agent=agent, since=oldest, limit=limit, cursor=cursor
    )
    rows = listed_sessions(client.store, page.items)
    if json:
        values = [listed_value(each) for each in rows]
        if page.cursor and values:
            values[-1]["cursor"] = page.cursor
        lines = [as_json(value) for value in values]
    else:
        lines = table(HEAD, [row(each) for each in rows])
        lines += [f"more with: --cursor {page.cursor}"] if page.cursor else []
        lines = lines if rows else ["no sessions"]
    for line in lines:
        print(line)
