"""Callbacks: a Celery task, a webhook, or both receive the result of an execution that has ended.

The transaction that ends the execution stores a note, a worker makes the callback, and removes the note when the
receiver has it. A crash in between makes the callback twice: a task under the same task id, a webhook with the same
`X-Celery-Agents-Id`, so that the receiver recognises it. A retried execution ends again, and its callback has another
id.
"""

from __future__ import annotations

import concurrent.futures
import hashlib
import hmac
import json
import logging
import random
import time
import urllib.request
from collections.abc import Mapping
from typing import Any, Final, cast
from urllib.parse import urlsplit

from celery import Celery
from kombu import Exchange, Queue

from ...config.settings import Settings
from ...worker.errors import CeleryAgentsError, InvalidInput
from ...worker.redaction import describe_exception
from ...worker.state import check_text, freeze, thaw
from ...worker.store import Callback, Result, Store

log = logging.getLogger(__name__)

# Four threads with a time-out of ten seconds finish a batch within fifty seconds, before it is due again.
_BATCH: Final = 20
_HOLD_SECONDS: Final = 60.0
_TIMEOUT_SECONDS: Final = 10.0
_FIRST_DELAY_SECONDS: Final = 2.0
_LONGEST_DELAY_SECONDS: Final = 3600.0
_MOST_ATTEMPTS: Final = 30
_NOT_SENT: Final = frozenset({"stop_message", "operation_id", "retries"})
_SIGNATURE_FIELDS: Final = ("task", "args", "kwargs", "options")


def read_receivers(on_complete: object, webhook: str | None) -> dict[str, Any] | None:
    """Check the receivers of a callback and give them as they are stored; None when there is none.

    Args:
        on_complete: Name of a Celery task, or a signature; it is called with the result as keyword `result`.
        webhook: An http or https URL; the result is posted to it.
    Raises:
        InvalidInput: One of them cannot be used.
    """
    target: dict[str, Any] = {}
    if on_complete is not None:
        target["task"] = _read_task(on_complete)
    if webhook is not None:
        target["webhook"] = _read_url(webhook)
    return target or None


def _read_task(on_complete: object) -> dict[str, Any]:
    if isinstance(on_complete, str) and on_complete:
        return {"task": check_text(on_complete, "on_complete")}
    if isinstance(on_complete, Mapping):
        signature = cast("Mapping[str, Any]", on_complete)
        chosen = {name: signature[name] for name in _SIGNATURE_FIELDS if name in signature}
        if isinstance(chosen.get("task"), str):
            return thaw(freeze(chosen, "on_complete"))
    raise InvalidInput("on_complete", cast("object", on_complete), "give the name of a Celery task, or a signature.")


def _read_url(webhook: str) -> str:
    if not isinstance(webhook, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidInput("webhook", type(webhook), "give an http or https URL.")
    check_text(webhook, "webhook")
    try:
        parts = urlsplit(webhook)
    except ValueError as error:
        raise InvalidInput("webhook", webhook, f"{error}; give an http or https URL.") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidInput("webhook", webhook, "give an http or https URL.")
    if parts.username or parts.password:
        raise InvalidInput(
            "webhook", parts.hostname, "leave credentials out of it: it is stored; the signature proves us."
        )
    return webhook


class CallbackCaller:
    """Makes the callbacks that are due, in a few threads of its own."""

    def __init__(self, app: Celery, store: Store, settings: Settings) -> None:
        self._app = app
        self._store = store
        self._settings = settings
        self._threads = concurrent.futures.ThreadPoolExecutor(4, thread_name_prefix="celery-agents-callback")
        self._running: set[concurrent.futures.Future[None]] = set()

    def start_due(self, shard: int) -> int:
        """Start the callbacks that are due in a shard, as many as the threads finish in time; returns how many."""
        free = _BATCH - len(self._running)
        if free <= 0:
            return 0
        found = self._store.housekeeping.due_callbacks(shard, limit=free, hold_ms=round(_HOLD_SECONDS * 1000))
        for callback in found:
            call = self._threads.submit(self._call, callback)
            self._running.add(call)
            call.add_done_callback(self._running.discard)
        return len(found)

    def _call(self, callback: Callback) -> None:
        try:
            self._send(callback)
            self._store.housekeeping.finish_callback(callback)
        except CeleryAgentsError as error:
            log.warning("callback of execution %s is due again later: %s", callback.execution_id, error)
        except Exception as error:  # noqa: BLE001 - whatever a broker's or a web server's client raises
            self._store_failure(callback, describe_exception(error).message)

    def _send(self, callback: Callback) -> None:
        if callback.kind == "task":
            self._send_task(callback, result_value(callback.result))
        else:
            self._post(callback, result_value(callback.result))

    def _send_task(self, callback: Callback, result: Mapping[str, Any]) -> None:
        task: dict[str, Any] = callback.target
        options: dict[str, Any] = {"task_id": f"{_callback_id(callback)}.callback", **(task.get("options") or {})}
        kwargs: dict[str, Any] = {**(task.get("kwargs") or {}), "result": result}
        name = options.pop("queue", None) or "celery"
        # The task belongs to another service, whose queues this app does not know: declare it as Celery does there.
        # celery-types allows only a name; Celery accepts the queue as well.
        queue: Any = Queue(name, Exchange(name, type="direct"), routing_key=name)
        self._app.send_task(task["task"], args=task.get("args") or (), kwargs=kwargs, queue=queue, **options)

    def _post(self, callback: Callback, result: Mapping[str, Any]) -> None:
        if self._settings.webhook_secret is None:
            raise PermissionError("CELERY_AGENTS_WEBHOOK_SECRET is not set in this worker")
        body = json.dumps(result, ensure_ascii=False).encode()
        now = int(time.time())
        request = urllib.request.Request(
            callback.target,
            data=body,
            headers={
                "Content-Type": "application/json",
                "User-Agent": "celery-agents",
                "X-Celery-Agents-Id": _callback_id(callback),
                "X-Celery-Agents-Signature": f"t={now},v1={signature(self._settings.webhook_secret, now, body)}",
            },
        )
        with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as answer:
            answer.read(1)

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


def result_value(result: Result) -> dict[str, Any]:
    """The JSON that a callback receives."""
    return {name: value for name, value in result.to_dict().items() if name not in _NOT_SENT}


def signature(secret: str, timestamp: int, body: bytes) -> str:
    """Sign `<timestamp>.<body>` with HMAC-SHA256, in hexadecimal; receivers compare with `hmac.compare_digest`."""
    return hmac.new(secret.encode(), f"{timestamp}.".encode() + body, hashlib.sha256).hexdigest()


def _callback_id(callback: Callback) -> str:
    """Id of a callback: the same when it is made twice, another one after a retry of the execution."""
    suffix = f".r{callback.result.retries}" if callback.result.retries else ""
    return f"{callback.execution_id}{suffix}"
