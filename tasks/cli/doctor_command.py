"""The command `doctor`."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer

from ...worker.errors import StoreForbidden, StoreUnavailable
from .exits import ExitCode
from .named_app import AppOption, choose_app, chosen_app
from .options import AsJson, RedisUrl, settings_for
from .views import as_json, clean, finding_value, one_line, plural

if TYPE_CHECKING:
    from celery import Celery

    from ..observability.doctor.findings import Finding

_WIDTH: Final = 110
_NAME_WIDTH: Final = 24
_COLORS: Final = {"ok": "green", "warn": "yellow", "fail": "red"}


def doctor(
    app: AppOption = None,
    json: AsJson = False,
    redis_url: RedisUrl = None,
) -> None:
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
        advice = "start Redis, or correct CELERY_AGENTS_REDIS_URL (or --redis-url)"
        findings = [Finding.fail("redis", f"does not answer: {error}", advice)]
        code = ExitCode.NO_REDIS
        # Every command that ends with 3 writes to standard error; a program may read the findings.
        print(f"celery-agents: {error}; {advice}", file=sys.stderr)
    if code is ExitCode.DONE and any(finding.level is Level.FAIL for finding in findings):
        code = ExitCode.FAILED
    for line in map(as_json, map(finding_value, findings)) if json else _format(findings):
        typer.echo(line)
    raise typer.Exit(code)


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
