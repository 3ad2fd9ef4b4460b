"""Messages of every mode, while workers are killed at every crash point of a step: each is delivered once.

One worker at a time, with a crash plan until all are used. Each session has one sender, whose messages take turns in their modes, and
one of which all are refused where something runs; many are sent again under their keys, at once or later. What was delivered is what an outside ledger has counted.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from celery_agents import AgentClient, Job
from celery_agents.worker.errors import SessionBusy
from celery_agents.worker.state import Role
from celery_agents.worker.state.conversation.messages import DEFAULT
from celery_agents.worker.store.event_records import EventType

from support.lab import Lab, Supervisor
from support.verdict import Verdict, judge_rest
from support.wait import wait_until

MODES: Final = ("steer", "queue", "interrupt", "refuse")
FUSED: Final = ("c0", "c1", "c2", "c3", "c4", "c5", "c6", "c7", "c8")
SEPARATE: Final = ("c8", "c9")
_SESSIONS: Final = 4
_MOST_WAITING: Final = 4
_ENV: Final = {
    "CELERY_AGENTS_ATTEMPTS_LIMIT": "100",
    "CELERY_AGENTS_SUSPECT_ATTEMPTS": "90",
    "CELERY_AGENTS_DEFAULT_MAX_STEPS": "0",
    "CELERY_AGENTS_EVENTS_KEPT": "20000",
    "CELERY_AGENTS_OPERATIONS_KEPT": "5000",
}


def kill_deliveries(
    directory: Path, rounds: int, seed: int, *, points: Sequence[str], separate: bool = False, timeout: float
) -> Verdict:
    """Kill a worker so many times at each point, with messages of all modes on their way.

    Args:
        separate: With a broker of its own, so that a step is published behind its commit.
    """
    chance = random.Random(seed)
    plans = [f"{point}:0.15:{chance.randrange(10**9)}" for point in points for _ in range(rounds)]
    with Lab(directory, separate=separate, agents="support.listening_agents", env=_ENV) as lab:
        senders = [_Sender(lab.new_client(), f"s{number}", random.Random(seed + number)) for number in range(_SESSIONS)]
        senders[-1].turns = ("refuse",)
        verdict = Verdict()
        with Supervisor(lab, plans, 1) as supervisor:
            for each in senders:
                each.start()
            deaths = 0
            deadline = time.monotonic() + timeout
            while not supervisor.done or len(supervisor.deaths) > deaths:
                assert time.monotonic() < deadline, f"not done within {timeout:g} s: {supervisor.active}"
                if len(supervisor.deaths) > deaths:
                    _count(verdict, supervisor.deaths[deaths].crash, senders, lab)
                    deaths += 1
                time.sleep(0.02)
            for each in senders:
                each.finish()
            wait_until(lambda: all(each.is_done() for each in senders), "all is delivered", 90)
        for death in supervisor.deaths:
            verdict.expect(death.code == -9, "workers", f"ended with {death.code} at {death.crash}")
        heard = Counter(
            each["work"] for each in lab.ledger.entries() if each.get("kind") == "effect" and each["effect"]
        )
        for each in senders:
            each.judge(verdict, heard)
        verdict.expect(not heard, "I8", f"nobody has sent {heard}")
        judge_rest(verdict, lab.client, lab.redis)
    return verdict


def _count(verdict: Verdict, crash: str, senders: Sequence[_Sender], lab: Lab) -> None:
    """Note which modes were on their way when a worker died."""
    point = crash.partition(":")[0]
    heard = {each["work"] for each in lab.ledger.entries() if each.get("kind") == "effect"}
    verdict.counts["kills"] += 1
    for mode in {mode for each in senders for name, mode in list(each.modes.items()) if name not in heard}:
        verdict.counts[f"{mode}_{point}"] += 1


@dataclass
class _Sender:
    """Sends messages to one session, in one mode after the other.

    Attributes:
        sent: The jobs of the messages that were accepted, by their names, in their order.
        modes: Of the messages that were or may yet be accepted.
        refused: Names of those that were refused.
        turns: The modes, in turn.
    """

    client: AgentClient
    session: str
    chance: random.Random
    sent: dict[str, Job] = field(default_factory=dict[str, Job])
    modes: dict[str, str] = field(default_factory=dict[str, str])
    refused: list[str] = field(default_factory=list[str])
    turns: Sequence[str] = MODES

    def start(self) -> None:
        """Begin the session, and send."""
        self._ended = threading.Event()
        self._problem: BaseException | None = None
        self._send(f"{self.session}.0", "steer")
        self._thread = threading.Thread(target=self._run, name=f"sender to {self.session}", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Send no more; every second message is sent once more."""
        self._ended.set()
        self._thread.join(60)
        if self._problem is not None:
            raise self._problem
        for name in list(self.sent)[::2]:
            self._send(name, self.modes[name])

    def is_done(self) -> bool:
        """Whether nothing runs and nothing waits."""
        return self._waiting() == 0 and self.client.header(self.session).status == "completed"

    def _run(self) -> None:
        try:
            for number, mode in zip(itertools.count(1), itertools.cycle(self.turns), strict=False):
                is_idle_wanted = mode == "refuse" and self.chance.random() < 0.8
                while self._waiting() >= _MOST_WAITING or (is_idle_wanted and not self.is_done()):
                    if self._ended.wait(0.02):
                        return
                self._send(f"{self.session}.{number}", mode)
                if self.chance.random() < 0.3:
                    name = self.chance.choice(list(self.sent))
                    self._send(name, self.modes[name])
                if self._ended.wait(self.chance.uniform(0, 0.3)):
                    return
        except BaseException as error:
            self._problem = error

    def _waiting(self) -> int:
        waiting = self.client.store.sessions.read_waiting(self.session)
        return len(waiting.inbox) + len(waiting.queue.messages)

    def _send(self, name: str, mode: str) -> None:
        self.modes[name] = mode
        try:
            if not self.sent or name == next(iter(self.sent)):
                job = self.client.submit("listener", name, session_id=self.session, idempotency_key=name)
            else:
                job = self.client.send_message(self.session, name, when=mode, idempotency_key=name)
        except SessionBusy:
            assert name not in self.sent, f"{name} was accepted, and then refused"
            del self.modes[name]
            self.refused.append(name)
            return
        first = self.sent.setdefault(name, job)
        assert (job.operation_id, job.placed) == (first.operation_id, first.placed), f"{name} has two receipts"

    # --- the verdict ------------------------------------------------------------------------------------------

    def judge(self, verdict: Verdict, heard: Counter[str]) -> None:
        """Compare what was sent with the ledger, with the conversation, and with the events."""
        messages = self.client.show(self.session).state.store.section(DEFAULT).messages
        said = [each.content for each in messages if each.role is Role.USER]
        for name in (*self.sent, *self.refused):
            times = (heard.pop(name, 0), said.count(name))
            wanted = (1, 1) if name in self.sent else (0, 0)
            verdict.expect(times == wanted, "I8", f"{name} ({self.modes.get(name)}): heard and said {times} times")
        verdict.expect(set(said) == set(self.sent), "I8", f"said in {self.session} was {set(said) - set(self.sent)}")
        for mode in MODES[:3]:
            mine = [name for name in self.sent if self.modes[name] == mode]
            found = [name for name in said if self.modes.get(name) == mode]
            verdict.expect(found == mine, "order", f"{mode} messages of {self.session}: {found} in place of {mine}")
        self._judge_events(verdict)
        made = Counter(each.id for message in messages for each in message.tool_calls)
        results = Counter(each.tool_call_id for each in messages if each.role is Role.TOOL)
        verdict.expect(made == results, "calls", f"calls {made - results}, results {results - made} are alone")
        verdict.counts.update(f"sent_{self.modes[name]}" for name in self.sent)
        verdict.counts.update(refused=len(self.refused))

    def _judge_events(self, verdict: Verdict) -> None:
        """Each message is part of one execution, a queued one of an execution that it has started."""
        events = self.client.store.sessions.events(self.session, limit=10_000)
        parts = Counter(str(e.data["operation"]) for e in events if e.type in _BEGINS)
        started = {str(e.data["operation"]) for e in events if e.type in _BEGINS and e.data.get("started", True)}
        for name, job in self.sent.items():
            times = parts[job.operation_id]
            verdict.expect(times == 1, "I8", f"{name} became part of {times} executions by {self.session}'s events")
            if job.placed == "queued":
                verdict.expect(job.operation_id in started, "queue", f"{name} was queued, and started no execution")
        undelivered = [e.data for e in events if e.type == EventType.MESSAGE_UNDELIVERED]
        verdict.expect(not undelivered, "I8", f"undelivered: {undelivered}")


_BEGINS: Final = (EventType.EXECUTION_SUBMITTED, EventType.MESSAGE_JOINED)
