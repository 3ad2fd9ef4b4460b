"""Commands on jobs: submit, send, watch, show, list, stop, retry, budget."""

from __future__ import annotations

import sys
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Final, Literal, NoReturn

import typer

from ...config.escaping import indent
from ...worker.store.labels import read_pairs
from ..client.json_values import event_value, result_value, session_value, tree_value
from .budget_views import merge_budgets, print_budget, read_budget
from .exits import ExitCode
from .options import (
    AsJson,
    By,
    Cursor,
    OfAgent,
    OfLabel,
    OfStatus,
    RedisUrl,
    SessionArgument,
    Since,
    Until,
    WaitsFor,
    WithError,
    WithText,
    ago,
    check_between,
    client_for,
    find_session,
    login,
    moment_option,
    read_stdin,
    time_option,
)
from .views import as_json, clean, plural, print_table, print_values, say_unread

if TYPE_CHECKING:
    from ...worker.flow.debounce import Debounce
    from ...worker.store.session_records import Result
    from ..client.client import AgentClient
    from ..client.job import Job

Message = Annotated[
    str, typer.Argument(metavar="MESSAGE", help="What to say to the agent; - reads it from standard input.")
]
Wait = Annotated[bool, typer.Option("--wait", "-w", help="Show progress and print the answer.")]
Timeout = Annotated[timedelta | None, time_option("With --wait: no longer than this (90s, 30m, 1h).")]
MaxSteps = Annotated[int | None, typer.Option(min=0, help="Budget: most steps.")]
BeyondAgent = Annotated[bool, typer.Option("--beyond-agent", help="Limits may be above those of the agent.")]
MaxTokens = Annotated[int | None, typer.Option(min=0, help="Budget: most tokens.")]
MaxCost = Annotated[float | None, typer.Option(min=0, help="Budget: most US dollars.")]
MaxSeconds = Annotated[float | None, typer.Option(min=0, help="Budget: most seconds.")]
Labels = Annotated[list[str] | None, typer.Option("--label", help="KEY=VALUE, by which it is found; repeat it.")]
_STOP_SECONDS: Final = 30.0
_TIMES: Final = ["%Y-%m-%dT%H:%M:%S%z", "%Y-%m-%dT%H:%M%z", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M"]


def submit(
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="Name of the agent.")],
    message: Message,
    wait: Wait = False,
    timeout: Timeout = None,
    session: Annotated[str | None, typer.Option(help="Id for the new session.")] = None,
    idempotency_key: Annotated[
        str | None, typer.Option("--idempotency-key", "-k", help="The same key makes one execution.")
    ] = None,
    max_steps: MaxSteps = None,
    max_tokens: MaxTokens = None,
    max_cost: MaxCost = None,
    max_seconds: MaxSeconds = None,
    start_at: Annotated[
        datetime | None,
        typer.Option(formats=_TIMES, help="Begin at this time; without an offset it is local time."),
    ] = None,
    delay: Annotated[timedelta | None, time_option("Begin after this (90s, 30m, 1h).")] = None,
    expires_in: Annotated[timedelta | None, time_option("Stop it if it has not begun so long after it may.")] = None,
    debounce: Annotated[
        str | None, typer.Option(metavar="KEY", help="Wait for further messages under this key.")
    ] = None,
    quiet: Annotated[timedelta | None, time_option("With --debounce: begin when none has come for so long.")] = None,
    at_most: Annotated[timedelta | None, time_option("With --debounce: begin then at the latest.")] = None,
    completion_window: Annotated[str | None, typer.Option(help="Its model may answer so late (2h, 8h, 24h).")] = None,
    label: Labels = None,
    priority: Annotated[
        Literal["interactive", "normal", "bulk"] | None, typer.Option(help="Among the jobs of its share, or of all.")
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
      celery-agents submit researcher "The news of the night" --start-at 2030-01-31T06:00 --label customer=42
      celery-agents submit reviewer "Push 3f2a to main" --debounce repo-17 --quiet 30s --at-most 5m --expires-in 1h
    """
    _check_wait(wait, timeout)
    job = client_for(redis_url).submit(
        agent,
        _read_message(message),
        session_id=session,
        idempotency_key=idempotency_key,
        budget=read_budget(max_steps=max_steps, max_tokens=max_tokens, max_cost=max_cost, max_seconds=max_seconds),
        start_at=moment_option(start_at),
        delay=delay,
        expires_in=expires_in,
        debounce=_read_debounce(debounce, quiet, at_most),
        completion_window=completion_window,
        labels=read_pairs("--label", label or ()),
        priority=priority,
    )
    _report(job, wait=wait, timeout=timeout, json=json)


def _read_debounce(key: str | None, quiet: timedelta | None, at_most: timedelta | None) -> Debounce | None:
    """Read the options of a debounced job; None: it is none.

    Raises:
        typer.BadParameter: One of them is missing.
    """
    if key is None and quiet is None and at_most is None:
        return None
    if key is None or quiet is None or at_most is None:
        raise typer.BadParameter("give --debounce, --quiet and --at-most together")
    from ...worker.flow.debounce import Debounce

    return Debounce(key, quiet=quiet, at_most=at_most)


def send(
    session: SessionArgument,
    message: Message,
    when: Annotated[
        Literal["steer", "queue", "interrupt", "refuse"],
        typer.Option(
            help="queue: an execution of its own, behind the one that runs; interrupt: the running step is left off; "
            "refuse: only if none runs."
        ),
    ] = "steer",
    wait: Wait = False,
    timeout: Timeout = None,
    json: AsJson = False,
    redis_url: RedisUrl = None,
) -> None:
    """Send a further message to a session. A running execution takes it up at its next step; else a new one starts.

    \b
    Examples:
      celery-agents send 3f2a… "And in 5.6?" --wait
      celery-agents send 3f2a… "Then translate it." --when queue
      celery-agents send 3f2a… "Stop: not the whole list." --when interrupt
    """
    _check_wait(wait, timeout)
    client = client_for(redis_url)
    job = client.send_message(find_session(client, session), _read_message(message), when=when)
    _report(job, wait=wait, timeout=timeout, json=json)


def watch(
    session: SessionArgument,
    from_id: Annotated[
        str | None, typer.Option("--from", metavar="EVENT", help="Only what came after this event id.")
    ] = None,
    timeout: Annotated[timedelta | None, time_option("No longer than this (90s, 30m).")] = None,
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
    from .progress import follow, follow_tree

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
    _exit(result)


def show(
    session: SessionArgument,
    step: Annotated[int | None, typer.Option(min=1, help="Only this step, with nothing shortened.")] = None,
    state: Annotated[
        bool, typer.Option("--state", help="With --step: the state that it has committed, as JSON.")
    ] = False,
    request: Annotated[bool, typer.Option("--request", help="With --step: what the model saw in it.")] = False,
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
      celery-agents show 3f2a… --step 2 --request
      celery-agents show 3f2a… --step 2 --state | jq .context.metadata
      celery-agents show 3f2a… --tree
      celery-agents show 3f2a… --json | jq .state.execution.usage
    """
    from ..observability.waiting_reasons import waiting_reason
    from .past_views import past_lines
    from .session_views import Beside, session_lines, step_lines, step_numbers

    _check_show(step, state=state, request=request, tree=tree, json=json, verbose=verbose)
    client = client_for(redis_url)
    header = client.header(find_session(client, session))
    if step is not None and (state or request):
        print("\n".join(past_lines(client, header.session_id, step, is_request=request, is_json=json)))
        return
    if tree:
        _show_tree(client, header.session_id, json)
        return
    stored = client.show(header.session_id)
    reason = waiting_reason(client.store, header)
    if step is not None and step not in step_numbers(stored.state):
        numbers = ", ".join(map(str, step_numbers(stored.state))) or "none yet"
        raise typer.BadParameter(f"the execution has no step {step} that is done; there are {numbers}")
    if json:
        from ..client.messages import MessagesInLine

        waiting = client.store.sessions.read_waiting(header.session_id)
        shown = [{"kind": each.kind.value, "message": each.payload.get("message")} for each in waiting.inbox]
        facts = {"waiting_for_step": shown, "queue": MessagesInLine.of(waiting).to_dict()}
        print(as_json({**session_value(header, stored.state, reason), **facts}))
    elif step is not None:
        print("\n".join(step_lines(stored.state, step)))
    else:
        waiting = client.store.sessions.read_waiting(header.session_id)
        beside = Beside(
            requests=client.requests(header.session_id, status=None, tree=False).requests,
            waiting=waiting.inbox,
            queue=waiting.queue,
        )
        print("\n".join(session_lines(header, stored.state, reason, beside, verbose=verbose)))


def list_(
    status: OfStatus = None,
    agent: OfAgent = None,
    label: OfLabel = None,
    text: WithText = None,
    error: WithError = None,
    waits_for: WaitsFor = None,
    since: Since = None,
    until: Until = None,
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
      celery-agents list --label customer=42 --waits-for approval
      celery-agents list --json | jq -r .session_id
    """
    from ..observability.listed_sessions import listed_sessions, listed_value
    from .session_views import HEAD, row

    check_between(since, until)
    client = client_for(redis_url)
    page = client.list(
        status=status,
        agent=agent,
        label=read_pairs("--label", label or ()),
        text=text,
        error=error,
        waits_for=waits_for,
        since=ago(client, since),
        until=ago(client, until),
        limit=limit,
        cursor=cursor,
    )
    say_unread(page.unread)
    rows = listed_sessions(client.store, page.items)
    if json:
        print_values([listed_value(each) for each in rows], page.cursor)
    elif rows:
        print_table(HEAD, [row(each) for each in rows], page.cursor)
    else:
        print("no sessions")


def stop(
    session: SessionArgument,
    timeout: Annotated[timedelta | None, time_option("How long to wait for the running step; default: 30s.")] = None,
    clear_queue: Annotated[
        bool, typer.Option("--clear-queue", help="Messages that wait now are not delivered.")
    ] = False,
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
    result = client.stop(session, timeout=seconds, by=by or login(), clear_queue=clear_queue)
    if json:
        print(as_json({"session_id": session, "status": None} if result is None else result_value(result)))
    else:
        print("nothing was running" if result is None else f"{result.status} after {plural(result.step_count, 'step')}")


def retry(
    session: Annotated[str | None, typer.Argument(metavar="SESSION", help="Id of one session.")] = None,
    failed: Annotated[
        bool,
        typer.Option(
            "--failed", help="All failed executions instead of one session, but for those in the archive (act retry)."
        ),
    ] = False,
    since: Annotated[timedelta | None, time_option("With --failed: ended within the last 1h, 7d, …")] = None,
    agent: Annotated[str | None, typer.Option(help="With --failed: only this agent's.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="With --failed: only list them.")] = False,
    max_steps: MaxSteps = None,
    max_tokens: MaxTokens = None,
    max_cost: MaxCost = None,
    max_seconds: MaxSeconds = None,
    beyond_agent: BeyondAgent = False,
    by: By = None,
    wait: Wait = False,
    timeout: Timeout = None,
    json: AsJson = False,
    redis_url: RedisUrl = None,
) -> None:
    """Retry a failed or stopped execution from the step where it ended.

    Steps before it are not run again. What they have used counts against the limits; those that are not given stay.

    \b
    Examples:
      celery-agents retry 3f2a… --wait
      celery-agents retry 3f2a… --max-cost 2.00
      celery-agents retry --failed --since 1h --agent researcher --dry-run
    """
    budget = read_budget(max_steps=max_steps, max_tokens=max_tokens, max_cost=max_cost, max_seconds=max_seconds)
    _check_retry(
        session, failed, [since is not None, agent is not None, dry_run], [wait, budget is not None, beyond_agent]
    )
    _check_wait(wait, timeout)
    client = client_for(redis_url)
    if session is not None:
        session = find_session(client, session)
        if budget is not None:
            found = client.store.sessions.outline(session).execution
            budget = merge_budgets(None if found is None else found.budget, budget)
        job = client.retry(session, budget=budget, by=by or login(), beyond_agent=beyond_agent)
        _report(job, wait=wait, timeout=timeout, json=json)
        return
    jobs = list(client.retry_failed(since=ago(client, since), agent=agent, dry_run=dry_run, by=by or login()))
    for job in jobs:
        _print_job(job, json)
    if not json:
        print(f"{plural(len(jobs), 'failed execution')} {'to retry' if dry_run else 'retried'}")


def budget(
    session: SessionArgument,
    max_steps: MaxSteps = None,
    max_tokens: MaxTokens = None,
    max_cost: MaxCost = None,
    max_seconds: MaxSeconds = None,
    deadline: Annotated[
        datetime | None, typer.Option(formats=_TIMES, help="Budget: the latest end; without an offset local time.")
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Limits that are not given become those of the agent, or none.")
    ] = False,
    beyond_agent: BeyondAgent = False,
    by: By = None,
    json: AsJson = False,
    redis_url: RedisUrl = None,
) -> None:
    """Change the limits of an execution that runs, or print them with what is used.

    Limits that are not given stay as they are. What was used counts against the new ones.

    \b
    Examples:
      celery-agents budget 3f2a…
      celery-agents budget 3f2a… --max-cost 5.00
      celery-agents budget 3f2a… --max-steps 100 --replace
    """
    given = read_budget(
        max_steps=max_steps, max_tokens=max_tokens, max_cost=max_cost, max_seconds=max_seconds,
        deadline=moment_option(deadline),
    )  # fmt: skip
    if given is None and not replace and (beyond_agent or by is not None):
        raise typer.BadParameter("--beyond-agent and --by go with a limit or with --replace")
    client = client_for(redis_url)
    session = find_session(client, session)
    found = client.store.sessions.outline(session).execution
    if given is None and not replace:
        print_budget(session, found, json)
        return
    wanted = merge_budgets(None if replace or found is None else found.budget, given)
    changed = client.change_budget(session, wanted, by=by or login(), beyond_agent=beyond_agent)
    if json:
        print(as_json({"session_id": session, "changed": changed, "budget": wanted.to_dict()}))
    else:
        print("changed" if changed else "it has this budget already")


def _show_tree(client: AgentClient, session_id: str, json: bool) -> None:
    """Print a session with the sessions below it, what they have used, and why they have not ended."""
    from ..observability.waiting_reasons import tree_reasons
    from .session_views import tree_lines

    found = client.tree(session_id)
    reasons = tree_reasons(client.store, found)
    print(as_json(tree_value(found, reasons)) if json else "\n".join(tree_lines(found, reasons)))


def _check_retry(session: str | None, failed: bool, bulk_options: list[bool], single_options: list[bool]) -> None:
    if (session is None) != failed:
        raise typer.BadParameter("give a SESSION, or --failed for all that failed")
    if session is not None and any(bulk_options):
        raise typer.BadParameter("--since, --agent and --dry-run go with --failed, not with a SESSION")
    if failed and any(single_options):
        raise typer.BadParameter("--wait, limits and --beyond-agent go with one SESSION, not with --failed")


def _check_wait(wait: bool, timeout: timedelta | None) -> None:
    if timeout is not None and not wait:
        raise typer.BadParameter("goes with --wait", param_hint="--timeout")


def _check_show(step: int | None, *, state: bool, request: bool, tree: bool, json: bool, verbose: bool) -> None:
    """Refuse options of `show` of which one would be without effect."""
    if (state or request) and (step is None or (state and request)):
        raise typer.BadParameter("--step goes with --state or with --request; `snapshot` prints the state as it is now")
    if tree and (step is not None or verbose):
        raise typer.BadParameter("--step and --verbose go with one session, not with --tree")
    if json and step is not None and not (state or request):
        raise typer.BadParameter("--step with --json goes with --state or --request; --json alone has all steps")


def _report(job: Job, *, wait: bool, timeout: timedelta | None, json: bool) -> None:
    """Print the ids of the job, or follow it to its end and exit as it ended."""
    if not wait:
        _print_job(job, json)
        return
    from .progress import follow

    print(_job_line(job), file=sys.stderr, flush=True)
    seconds = None if timeout is None else timeout.total_seconds()
    result = job.result(timeout=seconds) if json else follow(job, seconds, to_stderr=True)
    print(as_json(result_value(result)) if json else _answer_text(result.final_response))
    _exit(result)


def _exit(result: Result) -> NoReturn:
    """End with the exit code of how an execution has ended."""
    raise typer.Exit(ExitCode.DONE if result.status == "completed" else ExitCode.FAILED)


def _answer_text(answer: str) -> str:
    """The answer as it is for a script; in a terminal, which also shows lines of our own, indented."""
    return f"\n    {indent(answer)}" if sys.stdout.isatty() else clean(answer)


def _job_line(job: Job) -> str:
    """The ids of a job; a message that is queued has no execution yet."""
    execution = f"execution {job.execution_id}" if job.execution_id else f"{job.placed}: message {job.operation_id}"
    return f"session {job.session_id}  {execution}"


def _print_job(job: Job, json: bool) -> None:
    print(as_json({"session_id": job.session_id, "execution_id": job.execution_id}) if json else _job_line(job))


def _read_message(message: str) -> str:
    return read_stdin() if message == "-" else message
