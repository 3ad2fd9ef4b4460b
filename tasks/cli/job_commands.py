"""Commands that change something: submit, send, stop, retry."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ...config.escaping import indent
from ..client.json_values import result_value
from .exits import ExitCode
from .options import AsJson, By, RedisUrl, SessionArgument, client_for, duration, find_session, login
from .progress import follow
from .views import as_json, clean, job_line, plural

if TYPE_CHECKING:
    from ...worker.state.execution.budget import ExecutionBudget
    from ..client.job import Job

Message = Annotated[
    str, typer.Argument(metavar="MESSAGE", help="What to say to the agent; - reads it from standard input.")
]
Wait = Annotated[bool, typer.Option("--wait", "-w", help="Show progress and print the answer.")]
Timeout = Annotated[
    timedelta | None,
    typer.Option(parser=duration, metavar="DURATION", help="With --wait: no longer than this (90s, 30m, 1h)."),
]
MaxSteps = Annotated[int | None, typer.Option(min=0, help="Budget: most steps.", show_default=False)]
MaxTokens = Annotated[int | None, typer.Option(min=0, help="Budget: most tokens.", show_default=False)]
MaxCost = Annotated[float | None, typer.Option(min=0, help="Budget: most US dollars.", show_default=False)]
MaxSeconds = Annotated[float | None, typer.Option(min=0, help="Budget: most seconds.", show_default=False)]

_STOP_SECONDS: Final = 30.0


def submit(
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="Name of the agent.")],
    message: Message,
    wait: Wait = False,
    timeout: Timeout = None,
    session: Annotated[str | None, typer.Option(help="Id for the new session.", show_default=False)] = None,
    idempotency_key: Annotated[
        str | None,
        typer.Option("--idempotency-key", "-k", help="The same key makes one execution.", show_default=False),
    ] = None,
    max_steps: MaxSteps = None,
    max_tokens: MaxTokens = None,
    max_cost: MaxCost = None,
    max_seconds: MaxSeconds = None,
    start_at: Annotated[
        datetime | None,
        typer.Option(
            formats=["%Y-%m-%dT%H:%M:%S%z", "%Y-%m-%dT%H:%M%z", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M"],
            help="Begin at this time; without an offset it is local time.",
            show_default=False,
        ),
    ] = None,
    delay: Annotated[
        timedelta | None, typer.Option(parser=duration, metavar="DURATION", help="Begin after this (90s, 30m, 1h).")
    ] = None,
    json: AsJson = False,
    redis_url: RedisUrl = None,
) -> None:
    """Hand a job to an agent. Prints the session's id, or with --wait the progress and the answer.

    With --wait the id and the progress go to standard error, the answer to standard output. Ctrl-C only stops waiting.

    \b
    Examples:
      celery-agents submit researcher "What changed in 5.7?" --wait
      celery-agents submit researcher - --idempotency-key ticket-42 --json < question.txt
      celery-agents submit researcher "The news of the night" --start-at 2030-01-31T06:00
    """
    job = client_for(redis_url).submit(
        agent,
        _read_message(message),
        session_id=session,
        idempotency_key=idempotency_key,
        budget=_read_budget(max_steps=max_steps, max_tokens=max_tokens, max_cost=max_cost, max_seconds=max_seconds),
        start_at=None if start_at is None else start_at.astimezone(),
        delay=delay,
    )
    _report(job, wait=wait, timeout=timeout, json=json)


def send(
    session: SessionArgument,
    message: Message,
    wait: Wait = False,
    timeout: Timeout = None,
    json: AsJson = False,
    redis_url: RedisUrl = None,
) -> None:
    """Send a further message to a session. A running execution takes it up at its next step; else a new one starts.

    \b
    Example:
      celery-agents send 3f2a… "And in 5.6?" --wait
    """
    client = client_for(redis_url)
    job = client.send_message(find_session(client, session), _read_message(message))
    _report(job, wait=wait, timeout=timeout, json=json)


def stop(
    session: SessionArgument,
    timeout: Annotated[
        timedelta | None,
        typer.Option(parser=duration, metavar="DURATION", help="How long to wait for the running step; default: 30s."),
    ] = None,
    by: By = None,
    json: AsJson = False,
    redis_url: RedisUrl = None,
) -> None:
    """Stop a session's execution, and wait until it has ended. Its results so far are kept; nothing new begins.

    \b
    Example:
      celery-agents stop 3f2a…
    """
    client = client_for(redis_url)
    session = find_session(client, session)
    seconds = _STOP_SECONDS if timeout is None else timeout.total_seconds()
    result = client.stop(session, timeout=seconds, by=by or login())
    if json:
        print(as_json({"session_id": session, "status": None} if result is None else result_value(result)))
    else:
        print("nothing was running" if result is None else f"{result.status} after {plural(result.step_count, 'step')}")


def retry(
    session: Annotated[
        str | None, typer.Argument(metavar="SESSION", help="Id of one session.", show_default=False)
    ] = None,
    failed: Annotated[bool, typer.Option("--failed", help="All failed executions instead of one session.")] = False,
    since: Annotated[
        timedelta | None,
        typer.Option(parser=duration, metavar="DURATION", help="With --failed: ended within the last 1h, 7d, …"),
    ] = None,
    agent: Annotated[str | None, typer.Option(help="With --failed: only this agent's.", show_default=False)] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="With --failed: only list them.")] = False,
    max_steps: MaxSteps = None,
    max_tokens: MaxTokens = None,
    max_cost: MaxCost = None,
    max_seconds: MaxSeconds = None,
    by: By = None,
    wait: Wait = False,
    timeout: Timeout = None,
    json: AsJson = False,
    redis_url: RedisUrl = None,
) -> None:
    """Retry a failed or stopped execution from the step where it ended.

    Steps before it are not run again.

    \b
    Examples:
      celery-agents retry 3f2a… --wait
      celery-agents retry 3f2a… --max-cost 2.00
      celery-agents retry --failed --since 1h --agent researcher --dry-run
    """
    budget = _read_budget(max_steps=max_steps, max_tokens=max_tokens, max_cost=max_cost, max_seconds=max_seconds)
    _check_retry(session, failed, [since is not None, agent is not None, dry_run], [wait, budget is not None])
    client = client_for(redis_url)
    if session is not None:
        job = client.retry(find_session(client, session), budget=budget, by=by or login())
        _report(job, wait=wait, timeout=timeout, json=json)
        return
    started = None if since is None else datetime.now(UTC) - since
    jobs = list(client.retry_failed(since=started, agent=agent, dry_run=dry_run, by=by or login()))
    for job in jobs:
        _print_job(job, json)
    if not json:
        print(f"{plural(len(jobs), 'failed execution')} {'to retry' if dry_run else 'retried'}")


def _check_retry(session: str | None, failed: bool, bulk_options: list[bool], single_options: list[bool]) -> None:
    if (session is None) != failed:
        raise typer.BadParameter("give a SESSION, or --failed for all that failed")
    if session is not None and any(bulk_options):
        raise typer.BadParameter("--since, --agent and --dry-run go with --failed, not with a SESSION")
    if failed and any(single_options):
        raise typer.BadParameter("--wait and limits go with one SESSION, not with --failed")


def _report(job: Job, *, wait: bool, timeout: timedelta | None, json: bool) -> None:
    """Print the ids of the job, or follow it to its end and exit as it ended."""
    if not wait:
        _print_job(job, json)
        return
    print(job_line(job), file=sys.stderr, flush=True)
    seconds = None if timeout is None else timeout.total_seconds()
    result = job.result(timeout=seconds) if json else follow(job, seconds, to_stderr=True)
    print(as_json(result_value(result)) if json else _answer_text(result.final_response))
    raise typer.Exit(ExitCode.DONE if result.status == "completed" else ExitCode.FAILED)


def _answer_text(answer: str) -> str:
    """The answer as it is for a script; in a terminal, where our own lines stand beside it, indented."""
    return f"\n    {indent(answer)}" if sys.stdout.isatty() else clean(answer)


def _print_job(job: Job, json: bool) -> None:
    print(as_json({"session_id": job.session_id, "execution_id": job.execution_id}) if json else job_line(job))


def _read_message(message: str) -> str:
    return sys.stdin.read() if message == "-" else message


def _read_budget(**limits: Any) -> ExecutionBudget | None:
    """Build a budget from the options; None when none is given, so that the agent's own budget holds."""
    from ...worker.state.execution.budget import ExecutionBudget

    given = {name: limit for name, limit in limits.items() if limit is not None}
    return ExecutionBudget(**given) if given else None
