"""Clients that do whatever a client can do, in an order that is drawn, while workers and Redis are killed."""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from celery_agents import ExecutionBudget
from celery_agents.flow import ConcurrencyLimit, Debounce, FairShares, Schedule, SpendCap
from celery_agents.worker.errors import CeleryAgentsError, SessionNotFound

from support.everything_agents import WORDS
from support.lab import Lab
from support.ledger import post_effect
from support.verdict import Verdict
from support.worker_process import WorkerProcess

MOST: Final = {"crm": 3, "bank": 2}
"""The highest that each concurrency limit is ever set to."""
_CUSTOMERS: Final = ("acme", "bolt", "cafe")
_MODES: Final = ("steer", "queue", "interrupt")
_PAUSED: Final[Sequence[dict[str, Any]]] = (
    {"agent": "limited"}, {"tool": "keyed"}, {"queue": "default"}, {"agent": "free"},
)  # fmt: skip
_FACTORS: Final = (0.2, 1.0, 1.0, 3.0)
_ACTIVE: Final = ("pending", "in_progress", "waiting")


class Crowd:
    """All that clients do, and what they know of it.

    Attributes:
        sessions: That were made and may still be there.
        said: The sessions of the messages that were accepted, by their names.
        loose: Messages that may have been taken back, and sessions that were rewound: their messages may be missing.
        gone: Sessions that were deleted or erased.
        doubtful: Sessions that may have been.
        stopped: Process ids of workers that stood still beyond their leases.
        unlimited: Concurrency limits that were removed for a time.
    """

    def __init__(self, lab: Lab, chance: random.Random) -> None:
        self.lab, self.client, self.chance = lab, lab.client, chance
        self.verdict = Verdict()
        self.sessions: list[str] = []
        self.said: dict[str, str] = {}
        self.loose: set[str] = set()
        self.gone: set[str] = set()
        self.doubtful: set[str] = set()
        self.stopped: set[int] = set()
        self.unlimited: set[str] = set()
        self._labelled: defaultdict[str, set[str]] = defaultdict(set)  # what ever had a customer, by the customer
        self._sources: dict[str, str] = {}
        self._submits: list[tuple[dict[str, Any], str]] = []
        self._workers = [lab.worker() for _ in range(2)]
        self._still: list[tuple[float, WorkerProcess]] = []
        self._removes = chance.random() < 0.5
        self._number = 0

    def act(self, seconds: float) -> None:
        """Do one thing after the other for so many seconds.

        How often each thing is done is drawn, too. In every other round sessions wait for limits and for nothing else, so that
        long lines stand there.
        """
        left_out = self.chance.choice(((), _HOLDING))
        acts = [(act, often * self.chance.choice(_FACTORS)) for act, often in _ACTS.items() if act not in left_out]
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            ((act, _),) = self.chance.choices(acts, [often for _, often in acts])
            name = act.__name__.removeprefix("_act_")
            try:
                act(self)
                self.verdict.counts[name] += 1
            except (CeleryAgentsError, TimeoutError) as error:
                self.verdict.counts[f"refused_{type(error).__name__}"] += 1
            except Exception as error:
                self.verdict.expect(False, name, f"{type(error).__name__}: {error}")
            self._wake(time.monotonic())
            time.sleep(self.chance.choice((0.0, 0.02, 0.1)))

    def _any_session(self) -> str:
        if not self.sessions:
            raise SessionNotFound("none yet")
        return self.chance.choice(self.sessions)

    def _new_name(self) -> str:
        self._number += 1
        return f"#{self._number}"

    # --- sessions and messages ----------------------------------------------------------------------------------

    def _act_submit(self, debounce: Debounce | None = None) -> None:
        """Submit a session, with a plan of up to four steps and some of the options."""
        chance, name = self.chance, self._new_name()
        agent = chance.choice(("limited", "limited", "parent", "free"))
        words = [chance.choice((*WORDS, "child") if agent == "parent" else WORDS) for _ in range(chance.randint(0, 4))]
        options: dict[str, Any] = {"idempotency_key": f"submit {name}"}
        if debounce is not None:
            options["debounce"] = debounce
        elif chance.random() < 0.5:
            options |= chance.choice(
                ({"priority": "interactive"}, {"priority": "bulk"}, {"delay": timedelta(seconds=chance.uniform(0, 2))},
                 {"expires_in": timedelta(seconds=chance.uniform(0.5, 3))}, {"session_id": f"own-{name[1:]}"})
            )  # fmt: skip
        if chance.random() < 0.2:
            limits = ({"max_seconds": 3}, {"max_steps": 2}, {"max_cost": 0.02})
            options["budget"] = ExecutionBudget(**chance.choice(limits))
        if chance.random() < 0.8:
            options["labels"] = {"customer": chance.choice(_CUSTOMERS)}
        options |= {"agent": agent, "message": " ".join([*words, name])}
        self._submits.append((options, ""))
        self._submit(len(self._submits) - 1)

    def _submit(self, number: int) -> None:
        options, known = self._submits[number]
        session = self.client.submit(**options).session_id
        self.verdict.expect(known in ("", session), "I8", f"{options['idempotency_key']}: {known}, then {session}")
        self._submits[number] = (options, session)
        self.said[options["message"].split()[-1]] = session
        self._labelled[options.get("labels", {}).get("customer", "")].add(session)
        if session not in self.sessions and session not in self.gone:
            self.sessions.append(session)

    def _act_submit_again(self) -> None:
        if self._submits:
            self._submit(self.chance.randrange(len(self._submits)))

    def _act_debounce(self) -> None:
        times = {"quiet": timedelta(milliseconds=300), "at_most": timedelta(seconds=1)}
        self._act_submit(Debounce(self.chance.choice("xyz"), **times))

    def _act_send(self) -> None:
        session, name = self._any_session(), self._new_name()
        text, mode = f"{self.chance.choice(WORDS)} {name}", self.chance.choice(_MODES)
        for _ in range(self.chance.choice((1, 1, 2))):
            self.client.send_message(session, text, when=mode, idempotency_key=name)
            self.said[name] = session

    def _act_withdraw_or_move(self) -> None:
        """Take a message back that waits, or give it another mode."""
        session = self._any_session()
        for each in self.client.queued(session).messages[:1]:
            if self.chance.random() < 0.5:
                self.loose.add(each.text.split()[-1])
                self.client.withdraw_message(session, each.operation_id)
            else:
                self.client.set_message_mode(session, each.operation_id, self.chance.choice(_MODES))

    def _act_release(self) -> None:
        self.client.release_queue(self._any_session())

    def _act_stop(self) -> None:
        session, clear = self._any_session(), self.chance.random() < 0.2
        if clear:
            self.loose |= {name for name, told in self.said.items() if told == session}
        self.client.stop(session, clear_queue=clear, timeout=self.chance.choice((0, 2)))

    def _act_retry(self) -> None:
        self.client.retry(self._any_session())

    def _act_suspend(self) -> None:
        until = datetime.now(UTC) + timedelta(seconds=2)
        self.client.suspend(self._any_session(), reason="drawn", until=self.chance.choice((None, until)))

    def _act_resume(self) -> None:
        self.client.resume(self._any_session())

    def _act_rewind(self) -> None:
        session = self._any_session()
        self.loose.add(session)
        self.client.rewind(session, to=self.chance.randint(1, 3))

    def _act_fork(self) -> None:
        labels = {"customer": self.chance.choice(_CUSTOMERS)}
        source, go_on = self._any_session(), self.chance.random() < 0.5
        fork = str(self.client.fork(source, go_on=go_on, labels=self.chance.choice((None, labels))))
        self.sessions.append(fork)
        for customer, named in self._labelled.items():
            if source in named or customer == labels["customer"]:
                named.add(fork)
        self._sources[fork] = source

    def _act_label(self) -> None:
        session, customer = self._any_session(), self.chance.choice((*_CUSTOMERS, None))
        self._labelled[customer or ""].add(session)
        self.client.label(session, {"customer": customer})

    def _act_change_budget(self) -> None:
        self.client.job(self._any_session()).change_budget(ExecutionBudget(max_steps=self.chance.randint(1, 6)))

    def _act_answer(self) -> None:
        for found in list(self.client.requests())[:3]:
            approve = self.chance.random() < 0.7
            self.client.answer(found.summary.session_id, {found.summary.id: {"approve": approve}})

    def _act_delete(self) -> None:
        session = self._any_session()
        self.doubtful.add(session)
        self.client.delete(session, timeout=2)
        self.gone.add(session)
        self.sessions.remove(session)

    def _act_erase(self) -> None:
        customer = self.chance.choice(_CUSTOMERS)
        self.doubtful |= {each for each in self.sessions if self._lineage(each) & self._labelled[customer]}
        erased = self.client.erase(label={"customer": customer}, timeout=2).sessions
        self.gone |= set(erased)
        self.sessions = [each for each in self.sessions if each not in self.gone]

    def _lineage(self, session: str) -> set[str]:
        """A session with those that it comes from: an erased one takes its forks along."""
        source = self._sources.get(session)
        return {session} if source is None else {session} | self._lineage(source)

    # --- limits and the like ------------------------------------------------------------------------------------

    def _act_limit(self) -> None:
        name = self.chance.choice(("crm", "bank"))
        if name == "bank" and self._removes and self.chance.random() < 0.3:
            self.unlimited.add(name)
            self.client.concurrency.remove(name)
            return
        per = {"customer": self.chance.randint(0, 2)} if name == "crm" and self.chance.random() < 0.6 else {}
        self.client.concurrency.set(ConcurrencyLimit(name, total=self.chance.randint(0, MOST[name]), per=per))

    def _act_pause(self) -> None:
        what = self.chance.choice(_PAUSED)
        until = datetime.now(UTC) + timedelta(seconds=self.chance.uniform(0.5, 3))
        self.client.pause(**what, reason="drawn", until=until)

    def _act_unpause(self) -> None:
        self.client.unpause(**self.chance.choice(_PAUSED))

    def _act_cap(self) -> None:
        if self.chance.random() < 0.4:
            self.client.caps.remove("all")
            return
        usd, label = self.chance.choice((0, 1, 5, 50)), self.chance.choice(("", "customer"))
        then = self.chance.choice(("wait", "wait", "stop"))
        self.client.caps.set(SpendCap("all", usd=usd, per="day", label=label, then=then))

    def _act_share(self) -> None:
        if self.chance.random() < 0.4:
            self.client.shares.remove()
        else:
            self.client.shares.set(FairShares("customer", weights={"acme": 2}))

    def _act_schedule(self) -> None:
        if self.chance.random() < 0.4:
            self.client.schedules.remove("drawn")
            return
        session, agent = self.chance.choice((None, "log")), self.chance.choice(("limited", "free"))
        overlap = self.chance.choice(("skip", "queue"))
        self.client.schedules.set(
            Schedule(
                "drawn", cron="* * * * * *", agent=agent, message="keyed #{slot}", session=session, overlap=overlap
            )
        )

    # --- faults -------------------------------------------------------------------------------------------------

    def _act_kill(self) -> None:
        """Kill a worker, and start another one."""
        worker = self._workers.pop(0)
        worker.kill()
        self._note_death(worker)
        self._still = [(at, each) for at, each in self._still if each is not worker]
        self._workers.append(self.lab.worker(wait=False))

    def _act_stand_still(self) -> None:
        """Let a worker stand still, for a moment or beyond its leases."""
        worker, seconds = self.chance.choice(self._workers), self.chance.choice((0.5, 4.0))
        if any(each is worker for _, each in self._still):
            return
        worker.pause()
        self._still.append((time.monotonic() + seconds, worker))
        if seconds > 1:
            self.stopped.add(worker.pid)
            self._note_death(worker)

    def _note_death(self, worker: WorkerProcess) -> None:
        """Note in the ledger that nothing runs any more in a worker, when what it had sent has arrived."""
        time.sleep(0.1)
        post_effect(self.lab.ledger.url, f"killed {worker.pid}", dedupe=False, kind="killed", limit="", pid=worker.pid)

    def _wake(self, until: float) -> None:
        for _, worker in (due := [each for each in self._still if each[0] <= until]):
            worker.resume()
        self._still = [each for each in self._still if each not in due]

    def _act_kill_redis(self) -> None:
        self.lab.server.kill()
        time.sleep(self.chance.uniform(0, 1))
        self.lab.server.start()

    # --- the end ------------------------------------------------------------------------------------------------

    def lift(self) -> None:
        """Take away all that lets something wait."""
        self._wake(float("inf"))
        self.client.concurrency.set(ConcurrencyLimit("crm", total=MOST["crm"], per={"customer": 2}))
        self.client.concurrency.set(ConcurrencyLimit("bank", total=MOST["bank"]))
        self.client.caps.remove("all")
        self.client.shares.remove()
        self.client.schedules.remove("drawn")
        for what in _PAUSED:
            self.client.unpause(**what)
        for session in self.sessions:
            self._try(self.client.resume, session)

    def rests(self) -> bool:
        """Let go what is held, and see whether anything is left to be done."""
        for found in list(self.client.requests()):
            self._try(self.client.answer, found.summary.session_id, {found.summary.id: {"approve": True}})
        active = [each.session_id for status in _ACTIVE for each in self.client.list(status=status)]
        for session in active:
            self._try(self.client.resume, session)
        parts = [part for each in self.client.concurrency.list() for part in each.parts]
        due, _, _ = self.client.store.housekeeping.backlog()
        if active or due or any(part.held or part.waiting for part in parts):
            return False
        released = [self._try(self.client.release_queue, each) for each in self.sessions]
        return not any(released)

    def _try(self, verb: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return verb(*arguments)
        except CeleryAgentsError:
            return None


_ACTS: Final[dict[Callable[[Crowd], None], float]] = {
    Crowd._act_submit: 9, Crowd._act_submit_again: 3, Crowd._act_debounce: 2, Crowd._act_send: 6,
    Crowd._act_withdraw_or_move: 2, Crowd._act_release: 1, Crowd._act_stop: 3, Crowd._act_retry: 2, Crowd._act_suspend: 2,
    Crowd._act_resume: 2, Crowd._act_rewind: 1, Crowd._act_fork: 2, Crowd._act_label: 3, Crowd._act_change_budget: 1,
    Crowd._act_answer: 4, Crowd._act_delete: 1, Crowd._act_erase: 0.2, Crowd._act_limit: 4, Crowd._act_pause: 1,
    Crowd._act_unpause: 1, Crowd._act_cap: 1, Crowd._act_share: 1, Crowd._act_schedule: 1, Crowd._act_kill: 0.4,
    Crowd._act_stand_still: 0.4, Crowd._act_kill_redis: 0.15,
}  # fmt: skip
_HOLDING: Final = (
    Crowd._act_debounce, Crowd._act_suspend, Crowd._act_pause, Crowd._act_cap, Crowd._act_share, Crowd._act_schedule,
    Crowd._act_stand_still, Crowd._act_kill_redis,
)  # fmt: skip
NAMES: Final = tuple(act.__name__.removeprefix("_act_") for act in _ACTS)
"""The counts of what was done."""
