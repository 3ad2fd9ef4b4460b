"""Clients that submit, answer, stop and delete all the while, and remember what was acknowledged.

After the faults each acknowledged act is looked for. Its loss is counted, and mended where a job would wait for it for ever.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable

import httpx

from celery_agents import AgentClient
from celery_agents.worker.errors import (
    ActionRefused,
    RequestNotFound,
    RequestNotOpen,
    SessionNotFound,
    StoreUnavailable,
)
from celery_agents.worker.state import Approve

from .agents import call, plan

_PAUSE_SECONDS = 0.1
# What a client may hear of a session that a failover has changed or forgotten.
_EXPECTED = (StoreUnavailable, SessionNotFound, RequestNotOpen, RequestNotFound, ActionRefused, TimeoutError)
_STEPS = 40
_ENDED = frozenset({"completed", "failed", "stopped"})


class ActingClient(threading.Thread):
    """One client; its four acts take turns until `close`.

    Args:
        name: Begins the ids of its sessions.
        connect: Makes its client, in its thread.
        enter: Called first in its thread, such as to be on another host.

    Attributes:
        acted: How many acts of each kind were acknowledged, and how many got an error that is a part of the contract.
        problems: Errors that are none.
    """

    def __init__(
        self, name: str, connect: Callable[[], AgentClient], enter: Callable[[], object] = lambda: None
    ) -> None:
        super().__init__(name=name, daemon=True)
        self._connect, self._enter = connect, enter
        self._closed = threading.Event()
        self._unsure: list[str] = []  # their submit was not acknowledged, and may have been written
        self._asked: list[str] = []
        self._open: set[str] = set()
        self._answered: list[str] = []
        self._stopped: list[str] = []
        self._deleted: list[str] = []
        self.acted: Counter[str] = Counter()
        self.problems: list[str] = []

    @property
    def acknowledged(self) -> int:
        """All acts that were acknowledged."""
        return sum(count for name, count in self.acted.items() if name != "refused")

    def run(self) -> None:
        """Act until it is closed."""
        self._enter()
        client = self._connect()
        acts = itertools.cycle((self._act_ask, self._act_answer, self._act_stop, self._act_delete))
        for number in itertools.count():
            if self._closed.wait(_PAUSE_SECONDS):
                return
            try:
                next(acts)(client, number)
            except _EXPECTED:
                self.acted["refused"] += 1
            except Exception as error:  # the verdict says it
                self.problems.append(f"{self.name}: {type(error).__name__}: {error}")

    def close(self) -> None:
        """End it."""
        self._closed.set()
        self.join(60)

    def _submit(self, client: AgentClient, kind: str, number: int, steps: int, tool: str) -> str:
        session = f"{self.name}-{kind}-{number}"
        works = [[call(tool, work=f"{session}.{step}")] for step in range(steps)]
        client.submit("asking", plan(*works, after=0.2 if steps == _STEPS else 0), session_id=session)
        self.acted["submits"] += 1
        return session

    def _act_ask(self, client: AgentClient, number: int) -> None:
        self._unsure.append(f"{self.name}-ask-{number}")
        session = self._submit(client, "ask", number, 1, "approved_keyed")
        self._unsure.remove(session)
        self._asked.append(session)
        self._open.add(session)

    def _act_answer(self, client: AgentClient, number: int) -> None:
        del number
        for session in sorted(self._open)[:3]:
            if _answer_all(client, session):
                self._open.discard(session)
                self._answered.append(session)
                self.acted["answers"] += 1

    def _act_stop(self, client: AgentClient, number: int) -> None:
        session = self._submit(client, "stop", number, _STEPS, "pure")
        client.stop(session, timeout=0, by=self.name)
        self._stopped.append(session)
        self.acted["stops"] += 1

    def _act_delete(self, client: AgentClient, number: int) -> None:
        session = self._submit(client, "delete", number, 1, "keyed")
        client.delete(session, timeout=5)
        self._deleted.append(session)
        self.acted["deletions"] += 1

    def count_lost(self, client: AgentClient, timeout: float = 90.0) -> Counter[str]:
        """Look for everything that was acknowledged, when the faults are over; wait until all of it has ended.

        Returns:
            `submits_lost`, `answers_lost`, `stops_lost`, `deletions_undone`, `never_ended`.
        """
        lost: Counter[str] = Counter()
        lost["deletions_undone"] += sum(_status(client, session) is not None for session in self._deleted)
        for session in self._stopped:
            end = self._end_of(client, session, timeout)
            lost["stops_lost"] += end in (None, "completed")
            lost["never_ended"] += end == "active"
        for session in self._asked:
            lost["submits_lost"] += _status(client, session) is None
            was_open = _answer_all(client, session) if session in self._answered else False
            lost["answers_lost"] += was_open
            end = self._end_of(client, session, timeout)
            lost["never_ended"] += end == "active"
        for session in self._unsure:  # nobody else would answer them, and nothing was promised
            lost["never_ended"] += self._end_of(client, session, timeout) == "active"
        return lost

    def _end_of(self, client: AgentClient, session: str, timeout: float) -> str | None:
        """How a session ended; None: there is none, "active": it has not ended in time."""
        deadline = time.monotonic() + timeout
        while (status := _status(client, session)) is not None and status not in _ENDED:
            if session in self._asked or session in self._unsure:
                _answer_all(client, session)
            if time.monotonic() > deadline:
                return "active"
            time.sleep(0.1)
        return status


def _status(client: AgentClient, session: str) -> str | None:
    try:
        return client.header(session).status
    except SessionNotFound:
        return None


def _answer_all(client: AgentClient, session: str) -> bool:
    """Approve what a session asks; whether there was something."""
    try:
        asked = [found.summary.id for found in client.requests(session)]
        if asked:
            client.answer(session, {request: Approve() for request in asked}, by="client")
    except SessionNotFound:
        return False
    except (RequestNotOpen, RequestNotFound):
        return False
    return bool(asked)


class ReadingClient(threading.Thread):
    """Reads listings and submits by the HTTP interface; counts replies by their status."""

    def __init__(self, http: httpx.Client) -> None:
        super().__init__(name="http", daemon=True)
        self._http = http
        self._closed = threading.Event()
        self.replies: Counter[int] = Counter()
        self.submitted: list[str] = []

    def run(self) -> None:
        """Ask until it is closed."""
        for number in itertools.count():
            if self._closed.wait(_PAUSE_SECONDS):
                return
            session = f"http-{number}"
            body = {"message": plan([call("keyed", work=session)]), "session_id": session}
            try:
                self.replies[self._http.get("/v1/sessions", params={"limit": 5}).status_code] += 1
                reply = self._http.post("/v1/agents/asking/jobs", json=body)
            except httpx.HTTPError:
                self.replies[0] += 1
                continue
            self.replies[reply.status_code] += 1
            if reply.is_success:
                self.submitted.append(session)

    def close(self) -> None:
        """End it."""
        self._closed.set()
        self.join(90)
