"""Bursts of debounced messages in every interleaving: a caller is killed, overtaken or loses a reply at each round trip.

The product's own code runs on the database in memory. One caller hands over a message under an idempotency key, and asks
again until it has an answer; meanwhile others hand over theirs, and a worker begins and ends what they have begun.
"""

from __future__ import annotations

import contextlib
import itertools
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any, Final

from celery_agents.config.settings import Settings
from celery_agents.flow import Debounce
from celery_agents.tasks.client import submitting
from celery_agents.tasks.client.listing import Filter, iterate_headers
from celery_agents.tasks.client.submitting import SubmittingVerbs
from celery_agents.worker.errors import StoreUnavailable
from celery_agents.worker.store import Store
from celery_agents.worker.store.clock import RedisClock
from celery_agents.worker.store.context import Publisher
from celery_agents.worker.store.flow import bursts as stored
from celery_agents.worker.store.memory.database import MemoryDatabase
from celery_agents.worker.store.records import Claimed, StepRef
from celery_agents.worker.store.sessions import acting

from .strikes import Killed, Strike, StrikingDatabase, explore_worlds
from support.lua_scripts import SCRIPTS
from support.store import step_transition

ACTS: Final = ("end", "overtake", "resend, end and overtake", "end and overtake", "begin", "lose", "kill")
DEBOUNCE: Final = Debounce("repo", quiet=timedelta(seconds=10), at_most=timedelta(minutes=1))
_ACTIVE: Final = ("pending", "in_progress", "waiting")


class _Caller(SubmittingVerbs):
    """The client on a database that is given, for an agent that workers have registered."""

    def __init__(self, store: Store) -> None:
        self.settings = store.context.settings
        self._store, self._shards_checked = store, True
        self._publisher: Any = SimpleNamespace(publish=lambda *_, **__: True)
        self._notes: Any = SimpleNamespace(describe=lambda *_: "", shares=lambda: None)
        self._queues: Any = SimpleNamespace(queue_of=lambda _: "", describe_unknown=lambda _: "")


class World:
    """A caller that is struck, others, and a worker."""

    def __init__(self) -> None:
        self.now_ms = 1_800_000_000_000
        self.memory = MemoryDatabase(lambda: self.now_ms, scripts=SCRIPTS)
        self.struck = StrikingDatabase(self.memory)
        self.store = self._store(self.memory)
        self.others = _Caller(self.store)
        self.claims: dict[str, Claimed] = {}
        self.sent = Counter[str]()
        self.violations: list[str] = []
        self.is_answered = False
        self._numbers = itertools.count(1)
        self.act("overtake")  # there is a burst already

    def _store(self, database: Any) -> Store:
        clock = RedisClock(lambda: self.now_ms / 1000)
        made = Store(database, Settings.build(), clock=clock, publisher=Publisher())
        made.context.check_shards()
        return made

    def act(self, name: str) -> None:
        """Let something happen at this moment."""
        match name:
            case "kill":
                raise Killed
            case "lose":
                raise StoreUnavailable("the reply was lost")
            case "overtake":
                self._overtake()
            case "begin":
                self._begin()
            case "end":
                self._end()
            case _:
                assert name.endswith("end and overtake"), name
                if name.startswith("resend"):
                    self.others.submit("agent", "mine", idempotency_key="k", debounce=DEBOUNCE)
                    self.is_answered = True
                self._end()
                self._overtake()

    def _overtake(self) -> None:
        text = f"other {next(self._numbers)}"
        job = self.others.submit("agent", text, debounce=DEBOUNCE)
        self.sent[text] += 1
        execution = self.store.sessions.load(job.session_id).state.execution
        if job.placed == "starts" and execution is not None and execution.number > 1:
            self.violations.append("an execution begins without its quiet time")

    def _begin(self) -> None:
        """Claim the next step of every session, at a time at which all may begin."""
        self.now_ms += DEBOUNCE.at_most_ms
        for session, execution in self._active():
            if session not in self.claims:
                claimed = self.store.steps.claim(StepRef(session, execution, 1), uuid.uuid4().hex, "w", alone=True)
                assert isinstance(claimed, Claimed), claimed
                self.claims[session] = claimed

    def _end(self) -> None:
        """Let every execution, and those that are queued behind it, give its answer."""
        while self._active():
            self._begin()
            for session, claimed in list(self.claims.items()):
                transition = step_transition(claimed, final=True)
                self.store.steps.commit(claimed.claim, claimed.loaded, transition, results={}, keep_claim=False)
                del self.claims[session]

    def _active(self) -> list[tuple[str, str]]:
        found = iterate_headers(self.store, Filter())
        active = [(each.session_id, each.execution_id) for each in found if each.status in _ACTIVE]
        if len(active) > 1:
            self.violations.append("two bursts at a time")
        return active

    def play(self, strikes: Sequence[Strike]) -> int:
        """Let the caller hand over its message, and ask again until it has an answer.

        Returns:
            How many round trips it has made.
        """
        caller = _Caller(self._store(self.struck))
        self.struck.begin(strikes, self.act)
        places: list[str] = []
        with contextlib.suppress(Killed):
            while len(places) < 2:
                with contextlib.suppress(StoreUnavailable):
                    job = caller.submit("agent", "mine", idempotency_key="k", debounce=DEBOUNCE)
                    self.is_answered = True
                    places.append(job.session_id)
        if len({*places}) > 1:
            self.violations.append("a resend is told of another session")
        trips = len(self.struck.sent)
        self.struck.strikes = {}
        self._overtake()  # whoever comes next finds the burst
        self._judge()
        return trips

    def _judge(self) -> None:
        self._active()
        found = Counter[str]()
        for header in iterate_headers(self.store, Filter()):
            waiting = self.store.sessions.read_waiting(header.session_id)
            found.update(each.text for each in waiting.messages)
            state = self.store.sessions.load(header.session_id).state
            found.update(each.content for each in state.messages if each.role == "user")
        if found["mine"] > 1 or (self.is_answered and not found["mine"]):
            self.violations.append(f"the message is there {found['mine']} times")
        del found["mine"]
        if found != self.sent:
            self.violations.append(f"of the others: {found}, sent {self.sent}")


explore = partial(explore_worlds, World, ACTS)


def _overwrites(patch: Any) -> None:
    replace = stored.BurstVerbs._replace

    def write(self: Any, name: str, session_id: str, _: str, life_ms: int) -> bool:
        now = self._context.database.pipeline("bursts.now", [("HGET", self._context.fleet.burst(name), "session")])[0]
        return replace(self, name, session_id, (now or b"").decode(), life_ms)

    patch.setattr(stored.BurstVerbs, "_replace", write)


def _starts_another(patch: Any) -> None:
    patch.setattr(acting._Action, "_join_burst", lambda self, found, inbox, queue, watched, _: self._place(
        found, inbox, queue, watched, status=""
    ))  # fmt: skip


def _no_notes(patch: Any) -> None:
    patch.setattr(stored.BurstVerbs, "note_in_burst", lambda *_, **__: True)


def _made_is_over(patch: Any) -> None:
    join = SubmittingVerbs._join_burst

    def once(self: Any, submission: Any, agent: str, debounce: Any) -> Any:
        with contextlib.suppress(submitting.SessionNotFound):
            self.store.sessions.header(submission.session)
            return join(self, submission, agent, debounce)
        with contextlib.suppress(submitting.IdempotencyMismatch):
            return self._created(submission, *self._create(submission, agent)[:1], agent, "")
        return None

    patch.setattr(SubmittingVerbs, "_join_burst", once)


MUTANTS: Final[dict[str, Callable[[Any], None]]] = {
    "a burst is begun, or a message noted, whoever has done so": _overwrites,
    "a message starts an execution of a session that has ended": _starts_another,
    "nobody notes which session gets a message": _no_notes,
    "a session that another caller has just made is over": _made_is_over,
}
