"""Revoking a step, in Flower or by Celery's remote control, stops its session.

A worker discards each message that carries a revoked id, and the sweep would publish the step again and again. So a
revoke of a running step stops its session at once, and a revoke of a queued step when its message is discarded. When
the session has recorded the stop, the id is accepted again, since the step may have to record how it ended.

Celery also revokes by itself, for example an id whose message has expired, and anybody may send such a message. Only an
id that a remote control command named stops a session. Any other revoked step is accepted again: the sweep finds it.
"""

from __future__ import annotations

import ast
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from celery import Celery
from celery.signals import task_revoked

from ...worker.errors import CeleryAgentsError, SessionNotFound
from ...worker.store.records import StepRef
from ..names import STEP
from ..step_message import MalformedStep, read_step
from . import internals

log = logging.getLogger(__name__)

Stop = Callable[[str, str], object]
"""Stops an execution; called with the ids of session and execution."""

_COMMANDS: Final = ("revoke", "terminate")
_MOST_IDS: Final = 10_000


class CommandedRevokes:
    """The latest task ids that a remote control command has revoked."""

    def __init__(self) -> None:
        self._ids: OrderedDict[str, None] = OrderedDict()

    def add(self, task_ids: Iterable[object]) -> None:
        """Remember ids; the oldest make room."""
        for task_id in task_ids:
            if isinstance(task_id, str):
                self._ids[task_id] = None
                self._ids.move_to_end(task_id)
        while len(self._ids) > _MOST_IDS:
            self._ids.popitem(last=False)

    def __contains__(self, task_id: object) -> bool:
        return task_id in self._ids


def turn_revokes_into_stops(app: Celery, stop: Stop) -> None:
    """Let revoked steps of this app's worker stop their sessions.

    Args:
        stop: Called in a thread of its own.
    """
    if not internals.knows_revokes():
        return

    commanded = CommandedRevokes()

    def on_discarded(sender: Any = None, request: Any = None, expired: bool = False, **_: Any) -> None:
        if sender is None or sender.name != STEP or sender.app is not app:
            return
        if expired or request.id not in commanded:
            log.warning("step %s was discarded by Celery itself; it is accepted when it comes again", request.id)
            internals.forget_revoked(request.id)
            return
        # The header that shows the arguments may name another session than the arguments themselves.
        ref = _read_ref(getattr(request, "kwargs", None))
        if ref is not None:
            _start_stops(stop, {request.id: ref})

    task_revoked.connect(on_discarded, weak=False)
    for command in _COMMANDS:
        internals.wrap_remote_command(command, lambda stock: _stop_running_steps(stock, stop, commanded))


def _stop_running_steps(stock: Callable[..., Any], stop: Stop, commanded: CommandedRevokes) -> Callable[..., Any]:
    """Return Celery's command for all ids but those of running steps, which it cannot end and would mark for ever."""

    def command(state: Any, *args: Any, task_id: Any = None, **kwargs: Any) -> Any:
        names: list[str] = [task_id] if isinstance(task_id, str) else list(task_id or ())
        commanded.add(names)
        running = {request.id: ref for request in _running_steps(names) if (ref := _read_ref(request.kwargs))}
        _start_stops(stop, running)
        others = [name for name in names if name not in running]
        if others or not running:
            return stock(state, *args, task_id=others, **kwargs)
        return {"ok": f"stopping the sessions of {', '.join(running)}"}

    return command


def _running_steps(task_ids: Iterable[str]) -> list[Any]:
    wanted = set(task_ids)
    return [request for request in internals.active_requests() if request.id in wanted and request.name == STEP]


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
        internals.forget_revoked(task_id)
    except SessionNotFound:
        log.debug("session %s of a revoked step is gone", ref.session_id)
    except CeleryAgentsError as error:
        log.warning("session %s of a revoked step is stopped when its step comes again: %s", ref.session_id, error)
