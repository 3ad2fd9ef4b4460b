"""Commands on whole sessions: suspend, resume, label, fork, rewind, clear, snapshot, trace, diff, delete and more."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer
from pydantic_core import from_json

from ...config.escaping import escape_json
from ...worker.errors import SessionDeleted
from ...worker.state.past.edits import ReplaceMessage, SetResult
from ...worker.store.labels import read_pairs
from .exits import ExitCode
from .options import (
    AsJson,
    By,
    OneSession,
    RedisUrl,
    SessionArgument,
    client_for,
    find_session,
    login,
    now,
    read_text,
    time_option,
)
from .views import as_json, clean, plural

if TYPE_CHECKING:
    from ..client.client import AgentClient

_DELETE_SECONDS: Final = 30.0
_MOST_DIGITS: Final = 9
_BEFORE: Final = "it was deleted before"
_BULK: Final = "--agent, --status and --dry-run go with --all, not with a SESSION"

AllSessions = Annotated[bool, typer.Option("--all", help="All sessions instead of one.")]
OfAgent = Annotated[str | None, typer.Option(help="With --all: only this agent's.")]
Active = Annotated[
    Literal["pending", "in_progress", "waiting"] | None, typer.Option(help="With --all: only sessions that are this.")
]
Ended = Annotated[
    Literal["idle", "completed", "stopped", "failed", "parked", "unreadable"] | None,
    typer.Option(help="With --all: only sessions that are this."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="With --all: only list them.")]


def suspend(
    session: OneSession = None,
    reason: Annotated[str, typer.Option("--reason", "-r", help="Shown to whoever asks why.")] = "suspended by hand",
    during: Annotated[timedelta | None, time_option("End it after this; default: 30 days.", "--for")] = None,
    all_: AllSessions = False,
    agent: OfAgent = None,
    status: Active = None,
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
    _check_all(session, all_, _BULK, [agent, status, dry_run])
    if all_ and during is not None:
        raise typer.BadParameter("--for goes with one SESSION, not with --all")
    client = client_for(redis_url)
    if session is not None:
        found = find_session(client, session)
        until = None if during is None else now(client) + during
        changed = client.suspend(found, reason=reason, by=by or login(), until=until)
        _print_one(found, "suspended" if changed else "it was suspended before", json)
        return
    suspended = client.suspend_all(reason=reason, agent=agent, status=status, by=by or login(), dry_run=dry_run)
    _print_many(suspended, "to suspend" if dry_run else "suspended", json)


def resume(
    session: OneSession = None,
    all_: AllSessions = False,
    agent: OfAgent = None,
    status: Active = None,
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
    _check_all(session, all_, _BULK, [agent, status, dry_run])
    client = client_for(redis_url)
    if session is not None:
        found = find_session(client, session)
        _print_one(found, "resumed" if client.resume(found, by=by or login()) else "it was not suspended", json)
        return
    resumed = client.resume_all(agent=agent, status=status, by=by or login(), dry_run=dry_run)
    _print_many(resumed, "to resume" if dry_run else "resumed", json)


def label(
    session: SessionArgument,
    labels: Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE", help="KEY= removes it.")] = None,
    json: AsJson = False,
    redis_url: RedisUrl = None,
) -> None:
    """Set labels of a session, and print all that it has. `list --label` finds it by them; others stay as they are.

    \b
    Examples:
      celery-agents label 3f2a… customer=42 tier=gold
      celery-agents label 3f2a… tier=
    """
    client = client_for(redis_url)
    changes = {key: value or None for key, value in read_pairs("labels", labels or ()).items()}
    found = client.label(find_session(client, session), changes)
    print(as_json(found) if json else "\n".join(clean(f"{key}={value}") for key, value in found.items()) or "no labels")


def fork(
    session: SessionArgument,
    at: Annotated[str | None, typer.Option(help="As this step has committed it: 7, or EXECUTION:7.")] = None,
    message: Annotated[
        list[str] | None, typer.Option(help="NUMBER=TEXT: another text for a message, from 1; repeatable.")
    ] = None,
    result: Annotated[
        list[str] | None, typer.Option(help="CALL_ID=JSON: another result for a call; repeatable.")
    ] = None,
    go_on: Annotated[bool, typer.Option("--go-on", help="Its execution goes on from there.")] = False,
    agent: Annotated[str | None, typer.Option(help="Another agent that goes on with it.")] = None,
    prompt: Annotated[str | None, typer.Option(help="A system prompt of its own.")] = None,
    label: Annotated[list[str] | None, typer.Option(help="KEY=VALUE, in place of the source's; repeatable.")] = None,
    key: Annotated[str | None, typer.Option("--key", help="The same key makes one fork.")] = None,
    json: AsJson = False,
    redis_url: RedisUrl = None,
) -> None:
    """Copy a session and print the id of the copy.

    The copy is the session as it stands after its last commit, or as a step has committed it. The original goes on.
    Effects that it has made behind the step are named on standard error: nothing undoes them.

    \b
    Examples:
      celery-agents send "$(celery-agents fork 3f2a…)" "What if the order was lost?"
      celery-agents fork 3f2a… --at 7 --result call_x='{"lost": true}' --go-on
    """
    edits = [*_read_texts(message or ()), *_read_results(result or ())]
    client = client_for(redis_url)
    made = client.fork(
        find_session(client, session),
        at=at,
        edit=edits,
        go_on=go_on,
        agent=agent,
        system_prompt=prompt,
        labels=None if label is None else read_pairs("--label", label),
        idempotency_key=key,
    )
    print(as_json(made.to_dict()) if json else made)
    if not json:
        for each in made.effects_after:
            done = f"{each.tool} ({each.effect or 'effect not known'}) of step {each.step}"
            print(clean(f"stays done: {done}, {each.outcome}"), file=sys.stderr)


def _read_texts(given: Iterable[str]) -> Iterator[ReplaceMessage]:
    for each in given:
        number, equals, text = each.partition("=")
        if not (equals and number.strip().isdecimal() and len(number) <= _MOST_DIGITS):
            raise typer.BadParameter(f"write NUMBER=TEXT instead of {each!r}", param_hint="--message")
        yield ReplaceMessage(int(number), text)


def _read_results(given: Iterable[str]) -> Iterator[SetResult]:
    for each in given:
        call_id, equals, value = each.partition("=")
        try:
            yield SetResult(call_id, from_json(value if equals else ""))
        except ValueError:
            raise typer.BadParameter(f"write CALL_ID=JSON instead of {each!r}", param_hint="--result") from None


def rewind(
    session: SessionArgument,
    to: Annotated[str, typer.Option(help="A step of the latest execution, or <execution>:<step>.")],
    by: By = None,
    json: AsJson = False,
    redis_url: RedisUrl = None,
) -> None:
    """Take a session back to a step; the next message goes on from there.

    What was spent and what tools have done stays. `fork --at` reaches what was rewound.

    \b
    Example:
      celery-agents rewind 3f2a… --to 7
    """
    client = client_for(redis_url)
    found = find_session(client, session)
    version = client.rewind(found, to=to, by=by or login())
    print(as_json({"session_id": found, "version": version}) if json else f"rewound to step {to}")


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
    session: Annotated[str | None, typer.Option("--session", help="Another id than the session had.")] = None,
    json: AsJson = False,
    redis_url: RedisUrl = None,
) -> None:
    """Create a session from a snapshot. An execution that had not ended goes on.

    \b
    Example:
      celery-agents restore session.json
    """
    job = client_for(redis_url).resume_snapshot(read_text(file, "FILE"), session_id=session)
    print(as_json({"session_id": job.session_id, "notice": job.notice or None}) if json else job.session_id)


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


def diff(
    session: SessionArgument,
    before: Annotated[str, typer.Argument(metavar="STEP", help="A step: 6, or <execution>:6.", show_default=False)],
    after: Annotated[
        str | None, typer.Argument(metavar="[STEP]", help="Another one. Default: the state now.", show_default=False)
    ] = None,
    json: AsJson = False,
    redis_url: RedisUrl = None,
) -> None:
    """Compare the states of a session at two steps, value by value.

    A line that begins with - is what the first one had, + what the second one has.

    \b
    Examples:
      celery-agents diff 3f2a… 6 7
      celery-agents diff 3f2a… 6
    """
    from ...worker.state.past.differences import find_differences
    from .past_views import difference_lines

    client = client_for(redis_url)
    found = find_session(client, session)
    differences = find_differences(client.state(found, at=before), client.state(found, at=after))
    if json:
        print(as_json([each.to_dict() for each in differences]))
    else:
        print("\n".join(difference_lines(differences)) or "the states are equal")


def delete(
    session: OneSession = None,
    all_: Annotated[bool, typer.Option("--all", help="All sessions that have ended, instead of one.")] = False,
    older_than: Annotated[timedelta | None, time_option("With --all, required: changed last before this time.")] = None,
    agent: OfAgent = None,
    status: Ended = None,
    dry_run: DryRun = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="With --all: do not ask.")] = False,
    timeout: Annotated[timedelta | None, time_option("How long to wait for what runs; default: 30s.")] = None,
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
    refusal = "--older-than, --agent, --status, --dry-run and --yes go with --all"
    _check_all(session, all_, refusal, [older_than, agent, status, dry_run, yes])
    if all_ and timeout is not None:
        raise typer.BadParameter("goes with one SESSION, not with --all", param_hint="--timeout")
    if all_ and older_than is None:
        raise typer.BadParameter("--all goes with --older-than, such as --older-than 30d")
    client = client_for(redis_url)
    if session is not None:
        seconds = _DELETE_SECONDS if timeout is None else timeout.total_seconds()
        _print_one(*_delete_one(client, session, seconds, by or login()), json)
        return
    assert older_than is not None
    before = now(client) - older_than
    if not dry_run and not yes:
        count = sum(1 for _ in client.delete_all(before=before, agent=agent, status=status, dry_run=True))
        typer.confirm(f"Delete {plural(count, 'session')} for good?", abort=True, err=True)
    deleted = client.delete_all(before=before, agent=agent, status=status, by=by or login(), dry_run=dry_run)
    _print_many(deleted, "to delete" if dry_run else "deleted", json)


def _delete_one(client: AgentClient, name: str, seconds: float, by: str | None) -> tuple[str, str]:
    """Delete one session; gives its id, and what came of it."""
    try:
        session = find_session(client, name)
        return session, "deleted" if client.delete(session, timeout=seconds, by=by) else _BEFORE
    except SessionDeleted as gone:
        return gone.session_id, _BEFORE


def _check_all(session: str | None, all_: bool, refusal: str, bulk_options: list[object]) -> None:
    """Refuse a session together with `--all` or with options for many, and a command that names nothing.

    Args:
        refusal: Says which options are for many.
        bulk_options: Their values; None and False are not given.
    """
    if (session is None) != all_:
        raise typer.BadParameter("give a SESSION, or --all")
    if session is not None and any(each not in (None, False) for each in bulk_options):
        raise typer.BadParameter(refusal)


def _print_one(session: str, what: str, json: bool) -> None:
    print(as_json({"session_id": session, "outcome": what}) if json else what)


def _print_many(sessions: Iterable[str], what: str, json: bool) -> None:
    number = 0
    for session in sessions:
        number += 1
        print(as_json({"session_id": session}) if json else session)
    if not json:
        print(f"{plural(number, 'session')} {what}")


def erase(
    label: Annotated[list[str] | None, typer.Option(help="KEY=VALUE; repeat it, for those with all.")] = None,
    timeout: Annotated[timedelta | None, time_option("How long to wait for what runs of each; default: 30s.")] = None,
    by: By = None,
    json: AsJson = False,
    redis_url: RedisUrl = None,
) -> None:
    """Delete all sessions with a label, with those below them and their forks.

    It looks again until it finds none. What cannot be deleted is named, and the exit code is 1.

    \b
    Example:
      celery-agents erase --label user=42
    """
    seconds = _DELETE_SECONDS if timeout is None else timeout.total_seconds()
    erased = client_for(redis_url).erase(label=read_pairs("--label", label or ()), by=by or login(), timeout=seconds)
    if json:
        print(as_json(erased.to_dict()))
    else:
        found = f"{plural(len(erased.sessions), 'session')}, {plural(erased.dead_entries, 'dead step')}"
        print("\n".join([f"erased {found}", *(clean(f"{name} is left: {why}") for name, why in erased.left.items())]))
    if erased.left:
        raise typer.Exit(ExitCode.FAILED)
