"""Commands on messages that wait: queue, withdraw, mode, release."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from .options import AsJson, By, RedisUrl, SessionArgument, client_for, find_session, login
from .views import as_json, clean, one_line, table

_CHARACTERS = 60
_HEAD = ("MESSAGE", "SENT AS", "PLACE", "TEXT")

OperationArgument = Annotated[str, typer.Argument(metavar="MESSAGE", help="Id of the message, as `queue` lists it.")]


def queue(session: SessionArgument, json: AsJson = False, redis_url: RedisUrl = None) -> None:
    """List the messages that wait in a session, in the order of their delivery.

    A message that `joins` waits for the running step; one that is `queued` gets an execution of its own. When an
    execution fails or is stopped, those are `held` until `release`, or a `retry` of it.

    \b
    Example:
      celery-agents queue 3f2a…
    """
    client = client_for(redis_url)
    line = client.queued(find_session(client, session))
    if json:
        print(as_json(line.to_dict()))
        return
    if not line.messages:
        print("no message waits")
        return
    rows = [(each.operation_id, each.when, each.placed, one_line(each.text, _CHARACTERS)) for each in line.messages]
    print("\n".join(table(_HEAD, rows)))
    if line.held:
        print(f"the queue is held, since the last execution is {clean(line.held)}: celery-agents release {session}")


def withdraw(session: SessionArgument, message: OperationArgument, by: By = None, redis_url: RedisUrl = None) -> None:
    """Take a message back that waits.

    \b
    Example:
      celery-agents withdraw 3f2a… 9c1b…
    """
    client = client_for(redis_url)
    changed = client.withdraw_message(find_session(client, session), message, by=by or login())
    print("withdrawn" if changed else "it was taken back before")


def mode(
    session: SessionArgument,
    message: OperationArgument,
    when: Annotated[
        Literal["steer", "queue", "interrupt"], typer.Argument(metavar="MODE", help="steer, queue or interrupt.")
    ],
    by: By = None,
    redis_url: RedisUrl = None,
) -> None:
    """Give a message that waits another mode.

    With `steer` it is read before the next model call, with `queue` it gets an execution of its own. With `interrupt`
    it is read first, and the running step is left off for it.

    \b
    Example:
      celery-agents mode 3f2a… 9c1b… steer
    """
    client = client_for(redis_url)
    print(client.set_message_mode(find_session(client, session), message, when, by=by or login()).value)


def release(session: SessionArgument, by: By = None, redis_url: RedisUrl = None) -> None:
    """Let the queued messages of a session follow again.

    They are held when an execution has failed or was stopped.

    \b
    Example:
      celery-agents release 3f2a…
    """
    client = client_for(redis_url)
    changed = client.release_queue(find_session(client, session), by=by or login())
    print("released" if changed else "the queue is not held")
