"""Revoking a step, in Flower or by Celery's remote control, stops its session.

A worker discards what carries a revoked id for ever, and the sweep would publish it for ever. So a revoke that meets a
running step becomes a stop of its session, and one that meets a message of a step becomes one when it is discarded;
once the session knows of its stop, the id is accepted again, as the step may have to record how it ended.
"""

from __future__ import annotations

import ast
import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from celery import Celery
from celery.signals import task_revoked
from celery.worker import control
from celery.worker import state as worker_state

from ...worker.errors import CeleryAgentsError, SessionNotFound
from ..names import STEP
from ..step_message import MalformedStep, read_step

log = logging.getLogger(__name__)

Stop = Callable[[str, str], object]
_Place = tuple[str, str]

_COMMANDS: Final = ("revoke", "terminate")
_panel: Final[Any] = control.Panel


def turn_revokes_into_stops(app: Celery, stop: Stop) -> None:
    """From now on revoked steps of this app's worker stop their sessions.

    Args:
        stop: Asked with session and execution, in a thread of its own.
    """

    def on_discarded(sender: Any = None, request: Any = None, expired: bool = False, **_: Any) -> None:
        if expired or sender is None or sender.name != STEP or sender.app is not app:
            return
        place = _place(getattr(request, "kwargsrepr", None))
        if place is not None:
            _begin(stop, {request.id: place})

    task_revoked.connect(on_discarded, weak=False)
    for command in _COMMANDS:
        _panel.data[command] = _stopping(_panel.data[command], stop)


def _stopping(stock: Callable[..., Any], stop: Stop) -> Callable[..., Any]:
    """Celery's command for all ids but those of running steps, which it could not end and would mark for ever."""

    def command(state: Any, *args: Any, task_id: Any = None, **kwargs: Any) -> Any:
        names: list[str] = [task_id] if isinstance(task_id, str) else list(task_id or ())
        running = {request.id: place for request in _running_steps(names) if (place := _place(request.kwargs))}
        _begin(stop, running)
        others = [name for name in names if name not in running]
        if others or not running:
            return stock(state, *args, task_id=others, **kwargs)
        return {"ok": f"stopping the sessions of {', '.join(running)}"}

    return command


def _running_steps(task_ids: Iterable[str]) -> list[Any]:
    active: Any = worker_state.active_requests
    wanted = set(task_ids)
    return [request for request in list(active) if request.id in wanted and request.name == STEP]


def _place(kwargs: Any) -> _Place | None:
    """Session and execution, from a step's arguments or from how its message shows them; None for a forged one."""
    try:
        found: Any = ast.literal_eval(kwargs) if isinstance(kwargs, str) else kwargs
        ref = read_step((), found if isinstance(found, Mapping) else {})  # pyright: ignore[reportUnknownArgumentType]
    except (MalformedStep, ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None
    return ref.session_id, ref.execution_id


def _begin(stop: Stop, places: Mapping[str, _Place]) -> None:
    """Not in the calling thread: it is the worker's own, which everything else waits for."""
    for task_id, place in places.items():
        threading.Thread(target=_stop, args=(stop, task_id, *place), name="celery-agents-revoke", daemon=True).start()


def _stop(stop: Stop, task_id: str, session_id: str, execution_id: str) -> None:
    log.info("step %s was revoked; stopping its session %s", task_id, session_id)
    revoked: Any = worker_state.revoked
    try:
        stop(session_id, execution_id)
        revoked.discard(task_id)
    except SessionNotFound:
        log.debug("session %s of a revoked step is gone", session_id)
    except CeleryAgentsError as error:
        log.warning("session %s of a revoked step is stopped when its step comes again: %s", session_id, error)
