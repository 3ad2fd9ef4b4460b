"""A store on any database, whose round trips are noted and may be lost: for the contract tests."""

from __future__ import annotations

import contextlib
import itertools
import re
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from celery_agents.config.settings import Settings
from celery_agents.worker.engine import FirstExecution, first_state, operation_transition, stop_transition
from celery_agents.worker.engine.applied_step import start_execution
from celery_agents.worker.engine.arrivals import apply_at_end, apply_to_running
from celery_agents.worker.engine.endings import user_stop_signal
from celery_agents.worker.errors import (
    StoreUnavailable,
)
from celery_agents.worker.moments import moment
from celery_agents.worker.state import (
    AgentState,
    AgentStep,
    ErrorInfo,
    ExecutionBudget,
    ExecutionStatus,
    InferenceResponse,
    Message,
    Role,
    ToolCall,
)
from celery_agents.worker.store import (
    ActionResult,
    Claim,
    Claimed,
    EventType,
    InboxKind,
    NewEvent,
    NextState,
    Operation,
    Snapshot,
    StepRef,
    Store,
    Transition,
)
from celery_agents.worker.store.clock import RedisClock
from celery_agents.worker.store.context import Publisher
from celery_agents.worker.store.database import Command, Database, Guard
from celery_agents.worker.store.keys import FleetKeys, ShardKeys
from celery_agents.worker.store.labels import NO_LABELS
from celery_agents.worker.store.records import MessageMode
from celery_agents.worker.store.redis.cluster import ClusterDatabase

from .points import Points

_numbers = itertools.count(1)


class SpyDatabase:
    """`Database` that notes what was sent, and loses replies: the commands are applied, and nobody hears of it."""

    def __init__(self, inner: Database) -> None:
        self.inner = inner
        self.sent: list[tuple[str, Sequence[Command]]] = []
        self.losing: dict[str, int] = {}
        self.between: dict[str, Callable[[], object]] = {}
        self.after_trips: tuple[int, Callable[[], object]] | None = None

    def lose(self, point: str, times: int = 1) -> None:
        """Lose the next replies of a round trip."""
        self.losing[point] = times

    def before(self, point: str, call: Callable[[], object]) -> None:
        """Let something happen just before a round trip, once."""
        self.between[point] = call

    def after(self, trips: int, call: Callable[[], object]) -> None:
        """Let something happen once so many further round trips were made, just before the next."""
        self.after_trips = (len(self.sent) + trips, call)

    @property
    def points(self) -> list[str]:
        """Names of the round trips, in order."""
        return [name for name, _ in self.sent]

    def size(self, point: str) -> int:
        """Bytes of the last round trip of this name."""
        commands = next(commands for name, commands in reversed(self.sent) if name == point)
        return sum(len(word) if isinstance(word, bytes) else len(str(word)) for c in commands for word in c)

    def pipeline(self, point: str, commands: Sequence[Command]) -> list[Any]:
        self._note(point, commands)
        return self._heard(point, self.inner.pipeline(point, commands))

    def transaction(self, point: str, commands: Sequence[Command]) -> list[Any]:
        self._note(point, commands)
        return self._heard(point, self.inner.transaction(point, commands))

    def script(self, point: str, name: str, keys: Sequence[str], args: Sequence[Any]) -> Any:
        self._note(point, [])
        return self._heard(point, self.inner.script(point, name, keys, args))

    def script_command(self, name: str, keys: Sequence[str], args: Sequence[Any]) -> Command | None:
        return self.inner.script_command(name, keys, args)

    def place(self, key: str) -> str:
        return self.inner.place(key)

    def compare_and_apply(self, point: str, guards: Sequence[Guard], commands: Sequence[Command]) -> list[Any] | None:
        self._note(point, [*(read for read, _ in guards), *commands])
        return self._heard(point, self.inner.compare_and_apply(point, guards, commands))

    @contextlib.contextmanager
    def watch(self, point: str, keys: Sequence[str], reads: Sequence[Command]) -> Iterator[Any]:
        self._note(point, reads)
        with self.inner.watch(point, keys, reads) as watched:
            self._heard(point, None)
            yield _SpyWatched(self, watched)

    def _note(self, point: str, commands: Sequence[Command]) -> None:
        due = self.after_trips
        if due is not None and len(self.sent) == due[0]:
            self.after_trips = None
            due[1]()
        self.sent.append((point, commands))
        call = self.between.pop(point, None)
        if call is not None:
            call()

    def _heard(self, point: str, replies: Any) -> Any:
        if self.losing.get(point, 0) > 0:
            self.losing[point] -= 1
            raise StoreUnavailable(f"the reply of {point} was lost")
        return replies


class _SpyWatched:
    def __init__(self, spy: SpyDatabase, inner: Any) -> None:
        self.replies = inner.replies
        self._spy = spy
        self._inner = inner

    def pipeline(self, point: str, commands: Sequence[Command], **options: Any) -> list[Any]:
        self._spy._note(point, commands)
        return self._spy._heard(point, self._inner.pipeline(point, commands, **options))

    def commit(self, point: str, commands: Sequence[Command]) -> list[Any]:
        self._spy._note(point, commands)
        return self._spy._heard(point, self._inner.commit(point, commands))


class Bench:
    """A store with a session or two, and short words for what tests do with it."""

    def __init__(self, database: Database, **settings: Any) -> None:
        self.spy = SpyDatabase(database)
        values = {"lease_seconds": 5.0, "lease_renew_seconds": 1.0, "due_seconds": 5.0, **settings}
        self.settings = Settings.build(**values, **urls_of(database))
        self.clock = PatientClock(estimates=bool(self.settings.cache_bytes))
        self.store = self.another()
        self.session = f"s{next(_numbers)}-{uuid.uuid4().hex[:8]}"
        self.execution = uuid.uuid4().hex

    def another(self) -> Store:
        """A store of another process on the same data."""
        found, sent = Store(self.spy, self.settings, clock=self.clock, publisher=Publisher()), len(self.spy.sent)
        found.context.check_shards()  # as every process begins
        del self.spy.sent[sent:]
        return found

    @property
    def shard(self) -> ShardKeys:
        """The keys of the session's shard."""
        return self.store.context.keys(self.session).shard

    @property
    def is_quick(self) -> bool:
        """Whether claims and commits try one round trip first; a claim comes before the session is read then."""
        return bool(self.settings.cache_bytes)

    @property
    def commits_at(self) -> str:
        """The round trip in which a commit happens."""
        return Points.COMMIT_ATTEMPT if self.is_quick else Points.COMMIT_EXEC

    @property
    def claims_at(self) -> str:
        """The round trip in which a worker claims the first step of a new session."""
        return Points.CLAIM_NEW if self.is_quick else Points.CLAIM_EXEC

    def submit(
        self,
        session: str | None = None,
        fingerprint: str = "f",
        execution: str | None = None,
        notify: dict[str, Any] | None = None,
        queue: str | None = "",
        agent: str = "agent",
        labels: Mapping[str, str] = NO_LABELS,
    ) -> ActionResult:
        def transition(now_ms: int) -> NextState:
            now, first = moment(now_ms), Message.user("first")
            return first_state(
                AgentState.fresh(now=now),
                first,
                FirstExecution(execution or self.execution, "op-first", notify=notify),
                now,
            )

        name = session or self.session
        return self.store.sessions.submit(name, agent, fingerprint, transition, queue=queue, labels=labels)

    def ref(self, step: int = 1) -> StepRef:
        return StepRef(self.session, self.execution, step)

    def claim(self, step: int = 1, claim_id: str | None = None, *, alone: bool = True) -> Claimed:
        answer = self.answer(step, claim_id, alone=alone)
        assert isinstance(answer, Claimed), answer
        return answer

    def answer(self, step: int = 1, claim_id: str | None = None, *, alone: bool = True) -> Any:
        return self.store.steps.claim(self.ref(step), claim_id or uuid.uuid4().hex, "worker", alone=alone)

    def end_lease(self, claim: Claim) -> None:
        """As if its worker had been silent for a lease."""
        self.database("DEL", self.store.context.keys(claim.ref.session_id).shard.lease(claim.id))

    def database(self, *command: Any) -> Any:
        return self.spy.inner.pipeline("test", [command])[0]

    def commit(
        self,
        claimed: Claimed,
        *,
        final: bool = False,
        text: str = "text",
        keep_claim: bool = False,
        failed: bool = False,
    ) -> Any:
        return self.store.steps.commit(
            claimed.claim,
            claimed.loaded,
            step_transition(claimed, final=final, text=text, failed=failed),
            results={},
            keep_claim=keep_claim,
        )

    def step_elsewhere(self, number: int) -> None:
        """Another process claims and commits a step."""
        other = self.another()
        claimed = other.steps.claim(self.ref(number), uuid.uuid4().hex, "other", alone=True)
        assert isinstance(claimed, Claimed)
        transition = step_transition(claimed, final=False, text=f"step {number}")
        other.steps.commit(claimed.claim, claimed.loaded, transition, results={}, keep_claim=False)

    def journal(self, ref: StepRef) -> str:
        """The key of a step's journal."""
        return self.store.context.keys(self.session).journal(ref.execution_id, ref.step)

    def claims_made(self, step: int) -> int:
        """How many claims of a step were written."""
        names = self.database("HGETALL", self.journal(self.ref(step)))[::2]
        return len([name for name in names if name.startswith(b"try:")])

    def message(
        self, text: str, operation: str | None = None, *, when: str = "", key: str = "", by: str = ""
    ) -> ActionResult:
        message = an_operation(text, operation, when=when, key=key)
        message = message.taken(by=by) if by else message
        return self.store.sessions.act(self.session, message, operation_transition)

    def stop(self, **options: Any) -> ActionResult:
        return self.store.sessions.stop(self.session, None, stop_transition, **options)

    def release_queue(self, operation: str = "release") -> ActionResult:
        return self.store.sessions.release_queue(self.session, operation, operation_transition)

    def set_mode(self, operation: str, when: MessageMode, *, own: str | None = None) -> ActionResult:
        return self.store.sessions.set_mode(self.session, operation, when, operation_transition, own=own)

    @property
    def queue(self) -> tuple[list[str], str]:
        """The ids of the queued messages, and why they are held."""
        queue = self.store.sessions.read_waiting(self.session).queue
        return [each.id for each in queue.messages], queue.held

    def next_claim(self) -> Claimed:
        """The claim of the first step of the execution that follows."""
        self.execution = self.store.sessions.header(self.session).execution_id
        return self.claim()

    @property
    def said(self) -> list[str]:
        """What users have said in the session."""
        return [
            each.content for each in self.store.sessions.load(self.session).state.messages if each.role is Role.USER
        ]

    def due(self) -> float | None:
        score = self.database("ZSCORE", self.store.context.keys(self.session).shard.due, self.session)
        return None if score is None else float(score)

    @property
    def started_ms(self) -> int:
        """When the execution was claimed first, by the control fields."""
        return int(self.database("HGET", self.store.context.keys(self.session).ctl, "started"))

    def begun(self) -> int:
        """How often the execution was said to begin."""
        events = self.store.sessions.events(self.session)
        return [(event.type, event.execution_id) for event in events].count(("execution_started", self.execution))

    def follow_up(self) -> StepRef:
        """The first step of an execution that follows on one which has ended: nobody holds its session."""
        self.submit()
        self.commit(self.claim(), final=True)
        self.execution = self.message("the next execution").execution_id
        self.spy.sent.clear()
        return self.ref()

    def become_newer(self) -> None:
        """As if a newer version of the package had written the session."""
        session = self.store.context.keys(self.session).session
        head = self.database("HGET", session, "head")
        self.database("HSET", session, "head", re.sub(rb'"schema_version":\d+', b'"schema_version":99', head))

    def make_due(self) -> None:
        self.database("ZADD", self.store.context.keys(self.session).shard.due, 1, self.session)

    def snapshot(self) -> Any:
        """All of a session that a transaction could change."""
        keys = self.store.context.keys(self.session)
        session = dict(zip(*[iter(self.database("HGETALL", keys.session))] * 2, strict=True))
        ctl = dict(zip(*[iter(self.database("HGETALL", keys.ctl))] * 2, strict=True))
        return session, ctl, self.database("LRANGE", keys.inbox, 0, -1), self.due()


def urls_of(database: Database) -> dict[str, str]:
    """Settings by which the store knows that a database is a cluster; nothing for another one."""
    is_cluster = isinstance(database, ClusterDatabase)
    return {"redis_url": "redis+cluster://any", "broker_url": "redis://any"} if is_cluster else {}


def fleet_of(database: Database) -> FleetKeys:
    """The keys of the fleet in a database."""
    return FleetKeys(is_apart=isinstance(database, ClusterDatabase))


class PatientClock(RedisClock):
    """Redis's clock, apart from what a test cannot wait for.

    Attributes:
        up_for: Seconds for which Redis is said to have been up; the Redis of the tests may have been started just now.
    """

    up_for = 1e9

    def __init__(self, *, estimates: bool) -> None:
        """
        Args:
            estimates: Without, everything goes the long way, since whoever claims in one round trip has to guess the time.
        """
        super().__init__()
        self._estimates = estimates

    def at(self, place: str) -> PatientClock:
        del place
        return self

    def estimate_ms(self) -> int | None:
        """Redis's time from the start, as in a process that has asked for it before."""
        if not self._estimates:
            return None
        return super().estimate_ms() or round(time.time() * 1000)

    def pause(self, seconds: float) -> None:
        """Lost replies are asked for again at once."""

    def uptime_seconds(self, reply: Any) -> float:
        super().uptime_seconds(reply)
        return self.up_for


def an_operation(text: str, operation: str | None = None, *, when: str = "", key: str = "") -> Operation:
    """
    Args:
        when: The mode of the message; "": as an earlier version has written it, without one.
        key: The digest of what was sent under an idempotency key; "": there was none.
    """
    payload: dict[str, Any] = {"message": Message.user(text).to_dict(), **({"when": when} if when else {})}
    return Operation(operation or uuid.uuid4().hex, InboxKind.MESSAGE, payload, fingerprint=key)


def step_transition(claimed: Claimed, *, final: bool, text: str = "text", failed: bool = False) -> Transition:
    """A step that answers, or calls a tool; what is in the inbox joins or starts the next execution."""

    def transition(fresh: Snapshot) -> NextState:
        now = moment(fresh.now_ms)
        claim = claimed.claim
        state = start_execution(fresh.state, ExecutionBudget.unlimited(), now)
        calls = () if final else (ToolCall(id=f"c{claim.ref.step}", name="tool", args={}),)
        step = AgentStep.from_inference(InferenceResponse(content=text, tool_calls=calls), number=claim.ref.step)
        state = state.with_current_step(step, now=now)
        if failed:
            state = state.with_failure(ErrorInfo(kind="broken", message="broken"), now=now)
        elif fresh.cancel is not None:
            state = state.with_stop_signal(user_stop_signal(), now=now).with_execution_completed(
                claim=claim.id, now=now
            )
        elif final:
            state = state.with_execution_completed(claim=claim.id, now=now)
        else:
            state = state.with_current_step_completed(claim=claim.id, now=now)
        has_ended = state.status is not ExecutionStatus.IN_PROGRESS
        arrivals = apply_at_end(state, fresh, now) if has_ended else apply_to_running(state, fresh, now)
        event = NewEvent(EventType.STEP_COMMITTED, claim.ref.execution_id, claim.ref.step, {})
        ended = state if arrivals.state is not state and has_ended else None
        return arrivals.save(NextState(state, ended=ended, events=(event,)))

    return transition


NewBench = Callable[..., Bench]
"""Makes a bench with these settings."""
