"""The effect ledger: an HTTP service outside of every worker that has each effect on the disk before it answers.

POST /effect   {"key": …, "dedupe": true|false, "gate": name, "before": s, "after": s, anything else}
    Writes one line, then answers {"n", "repeated", "first"}. With `dedupe` the service keeps one effect per key, as
    one behind a *keyed* tool does: a repetition is written down as a delivery and answered with the first effect.
    Without, every delivery is an effect. `before` and `after` are seconds of waiting before and after the line is
    written; at the gate it waits after it is written: the effect is done, and its answer is not yet known.
GET  /lookup?key=…    {"happened", "n", "entry"}, what the `lookup` of a tool asks
GET  /entries[?key=…]
POST /gates/<name>    open a gate
"""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import Any

from .http_service import Entry, Handler, ServiceProcess, Space, call, serve


class _LedgerSpace(Space):
    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._first: dict[str, int] = {}
        for entry in self.records.entries():
            self._first.setdefault(entry["key"], entry["n"])

    def deliver(self, body: Entry) -> Entry:
        """Write one delivery down; the lock of the records makes "first" and "repeated" exact."""

        def make(earlier: list[Entry]) -> Entry:
            repeated = body["key"] in self._first
            first = self._first.setdefault(body["key"], len(earlier) + 1)
            return {**body, "repeated": repeated, "first": first, "effect": not (repeated and body.get("dedupe"))}

        return self.records.append(make)


class _LedgerHandler(Handler):
    def handle_post(self, space: _LedgerSpace, path: str, query: dict[str, str], body: Any) -> None:
        if path != "/effect":
            super().handle_post(space, path, query, body)
            return
        if not isinstance(body, dict) or not isinstance(body.get("key"), str):
            self.answer(400, {"error": "an effect needs a key"})
            return
        self._pause(body.get("before"))
        entry = space.deliver(body)
        self._pause(body.get("after"))
        if "gate" in body and not self.wait_at_gate(space.gate(body["gate"])):
            self.close_connection = True
            return
        self.answer(200, {"n": entry["n"], "repeated": entry["repeated"], "first": entry["first"]})

    def handle_get(self, space: _LedgerSpace, path: str, query: dict[str, str]) -> None:
        entries = [entry for entry in space.records.entries() if query.get("key") in (None, entry["key"])]
        if path == "/entries":
            self.answer(200, entries)
        elif path == "/lookup":
            first = entries[0] if entries else None
            self.answer(200, {"happened": bool(entries), "n": first and first["n"], "entry": first})
        else:
            super().handle_get(space, path, query)

    def _pause(self, seconds: float | None) -> None:
        if seconds:
            threading.Event().wait(seconds)


# The environment variable by which agents in a worker find the ledger.
LEDGER_URL = "TEST_LEDGER_URL"


def post_effect(url: str, key: str, *, timeout: float = 60.0, **fields: Any) -> Entry:
    """What a tool does: have an effect. `url` is the ledger's, as `Ledger.url` gives it."""
    return call(f"{url}/effect", {"key": key, **fields}, timeout=timeout)


class Ledger:
    """One test's view of the ledger."""

    def __init__(self, service: ServiceProcess, space: str) -> None:
        self.url = service.space(space)
        self._service = service
        self._space = space

    @property
    def env(self) -> dict[str, str]:
        """What a worker's environment needs for the agents of `support.agents`."""
        return {LEDGER_URL: self.url}

    def entries(self, key: str | None = None) -> list[Entry]:
        """Every delivery in order, with the fields that were sent and `n`, `at`, `repeated`, `first`, `effect`."""
        return [entry for entry in call(f"{self.url}/entries") if key in (None, entry["key"])]

    def deliveries(self) -> Counter[str]:
        """How often each key arrived."""
        return Counter(entry["key"] for entry in self.entries())

    def effects(self) -> Counter[str]:
        """How many effects each key had: with `dedupe` at most one, without it one for each delivery."""
        return Counter(entry["key"] for entry in self.entries() if entry["effect"])

    def records(self) -> list[Entry]:
        """The lines on the disk."""
        return self._service.records(self._space)

    def open(self, gate: str) -> None:
        """Let everybody pass who waits at this gate, now and later."""
        call(f"{self.url}/gates/{gate}", {})


if __name__ == "__main__":
    serve(_LedgerHandler, _LedgerSpace)
