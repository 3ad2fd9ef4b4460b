"""The command on schedules: messages for agents at the times of a cron expression."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from .options import AsJson, By, RedisUrl, client_for, login, time_option
from .views import one_line, print_done, print_found, print_notes, print_removed

if TYPE_CHECKING:
    from ...worker.flow.schedules import ScheduleStatus

_MOST_DIGITS: Final = 9
_HEAD: Final = ("NAME", "CRON", "AGENT", "NEXT", "LAST", "SUBMITTED", "SKIPPED", "MISSED", "REFUSED")


def schedules(
    action: Annotated[Literal["list", "set", "remove", "run"], typer.Argument(help="What to do.")] = "list",
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Of the schedule; not with list.")] = None,
    cron: Annotated[str | None, typer.Option(help="Minute, hour, day of the month, month, day of the week.")] = None,
    agent: Annotated[str | None, typer.Option(help="Who gets the message.")] = None,
    message: Annotated[str | None, typer.Option("--message", "-m", help="May name {date}, {time} and others.")] = None,
    zone: Annotated[str | None, typer.Option(help="Time zone; default: UTC.")] = None,
    session: Annotated[str | None, typer.Option(help="Id of the session; default: a new one for each slot.")] = None,
    overlap: Annotated[
        Literal["skip", "queue"] | None, typer.Option(help="While the one before is active; default: skip.")
    ] = None,
    missed: Annotated[
        str | None, typer.Option(help="none, one, or how many late slots are made up for; default: one.")
    ] = None,
    jitter: Annotated[timedelta | None, time_option("A slot begins so much later at most.", "--jitter")] = None,
    by: By = None,
    json: AsJson = False,
    redis_url: RedisUrl = None,
) -> None:
    """List, set and remove schedules, and run one now.

    The workers keep them: there is no other process. A slot is submitted once, whoever is killed meanwhile.

    \b
    Examples:
      celery-agents schedules
      celery-agents schedules set nightly --cron "0 2 * * *" --zone Europe/Berlin --agent report -m "Report of {date}"
      celery-agents schedules run nightly
    """
    given = {
        "cron": cron, "agent": agent, "message": message, "zone": zone, "session": session, "overlap": overlap,
        "missed": missed if missed is None or not _is_number(missed) else int(missed), "jitter": jitter,
    }  # fmt: skip
    options: dict[str, Any] = {option: value for option, value in given.items() if value is not None}
    _check(action, name, options)
    if action != "set" and by is not None:
        raise typer.BadParameter(f"goes with set, not with {action}", param_hint="--by")
    client = client_for(redis_url)
    if name is None:
        _print_schedules(client.schedules.list(), json)
    elif action == "remove":
        print_removed(client.schedules.remove(name), "there is no such schedule", json)
    elif action == "run":
        job = client.schedules.run_now(name)
        print_done({"session_id": job.session_id}, job.session_id, json)
    else:
        from ...worker.flow.schedules import Schedule

        print_notes(client.schedules.set(Schedule(name, **options), by=by or login()), "set", json)


def _is_number(text: str) -> bool:
    return text.isdecimal() and len(text) <= _MOST_DIGITS


def _check(action: str, name: str | None, options: dict[str, Any]) -> None:
    if (action == "list") != (name is None):
        raise typer.BadParameter("give it with set, remove and run, and not with list", param_hint="NAME")
    if action != "set" and options:
        raise typer.BadParameter(f"goes with set, not with {action}", param_hint=f"--{next(iter(options))}")
    if action == "set" and (missing := [each for each in ("cron", "agent", "message") if each not in options]):
        raise typer.BadParameter("is needed with set", param_hint=f"--{missing[0]}")


def _print_schedules(found: Sequence[ScheduleStatus], json: bool) -> None:
    from ...worker.moments import moment
    from ..client.json_values import schedule_value

    def row(each: ScheduleStatus) -> list[str]:
        schedule, last = each.schedule, each.last
        begins = "never" if each.slot_ms is None else f"{moment(schedule.begin_ms(each.slot_ms)):%Y-%m-%d %H:%M:%SZ}"
        ended = "" if last is None else last.session_id or f"refused: {one_line(last.refused, 60)}"
        counts = map(str, (each.submitted, each.skipped, each.missed, each.refused))
        return [schedule.name, f"{schedule.cron} {schedule.zone}", schedule.agent, begins, ended, *counts]

    print_found(_HEAD, found, json=json, value=schedule_value, row=row)
