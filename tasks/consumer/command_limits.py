"""Limits on remote control: commands that would let a worker take messages of others, or hold its own back."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, cast

from celery import Celery
from celery.concurrency.base import BasePool

from ..names import CONTROL, STEP
from .internals import wrap_remote_command
from .message_checks import shown
from .refusals import REMOTE_CONTROL, refusals

_OUR_TASKS: Final = frozenset((STEP, *CONTROL))
_RATE: Final = re.compile(r"(\d{1,6}(?:\.\d{1,3})?)(?:/([smh]))?", re.ASCII)
_PER_MINUTE: Final = {"s": 60.0, "m": 1.0, "h": 1 / 60}
LEAST_STEPS_A_MINUTE: Final = 1.0
"""Lowest rate limit of the step's task. A step over the limit waits in the worker's memory, so the wait stays short."""
MOST_ADDED_SLOTS: Final = 100
"""Most processes or threads that one command adds to a pool."""

MOST_STAMPS: Final = 10_000
"""Most revoked stamps that a worker keeps."""
_SHOWN: Final = 100

Refuse = Callable[[dict[str, Any]], str | None]
"""Says why a command with these arguments is not carried out; None when it is."""


def limit_commands(app: Celery, pool: BasePool) -> None:
    """Let the worker of this pool answer commands beyond its limits with an error instead of carrying them out."""

    def refuse_queue(arguments: dict[str, Any]) -> str | None:
        queue, known = arguments.get("queue"), dict(app.amqp.queues)
        if isinstance(queue, str) and queue in known:
            return None
        return f"queue={shown(queue)} is none of this worker's app; it knows {', '.join(sorted(known))}"

    refuse_size = _refuse_many if hasattr(pool, "grow") else _refuse_any
    limits: dict[str, Refuse] = {
        "add_consumer": refuse_queue,
        "rate_limit": refuse_rate,
        "time_limit": _refuse_our_task,
        "pool_grow": refuse_size,
        "pool_shrink": refuse_size,
        "revoke_by_stamped_headers": StampLimit().refuse,
        "objgraph": lambda _: "it writes files on the worker's machine",
    }
    for name, refuse in limits.items():
        wrap_remote_command(name, _limiter(name, refuse))


def _limiter(name: str, refuse: Refuse) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def wrap(stock: Callable[..., Any]) -> Callable[..., Any]:
        def command(state: Any, **arguments: Any) -> Any:
            why = refuse(arguments)
            if why is None:
                return stock(state, **arguments)
            refusals.record(REMOTE_CONTROL, f"{name}: {why}")
            return {"error": f"{name} is refused: {why}"}

        return command

    return wrap


def _refuse_our_task(arguments: dict[str, Any]) -> str | None:
    name = arguments.get("task_name")
    if isinstance(name, str) and name not in _OUR_TASKS:
        return None
    return (
        f"task_name={shown(name)}; the settings CELERY_AGENTS_CONCURRENCY and CELERY_AGENTS_STEP_TIMEOUT_SECONDS hold"
    )


def refuse_rate(arguments: dict[str, Any]) -> str | None:
    """Let operators slow the steps of a worker down, but not its control tasks, and not to a standstill."""
    if arguments.get("task_name") != STEP:
        return _refuse_our_task(arguments)
    limit = arguments.get("rate_limit")
    rate = _RATE.fullmatch(limit) if isinstance(limit, str) else None
    if rate is None:
        return f"rate_limit={shown(limit)} is not a text like 10/s, 10/m or 600/h, or 0 for no limit"
    steps_a_minute = float(rate[1]) * _PER_MINUTE[rate[2] or "s"]
    if steps_a_minute == 0 or steps_a_minute >= LEAST_STEPS_A_MINUTE:
        return None
    return f"rate_limit={shown(limit)} is less than 1/m; to take no steps, end the worker or use cancel_consumer"


class StampLimit:
    """Counts the stamps that commands have revoked: Celery forgets none of them while the worker runs."""

    def __init__(self, most: int = MOST_STAMPS) -> None:
        self._most = most
        self._known: set[tuple[str, str]] = set()

    def refuse(self, arguments: dict[str, Any]) -> str | None:
        """Say why a command would revoke too many stamps, or what are none; None when it may."""
        headers = arguments.get("headers")
        if not isinstance(headers, dict):
            return f"headers={shown(headers)} are no object of stamps"
        given: set[tuple[str, str]] = set()
        for name, stamps in cast("dict[str, Any]", headers).items():
            for stamp in cast("list[Any]", stamps if isinstance(stamps, list) else [stamps]):
                if not isinstance(stamp, str):
                    return f"{name[:_SHOWN]}={shown(stamp)} is no text"
                if (name, stamp) in self._known:  # Celery keeps a second copy of it
                    return f"{name[:_SHOWN]}={shown(stamp)} is revoked already"
                given.add((name, stamp))
        if len(self._known) + len(given) > self._most:
            return f"the worker keeps {self._most} revoked stamps at most; start it anew to have none"
        self._known |= given
        return None


def _refuse_any(_: dict[str, Any]) -> str:
    return "this worker's pool keeps its size; start the worker with another concurrency"


def _refuse_many(arguments: dict[str, Any]) -> str | None:
    number = arguments.get("n", 1)
    if type(number) is int and 1 <= number <= MOST_ADDED_SLOTS:
        return None
    return f"n={shown(number)} is not from 1 to {MOST_ADDED_SLOTS}"
