"""The command `health`, for the probes of supervisors."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import typer

from ...config.escaping import escape_line
from .exits import ExitCode
from .options import AsJson, RedisUrl, duration, settings_for
from .views import as_json

_WITHIN = timedelta(seconds=20)


def health(
    alive: Annotated[
        bool, typer.Option("--alive", help="Fail only where a restart helps: not when it drains or Redis is away.")
    ] = False,
    pid: Annotated[
        int | None, typer.Option(min=1, help="Process id of the worker, when this machine runs several.")
    ] = None,
    within: Annotated[
        timedelta | None, typer.Option(parser=duration, metavar="DURATION", help="Oldest sign of life; default: 20s.")
    ] = None,
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
    from ...worker.errors import StoreUnavailable
    from ..observability.health import look

    try:
        found = look(settings_for(redis_url), pid=pid, within_seconds=(within or _WITHIN).total_seconds())
    except StoreUnavailable as error:
        if not alive:
            raise
        _print(json, {"alive": None, "ready": False, "what": f"Redis does not answer; no reason to restart ({error})"})
        return
    _print(json, {"alive": found.alive, "ready": found.ready, "what": found.what})
    passes = found.alive if alive else found.ready
    raise typer.Exit(ExitCode.DONE if passes else ExitCode.FAILED)


def _print(json: bool, value: dict[str, object]) -> None:
    print(as_json(value) if json else escape_line(str(value["what"])))
