"""Commands on whole sessions: fork, clear, snapshot, restore, trace."""

from __future__ import annotations

from typing import Annotated

import typer

from ...config.escaping import escape_json
from .options import AsJson, RedisUrl, SessionArgument, client_for, find_session
from .views import as_json


def fork(
    session: SessionArgument,
    key: Annotated[str | None, typer.Option("--key", help="The same key makes one fork.", show_default=False)] = None,
    json: AsJson = False,
    redis_url: RedisUrl = None,
) -> None:
    """Copy a session and print the id of the copy.

    The copy is the session as it stands after its last commit. The original goes on.

    \b
    Example:
      celery-agents send "$(celery-agents fork 3f2a…)" "What if the order was lost?"
    """
    client = client_for(redis_url)
    made = client.fork(find_session(client, session), idempotency_key=key)
    print(as_json({"session_id": made}) if json else made)


def clear(session: SessionArgument, json: AsJson = False, redis_url: RedisUrl = None) -> None:
    """Remove the conversation of a session of which nothing runs.

    Prompt, model and metadata stay.

    \b
    Example:
      celery-agents clear 3f2a…
    """
    client = client_for(redis_url)
    found = find_session(client, session)
    version = client.clear(found)
    print(as_json({"session_id": found, "version": version}) if json else "cleared")


def snapshot(
    session: SessionArgument,
    tag: Annotated[str, typer.Option(help="A name of yours, kept with it.", show_default=False)] = "",
    redis_url: RedisUrl = None,
) -> None:
    """Print a session as JSON, to restore it on another Redis.

    \b
    Example:
      celery-agents snapshot 3f2a… --tag before-the-move > session.json
    """
    client = client_for(redis_url)
    print(escape_json(client.snapshot(find_session(client, session), tag=tag).to_json().decode()))


def restore(
    file: Annotated[typer.FileText, typer.Argument(help="A snapshot; - for standard input.")],
    session: Annotated[
        str | None, typer.Option("--session", help="Another id than the session had.", show_default=False)
    ] = None,
    json: AsJson = False,
    redis_url: RedisUrl = None,
) -> None:
    """Create a session from a snapshot. An execution that had not ended goes on.

    \b
    Example:
      celery-agents restore session.json
    """
    job = client_for(redis_url).resume_snapshot(file.read(), session_id=session)
    print(as_json({"session_id": job.session_id}) if json else job.session_id)


def trace(
    session: SessionArgument,
    data: Annotated[bool, typer.Option("--data/--no-data", help="With what was said, given and returned.")] = True,
    redis_url: RedisUrl = None,
) -> None:
    """Print the trace of a session's latest execution as JSON.

    It is what a sink of `Tracing` gets.

    \b
    Example:
      celery-agents trace 3f2a… --no-data
    """
    client = client_for(redis_url)
    print(escape_json(client.trace(find_session(client, session), log_data=data).to_json().decode()))
