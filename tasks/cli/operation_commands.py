"""Commands for who runs workers: doctor, health, workers, costs, upgrade-data, archive."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, assert_never

import typer

from ...config.escaping import escape_line
from ...config.settings import shown_queues
from ...worker.errors import LoginRefused, StateUnreadable, StoreForbidden, StoreUnavailable
from ...worker.moments import moment
from ...worker.store.labels import read_pairs
from .exits import ExitCode
from .named_app import AppOption, choose_app, chosen_app
from .options import AsJson, RedisUrl, ago, check_between, client_for, settings_for, time_option
from .views import as_json, clean, one_line, plural, print_table, print_values

if TYPE_CHECKING:
    from celery import Celery

    from ...worker.archive.rows import ArchiveFacts, CostSum
    from ..observability.doctor.findings import Finding

_WIDTH: Final = 110
_NAME_WIDTH: Final = 24
_COLORS: Final = {"ok": "green", "warn": "yellow", "fail": "red"}
_WITHIN: Final = timedelta(seconds=20)
_WORKERS_HEAD: Final = ("WORKER", "VERSION", "POOL", "BUSY", "QUEUES", "AGENTS")


def doctor(app: AppOption = None, json: AsJson = False, redis_url: RedisUrl = None) -> None:
    """Look for problems of the installation, and say what to do about each.

    It looks at Redis, broker, workers, agents, backlog and provider keys.

    Ends with 0 when nothing failed, 1 when something did, 3 when Redis is not reachable. Warnings do not count. Agents
    and provider keys are looked at where CELERY_AGENTS_AGENTS names modules: run it in the environment of a worker.

    \b
    Examples:
      celery-agents doctor
      celery-agents doctor --json | jq -r 'select(.level != "ok") | .name'
      celery-agents doctor --app my_project
    """  # fmt: skip
    from ..observability.doctor.checks import examine
    from ..observability.doctor.findings import Finding, Level

    existing, settings = _read_app(app, redis_url)
    code = ExitCode.DONE
    try:
        findings: Sequence[Finding] = examine(settings, existing)
    except StoreForbidden as error:
        advice = "give the user of CELERY_AGENTS_REDIS_URL what deploy/redis/users.acl gives monitor, or use that user"
        findings = [Finding.fail("redis", str(error), advice)]
    except StoreUnavailable as error:
        what = f"does not answer: {error}"
        advice = "start Redis, or correct CELERY_AGENTS_REDIS_URL (or --redis-url), which has rediss:// for TLS"
        if isinstance(error, LoginRefused):
            what, advice = str(error), "correct user and password in CELERY_AGENTS_REDIS_URL (or --redis-url)"
        findings = [Finding.fail("redis", what, advice)]
        code = ExitCode.NO_REDIS
        # Every command that ends with 3 writes to standard error; a program may read the findings.
        print(f"celery-agents: {error}; {advice}", file=sys.stderr)
    if code is ExitCode.DONE and any(finding.level is Level.FAIL for finding in findings):
        code = ExitCode.FAILED
    for line in map(as_json, map(asdict, findings)) if json else _format(findings):
        typer.echo(line, color=False if os.environ.get("NO_COLOR") else None)  # https://no-color.org
    raise typer.Exit(code)


def health(
    alive: Annotated[
        bool,
        typer.Option(
            "--alive", help="Fail only where a restart helps: not when it drains, or Redis is away or broken."
        ),
    ] = False,
    pid: Annotated[
        int | None, typer.Option(min=1, help="Process id of the worker, when this machine runs several.")
    ] = None,
    within: Annotated[timedelta | None, time_option("Oldest sign of life; default: 20s.")] = None,
    json: AsJson = False,
    redis_url: RedisUrl = None,
) -> None:
    """Tell whether this machine's worker takes work.

    It is for the probes of Docker, Kubernetes and systemd.

    Ends with 0 when it does, 1 when it does not (also while it drains), 3 when Redis is not reachable. With --alive it
    ends with 1 only when a restart would help.

    \b
    Examples:
      celery-agents health
      celery-agents health --alive --within 1m
    """
    from ..observability.health import look

    try:
        found = look(settings_for(redis_url), pid=pid, within_seconds=(within or _WITHIN).total_seconds())
    except (StoreUnavailable, StateUnreadable) as error:
        if not alive:
            raise
        _print_health(json, {"alive": None, "ready": False, "what": f"no reason to restart: {error}"})
        return
    _print_health(json, {"alive": found.alive, "ready": found.ready, "what": found.what})
    passes = found.alive if alive else found.ready
    raise typer.Exit(ExitCode.DONE if passes else ExitCode.FAILED)


def workers(json: AsJson = False, redis_url: RedisUrl = None) -> None:
    """List the live workers with their version, slots, queues and agents.

    With --json each worker is an object on a line.

    \b
    Examples:
      celery-agents workers
      celery-agents workers --json | jq .queues
    """
    found = client_for(redis_url).workers()
    if json:
        print_values([{"name": name, **facts} for name, facts in sorted(found.items())])
    else:
        print_table(_WORKERS_HEAD, [_worker_row(name, facts) for name, facts in sorted(found.items())])


def costs(
    by: Annotated[str, typer.Option(help="agent, model, day, or label:KEY.")] = "agent",
    since: Annotated[timedelta | None, time_option("Executions whose last step is from the last 1h, 7d, …")] = None,
    until: Annotated[timedelta | None, time_option("Executions whose last step is older than 1h, 7d, …")] = None,
    json: AsJson = False,
    redis_url: RedisUrl = None,
) -> None:
    """Add up what executions have spent, each once.

    Prices are those that drivers and agents know; "unpriced" counts executions with an answer without one.

    \b
    Examples:
      celery-agents costs --since 7d
      celery-agents costs --by label:customer --since 30d --json
    """
    check_between(since, until)
    client = client_for(redis_url)
    report = client.costs(by=by, since=ago(client, since), until=ago(client, until))
    if json:
        print(as_json(report.to_dict()))
    else:
        rows = [_cost_row(each.name or "-", each) for each in report.sums]
        head = (by.partition(":")[2] or by, "executions", "steps", "tokens", "cost", "unpriced")
        print_table(head, [*rows, _cost_row("all", report.total)])
    for session in report.unread:
        print(f"{clean(session)} cannot be read: its costs are missing", file=sys.stderr)


def _cost_row(name: str, each: CostSum) -> tuple[str, ...]:
    return name, str(each.executions), str(each.steps), str(each.tokens), f"${each.cost:.4f}", str(each.unpriced or "")


def upgrade_data(json: AsJson = False, redis_url: RedisUrl = None) -> None:
    """Have sessions stored compressed from now on; there is no way back.

    It is for a Redis that a version before 0.2.0 has used; a new one has this form. What is stored is read as it is.
    Older versions refuse such a Redis when they begin. Refused while workers of one are alive.

    \b
    Examples:
      celery-agents upgrade-data
    """
    changed = client_for(redis_url).upgrade_data()
    text = "Sessions are stored in the new form from now on." if changed else "They were so already."
    print(as_json({"changed": changed}) if json else text)


class ArchiveAction(StrEnum):
    """The things that `archive` does."""

    NOW = "now"
    STATUS = "status"
    EXPORT = "export"


def archive(
    action: Annotated[ArchiveAction, typer.Argument(help="What to do.", show_default=False)],
    older_than: Annotated[
        timedelta | None, time_option("now: sessions last changed so long ago; default: the workers' setting.")
    ] = None,
    agent: Annotated[str | None, typer.Option(help="export: only this agent's sessions.")] = None,
    label: Annotated[list[str] | None, typer.Option(help="export: only those with KEY=VALUE; repeatable.")] = None,
    json: AsJson = False,
    redis_url: RedisUrl = None,
) -> None:
    """Move ended sessions to the archive now, count what it holds, or export it.

    Workers move sessions by themselves; `now` does not wait for them. `export` writes a line of JSON for each session.
    The archive is that of CELERY_AGENTS_ARCHIVE_URL.

    \b
    Examples:
      celery-agents archive status
      celery-agents archive now --older-than 1h
      celery-agents archive export --agent helpdesk > sessions.jsonl
    """
    if older_than is not None and action is not ArchiveAction.NOW:
        raise typer.BadParameter(f"goes with now, not with {action.value}", param_hint="--older-than")
    if (agent is not None or label) and action is not ArchiveAction.EXPORT:
        raise typer.BadParameter(f"--agent and --label go with export, not with {action.value}")
    client = client_for(redis_url)
    match action:
        case ArchiveAction.STATUS:
            facts = client.archive_status()
            print(as_json(asdict(facts)) if json else _describe_archive(facts))
        case ArchiveAction.NOW:
            run = client.archive_now(older_than=older_than)
            left = [clean(f"{name} stays: {why}") for name, why in run.unreadable.items()]
            later = [f"{plural(run.later, 'session')} later: try again in a minute"] if run.later else []
            lines = [f"{plural(run.moved, 'session')} moved to the archive", *later, *left]
            print(as_json(run.to_dict()) if json else "\n".join(lines))
            if run.unreadable:
                raise typer.Exit(ExitCode.FAILED)
        case ArchiveAction.EXPORT:
            for session in client.export_archive(agent=agent, label=read_pairs("--label", label or ())):
                print(as_json(session))
        case _ as never:
            assert_never(never)


def _describe_archive(facts: ArchiveFacts) -> str:
    bounds = [None if each is None else moment(each) for each in (facts.oldest_ms, facts.newest_ms)]
    between = "" if None in bounds else f", last changed between {bounds[0]:%Y-%m-%d} and {bounds[1]:%Y-%m-%d}"
    pending = f", {facts.pending} on their way" if facts.pending else ""
    return f"{plural(facts.sessions, 'session')}{pending}, {facts.size} bytes of documents{between}"


def _read_app(name: str | None, redis_url: str | None) -> tuple[Celery | None, Any]:
    """Import the app of `--app` and read the settings agents were installed with; without it, the environment's."""
    sys.path.append(str(Path.cwd()))  # modules of agents are found here too, as by a worker
    if name is not None:
        choose_app(name)
    return chosen_app(), settings_for(redis_url)


def _format(findings: Sequence[Finding]) -> list[str]:
    lines: list[str] = []
    for finding in findings:
        level = typer.style(finding.level.value.ljust(4), fg=_COLORS[finding.level.value])
        lines += _wrap(f"{level}  {one_line(finding.name).ljust(_NAME_WIDTH)}  ", finding.what)
        if finding.advice:
            lines += _wrap(" " * (8 + _NAME_WIDTH), f"→ {finding.advice}")
    counts = {level: sum(finding.level.value == level for finding in findings) for level in _COLORS}
    return [*lines, "", f"{plural(counts['fail'], 'failure')}, {plural(counts['warn'], 'warning')}"]


def _wrap(head: str, text: str) -> list[str]:
    first, *more = textwrap.wrap(" ".join(clean(text).split()), _WIDTH - 8 - _NAME_WIDTH) or [""]
    return [head + first, *(" " * (8 + _NAME_WIDTH) + line for line in more)]


def _print_health(json: bool, value: dict[str, object]) -> None:
    print(as_json(value) if json else escape_line(str(value["what"])))


def _worker_row(name: str, facts: Mapping[str, Any]) -> tuple[str, ...]:
    busy = f"{facts['running']} of {facts['slots']}{', drains' if facts['draining'] else ''}"
    queues, agents = ", ".join(shown_queues(facts["queues"])), ", ".join(sorted(facts["agents"]))
    cells = (name, facts["version"], facts["pool"], busy, queues, agents)
    return tuple(clean(str(cell)) or "-" for cell in cells)
