"""Callbacks: a Celery task, a webhook, or both receive the result of an execution that has ended, or a request.

The transaction that ends the execution or lets it wait stores a note; a worker makes the callback and removes the note
when the receiver has it. A crash in between makes the callback twice: a task under the same task id, a webhook with the
same `X-Celery-Agents-Id`, so that the receiver recognises it. A retried execution ends again, and its callback has
another id. A request that was answered in the meantime is not reported.
"""

from __future__ import annotations

import concurrent.futures
import hashlib
import hmac
import json
import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from celery import Celery
from kombu import Exchange, Queue

from ...config.networks import AllowedNetworks
from ...config.settings import Settings
from ...worker.errors import CeleryAgentsError, InvalidInput, NotConfirmed
from ...worker.redaction import describe_exception
from ...worker.state.execution.requests import Request
from ...worker.store.keys import ShardKeys
from ...worker.store.session_records import REQUEST_TASK, Callback
from ...worker.store.store import Store
from ..client.json_values import result_value
from ..publishing import write_message
from .receivers import read_task
from .webhooks import WebhookPoster, receiver_of

log = logging.getLogger(__name__)

# One receiver's callbacks are taken in numbers that can be made before they are due again: four side by side, each
# within ten seconds. One that is slow, or that is new while many run, gets no more than these: the others need room.
_MOST_OF_A_RECEIVER: Final = 20
_MOST_OF_A_SLOW_ONE: Final = 4
_SLOW_SECONDS: Final = 5.0
_MOST_AT_ONCE: Final = 200
_BATCH: Final = 50
_HOLD_SECONDS: Final = 60.0
_TASK_THREADS: Final = 2
_BUSY_SECONDS: Final = 2.0
_LONGEST_BUSY_SECONDS: Final = 300.0
_FIRST_DELAY_SECONDS: Final = 2.0
_LONGEST_DELAY_SECONDS: Final = 3600.0
_MOST_ATTEMPTS: Final = 30
_TASK_KINDS: Final = ("task", REQUEST_TASK)
_TASKS: Final = "celery tasks"
_UNUSABLE: Final = "urls that are none"


@dataclass
class _Receiver:
    """A receiver whose callbacks are being made.

    Attributes:
        running: How many.
        took: Seconds that the last one took; None before one has ended.
        line_ends: `monotonic()` at which it will have got to the last one that was put off.
    """

    running: int = 0
    took: float | None = None
    line_ends: float = 0.0

    def has_room(self, all_running: int) -> bool:
        """Whether one more may be made, while so many of all receivers are."""
        is_quick = all_running < _MOST_AT_ONCE // 2 if self.took is None else self.took < _SLOW_SECONDS
        return self.running < (_MOST_OF_A_RECEIVER if is_quick else _MOST_OF_A_SLOW_ONE)

    def stand_in_line(self) -> float:
        """Seconds until it will have got to one more: what comes earlier would be looked at in place of others."""
        now, took = time.monotonic(), _BUSY_SECONDS if self.took is None else self.took
        self.line_ends = min(max(self.line_ends, now) + took / _MOST_OF_A_RECEIVER, now + _LONGEST_BUSY_SECONDS)
        return self.line_ends - now


class CallbackCaller:
    """Makes the callbacks that are due: tasks in threads of their own, webhooks on an event loop of theirs."""

    def __init__(self, app: Celery, store: Store, settings: Settings) -> None:
        self._app = app
        self._store = store
        self._settings = settings
        self._poster = WebhookPoster(AllowedNetworks.parse(settings.webhook_allow))
        self._task_threads = concurrent.futures.ThreadPoolExecutor(_TASK_THREADS, "celery-agents-callback")
        self._webhook_threads = concurrent.futures.ThreadPoolExecutor(_TASK_THREADS, "celery-agents-webhook")
        self._lock = threading.Lock()
        self._receivers: dict[str, _Receiver] = {}

    def start_due(self, shards: Sequence[ShardKeys] | None = None) -> int:
        """Start the callbacks that are due in shards of one server, as many as end in time; returns how many.

        A callback whose receiver has enough to do comes again when that will have got to it.
        """
        with self._lock:
            limit = min(_BATCH, _MOST_AT_ONCE - self._running())
        if limit <= 0:
            return 0
        found = self._take_due(shards, limit)
        return sum(self._start(callback) for callback in found)

    def _take_due(self, shards: Sequence[ShardKeys] | None, limit: int) -> Sequence[Callback]:
        """Take what is due; while it is not confirmed, nothing is told, and it is due again shortly."""
        context, housekeeping = self._store.context, self._store.housekeeping
        hold_ms = round(_HOLD_SECONDS * 1000)
        with context.noting() as used:
            found = housekeeping.due_callbacks(limit=limit, hold_ms=hold_ms, shards=shards)
        try:
            if found:
                context.confirm(context.keys(found[0].session_id).shard, used)
        except NotConfirmed as error:
            log.warning("%d callbacks are due again later: %s", len(found), error)
            for callback in found:
                housekeeping.delay_callback(callback, delay_ms=round(_BUSY_SECONDS * 1000))
            return ()
        return found

    def close(self) -> None:
        """End the calls to webhooks; what was not made is due again."""
        self._poster.close()

    def _running(self) -> int:
        return sum(each.running for each in self._receivers.values())

    def _start(self, callback: Callback) -> bool:
        name, delay = _receiver_of(callback), 0.0
        with self._lock:
            receiver = self._receivers.setdefault(name, _Receiver())
            if receiver.has_room(self._running()):
                receiver.running += 1
            else:
                delay = receiver.stand_in_line()
        if delay:
            self._store.housekeeping.delay_callback(callback, delay_ms=round(delay * 1000))
            return False
        finish = partial(self._finish, callback, name, time.monotonic())
        if callback.kind in _TASK_KINDS:
            self._task_threads.submit(finish, None)
        else:
            self._start_post(callback, finish)
        return True

    def _start_post(self, callback: Callback, finish: Callable[[concurrent.futures.Future[None]], None]) -> None:
        try:
            posted = self._post(callback)
        except Exception as error:  # noqa: BLE001 - no secret, or a record that has no JSON form
            posted = concurrent.futures.Future[None]()
            posted.set_exception(error)
        posted.add_done_callback(lambda ended: self._webhook_threads.submit(finish, ended))

    def _finish(
        self, callback: Callback, name: str, began: float, posted: concurrent.futures.Future[None] | None
    ) -> None:
        """Make the callback of a task, or take the end of a post; and store how it went.

        Args:
            name: Of its receiver.
            began: `monotonic()` at which it was started.
        """
        try:
            if posted is None:
                self._send_task(callback)
            else:
                posted.result()
            self._store.housekeeping.finish_callback(callback)
        except InvalidInput as error:  # a receiver that another program has stored, or a queue that takes nothing
            self._store_failure(callback, str(error))
        except CeleryAgentsError as error:
            log.warning("callback of execution %s is due again later: %s", callback.execution_id, error)
        except Exception as error:  # noqa: BLE001 - whatever a broker's client raises
            self._store_failure(callback, describe_exception(error).message)
        finally:
            with self._lock:
                receiver = self._receivers[name]
                receiver.running -= 1
                receiver.took = time.monotonic() - began
                if not receiver.running:
                    del self._receivers[name]

    def _send_task(self, callback: Callback) -> None:
        # Any program that writes to Redis may have stored the target; it is sent with this worker's rights.
        task = read_task(
            callback.target, "on_request" if callback.kind == REQUEST_TASK else "on_complete", self._settings
        )
        options: dict[str, Any] = {**(task.get("options") or {}), "task_id": f"{_callback_id(callback)}.callback"}
        keyword = "request" if isinstance(callback.about, Request) else "result"
        kwargs: dict[str, Any] = {**(task.get("kwargs") or {}), keyword: _value(callback)}
        name = options.pop("queue", None) or "celery"
        # The task belongs to another service, whose queues this app does not know: declare it as Celery does there.
        # celery-types allows only a name; Celery accepts the queue as well.
        queue: Any = Queue(name, Exchange(name, type="direct"), routing_key=name)
        options |= {"args": task.get("args") or (), "kwargs": kwargs, "queue": queue}
        written = write_message(self._app, self._settings, task["task"], options)
        if written is None:
            self._app.send_task(task["task"], **options)
        else:
            # kombu's connection may lead to a former primary while the note is removed from its successor.
            self._store.housekeeping.send_callback(callback, *written)

    def _post(self, callback: Callback) -> concurrent.futures.Future[None]:
        secret = self._settings.webhook_secret
        if secret is None:
            raise PermissionError("CELERY_AGENTS_WEBHOOK_SECRET is not set in this worker")
        body = json.dumps(_value(callback), ensure_ascii=False).encode()
        now = self._store.housekeeping.now_ms(callback.session_id) // 1000  # receivers check its age
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "celery-agents",
            "X-Celery-Agents-Id": _callback_id(callback),
            "X-Celery-Agents-Signature": f"t={now},v1={signature(secret, now, body)}",
        }
        return self._poster.post(callback.target, headers, body)

    def _store_failure(self, callback: Callback, reason: str) -> None:
        attempts = callback.attempts + 1
        delay = min(_FIRST_DELAY_SECONDS * 2**callback.attempts, _LONGEST_DELAY_SECONDS) * random.uniform(0.5, 1.0)
        delay_ms = None if attempts >= _MOST_ATTEMPTS else round(delay * 1000)
        log.warning("callback of execution %s failed (%d): %s", callback.execution_id, attempts, reason)
        try:
            self._store.housekeeping.fail_callback(callback, delay_ms=delay_ms, reason=reason)
        except CeleryAgentsError as error:
            log.warning(
                "callback of execution %s is due again without its failure being counted: %s",
                callback.execution_id,
                error,
            )


def request_value(request: Request) -> dict[str, Any]:
    """The JSON of a request that a callback receives: everything that a form needs."""
    return request.to_dict()


def _value(callback: Callback) -> dict[str, Any]:
    about = callback.about
    return request_value(about) if isinstance(about, Request) else result_value(about)


def signature(secret: str, timestamp: int, body: bytes) -> str:
    """Sign `<timestamp>.<body>` with HMAC-SHA256, in hexadecimal; receivers compare with `hmac.compare_digest`."""
    return hmac.new(secret.encode(), f"{timestamp}.".encode() + body, hashlib.sha256).hexdigest()


def _receiver_of(callback: Callback) -> str:
    """The receiver under whose name the callback is counted."""
    if callback.kind in _TASK_KINDS:
        return _TASKS
    try:
        return receiver_of(callback.target)
    except InvalidInput:
        return _UNUSABLE


def _callback_id(callback: Callback) -> str:
    """Id of a callback: the same when it is made twice, another one after a retry of the execution."""
    about = callback.about
    if isinstance(about, Request):
        return about.id
    return f"{callback.execution_id}{f'.r{about.retries}' if about.retries else ''}"
