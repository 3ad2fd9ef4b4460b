"""Commands on whole sessions: fork, clear."""

from __future__ import annotations

from typing import Annotated

import typer

from .options import AsJson, RedisUrl, SessionArgument, client_for, find_session
from .views import as_json


def register(program: typer.Typer) -> None:
    """Add this module's commands."""
    for command in (fork, clear):
        program.command()(command)


def fork(
    session: SessionArgument,
    key: Annotated[str | None, typer.Option("--key", help="The same key makes one fork.", show_default=False)] = None,
    json: AsJson = False,
    redis_url: RedisUrl = None,
) -> None:
    """Copy a session as it stands after its last commit, and print the id of the copy. The original goes on.

    \b
    Example:
      celery-agents send "$(celery-agents fork 3f2a…)" "What if the order was lost?"
    """
    client = client_for(redis_url)
    made = client.fork(find_session(client, session), idempotency_key=key)
    print(as_json({"session_id": made}) if json else made)


def clear(session: SessionArgument, json: AsJson = False, redis_url: RedisUrl = None) -> None:
    """Remove the conversation of a session of which nothing runs; prompt, model and metadata stay.

    \b
    Example:
      celery-agents clear 3f2a…
    """
    client = client_for(redis_url)
    found = find_session(client, session)
    version = client.clear(found)
    print(as_json({"session_id": found, "version": version}) if json else "cleared")
