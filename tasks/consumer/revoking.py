"""Revoking a step, in Flower or by Celery's remote control, stops its session.

A worker discards each message that carries a revoked id, and the sweep would publish the step again and again. So a
revoke of a running step stops its session at once, and a revoke of a queued step when its message is discarded. When
the session has recorded the stop, the id is accepted again, since the step may have to record how it ended.
"""

from __future__ import annotations

import ast
import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from celery import Celery
from celery.signals import task_revoked

from ...worker.errors import CeleryAgentsError, SessionNotFound
from ...worker.store import StepRef
from ..names import STEP
from ..step_message import MalformedStep, read_step
from . import celery_internals
from .features import REVOKE_STOPS

log = logging.getLogger(__name__)

Stop = Callable[[str, str], object]
"""Stops an execution; called with the ids of session and execution."""

_COMMANDS: Final = ("revoke", "terminate")


def turn_revokes_into_stops(app: Celery, stop: Stop) -> None:
    """Let revoked steps of this app's worker stop their sessions.

    Args:
        stop: Called in a thread of its own.
    """
    if not REVOKE_STOPS.is_available():
        return

    def on_discarded(sender: Any = None, request: Any = None, expired: bool = False, **_: Any) -> None:
        if expired or sender is None or sender.name != STEP or sender.app is not app:
            return
        ref = _read_ref(getattr(request, "kwargsrepr", None))
        if ref is not None:
            _start_stops(stop, {request.id: ref})

    task_revoked.connect(on_discarded, weak=False)
    for command in _COMMANDS:
        celery_internals.wrap_remote_command(command, lambda stock: _stop_running_steps(stock, stop))


def _stop_running_steps(stock: Callable[..., Any], stop: Stop) -> Callable[..., Any]:
    """Return Celery's command for all ids but those of running steps, which it cannot end and would mark for ever."""

    def command(state: Any, *args: Any, task_id: Any = None, **kwargs: Any) -> Any:
        names: list[str] = [task_id] if isinstance(task_id, str) else list(task_id or ())
        running = {request.id: ref for request in _running_steps(names) if (ref := _read_ref(request.kwargs))}
        _start_stops(stop, running)
        others = [name for name in names if name not in running]
        if others or not running:
            return stock(state, *args, task_id=others, **kwargs)
        return {"ok": f"stopping the sessions of {', '.join(running)}"}

    return command


def _running_steps(task_ids: Iterable[str]) -> list[Any]:
    wanted = set(task_ids)
    return [request for request in celery_internals.active_requests() if request.id in wanted and request.name == STEP]


def _read_ref(kwargs: Any) -> StepRef | None:
    """Return the step that arguments name, or the text that shows them in a message; None for a forged one."""
    try:
        found: Any = ast.literal_eval(kwargs) if isinstance(kwargs, str) else kwargs
        return read_step((), found if isinstance(found, Mapping) else {})  # pyright: ignore[reportUnknownArgumentType]
    except (MalformedStep, ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None


def _start_stops(stop: Stop, steps: Mapping[str, StepRef]) -> None:
    """Stop the sessions of revoked steps in threads: the calling thread is the worker's own."""
    for task_id, ref in steps.items():
        threading.Thread(target=_stop, args=(stop, task_id, ref), name="celery-agents-revoke", daemon=True).start()


def _stop(stop: Stop, task_id: str, ref: StepRef) -> None:
    log.info("step %s was revoked; stopping its session %s", task_id, ref.session_id)
    try:
        stop(ref.session_id, ref.execution_id)
        celery_internals.forget_revoked(task_id)
    except SessionNotFound:
        log.debug("session %s of a revoked step is gone", ref.session_id)
    except CeleryAgentsError as error:
        log.warning("session %s of a revoked step is stopped when its step comes again: %s", ref.session_id, error)
