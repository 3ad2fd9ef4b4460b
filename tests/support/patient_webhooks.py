"""Webhooks of a stand-in provider, signed as OpenAI signs them: `webhook-id`, `webhook-timestamp`, `webhook-signature`.

A delivery that is not answered with 2xx is repeated three times. What was not delivered when the server dies is lost.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import queue
import threading
import time
import urllib.error
import urllib.request
import uuid
from typing import Any, Final

from .patient_ledger import Book, Job

HOW: Final = ("lost", "double", "slow", "forged", "old")
"""What a fault on "webhook" may do to a delivery."""
_PAUSES: Final = (0.1, 0.5, 2.0)
_OLD: Final = 3600
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def sign(secret: str, webhook_id: str, at: int, body: str) -> str:
    """The signature of a delivery, by a secret that begins with `whsec_`."""
    key = base64.b64decode(secret.removeprefix("whsec_"))
    digest = hmac.new(key, f"{webhook_id}.{at}.{body}".encode(), hashlib.sha256).digest()
    return f"v1,{base64.b64encode(digest).decode()}"


class Webhooks:
    """Tells an address of jobs that have ended, where one was given."""

    def __init__(self, book: Book) -> None:
        self._book = book
        self._events: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()

    def start(self) -> None:
        threading.Thread(target=self._run, daemon=True).start()

    def stop(self) -> None:
        self._events.put(None)

    def tell(self, job: Job) -> None:
        """Say that a job has ended, if it is of a kind that webhooks tell of."""
        if self._book.setting("webhooks") is None:
            return
        is_background = job.kind == "response" and job.more["is_background"]
        if job.kind == "batch" or is_background:
            self.send(f"{job.kind}.{job.status}", job.id)

    def send(self, kind: str, job_id: str) -> None:
        """Say that a job has ended, whether or not it has."""
        head = {"id": f"evt_{uuid.uuid4().hex}", "object": "event", "created_at": int(time.time())}
        self._events.put({**head, "type": kind, "data": {"id": job_id}})

    def _run(self) -> None:
        while (event := self._events.get()) is not None:
            fault = self._book.take_fault("webhook", json.dumps(event)) or {}
            threading.Thread(target=self._deliver, args=(event, fault), daemon=True).start()

    def _deliver(self, event: dict[str, Any], fault: dict[str, Any]) -> None:
        how = fault.get("fault", "sent")
        time.sleep(fault.get("seconds", 0.0))
        if how == "lost":
            self._note(event, how, 0)
            return
        for _ in range(2 if how == "double" else 1):
            for pause in (*_PAUSES, None):
                status = self._post(event, how)
                self._note(event, how, status)
                if 200 <= status < 300 or how in {"forged", "old"} or pause is None:
                    break
                time.sleep(pause)

    def _note(self, event: dict[str, Any], how: str, status: int) -> None:
        self._book.write("webhook", event["data"]["id"], type=event["type"], how=how, status=status)

    def _post(self, event: dict[str, Any], how: str) -> int:
        """Send it once; the status of the reply, 0 for none."""
        known = self._book.setting("webhooks")
        at, body = int(time.time()) - (_OLD if how == "old" else 0), json.dumps(event)
        secret = "whsec_" + base64.b64encode(b"of somebody else").decode() if how == "forged" else known["secret"]
        headers = {
            "Content-Type": "application/json", "User-Agent": "OpenAI/1.0", "webhook-id": event["id"],
            "webhook-timestamp": str(at), "webhook-signature": sign(secret, event["id"], at, body),
        }  # fmt: skip
        try:
            with _opener.open(urllib.request.Request(known["url"], body.encode(), headers), timeout=10) as reply:
                return reply.status
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0
