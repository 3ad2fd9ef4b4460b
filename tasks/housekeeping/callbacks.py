"""Telling others that an execution has ended: by a Celery task, by a webhook, or both.

The ending transaction notes it, the sweeping worker does it, and ends the note when it was heard. A crash in between
tells twice: a task then comes under the same task id, a webhook with the same `X-Celery-Agents-Id`, so that its
receiver can tell. A retried execution ends again, and is told again, under another id.
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
from ...worker.store import Callback, Store

log = logging.getLogger(__name__)

# At most so many are under way. Four threads have told them within fifty seconds, however long each receiver takes.
_BATCH: Final = 20
_HOLD_SECONDS: Final = 60.0
_TIMEOUT_SECONDS: Final = 10.0
_FIRST_DELAY_SECONDS: Final = 2.0
_LONGEST_DELAY_SECONDS: Final = 3600.0
_MOST_ATTEMPTS: Final = 30
_SIGNATURE_FIELDS: Final = ("task", "args", "kwargs", "options")


def target_of(on_complete: object, webhook: str | None) -> dict[str, Any] | None:
    """Whom to tell, as it is stored; None for nobody.

    Args:
        on_complete: Name of a Celery task, or a signature; it is called with the result as keyword `result`.
        webhook: An http or https URL; the result is posted to it.
    Raises:
        InvalidInput: One of them cannot be used.
    """
    target: dict[str, Any] = {}
    if on_complete is not None:
        target["task"] = _task(on_complete)
    if webhook is not None:
        target["webhook"] = _url(webhook)
    return target or None


def _task(on_complete: object) -> dict[str, Any]:
    if isinstance(on_complete, str) and on_complete:
        return {"task": check_text(on_complete, "on_complete")}
    if isinstance(on_complete, Mapping):
        signature = cast("Mapping[str, Any]", on_complete)
        chosen = {name: signature[name] for name in _SIGNATURE_FIELDS if name in signature}
        if isinstance(chosen.get("task"), str):
            return thaw(freeze(chosen, "on_complete"))
    raise InvalidInput("on_complete", cast("object", on_complete), "give the name of a Celery task, or a signature.")


def _url(webhook: str) -> str:
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
    """Makes the callbacks that are due; webhooks in a few threads of their own."""

    def __init__(self, app: Celery, store: Store, settings: Settings) -> None:
        self._app = app
        self._store = store
        self._settings = settings
        self._threads = concurrent.futures.ThreadPoolExecutor(4, thread_name_prefix="celery-agents-callback")
        self._under_way: set[concurrent.futures.Future[None]] = set()

    def once(self, shard: int) -> int:
        """Begin what is due in a shard, no more than has been made before it comes again; how many."""
        free = _BATCH - len(self._under_way)
        if free <= 0:
            return 0
        found = self._store.housekeeping.due_callbacks(shard, limit=free, hold_ms=round(_HOLD_SECONDS * 1000))
        for callback in found:
            call = self._threads.submit(self._call, callback)
            self._under_way.add(call)
            call.add_done_callback(self._under_way.discard)
        return len(found)

    def _call(self, callback: Callback) -> None:
        try:
            self._tell(callback)
            self._store.housekeeping.finish_callback(callback)
        except CeleryAgentsError as error:
            log.warning("callback of execution %s waits: %s", callback.execution_id, error)
        except Exception as error:  # noqa: BLE001 - whatever a broker's or a web server's client raises
            self._failed(callback, describe_exception(error).message)

    def _tell(self, callback: Callback) -> None:
        if callback.kind == "task":
            self._send_task(callback, result_of(callback))
        else:
            self._post(callback, result_of(callback))

    def _send_task(self, callback: Callback, result: Mapping[str, Any]) -> None:
        task: dict[str, Any] = callback.target
        options: dict[str, Any] = {"task_id": f"{_name(callback)}.callback", **(task.get("options") or {})}
        kwargs: dict[str, Any] = {**(task.get("kwargs") or {}), "result": result}
        name = options.pop("queue", None) or "celery"
        # The task lives in another service, of whose queues this app knows nothing: declared as Celery would there.
        # Typed as a name; Celery takes the queue itself as well.
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
                "X-Celery-Agents-Id": _name(callback),
                "X-Celery-Agents-Signature": f"t={now},v1={signature(self._settings.webhook_secret, now, body)}",
            },
        )
        with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as answer:
            answer.read(1)

    def _failed(self, callback: Callback, reason: str) -> None:
        attempts = callback.attempts + 1
        delay = min(_FIRST_DELAY_SECONDS * 2**callback.attempts, _LONGEST_DELAY_SECONDS) * random.uniform(0.5, 1.0)
        delay_ms = None if attempts >= _MOST_ATTEMPTS else round(delay * 1000)
        log.warning("callback of execution %s failed (%d): %s", callback.execution_id, attempts, reason)
        try:
            self._store.housekeeping.fail_callback(callback, delay_ms=delay_ms, reason=reason)
        except CeleryAgentsError as error:
            log.warning("callback of execution %s comes again by itself: %s", callback.execution_id, error)


def result_of(callback: Callback) -> dict[str, Any]:
    """What a callback is told."""
    record = callback.record
    return {
        "session_id": callback.session_id,
        "execution_id": callback.execution_id,
        "status": record.status,
        "final_response": record.final_response,
        "output": record.output,
        "stop_reason": record.stop_reason,
        "usage": dict(record.usage),
        "cost": record.cost,
        "step_count": record.step_count,
        "errors": list(record.errors),
    }


def signature(secret: str, timestamp: int, body: bytes) -> str:
    """HMAC-SHA256 of `<timestamp>.<body>`, in hexadecimal; compare it with `hmac.compare_digest`."""
    return hmac.new(secret.encode(), f"{timestamp}.".encode() + body, hashlib.sha256).hexdigest()


def _name(callback: Callback) -> str:
    suffix = f".r{callback.record.retries}" if callback.record.retries else ""
    return f"{callback.execution_id}{suffix}"
