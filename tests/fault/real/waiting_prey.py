"""A session that waits for a person and may be damaged: one for each batch of substitutions."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any, Final

from celery_agents.worker.errors import CeleryAgentsError
from celery_agents.worker.state import Approve
from celery_agents.worker.store import keys

from support.agents import call, plan
from support.lab import Lab
from support.verdict import Verdict
from support.wait import wait_until

TOOLS: Final = ("approved_unsafe", "question", "later_keyed")
_JOURNAL_FIELDS: Final = ("t0:q1", "t0:q2", "t1:q1", "t2:q1", "t0:a1", "t0:d", "t0:b", "response", "handed_over")
_CONTROL_FIELDS: Final = (
    "phase",
    "step",
    "execution",
    "legs",
    "held",
    "not_before",
    "started",
    "attempts",
    "outbox",
    "watched",
    "live",
)


class WaitingPrey:
    """Waits with an approval, a question and a call whose result comes later.

    Attributes:
        damages: Writes into what is stored of it; each takes a number and the bytes that are written.
        session_ids: All that there were.
    """

    def __init__(self, lab: Lab, verdict: Verdict) -> None:
        self._lab = lab
        self._verdict = verdict
        self._broker = lab.broker()
        self._numbers = itertools.count()
        self._is_damaged = False
        self._refused: set[str] = set()
        self.session_ids: list[str] = []
        self.damages: tuple[Callable[[int, bytes], object], ...] = (
            self._damage_journal, self._damage_control, self._damage_header, self._damage_request_index,
            self._damage_outbox, self._damage_memo,
        )  # fmt: skip
        self._renew()

    def close(self) -> None:
        """Stop the last one, see that each has ended or is named as damaged, and take away what is left of them."""
        self._lab.client.stop(self.session_ids[-1])
        for session in self.session_ids:
            standing = self._standing(session)
            self._verdict.counts[f"damaged_{standing}"] += 1
            # One that waits on, since nobody can go on with what is left of it, has said so to whoever asked.
            has_ended = standing not in ("waiting", "pending", "in_progress")
            self._verdict.expect(has_ended or session in self._refused, "named", f"{session}: {standing}")
            left = list(self._broker.scan_iter(f"{keys.ShardKeys(0).session(session).session}*", count=10_000))
            self._broker.delete(*left, "nothing")
            self._broker.zrem(keys.ShardKeys(0).due, session)
        self._broker.close()

    def _standing(self, session: str) -> str:
        try:
            return self._lab.client.header(session).status
        except CeleryAgentsError as error:
            return type(error).__name__

    def meet(self) -> None:
        """Have everybody read what was damaged: a client that lists and answers, and the worker that it wakes."""
        if not self._is_damaged:
            return
        session = self.session_ids[-1]
        client = self._lab.client
        for verb in (
            lambda: client.requests(limit=50),
            lambda: client.requests(session, status=None),
            lambda: client.answer(session, dict.fromkeys(self._request_ids, Approve())),
            lambda: client.show(session),
            lambda: client.stop(session, timeout=3),
        ):
            try:
                verb()
            except (CeleryAgentsError, TimeoutError):
                self._verdict.counts["damaged_requests_refused"] += 1
                self._refused.add(session)
        # A worker looks at it, even after a refused answer.
        self._broker.zadd(keys.ShardKeys(0).due, {session: 0})
        self._renew()

    def _renew(self) -> None:
        session = f"asking-{next(self._numbers)}"
        calls = [call(tool, work=f"{session}.{tool}") for tool in TOOLS]
        self._lab.client.submit("asking", plan(calls), session_id=session)
        self.session_ids.append(session)
        self._is_damaged = False

        def waits() -> bool:
            return self._lab.client.header(session).status == "waiting"

        wait_until(waits, f"{session} waits", 60)
        found = self._lab.client.requests(session).requests
        assert len(found) == len(TOOLS)
        self._request_ids = [each.summary.id for each in found]
        self._keys = keys.ShardKeys(0).session(session)
        (self._journal,) = self._broker.scan_iter(f"{self._keys.session}:j:*", count=10_000)

    def _damage_journal(self, number: int, raw: bytes) -> None:
        self._is_damaged = True
        there: list[Any] = sorted(self._broker.hkeys(self._journal))  # pyright: ignore[reportUnknownArgumentType]
        names = [*there, *_JOURNAL_FIELDS]
        self._broker.hset(self._journal, names[number % len(names)], raw)

    def _damage_memo(self, number: int, raw: bytes) -> None:
        """Write into one field of a stored request, as the memo of a call is one."""
        self._is_damaged = True
        place = _JOURNAL_FIELDS[number % 3]
        stored = self._broker.hget(self._journal, place)
        try:
            request = json.loads(stored or b"{}")
        except ValueError:
            return  # damaged before
        if isinstance(request, dict):
            text = raw.decode("utf-8", "replace")
            names = ("options", "answer_schema", "on_expiry", "child", "args", "kind", "expires_at_ms")
            request[names[number % len(names)]] = text if number % 2 else {"memo": text, "questions": text}
            self._broker.hset(self._journal, place, json.dumps(request))

    def _damage_control(self, number: int, raw: bytes) -> None:
        self._is_damaged = True
        self._broker.hset(self._keys.ctl, _CONTROL_FIELDS[number % len(_CONTROL_FIELDS)], raw)

    def _damage_header(self, number: int, raw: bytes) -> None:
        self._is_damaged = True
        names: list[Any] = sorted(self._broker.hkeys(self._keys.session))  # pyright: ignore[reportUnknownArgumentType]
        self._broker.hset(self._keys.session, names[number % len(names)], raw)

    def _damage_request_index(self, number: int, raw: bytes) -> None:
        index = keys.ShardKeys(0).requests
        there: list[Any] = self._broker.zrange(index, 0, 50)
        self._broker.zadd(index, {raw: number})
        for member in there[:1]:
            self._broker.zadd(index, {member + raw[:20]: number})

    def _damage_outbox(self, number: int, raw: bytes) -> None:
        note = f"{self.session_ids[-1]} {number} request ".encode() + raw
        self._broker.zadd(keys.ShardKeys(0).callbacks, {note: 1})
