"""The command that acts on many sessions."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ...worker.store.labels import read_pairs
from .exits import ExitCode
from .options import (
    AsJson,
    By,
    OfAgent,
    OfLabel,
    OfStatus,
    RedisUrl,
    Since,
    Until,
    WaitsFor,
    WithError,
    WithText,
    ago,
    check_between,
    client_for,
    login,
)
from .views import as_json, clean

if TYPE_CHECKING:
    from ..client.bulk import ActOutcome

_Act = Annotated[
    Literal["retry", "stop", "suspend", "resume", "delete", "label"], typer.Argument(metavar="ACT", help="What to do.")
]


def act(
    act: _Act,
    status: OfStatus = None,
    agent: OfAgent = None,
    label: OfLabel = None,
    text: WithText = None,
    error: WithError = None,
    waits_for: WaitsFor = None,
    since: Since = None,
    until: Until = None,
    all_: Annotated[bool, typer.Option("--all", help="Without a filter: all that it can concern.")] = False,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="For label: KEY=VALUE, or KEY= to remove it; repeatable.")
    ] = None,
    reason: Annotated[str, typer.Option("--reason", "-r", help="For suspend: shown to whoever asks why.")] = "",
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=10_000, help="Most sessions.")] = 1000,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list them, and what a retry may cost.")] = False,
    by: By = None,
    json: AsJson = False,
    redis_url: RedisUrl = None,
) -> None:
    """Retry, stop, suspend, resume, delete or label all sessions that a filter finds.

    Each is printed when it is done. What is refused is named, and the exit code is 1. A retry concerns failed sessions,
    or with --status stopped those.

    \b
    Examples:
      celery-agents act retry --error timeout --since 1h --dry-run
      celery-agents act label --agent researcher --set team=blue
      celery-agents act stop --label customer=42
    """
    check_between(since, until)
    changes = {key: value or None for key, value in read_pairs("--set", set_ or ()).items()}
    client = client_for(redis_url)
    report = client.act_on_many(
        act,
        status=status,
        agent=agent,
        label=read_pairs("--label", label or ()),
        text=text,
        error=error,
        waits_for=waits_for,
        since=ago(client, since),
        until=ago(client, until),
        everything=all_,
        labels=changes or None,
        reason=reason,
        limit=limit,
        dry_run=dry_run,
        by=by or login(),
        progress=None if json else _print,
    )
    if json:
        print(as_json(report.to_dict()))
    else:
        counts = ", ".join(f"{number} {outcome}" for outcome, number in report.counts.items())
        cost = sum(each.cost or 0.0 for each in report.outcomes)
        about = f"; may cost up to ${cost:.2f}" if cost else ""
        print(f"{act}: {counts or 'no session'}{about}")
        if report.more:
            print(f"there are more than {limit}: do it again, or raise --limit", file=sys.stderr)
    if report.counts.get("refused"):
        raise typer.Exit(ExitCode.FAILED)


def _print(each: ActOutcome) -> None:
    about = f": {each.reason}" if each.reason else "" if each.cost is None else f", up to ${each.cost:.4f}"
    print(clean(f"{each.session_id} {each.outcome}{about}"))
