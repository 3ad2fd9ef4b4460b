"""One body of tests for every step store: what `StepStore` and `Store` promise, on Redis and in memory."""

from __future__ import annotations

import contextlib
import copy
import itertools
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from celery_agents.config.settings import Settings
from celery_agents.tasks.client.job import Job
from celery_agents.worker.engine import first_state, operation_transition, retry_transition, stop_transition
from celery_agents.worker.engine.run import moment
from celery_agents.worker.engine.transitions import started
from celery_agents.worker.errors import (
    ActionRefused,
    ClaimLost,
    IdempotencyMismatch,
    InvalidTransition,
    SessionNotFound,
    StateTooNew,
    StateUnreadable,
    StoreFull,
    StoreUnavailable,
    VersionConflict,
)
from celery_agents.worker.state import (
    AgentState,
    AgentStep,
    ErrorInfo,
    ExecutionBudget,
    ExecutionStatus,
    InferenceResponse,
    Message,
    StopReason,
    ToolCall,
)
from celery_agents.worker.store import (
    ActionResult,
    Callback,
    Claim,
    Claimed,
    InboxKind,
    NewEvent,
    NextState,
    NotClaimed,
    NotClaimedReason,
    Operation,
    QueueSnapshot,
    Snapshot,
    StepRef,
    Store,
    Suspect,
    Transition,
)
from celery_agents.worker.store.clock import RedisClock
from celery_agents.worker.store.context import NoPublisher
from celery_agents.worker.store.database import Command, Database, Guard, Meanwhile
from celery_agents.worker.store.keys import PERMANENT, shard_of
from celery_agents.worker.store.memory.database import MemoryDatabase
from celery_agents.worker.store.redis.database import connect

from support.fiber_thread import DatabaseInFibers, FiberThread
from support.redis_server import RedisServer
from support.wait import wait_until

pytestmark = pytest.mark.leaves_keys("sessions are left in the middle of an execution")

_numbers = itertools.count(1)


class SpyTables:
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

    def transaction(self, point: str, commands: Sequence[Command], meanwhile: Meanwhile | None = None) -> list[Any]:
        self._note(point, commands)
        return self._heard(point, self.inner.transaction(point, commands, meanwhile))

    def script(self, point: str, name: str, keys: Sequence[str], args: Sequence[Any]) -> Any:
        self._note(point, [])
        return self._heard(point, self.inner.script(point, name, keys, args))

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
    def __init__(self, spy: SpyTables, inner: Any) -> None:
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
        self.spy = SpyTables(database)
        values = {"lease_seconds": 5.0, "lease_renew_seconds": 1.0, "due_seconds": 5.0, **settings}
        self.settings = Settings.build(**values)
        self.clock = PatientClock(estimates=bool(self.settings.cache_bytes))
        self.store = self.another()
        self.session = f"s{next(_numbers)}-{uuid.uuid4().hex[:8]}"
        self.execution = uuid.uuid4().hex

    def another(self) -> Store:
        """A store of another process on the same data."""
        return Store(self.spy, self.settings, clock=self.clock, publisher=NoPublisher())

    @property
    def commits_at(self) -> str:
        """The round trip in which a commit happens."""
        return "commit.attempt" if self.settings.cache_bytes else "commit.exec"

    @property
    def claims_at(self) -> str:
        """The round trip in which a worker claims the first step of a new session."""
        return "claim.new" if self.settings.cache_bytes else "claim.exec"

    def submit(
        self,
        session: str | None = None,
        fingerprint: str = "f",
        execution: str | None = None,
        notify: dict[str, Any] | None = None,
    ) -> ActionResult:
        def transition(now_ms: int) -> NextState:
            now, first = moment(now_ms), Message.user("first")
            return first_state(
                AgentState.fresh(now=now), first, execution or self.execution, "op-first", None, now, notify
            )

        return self.store.sessions.submit(session or self.session, "agent", fingerprint, transition)

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

    def commit(self, claimed: Claimed, *, final: bool = False, text: str = "text", keep_claim: bool = False) -> Any:
        return self.store.steps.commit(
            claimed.claim,
            claimed.loaded,
            step_transition(claimed, final=final, text=text),
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

    def message(self, text: str, operation: str | None = None) -> ActionResult:
        return self.store.sessions.act(self.session, an_operation(text, operation), operation_transition)

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
        self.database("HSET", session, "head", head.replace(b'"schema_version":1', b'"schema_version":99'))

    def make_due(self) -> None:
        self.database("ZADD", self.store.context.keys(self.session).shard.due, 1, self.session)

    def snapshot(self) -> Any:
        """All of a session that a transaction could change."""
        keys = self.store.context.keys(self.session)
        session = dict(zip(*[iter(self.database("HGETALL", keys.session))] * 2, strict=True))
        ctl = dict(zip(*[iter(self.database("HGETALL", keys.ctl))] * 2, strict=True))
        return session, ctl, self.database("LRANGE", keys.inbox, 0, -1), self.due()


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


def an_operation(text: str, operation: str | None = None) -> Operation:
    message = Message.user(text).to_dict()
    return Operation(operation or uuid.uuid4().hex, InboxKind.MESSAGE, {"message": message})


def step_transition(claimed: Claimed, *, final: bool, text: str = "text", failed: bool = False) -> Transition:
    """A step that answers, or calls a tool; what is in the inbox joins or starts the next execution."""

    def transition(fresh: Snapshot) -> NextState:
        now = moment(fresh.now_ms)
        claim = claimed.claim
        state = started(fresh.state, ExecutionBudget.unlimited(), now)
        calls = () if final else (ToolCall(id=f"c{claim.ref.step}", name="tool", args={}),)
        step = AgentStep.from_inference(InferenceResponse(content=text, tool_calls=calls), number=claim.ref.step)
        state = state.with_current_step(step, now=now)
        if failed:
            state = state.with_failure(ErrorInfo(kind="broken", message="broken"), now=now)
        elif final:
            state = state.with_execution_completed(claim=claim.id, now=now)
        else:
            state = state.with_current_step_completed(claim=claim.id, now=now)
        after = operation_transition(Snapshot(state, fresh.inbox, fresh.entries, fresh.now_ms, None)).state
        event = NewEvent("step_committed", claim.ref.execution_id, claim.ref.step, {})
        return NextState(
            after,
            ended=state if after is not state and state.status is not ExecutionStatus.IN_PROGRESS else None,
            events=(event,),
            operations=tuple(operation.id for operation in fresh.inbox),
        )

    return transition


@pytest.fixture(params=["redis", "redis in fibers", "memory"])
def database(request: pytest.FixtureRequest) -> Iterator[Database]:
    if request.param == "memory":
        yield MemoryDatabase()
        return
    url = request.getfixturevalue("redis_url")
    opened = connect(url, timeout_seconds=5, connections=16, name="contract")
    if request.param == "redis":
        yield opened
    else:
        with contextlib.closing(FiberThread()) as thread:
            yield DatabaseInFibers(opened, thread)
    opened.close()


@pytest.fixture(params=["as expected", "the long way"])
def bench(request: pytest.FixtureRequest, database: Database) -> Bench:
    """What a claim and a commit do in one script each, and by WATCH and a transaction; both keep the promises."""
    found = Bench(database) if request.param == "as expected" else Bench(database, cache_bytes=0)
    found.submit()
    return found


# --- submit -----------------------------------------------------------------------------------------------------------


def test_a_submitted_session_waits_for_its_first_step(bench: Bench) -> None:
    header = bench.store.sessions.header(bench.session)
    assert (header.agent, header.version, header.execution_id, header.step) == ("agent", 1, bench.execution, 1)
    assert bench.due() is not None
    state = bench.store.sessions.load(bench.session).state
    assert [message.content for message in state.messages] == ["first"]


def test_submitting_again_changes_nothing_and_names_the_first_execution(bench: Bench) -> None:
    before = bench.snapshot()
    again = bench.submit(execution=uuid.uuid4().hex)
    assert (again.outcome, again.execution_id, again.publish) == ("again", bench.execution, None)
    assert bench.snapshot() == before


def test_another_request_under_the_same_id_is_refused(bench: Bench) -> None:
    with pytest.raises(IdempotencyMismatch):
        bench.submit(fingerprint="other")


@pytest.mark.parametrize(("estimates", "way"), [(True, ["submit.attempt"]), (False, ["submit.read", "submit.exec"])])
def test_a_lost_reply_to_a_submit_makes_one_session(database: Database, estimates: bool, way: list[str]) -> None:
    bench = Bench(database, cache_bytes=1_000_000 if estimates else 0)
    bench.spy.lose(way[-1])
    assert bench.submit().execution_id == bench.execution
    assert bench.spy.points == [*way, "submit.read"]
    assert bench.store.sessions.header(bench.session).version == 1


def test_a_submit_that_was_not_sent_goes_the_long_way(database: Database) -> None:
    bench = Bench(database)

    def fail() -> None:
        raise StoreUnavailable("the connection was refused")

    bench.spy.before("submit.attempt", fail)
    assert bench.submit().outcome == "started"
    assert bench.spy.points == ["submit.attempt", "submit.read", "submit.exec"]


def test_unknown_sessions_are_named(bench: Bench) -> None:
    for ask in (bench.store.sessions.header, bench.store.sessions.load, bench.store.sessions.definition):
        with pytest.raises(SessionNotFound):
            ask("nobody")
    with pytest.raises(SessionNotFound):
        bench.store.sessions.act("nobody", an_operation("hello"), operation_transition)
    with pytest.raises(SessionNotFound):
        bench.store.sessions.stop("nobody", None, stop_transition)


# --- claim and lease --------------------------------------------------------------------------------------------------


def test_a_claim_gives_the_session_and_counts_the_attempt(bench: Bench) -> None:
    claimed = bench.claim()
    assert claimed.claim.attempt == 1
    assert claimed.loaded.version == 1
    assert claimed.loaded.agent == "agent"
    assert claimed.loaded.state == bench.store.sessions.load(bench.session).state


def test_a_live_claim_keeps_others_away_and_nothing_changes(bench: Bench) -> None:
    bench.claim()
    before = bench.snapshot()
    assert bench.answer() == NotClaimed(NotClaimedReason.BUSY)
    assert bench.snapshot() == before


def test_the_same_claim_asked_for_again_is_held_and_not_counted_again(bench: Bench) -> None:
    first = bench.claim(claim_id="mine")
    again = bench.claim(claim_id="mine")
    assert (again.claim.attempt, again.claim.fence) == (first.claim.attempt, first.claim.fence)


def test_a_lost_reply_to_a_claim_is_found_by_asking_again(bench: Bench) -> None:
    bench.spy.lose(bench.claims_at)
    with pytest.raises(StoreUnavailable):
        bench.answer(claim_id="mine")
    assert bench.claim(claim_id="mine").claim.attempt == 1


def test_a_claim_whose_lease_has_ended_is_taken_over_and_counted(bench: Bench) -> None:
    first = bench.claim()
    bench.end_lease(first.claim)
    second = bench.claim()
    assert (second.claim.attempt, second.claim.fence) == (2, first.claim.fence + 1)


def test_a_lease_ends_by_itself(database: Database) -> None:
    bench = Bench(database, lease_seconds=0.2, lease_renew_seconds=0.05)
    bench.submit()
    first = bench.claim()
    wait_until(lambda: isinstance(bench.answer(), Claimed), "the lease ends", 5)
    assert bench.store.steps.renew([first.claim])[0].alive is False


@pytest.mark.parametrize(
    ("execution", "step", "reason"),
    [
        ("own", 0, NotClaimedReason.STALE),
        ("own", 2, NotClaimedReason.AHEAD),
        ("own", 10**9, NotClaimedReason.AHEAD),
        ("own", -7, NotClaimedReason.STALE),
        ("forged", 1, NotClaimedReason.STALE),
        ("", 1, NotClaimedReason.STALE),
    ],
)
def test_a_message_that_is_stale_early_or_forged_changes_nothing(
    bench: Bench, execution: str, step: int, reason: NotClaimedReason
) -> None:
    before = bench.snapshot()
    ref = StepRef(bench.session, bench.execution if execution == "own" else execution, step)
    assert bench.store.steps.claim(ref, "claim", "worker", alone=True) == NotClaimed(reason)
    assert bench.snapshot() == before


def test_a_message_for_nobody_leaves_nothing_behind(bench: Bench) -> None:
    answer = bench.store.steps.claim(StepRef("nobody", "nothing", 1), "claim", "worker", alone=True)
    assert answer == NotClaimed(NotClaimedReason.MISSING)
    assert bench.database("EXISTS", bench.store.context.keys("nobody").ctl) == 0


def test_a_step_that_was_committed_is_stale(bench: Bench) -> None:
    bench.commit(bench.claim())
    assert bench.answer(1) == NotClaimed(NotClaimedReason.STALE)
    assert isinstance(bench.answer(2), Claimed)


def test_the_step_of_an_ended_execution_is_over(bench: Bench) -> None:
    bench.commit(bench.claim(), final=True)
    assert bench.answer(1) == NotClaimed(NotClaimedReason.ENDED)


def test_a_step_that_died_often_is_a_suspect_until_it_is_claimed_alone(bench: Bench) -> None:
    for _ in range(bench.settings.suspect_attempts - 1):
        bench.end_lease(bench.claim(alone=False).claim)
    before = bench.snapshot()
    assert bench.answer(alone=False) == Suspect(bench.settings.suspect_attempts - 1)
    assert bench.snapshot() == before
    assert bench.claim(alone=True).claim.attempt == bench.settings.suspect_attempts


def test_a_renewal_tells_of_the_lease_and_of_a_stop(bench: Bench) -> None:
    claim = bench.claim().claim
    (renewal,) = bench.store.steps.renew([claim])
    assert (renewal.alive, renewal.cancel) == (True, None)
    bench.store.sessions.stop(bench.session, None, stop_transition)
    assert bench.store.steps.renew([claim])[0].cancel == bench.execution
    bench.end_lease(claim)
    assert bench.store.steps.renew([claim])[0].alive is False


def test_a_lease_is_taken_back_only_while_the_claim_stands(bench: Bench) -> None:
    first = bench.claim().claim
    bench.end_lease(first)
    assert bench.store.steps.restore(first) is True
    assert bench.answer() == NotClaimed(NotClaimedReason.BUSY)
    bench.end_lease(first)
    second = bench.claim().claim
    assert bench.store.steps.restore(first) is False
    assert bench.store.steps.renew([second])[0].alive is True


def test_a_rival_that_has_only_looked_loses_against_a_lease_taken_back(bench: Bench) -> None:
    first = bench.claim().claim
    bench.end_lease(first)
    bench.spy.before("claim.exec", lambda: bench.store.steps.restore(first))
    assert bench.answer() == NotClaimed(NotClaimedReason.BUSY)


def test_whoever_holds_an_older_version_reads_what_is_new(bench: Bench) -> None:
    other = bench.another()
    other.steps.claim(bench.ref(), "looking", "other", alone=True)
    bench.end_lease(Claim("looking", "other", bench.ref(), 1, 1, 0))
    bench.commit(bench.claim(), text="one")
    bench.commit(bench.claim(2), text="two")
    claimed = other.steps.claim(bench.ref(3), "mine", "other", alone=True)
    assert isinstance(claimed, Claimed)
    assert claimed.loaded.state == bench.store.sessions.load(bench.session).state
    assert [message.content for message in claimed.loaded.state.messages] == ["first", "one", "two"]


def test_a_save_between_two_reads_is_not_taken_for_damage(database: Database) -> None:
    bench = Bench(database)
    bench.submit()
    # It holds the session as it was in another execution, and guesses no time, so that it goes the long way.
    blind = PatientClock(estimates=False)
    other = Store(bench.spy, bench.settings, clock=blind, publisher=NoPublisher())
    other.steps.claim(bench.ref(), "looking", "other", alone=True)
    bench.end_lease(Claim("looking", "other", bench.ref(), 1, 1, 0))
    bench.commit(bench.claim(), final=True)
    started_by = bench.message("next")
    ref = StepRef(bench.session, started_by.execution_id, 1)
    bench.spy.before("load.all", lambda: bench.message("joins between two reads"))
    claimed = other.steps.claim(ref, "mine", "other", alone=True)
    assert isinstance(claimed, Claimed)
    contents = [message.content for message in claimed.loaded.state.messages]
    assert contents[-1] == "joins between two reads"


@pytest.mark.parametrize("act", ["stop", "message", "retry"])
def test_another_execution_that_begins_between_two_reads_is_not_taken_for_damage(bench: Bench, act: str) -> None:
    def begin_another() -> None:
        bench.store.sessions.stop(bench.session, bench.execution, stop_transition)
        bench.message("next")

    bench.spy.before("act.load", begin_another)
    if act == "stop":
        assert bench.store.sessions.stop(bench.session, None, stop_transition).outcome == "changed"
    elif act == "message":
        assert bench.message("and this").outcome == "joined"
    else:
        with pytest.raises(InvalidTransition):  # there is nothing to retry: the other one runs
            bench.store.sessions.retry(bench.session, retry_transition(None))
    state = bench.store.sessions.load(bench.session).state
    assert state.execution is not None
    assert state.execution.execution_id != bench.execution
    assert "next" in [message.content for message in state.messages]


def test_a_session_with_a_damaged_part_is_refused_and_its_parts_are_untouched(bench: Bench) -> None:
    keys = bench.store.context.keys(bench.session)
    bench.database("RPUSH", keys.section("messages", 0), b"{not json")
    before, parts = bench.snapshot(), bench.database("LRANGE", keys.section("messages", 0), 0, -1)
    with pytest.raises(StateUnreadable):
        bench.another().steps.claim(bench.ref(), "claim", "worker", alone=True)
    with pytest.raises(StateUnreadable):
        bench.store.sessions.load(bench.session)
    assert bench.database("HMGET", keys.session, "version", "head") == [before[0][b"version"], before[0][b"head"]]
    assert bench.database("LRANGE", keys.section("messages", 0), 0, -1) == parts
    taken = b"claim" if bench.claims_at == "claim.new" else b""
    assert bench.database("HGET", keys.ctl, "claim") == taken, "where the claim comes first, it is read behind it"


def test_a_new_session_with_a_damaged_message_is_refused_and_its_parts_are_untouched(bench: Bench) -> None:
    keys = bench.store.context.keys(bench.session)
    section = keys.section("messages", 0)
    bench.database("DEL", section)
    bench.database("RPUSH", section, b"{not json")
    before = bench.snapshot()
    with pytest.raises(StateUnreadable, match="messages"):
        bench.another().steps.claim(bench.ref(), "claim", "worker", alone=True)
    assert bench.database("HMGET", keys.session, "version", "head") == [before[0][b"version"], before[0][b"head"]]
    assert bench.database("LRANGE", section, 0, -1) == [b"{not json"]
    taken = b"claim" if bench.claims_at == "claim.new" else b""
    assert bench.database("HGET", keys.ctl, "claim") == taken, "in one round trip it is read with the claim"


# --- journal ----------------------------------------------------------------------------------------------------------


def test_the_first_answer_wins_whoever_wrote_it(bench: Bench) -> None:
    slept = bench.claim().claim
    bench.end_lease(slept)
    current = bench.claim().claim
    assert bench.store.steps.record_answer(slept, b"one") == b"one"
    assert bench.store.steps.record_answer(current, b"two") == b"one"
    assert bench.store.steps.record_answer(slept, b"one") == b"one"


def test_what_was_obtained_is_there_for_the_next_claim(bench: Bench) -> None:
    claim = bench.claim().claim
    bench.store.steps.record_failure(claim, 1, b'{"kind":"timeout"}')
    bench.store.steps.record_answer(claim, b"answer")
    bench.store.steps.begin_calls(claim, {0: 1000, 1: 2000}, claim.now_ms)
    bench.store.steps.record_results(claim, {0: b"zero"})
    bench.end_lease(claim)
    journal = bench.claim().loaded.journal
    assert journal.answer == b"answer"
    assert journal.results == {0: b"zero"}
    assert {index: (b.claim, b.timeout_ms) for index, b in journal.begun.items()} == {
        0: (claim.id, 1000),
        1: (claim.id, 2000),
    }
    assert journal.failures == (b'{"kind":"timeout"}',)


def test_the_first_result_of_a_call_wins(bench: Bench) -> None:
    claim = bench.claim().claim
    bench.store.steps.record_results(claim, {0: b"one"})
    bench.store.steps.record_results(claim, {0: b"two", 1: b"three"})
    bench.end_lease(claim)
    assert bench.claim().loaded.journal.results == {0: b"one", 1: b"three"}


def test_a_call_begins_once_for_each_claim(bench: Bench) -> None:
    first = bench.claim().claim
    assert bench.store.steps.begin_calls(first, {0: 1000, 1: 1000}, 5).mine == {0, 1}
    assert bench.store.steps.begin_calls(first, {0: 1000}, 5).mine == {0}
    bench.end_lease(first)
    second = bench.claim().claim
    begun = bench.store.steps.begin_calls(second, {0: 1000, 2: 1000}, 9)
    assert begun.mine == {2}
    assert {index: each.claim for index, each in begun.others.items()} == {0: first.id}
    again = bench.store.steps.begin_calls(second, {0: 1000}, 9, again=(0,))
    assert again.mine == {0}


def test_a_call_that_has_a_result_does_not_begin(bench: Bench) -> None:
    claim = bench.claim().claim
    bench.store.steps.record_results(claim, {0: b"done"})
    begun = bench.store.steps.begin_calls(claim, {0: 1000, 1: 1000}, 5)
    assert begun.results == {0: b"done"}
    assert begun.mine == {1}
    bench.end_lease(claim)
    assert set(bench.claim().loaded.journal.begun) == {1}


def test_after_a_stop_no_call_begins_and_no_record_stays(bench: Bench) -> None:
    claim = bench.claim().claim
    bench.store.sessions.stop(bench.session, None, stop_transition)
    begun = bench.store.steps.begin_calls(claim, {0: 1000}, 5)
    assert begun.cancel == bench.execution
    assert begun.mine == frozenset()
    bench.end_lease(claim)
    assert not bench.claim().loaded.journal.begun


def test_whoever_lost_the_claim_begins_nothing(bench: Bench) -> None:
    slept = bench.claim().claim
    bench.end_lease(slept)
    bench.claim()
    with pytest.raises(ClaimLost):
        bench.store.steps.begin_calls(slept, {0: 1000}, 5)
    with pytest.raises(ClaimLost):
        bench.store.steps.begin_calls(slept, {0: 1000}, 5, again=(0,))


def test_an_unusable_answer_is_dropped_only_before_a_call_has_begun(bench: Bench) -> None:
    claim = bench.claim().claim
    bench.store.steps.record_answer(claim, b"broken")
    assert bench.store.steps.drop_answer(claim) is True
    assert bench.store.steps.record_answer(claim, b"good") == b"good"
    bench.store.steps.begin_calls(claim, {0: 1000}, 5)
    assert bench.store.steps.drop_answer(claim) is False
    bench.end_lease(claim)
    assert bench.claim().loaded.journal.answer == b"good"


def test_a_worker_that_slept_does_not_drop_the_answer_of_another(bench: Bench) -> None:
    slept = bench.claim().claim
    bench.store.steps.record_answer(slept, b"broken")

    def meanwhile() -> None:
        bench.end_lease(slept)
        current = bench.claim().claim
        assert bench.store.steps.drop_answer(current) is True
        bench.store.steps.record_answer(current, b"good")

    bench.spy.before("journal.drop", meanwhile)
    assert bench.store.steps.drop_answer(slept) is False
    assert bench.store.steps.record_answer(slept, b"late") == b"good"


@pytest.mark.parametrize("write", ["answer", "results", "failure", "begin"])
def test_a_journal_revived_after_its_step_gets_its_end_again(bench: Bench, write: str) -> None:
    slept = bench.claim().claim
    bench.end_lease(slept)
    bench.commit(bench.claim(), final=True)
    keys = bench.store.context.keys(bench.session)
    journal = keys.journal(bench.execution, 1)
    bench.database("DEL", journal)
    with contextlib.suppress(ClaimLost):
        match write:
            case "answer":
                bench.store.steps.record_answer(slept, b"late")
            case "results":
                bench.store.steps.record_results(slept, {0: b"late"})
            case "failure":
                bench.store.steps.record_failure(slept, 1, b"{}")
            case _:
                bench.store.steps.begin_calls(slept, {0: 1000}, 5)
    assert bench.database("PTTL", journal) != -1


# --- commit -----------------------------------------------------------------------------------------------------------


def test_a_commit_makes_the_step_real_and_names_the_next(bench: Bench) -> None:
    claimed = bench.claim()
    committed = bench.commit(claimed)
    assert (committed.version, committed.next, committed.again) == (2, bench.ref(2), False)
    state = bench.store.sessions.load(bench.session).state
    assert state == committed.state
    assert state.step_count == 1
    assert bench.store.steps.renew([claimed.claim])[0].alive is False


def test_a_commit_asked_for_again_gives_the_same_and_changes_nothing(bench: Bench) -> None:
    claimed = bench.claim()
    bench.commit(claimed)
    before = bench.snapshot()
    again = bench.commit(claimed)
    assert (again.version, again.next, again.again) == (2, bench.ref(2), True)
    assert bench.snapshot() == before


def test_a_commit_knows_itself_after_the_next_step_has_been_committed(bench: Bench) -> None:
    first = bench.claim()
    bench.commit(first)
    bench.commit(bench.claim(2))
    assert bench.commit(first).again is True


def test_a_lost_reply_to_a_commit_commits_once(bench: Bench) -> None:
    bench.spy.lose(bench.commits_at)
    committed = bench.commit(bench.claim())
    assert (committed.again, committed.next) == (True, bench.ref(2))
    assert bench.store.sessions.load(bench.session).state.step_count == 1


def test_a_store_that_does_not_answer_is_told_and_nothing_is_lost(bench: Bench) -> None:
    claimed = bench.claim()
    bench.spy.lose("commit.attempt", times=0)
    bench.spy.before("commit.attempt", lambda: bench.message("on the way"))  # so that it has to go the long way
    bench.spy.lose("commit.read", times=100)
    with pytest.raises(StoreUnavailable):
        bench.commit(claimed)
    bench.spy.lose("commit.read", times=0)
    assert bench.commit(claimed).version == 2


def test_whoever_lost_the_claim_commits_nothing(bench: Bench) -> None:
    slept = bench.claim()
    bench.end_lease(slept.claim)
    bench.claim()
    before = bench.snapshot()
    with pytest.raises(ClaimLost):
        bench.commit(slept)
    assert bench.snapshot() == before


def test_a_commit_over_a_later_save_is_a_conflict_until_it_is_applied_to_it(bench: Bench) -> None:
    claimed = bench.claim()
    keys = bench.store.context.keys(bench.session)
    bench.database("HSET", keys.session, "version", 2)  # somebody saved the same state
    with pytest.raises(VersionConflict):
        bench.commit(claimed)
    loaded = bench.store.steps.reload(claimed.claim)
    assert loaded.version == 2
    committed = bench.commit(Claimed(claimed.claim, loaded))
    assert committed.version == 3


def test_a_reload_is_refused_to_whoever_lost_the_claim(bench: Bench) -> None:
    slept = bench.claim().claim
    bench.end_lease(slept)
    bench.claim()
    with pytest.raises(ClaimLost):
        bench.store.steps.reload(slept)


def test_a_commit_may_carry_the_claim_on(bench: Bench) -> None:
    claimed = bench.claim()
    committed = bench.commit(claimed, keep_claim=True)
    assert committed.carried is not None
    assert committed.carried.claim.id == claimed.claim.id
    assert committed.carried.claim.ref == bench.ref(2)
    assert bench.answer(2) == NotClaimed(NotClaimedReason.BUSY)
    assert bench.commit(committed.carried, final=True).version == 3


def test_the_end_takes_the_session_out_of_the_due_index_and_gives_its_keys_a_life(bench: Bench) -> None:
    bench.commit(bench.claim())
    assert bench.commit(bench.claim(2), final=True).next is None
    assert bench.due() is None
    record = bench.store.sessions.record(bench.session, bench.execution)
    assert record is not None
    assert (record.status, record.step_count) == ("completed", 2)
    keys = bench.store.context.keys(bench.session)
    lasting = [keys.session, keys.ctl, keys.events, keys.steps(bench.execution), keys.section("messages", 0)]
    lasting += [keys.journal(bench.execution, step) for step in (1, 2)]
    assert [name for name in lasting if bench.database("PTTL", name) == -1] == []


def test_events_are_told_in_the_transaction_that_makes_them_true(bench: Bench) -> None:
    bench.commit(bench.claim())
    bench.commit(bench.claim(2), final=True)
    types = [(event.type, event.step) for event in bench.store.sessions.events(bench.session)]
    assert types.count(("step_committed", 1)) == types.count(("step_committed", 2)) == 1
    first = bench.store.sessions.events(bench.session)[0]
    assert first not in bench.store.sessions.events(bench.session, after=first.id)


def test_the_bytes_of_a_commit_do_not_grow_with_the_session(database: Database) -> None:
    bench = Bench(database)
    bench.submit()
    written: list[int] = []
    read: list[int] = []
    for step in range(1, 81):
        bench.commit(bench.claim(step), text="x" * 200)
        written.append(bench.spy.size("commit.attempt"))
        read.append(bench.spy.size("claim.new" if step == 1 else "claim.attempt"))
    # Numbers get longer; nothing else does, once there are as many saves as a lineage has marks.
    assert max(written[32:]) - min(written[32:]) < 40
    assert max(read[32:]) - min(read[32:]) < 10


def test_the_bytes_of_a_commit_the_long_way_do_not_grow_with_the_session(database: Database) -> None:
    bench, written = Bench(database, cache_bytes=0), list[int]()
    bench.submit()
    for step in range(1, 81):
        bench.commit(bench.claim(step), text="x" * 200)
        written.append(bench.spy.size("commit.exec"))
    assert max(written[32:]) - min(written[32:]) < 40


def test_a_commit_takes_few_round_trips(bench: Bench) -> None:
    claimed = bench.claim()
    bench.spy.sent.clear()
    bench.commit(claimed)
    expected = ["commit.attempt"] if bench.settings.cache_bytes else ["commit.read", "commit.exec"]
    assert bench.spy.points == expected


def test_a_claim_of_a_step_that_follows_takes_one_round_trip_where_the_session_is_known(database: Database) -> None:
    bench = Bench(database)
    bench.submit()
    bench.commit(bench.claim())
    bench.spy.sent.clear()
    bench.claim(2)
    assert bench.spy.points == ["claim.attempt"]


@pytest.mark.parametrize("behind", [0, 1, 6, None], ids=lambda behind: "unseen" if behind is None else str(behind))
@pytest.mark.parametrize(
    "meanwhile",
    [
        lambda bench, ref: bench.another().steps.claim(ref, "rival", "other", alone=True),
        lambda bench, ref: bench.message("joined"),
        lambda bench, ref: bench.store.sessions.stop(bench.session, None, stop_transition),
        lambda bench, ref: bench.database("HSET", bench.journal(ref), "llm", "x"),
        lambda bench, ref: bench.database("HSET", bench.store.context.keys(bench.session).ctl, "attempts", 1),
        lambda bench, ref: bench.database("HSET", bench.store.context.keys(bench.session).ctl, "not_before", 9),
    ],
    ids=["claimed", "message", "stop", "journal", "attempts", "put off"],
)
def test_a_claim_that_expects_something_else_than_there_is_looks_again(
    database: Database, meanwhile: Callable[[Bench, StepRef], object], behind: int | None
) -> None:
    bench, blind = Bench(database), Bench(database, cache_bytes=0)
    bench.submit()
    bench.commit(bench.claim())
    for missed in range(behind or 0):
        bench.step_elsewhere(2 + missed)
    if behind is None:
        bench.store = bench.another()
    ref = bench.ref(2 + (behind or 0))
    meanwhile(bench, ref)
    blind.session, blind.execution = bench.session, bench.execution
    before = bench.snapshot()
    bench.spy.sent.clear()
    mine = bench.answer(ref.step, "mine")
    sent = bench.spy.points
    reads_anyway = (["claim.behind"], ["claim.first", "claim.load"])
    assert "claim.read" in sent or sent in reads_anyway, "of a message"
    if isinstance(mine, Claimed):  # as one that knows nothing beforehand would have
        bench.database(
            "HSET", bench.store.context.keys(bench.session).ctl, *(part for item in before[1].items() for part in item)
        )
        bench.database("HDEL", bench.journal(ref), "try:mine")
        theirs = blind.answer(ref.step, "mine")
        assert isinstance(theirs, Claimed)
        assert (mine.loaded.state, mine.loaded.attempts, mine.loaded.cancel) == (
            theirs.loaded.state, theirs.loaded.attempts, theirs.loaded.cancel,
        )  # fmt: skip
        assert mine.loaded.journal.answer == theirs.loaded.journal.answer
        assert mine.loaded.started_ms == theirs.loaded.started_ms
    else:
        assert bench.snapshot() == before


def test_the_first_step_of_a_new_session_is_claimed_and_read_in_one_round_trip(database: Database) -> None:
    bench = Bench(database)
    bench.submit()
    bench.spy.sent.clear()
    mine = bench.claim()
    assert bench.spy.points == ["claim.new"]
    assert mine.loaded.state == bench.store.sessions.load(bench.session).state
    assert (mine.claim.attempt, mine.loaded.started_ms > 0) == (1, True)
    events = [event.type for event in bench.store.sessions.events(bench.session)]
    assert events.count("execution_started") == 1
    bench.spy.sent.clear()
    bench.commit(mine, final=True)
    assert bench.spy.points == ["commit.attempt"], "it holds the session now"
    assert bench.store.sessions.header(bench.session).status == "completed"


def test_a_session_with_a_history_is_read_behind_its_claim(database: Database) -> None:
    bench = Bench(database)
    first, ref = bench.execution, bench.follow_up()
    mine = bench.another().steps.claim(ref, "mine", "worker", alone=True)
    assert isinstance(mine, Claimed)
    assert bench.spy.points == ["claim.new", "claim.first", "claim.load"]
    assert mine.loaded.state == bench.store.sessions.load(bench.session).state
    assert bench.started_ms == mine.loaded.started_ms > 0
    begun = [
        event.execution_id for event in bench.store.sessions.events(bench.session) if event.type == "execution_started"
    ]
    assert begun == [first, ref.execution_id]
    bench.spy.sent.clear()
    bench.store.steps.commit(mine.claim, mine.loaded, step_transition(mine, final=False), results={}, keep_claim=False)
    assert bench.spy.points == ["commit.attempt"], "what a step holds of its session is enough"
    bench.spy.sent.clear()
    again = bench.another().steps.claim(bench.ref(2), "again", "worker", alone=True)
    assert isinstance(again, Claimed)
    assert bench.spy.points == ["claim.first", "claim.load"]
    assert again.loaded.state == bench.store.sessions.load(bench.session).state


@pytest.mark.parametrize("lost", ["claim.first", "claim.load"])
def test_a_claim_whose_reply_is_lost_is_the_same_claim_when_it_is_asked_for_again(
    database: Database, lost: str
) -> None:
    bench = Bench(database)
    bench.submit()
    bench.commit(bench.claim())
    bench.spy.lose(lost)
    other = bench.another()
    with pytest.raises(StoreUnavailable):
        other.steps.claim(bench.ref(2), "mine", "worker", alone=True)
    assert isinstance(bench.answer(2, "a rival's"), NotClaimed)
    mine = other.steps.claim(bench.ref(2), "mine", "worker", alone=True)
    assert isinstance(mine, Claimed)
    assert (mine.claim.attempt, mine.loaded.attempts) == (1, 1)
    assert mine.loaded.state == bench.store.sessions.load(bench.session).state


@pytest.mark.parametrize("point", ["claim.first", "claim.load"])
@pytest.mark.parametrize("is_applied", [True, False], ids=["reply lost", "never sent"])
def test_an_execution_whose_first_claim_is_asked_for_again_begins_once(
    database: Database, point: str, *, is_applied: bool
) -> None:
    bench = Bench(database)
    ref = bench.follow_up()

    def fail() -> None:
        raise StoreUnavailable("nothing was sent")

    if is_applied:
        bench.spy.lose(point)
    else:
        bench.spy.before(point, fail)
    with pytest.raises(StoreUnavailable):
        bench.store.steps.claim(ref, "mine", "worker", alone=True)
    mine = bench.store.steps.claim(ref, "mine", "worker", alone=True)
    assert isinstance(mine, Claimed)
    assert (mine.loaded.attempts, bench.begun()) == (1, 1)
    assert bench.started_ms == mine.loaded.started_ms > 0
    assert bench.store.sessions.header(bench.session).status == "in_progress"


def test_a_claim_that_slept_before_it_read_changes_nothing_of_what_others_did_meanwhile(database: Database) -> None:
    bench = Bench(database)
    ref = bench.follow_up()

    def take_over() -> None:
        bench.end_lease(Claim("slept", "worker", ref, 1, 1, 0))
        bench.commit(bench.claim(), final=True)

    bench.spy.before("claim.load", take_over)
    assert bench.another().steps.claim(ref, "slept", "worker", alone=True) == NotClaimed(NotClaimedReason.ENDED)
    assert bench.store.sessions.header(bench.session).status == "completed"
    assert bench.store.sessions.outcome(bench.session, bench.execution) is not None
    assert bench.begun() == 1


def test_a_claim_that_slept_before_it_read_finds_the_stop_meanwhile(database: Database) -> None:
    bench = Bench(database)
    ref = bench.follow_up()

    def stop() -> None:
        bench.end_lease(Claim("slept", "worker", ref, 1, 1, 0))
        bench.store.sessions.stop(bench.session, None, stop_transition)

    bench.spy.before("claim.load", stop)
    assert bench.another().steps.claim(ref, "slept", "worker", alone=True) == NotClaimed(NotClaimedReason.ENDED)
    assert bench.store.sessions.header(bench.session).status == "stopped"


@pytest.mark.parametrize("step", [1, 2])
def test_a_session_of_which_only_the_control_fields_are_left_is_not_made_anew(database: Database, step: int) -> None:
    bench = Bench(database)
    bench.follow_up()
    if step == 2:
        bench.commit(bench.claim())
    keys = bench.store.context.keys(bench.session)
    bench.database("DEL", keys.session, keys.events)
    with pytest.raises(SessionNotFound):
        bench.another().steps.claim(bench.ref(step), "mine", "worker", alone=True)
    assert bench.database("EXISTS", keys.session, keys.events) == 0


@pytest.mark.parametrize(("missed", "way"), [(4, ["claim.behind"]), (31, ["claim.first", "claim.load"])])
def test_a_worker_that_missed_steps_reads_those_alone(database: Database, missed: int, way: list[str]) -> None:
    bench = Bench(database)
    bench.submit()
    bench.commit(bench.claim())
    for number in range(missed):
        bench.step_elsewhere(2 + number)
    bench.spy.sent.clear()
    mine = bench.claim(2 + missed)
    assert bench.spy.points == way
    steps = bench.store.context.keys(bench.session).steps(bench.execution)
    (read,) = (command for command in bench.spy.sent[-1][1] if command[:2] == ("LRANGE", steps))
    assert read[2:] == (1, -1)
    assert mine.loaded.state == bench.store.sessions.load(bench.session).state


def test_a_worker_that_missed_more_steps_than_a_lineage_tells_of_reads_them_all(database: Database) -> None:
    bench = Bench(database)
    bench.submit()
    bench.commit(bench.claim())
    for number in range(40):
        bench.step_elsewhere(2 + number)
    bench.spy.sent.clear()
    mine = bench.claim(42)
    assert bench.spy.points == ["claim.first", "claim.load"]
    assert mine.loaded.state == bench.store.sessions.load(bench.session).state
    bench.commit(mine)
    bench.spy.sent.clear()
    bench.claim(43)
    assert bench.spy.points == ["claim.attempt"], "from now on it holds the session again"


@pytest.mark.parametrize(
    "meanwhile",
    [
        lambda bench, ref: bench.another().steps.claim(ref, "rival", "other", alone=True),
        lambda bench, ref: bench.another().sessions.act(bench.session, an_operation("joined"), operation_transition),
        lambda bench, ref: bench.another().sessions.stop(bench.session, None, stop_transition),
        lambda bench, ref: bench.database("HSET", bench.journal(ref), "llm", "x"),
        lambda bench, ref: bench.database("HSET", bench.store.context.keys(bench.session).ctl, "attempts", 1),
        lambda bench, ref: bench.database("HSET", bench.store.context.keys(bench.session).ctl, "not_before", 9),
        lambda bench, ref: bench.database("HSET", bench.store.context.keys(bench.session).ctl, "started", 9),
        lambda bench, ref: bench.database("DEL", bench.store.context.keys(bench.session).session),
    ],
    ids=["claimed", "message", "stop", "journal", "attempts", "put off", "started", "gone"],
)
def test_a_first_claim_in_one_round_trip_answers_what_the_long_way_does(
    database: Database, meanwhile: Callable[[Bench, StepRef], object]
) -> None:
    quick, blind = Bench(database), Bench(database, cache_bytes=0)
    answers: list[object] = []
    for bench in (quick, blind):
        bench.submit()
        meanwhile(bench, bench.ref())
        bench.spy.sent.clear()
        try:
            answer = bench.answer(1, "mine")
        except SessionNotFound:
            answer = SessionNotFound
        if isinstance(answer, Claimed):
            loaded = answer.loaded
            facts = (loaded.journal.answer, loaded.attempts, loaded.cancel, loaded.version, loaded.started_ms == 9)
            answers.append((*facts, [message.content for message in loaded.state.messages]))
        else:
            answers.append(answer)
    assert answers[0] == answers[1]
    assert quick.spy.points[0] == "claim.new"
    assert "claim.new" not in blind.spy.points


def test_a_worker_that_missed_steps_claims_and_reads_what_is_new_in_one_round_trip(database: Database) -> None:
    bench = Bench(database)
    bench.submit()
    bench.commit(bench.claim())
    bench.step_elsewhere(2)
    bench.message("joins")
    bench.step_elsewhere(3)
    bench.spy.sent.clear()
    mine = bench.claim(4)
    assert bench.spy.points == ["claim.behind"]
    assert mine.loaded.state == bench.store.sessions.load(bench.session).state
    assert mine.claim.attempt == 1
    bench.commit(mine, final=True)
    assert bench.store.sessions.header(bench.session).status == "completed"


def test_a_worker_that_missed_steps_finds_a_damaged_part(database: Database) -> None:
    bench = Bench(database)
    bench.submit()
    bench.commit(bench.claim())
    bench.step_elsewhere(2)
    bench.database("RPUSH", bench.store.context.keys(bench.session).section("messages", 0), b"{not json")
    with pytest.raises(StateUnreadable, match="messages"):
        bench.answer(3, "mine")


def test_a_worker_too_old_for_the_session_gives_its_claim_back(database: Database) -> None:
    bench = Bench(database)
    bench.submit()
    bench.commit(bench.claim())
    bench.step_elsewhere(2)
    keys = bench.store.context.keys(bench.session)
    bench.become_newer()
    bench.spy.sent.clear()
    for number in range(3):
        with pytest.raises(StateTooNew):
            bench.answer(3, f"mine-{number}")
    claim, attempts = bench.database("HMGET", keys.ctl, "claim", "attempts")
    assert (claim, attempts) == (b"", b"0"), "or the steps of newer workers would end as poison"
    assert not bench.database("EXISTS", keys.shard.lease("mine-0"))
    assert bench.spy.points.count("claim.behind") == 1, "the next look comes before the claim"
    assert "claim.first" not in bench.spy.points


@pytest.mark.parametrize("step", [1, 2])
def test_a_worker_too_old_for_sessions_it_does_not_hold_claims_the_first_of_them_only(
    database: Database, step: int
) -> None:
    bench = Bench(database)
    old = bench.another()
    for number in range(3):
        bench.session = f"{bench.session}-{number}"
        bench.submit()
        if step == 2:
            bench.commit(bench.claim())
        bench.become_newer()
        bench.spy.sent.clear()
        with pytest.raises(StateTooNew):
            old.steps.claim(bench.ref(step), f"mine-{number}", "old", alone=True)
        ctl = bench.store.context.keys(bench.session).ctl
        assert bench.database("HMGET", ctl, "claim", "attempts") == [b"", b"0"]
        if number:
            looks = {"claim.read", "load.check"}
            assert set(bench.spy.points) == looks, "or two old workers pass its message on for ever"


def test_an_announced_version_that_another_worker_made_differently_is_not_taken(database: Database) -> None:
    bench = Bench(database)
    bench.submit()
    first = bench.claim()
    other = bench.another()
    bench.spy.lose("commit.attempt")
    bench.spy.before("commit.attempt", lambda: bench.end_lease(first.claim))
    taken: list[Any] = []

    def rival() -> None:
        bench.end_lease(first.claim)
        taken.append(other.steps.claim(bench.ref(), "rival", "other", alone=True))
        other.steps.commit(
            taken[0].claim,
            taken[0].loaded,
            step_transition(taken[0], final=False, text="theirs"),
            results={},
            keep_claim=False,
        )

    bench.spy.before("commit.attempt", rival)
    with pytest.raises(ClaimLost):
        bench.commit(first, text="mine")
    said = [message.content for message in bench.claim(2).loaded.state.messages]
    assert said == ["first", "theirs"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda bench, ctl: bench.database("HSET", ctl, "step", b"x"),
        lambda bench, ctl: bench.database("HSET", ctl, "retries", b"\xff"),
        lambda bench, ctl: (bench.database("DEL", ctl), bench.database("SET", ctl, "x")),
    ],
)
def test_damaged_control_fields_park_their_session_and_hide_no_other(
    bench: Bench, damage: Callable[[Bench, str], object]
) -> None:
    keys = bench.store.context.keys(bench.session)
    broken = bench.session
    shard = shard_of(broken, bench.settings.shards)
    damage(bench, keys.ctl)
    bench.make_due()
    bench.session = next(
        name for name in (uuid.uuid4().hex for _ in range(1000)) if shard_of(name, bench.settings.shards) == shard
    )
    bench.submit(execution=uuid.uuid4().hex)
    bench.make_due()
    lost = bench.store.housekeeping.sweep(shard, QueueSnapshot()).lost
    assert bench.session in [ref.session_id for ref in lost]
    assert broken not in [ref.session_id for ref in lost]
    assert broken in [entry["session"] for entry in bench.store.housekeeping.dead()]
    assert bench.database("ZSCORE", keys.shard.due, broken) is None
    headers, _ = bench.store.sessions.headers(limit=50)
    assert bench.session in [header.session_id for header in headers]


def test_pruning_takes_out_all_that_has_expired_however_much_it_is(database: Database) -> None:
    bench = Bench(database, sweep_batch=3, retention_seconds=0.01)
    for _ in range(11):
        bench.session, bench.execution = uuid.uuid4().hex, uuid.uuid4().hex
        bench.submit()
        bench.commit(bench.claim(), final=True)
    keys = bench.store.context.keys(bench.session)
    shards = range(bench.settings.shards)
    ours = {bench.store.context.shards[shard].sessions for shard in shards}
    assert sum(bench.database("ZCARD", name) for name in ours) >= 11
    wait_until(lambda: not bench.database("EXISTS", keys.session), "the last session has expired", 5)
    for shard in shards:
        bench.store.housekeeping.prune(shard)
    assert [bench.database("ZSCORE", keys.shard.sessions, bench.session)] == [None]
    assert bench.database("ZCARD", keys.shard.ending) == 0


# --- one script instead of WATCH ----------------------------------------------------------------------------------------


def test_an_attempt_applies_all_or_nothing(database: Database) -> None:
    key = f"t:{uuid.uuid4().hex}"
    database.pipeline("test", [("HSET", key, "a", 1)])
    here: Guard = (("HMGET", key, "a", "b"), (1, ""))
    more = [("HINCRBY", key, "a", 4), ("HSET", key, "c", b"\x00\xff"), ("HMGET", key, "a", "c", "d")]
    assert database.compare_and_apply("test", [here, (("EXISTS", f"{key}:other"), (0,))], more) == [
        5,
        1,
        [b"5", b"\x00\xff", None],
    ]
    assert database.compare_and_apply("test", [here], [("HSET", key, "a", 9)]) is None
    assert database.compare_and_apply("test", [(("HMGET", key, "a", "b"), (5, "x"))], [("HSET", key, "a", 9)]) is None
    assert database.pipeline("test", [("HGET", key, "a")]) == [b"5"]


def test_what_is_too_much_for_a_script_is_not_applied_in_part(database: Database) -> None:
    key = f"t:{uuid.uuid4().hex}"
    replies = database.compare_and_apply("test", [], [("RPUSH", key, *range(20_000))])
    (length,) = database.pipeline("test", [("LLEN", key)])
    assert (replies, length) in [(None, 0), ([20_000], 20_000)]


def test_a_key_of_another_type_in_a_script_is_named_as_such(database: Database) -> None:
    key = f"t:{uuid.uuid4().hex}"
    database.pipeline("test", [("SET", key, "x")])
    with pytest.raises(StateUnreadable):
        database.compare_and_apply("test", [], [("HSET", key, "a", 1)])


# --- the inbox --------------------------------------------------------------------------------------------------------


def test_a_message_to_a_running_step_waits_for_its_commit(bench: Bench) -> None:
    claimed = bench.claim()
    applied = bench.message("more")
    assert applied.outcome == "queued"
    assert bench.store.sessions.load(bench.session).version == 1
    committed = bench.commit(claimed)
    assert [message.content for message in committed.state.messages] == ["first", "text", "more"]
    assert bench.snapshot()[2] == []


def test_a_message_to_a_step_that_nobody_runs_joins_at_once(bench: Bench) -> None:
    applied = bench.message("more")
    assert (applied.outcome, applied.execution_id, applied.publish) == ("joined", bench.execution, None)
    assert [message.content for message in bench.store.sessions.load(bench.session).state.messages] == ["first", "more"]


def test_a_message_that_comes_too_late_starts_the_next_execution_in_the_final_commit(bench: Bench) -> None:
    claimed = bench.claim()
    bench.message("late")
    committed = bench.commit(claimed, final=True)
    assert committed.next is not None
    assert committed.next.execution_id != bench.execution
    assert committed.next.step == 1
    assert bench.due() is not None
    record = bench.store.sessions.record(bench.session, bench.execution)
    assert record is not None
    assert record.status == "completed"
    keys = bench.store.context.keys(bench.session)
    assert bench.database("PTTL", keys.session) == -1


def test_a_message_between_the_commits_read_and_its_transaction_is_not_stranded(bench: Bench) -> None:
    claimed = bench.claim()
    bench.spy.before(bench.commits_at, lambda: bench.message("in between"))
    committed = bench.commit(claimed, final=True)
    assert committed.next is not None
    assert "in between" in [message.content for message in committed.state.messages]


def test_a_message_to_an_ended_session_starts_the_next_execution_and_takes_the_life_off(bench: Bench) -> None:
    bench.commit(bench.claim(), final=True)
    applied = bench.message("again")
    assert applied.outcome == "started"
    assert applied.publish == StepRef(bench.session, applied.execution_id, 1)
    keys = bench.store.context.keys(bench.session)
    lasting = [keys.session, keys.ctl, keys.events, keys.section("messages", 0), keys.steps(bench.execution)]
    assert [bench.database("PTTL", name) for name in lasting] == [-1] * len(lasting)


@pytest.mark.parametrize("when", ["running", "idle", "ended"])
def test_the_same_operation_is_applied_once(bench: Bench, when: str) -> None:
    claimed = bench.claim() if when != "idle" else None
    if when == "ended":
        assert claimed is not None
        bench.commit(claimed, final=True)
    bench.message("once", "operation-1")
    assert bench.message("once", "operation-1").outcome == "again"
    if when == "running":
        assert claimed is not None
        bench.commit(claimed)
    assert bench.message("once", "operation-1").outcome == "again"
    contents = [message.content for message in bench.store.sessions.load(bench.session).state.messages]
    assert contents.count("once") == 1


@pytest.mark.parametrize("point", ["act.read", "act.exec"])
def test_a_lost_reply_to_an_action_applies_it_once(bench: Bench, point: str) -> None:
    bench.spy.lose(point)
    bench.message("once")
    contents = [message.content for message in bench.store.sessions.load(bench.session).state.messages]
    assert contents.count("once") == 1


def test_a_lost_reply_to_a_queued_action_queues_it_once(bench: Bench) -> None:
    claimed = bench.claim()
    bench.spy.lose("act.push")
    bench.message("once")
    contents = [message.content for message in bench.commit(claimed).state.messages]
    assert contents.count("once") == 1


def test_a_full_inbox_refuses(database: Database) -> None:
    bench = Bench(database, inbox_limit=2)
    bench.submit()
    bench.claim()
    bench.message("one")
    bench.message("two")
    with pytest.raises(ActionRefused):
        bench.message("three")


# --- release ----------------------------------------------------------------------------------------------------------


def test_a_released_step_is_free_at_once(bench: Bench) -> None:
    claim = bench.claim().claim
    assert bench.store.steps.release(claim, delay_ms=None, give_back=True) == bench.ref(1)
    assert bench.claim().claim.attempt == 1
    assert bench.store.steps.renew([claim])[0].alive is False


def test_a_release_that_does_not_give_back_counts(bench: Bench) -> None:
    bench.store.steps.release(bench.claim().claim, delay_ms=None, give_back=False)
    assert bench.claim().claim.attempt == 2


def test_a_step_put_off_is_not_claimed_before_its_time(bench: Bench) -> None:
    claim = bench.claim().claim
    assert bench.store.steps.release(claim, delay_ms=300, give_back=True) is None
    assert bench.answer() == NotClaimed(NotClaimedReason.NOT_YET)
    claimed = wait_until(lambda: a if isinstance(a := bench.answer(), Claimed) else None, "its time comes", 5)
    assert (claimed.claim.attempt, claimed.loaded.delays) == (1, 1)


def test_a_release_by_whoever_lost_the_claim_changes_nothing(bench: Bench) -> None:
    slept = bench.claim().claim
    bench.end_lease(slept)
    bench.claim()
    before = bench.snapshot()
    assert bench.store.steps.release(slept, delay_ms=None, give_back=True) is None
    assert bench.snapshot() == before


# --- stop -------------------------------------------------------------------------------------------------------------


def test_a_stop_ends_what_nobody_runs_in_its_own_transaction(bench: Bench) -> None:
    applied = bench.store.sessions.stop(bench.session, None, stop_transition)
    assert (applied.outcome, applied.execution_id) == ("changed", bench.execution)
    record = bench.store.sessions.record(bench.session, bench.execution)
    assert record is not None
    assert (record.status, record.stop_reason) == ("stopped", StopReason.USER_REQUESTED.value)
    assert bench.due() is None


def test_a_stop_asks_whoever_runs_the_step(bench: Bench) -> None:
    claimed = bench.claim()
    assert bench.store.sessions.stop(bench.session, None, stop_transition).outcome == "queued"
    seen: list[str | None] = []

    def transition(fresh: Snapshot) -> NextState:
        seen.append(fresh.cancel)
        return step_transition(claimed, final=True)(fresh)

    bench.store.steps.commit(claimed.claim, claimed.loaded, transition, results={}, keep_claim=False)
    assert seen[-1] == bench.execution


def test_a_stop_never_drops_what_a_dead_worker_has_obtained(bench: Bench) -> None:
    claim = bench.claim().claim
    bench.store.steps.record_answer(claim, b"paid")
    bench.end_lease(claim)
    applied = bench.store.sessions.stop(bench.session, None, stop_transition)
    assert (applied.outcome, applied.publish) == ("queued", bench.ref(1))
    claimed = bench.claim()
    assert claimed.loaded.cancel == bench.execution
    assert claimed.loaded.journal.answer == b"paid"


def test_a_stop_without_anything_obtained_leaves_no_journal_for_ever(bench: Bench) -> None:
    claim = bench.claim().claim
    bench.end_lease(claim)
    assert bench.store.sessions.stop(bench.session, None, stop_transition).outcome == "changed"
    assert bench.database("PTTL", bench.store.context.keys(bench.session).journal(bench.execution, 1)) != -1


def test_a_stop_of_another_execution_or_of_an_ended_one_is_nothing(bench: Bench) -> None:
    before = bench.snapshot()
    assert bench.store.sessions.stop(bench.session, "another", stop_transition).outcome == "again"
    assert bench.snapshot() == before
    bench.store.sessions.stop(bench.session, None, stop_transition)
    assert bench.store.sessions.stop(bench.session, None, stop_transition).outcome == "again"


def test_a_lost_reply_to_a_stop_stops_once(bench: Bench) -> None:
    bench.spy.lose("stop.exec")
    assert bench.store.sessions.stop(bench.session, None, stop_transition).outcome == "changed"
    assert bench.store.sessions.header(bench.session).version == 2
    assert bench.store.sessions.stop(bench.session, None, stop_transition).outcome == "again"


def test_a_lost_reply_to_a_stop_does_not_stop_the_execution_that_follows(bench: Bench) -> None:
    claimed = bench.claim()
    bench.message("and then?")
    bench.end_lease(claimed.claim)
    bench.spy.lose("stop.exec")
    bench.store.sessions.stop(bench.session, None, stop_transition)
    header = bench.store.sessions.header(bench.session)
    assert header.execution_id != bench.execution
    assert header.status == "pending"


def test_a_step_that_was_asked_to_stop_and_has_ended_before_the_lost_reply_was_missed_was_asked(bench: Bench) -> None:
    claimed = bench.claim()
    bench.spy.lose("stop.ask")
    bench.spy.before("stop.ask", lambda: bench.spy.before("stop.read", lambda: bench.commit(claimed, final=True)))
    assert bench.store.sessions.stop(bench.session, None, stop_transition).outcome == "queued"


# --- the registry -----------------------------------------------------------------------------------------------------

UNREADABLE = ["", "no JSON", "[]", "7", "{}", '{"seen": "yesterday"}', '{"seen": 1, "agents": 7, "hash": 7}', "\udcff"]


@pytest.mark.parametrize("entry", UNREADABLE)
def test_an_entry_of_the_registry_that_cannot_be_read_hides_no_other_and_goes_away(
    database: Database, entry: str
) -> None:
    store, worker = Bench(database).store, f"w{next(_numbers)}"
    store.registry.register(worker, {"slots": 3, "running": 1, "draining": False}, {"agent": "hash"})
    database.pipeline("test", [("HSET", "ca:workers", "broken", entry.encode("utf-8", "surrogateescape"))])
    database.pipeline("test", [("HSET", "ca:agents", "broken", entry.encode("utf-8", "surrogateescape"))])
    assert store.registry.workers()[worker]["slots"] == 3
    assert "broken" not in store.registry.workers()
    assert store.registry.agents()["agent"]["hash"] == "hash"
    assert store.registry.agents()["broken"]["hash"] == ""  # its name is all that is known
    store.housekeeping.prune(0)
    assert database.pipeline("test", [("HGET", "ca:workers", "broken")]) == [None]
    database.pipeline("test", [("HDEL", "ca:agents", "broken"), ("HDEL", "ca:workers", worker)])


# --- callbacks --------------------------------------------------------------------------------------------------------


@pytest.fixture
def told(database: Database) -> Bench:
    """A session of which somebody wants to hear, whose execution has failed."""
    bench = Bench(database)
    bench.submit(notify={"webhook": "https://example.com/ended"})
    claimed = bench.claim()
    transition = step_transition(claimed, final=True, failed=True)
    bench.store.steps.commit(claimed.claim, claimed.loaded, transition, results={}, keep_claim=False)
    return bench


def _end_retried(bench: Bench) -> None:
    bench.store.sessions.retry(bench.session, retry_transition(None))
    bench.commit(bench.claim(2), final=True)


def _due_callbacks(bench: Bench) -> list[Callback]:
    shard = shard_of(bench.session, bench.settings.shards)
    found = bench.store.housekeeping.due_callbacks(shard, limit=100_000, hold_ms=60_000)
    return [callback for callback in found if callback.session_id == bench.session]


def test_an_end_is_told_until_it_was_heard(told: Bench) -> None:
    (callback,) = _due_callbacks(told)
    assert (callback.kind, callback.target, callback.record.status) == (
        "webhook",
        "https://example.com/ended",
        "failed",
    )
    told.store.housekeeping.callback_failed(callback, delay_ms=0, reason="nobody there")
    (again,) = _due_callbacks(told)
    assert (again.record, again.attempts) == (callback.record, 1)
    told.store.housekeeping.callback_made(again)
    assert _due_callbacks(told) == []


@pytest.mark.parametrize("heard", [True, False])
def test_an_end_after_a_retry_is_told_whatever_becomes_of_the_one_before(told: Bench, heard: bool) -> None:
    (before,) = _due_callbacks(told)
    _end_retried(told)
    if heard:
        told.store.housekeeping.callback_made(before)
    else:
        told.store.housekeeping.callback_failed(before, delay_ms=None, reason="nobody there")
    (after,) = _due_callbacks(told)
    assert (after.record.status, after.record.retries, after.attempts) == ("completed", 1, 0)


def test_of_ends_that_nobody_was_told_of_the_last_is_told(told: Bench) -> None:
    _end_retried(told)
    (callback,) = _due_callbacks(told)
    assert (callback.record.status, callback.record.retries) == ("completed", 1)
    told.store.housekeeping.callback_made(callback)
    outbox = told.store.context.keys(told.session).shard.callbacks
    assert not [
        note for note in told.database("ZRANGEBYSCORE", outbox, "-inf", "+inf") if told.session.encode() in note
    ]


def test_what_is_no_callback_is_put_to_the_dead_and_others_are_made(told: Bench) -> None:
    outbox = told.store.context.keys(told.session).shard.callbacks
    told.database("ZADD", outbox, 1, "gibberish")
    assert len(_due_callbacks(told)) == 1
    assert b"gibberish" not in told.database("ZRANGEBYSCORE", outbox, "-inf", "+inf")
    assert told.store.housekeeping.dead()[0]["kind"] == "callback"


# --- Redis loses what it had acknowledged -----------------------------------------------------------------------------


@contextlib.contextmanager
def _lost_afterwards(bench: Bench) -> Iterator[None]:
    """What is written meanwhile is gone, as with an append-only file that is synced every second."""
    database = bench.spy.inner
    if isinstance(database, MemoryDatabase):
        before = {name: copy.deepcopy(getattr(database, name)) for name in ("_values", "_expiry", "_stream_ids")}
        yield
        for name, value in before.items():
            setattr(database, name, value)
        return
    pattern = bench.store.context.keys(bench.session).session + "*"
    dumped = {key: bench.database("DUMP", key) for key in bench.database("KEYS", pattern)}
    yield
    bench.database("DEL", *bench.database("KEYS", pattern))
    for key, value in dumped.items():
        bench.database("RESTORE", key, 0, value)


@pytest.mark.parametrize(("lost", "stored"), [(1, 0), (3, 0), (1, 1), (2, 1), (1, 2), (3, 2), (2, 4)])
def test_a_worker_that_saw_what_redis_lost_goes_on_from_what_is_stored(bench: Bench, lost: int, stored: int) -> None:
    with _lost_afterwards(bench):
        for number in range(1, lost + 1):
            bench.commit(bench.claim(number), text="lost")
    for number in range(1, stored + 1):
        bench.step_elsewhere(number)
    claimed = bench.claim(stored + 1)
    assert (claimed.loaded.version, claimed.loaded.state) == (
        stored + 1,
        bench.store.sessions.load(bench.session).state,
    )
    committed = bench.commit(claimed, final=True)
    assert committed.state == bench.store.sessions.load(bench.session).state


def test_a_message_that_redis_lost_is_not_taken_for_the_one_that_came_in_its_place(bench: Bench) -> None:
    with _lost_afterwards(bench):
        bench.message("lost")
    bench.another().sessions.act(bench.session, an_operation("stored"), operation_transition)
    seen = bench.claim().loaded.state
    assert [message.content for message in seen.store.section().messages] == ["first", "stored"]


def test_a_worker_that_is_behind_by_more_than_anybody_remembers_reads_the_whole_session(bench: Bench) -> None:
    bench.commit(bench.claim())
    for number in range(2, 42):
        bench.step_elsewhere(number)
    assert bench.claim(42).loaded.state == bench.store.sessions.load(bench.session).state


# --- retry and park ---------------------------------------------------------------------------------------------------


def test_a_retry_goes_on_at_the_same_step(bench: Bench) -> None:
    bench.commit(bench.claim())
    bench.store.sessions.stop(bench.session, None, stop_transition)
    applied = bench.store.sessions.retry(bench.session, retry_transition(None))
    assert applied.publish is not None
    assert (applied.publish.execution_id, applied.publish.step, applied.publish.retries) == (bench.execution, 2, 1)
    keys = bench.store.context.keys(bench.session)
    assert bench.database("PTTL", keys.session) == -1
    claimed = bench.claim(2)
    assert (claimed.claim.attempt, claimed.loaded.cancel) == (1, None)


@pytest.mark.parametrize("trips", range(4))
def test_who_waits_for_a_retried_execution_hears_of_its_last_end(bench: Bench, trips: int) -> None:
    bench.store.sessions.stop(bench.session, None, stop_transition)
    bench.store.sessions.retry(bench.session, retry_transition(None))
    job = Job(bench.store, bench.session, "op-first")

    def end() -> None:
        bench.commit(bench.claim(), final=True, text="the last end")

    bench.spy.after(trips, end)
    result = job.result(timeout=10)
    assert (result.status, result.final_response) == ("completed", "the last end")


@pytest.mark.parametrize("is_parked", [False, True])
def test_a_lost_reply_to_a_retry_retries_once(bench: Bench, is_parked: bool) -> None:
    bench.commit(bench.claim())
    if is_parked:
        bench.store.steps.park(bench.ref(2), "cannot be read")
    else:
        bench.store.sessions.stop(bench.session, None, stop_transition)
    version = bench.store.sessions.header(bench.session).version
    bench.spy.lose("retry.unpark" if is_parked else "retry.exec")
    applied = bench.store.sessions.retry(bench.session, retry_transition(None))
    retries = 0 if is_parked else 1
    assert (applied.outcome, applied.execution_id) == ("started", bench.execution)
    assert applied.publish == StepRef(bench.session, bench.execution, 2, retries)
    assert bench.store.sessions.header(bench.session).version == version + (not is_parked)
    with pytest.raises(InvalidTransition):
        bench.store.sessions.retry(bench.session, retry_transition(None))


def test_a_retry_is_not_repeated_where_a_worker_took_it_up_before_its_reply_was_found_lost(bench: Bench) -> None:
    bench.store.sessions.stop(bench.session, None, stop_transition)
    bench.spy.lose("retry.exec")

    def run() -> None:
        bench.commit(bench.claim(), final=True)

    bench.spy.before("retry.exec", lambda: bench.spy.before("retry.read", run))
    bench.store.sessions.retry(bench.session, retry_transition(None))
    assert bench.store.sessions.header(bench.session).status == "completed"


def test_a_retry_leaves_the_journal_of_a_committed_step_to_its_end(bench: Bench) -> None:
    claimed = bench.claim()
    bench.store.steps.record_answer(claimed.claim, b"answer")
    bench.store.steps.commit(
        claimed.claim, claimed.loaded, step_transition(claimed, final=True, failed=True), results={}, keep_claim=False
    )
    bench.store.sessions.retry(bench.session, retry_transition(None))
    assert bench.database("PTTL", bench.store.context.keys(bench.session).journal(bench.execution, 1)) > 0


def test_a_completed_execution_cannot_be_retried(bench: Bench) -> None:
    bench.commit(bench.claim(), final=True)
    before = bench.snapshot()
    with pytest.raises((ActionRefused, InvalidTransition)):
        bench.store.sessions.retry(bench.session, retry_transition(None))
    assert bench.snapshot() == before


def test_a_parked_step_is_left_alone_and_listed_until_it_is_retried(bench: Bench) -> None:
    bench.claim()
    bench.store.steps.park(bench.ref(), "cannot be read")
    assert bench.due() is None
    assert bench.store.sessions.header(bench.session).status == "parked"
    assert bench.store.housekeeping.dead()[0]["reason"] == "cannot be read"
    assert bench.store.sessions.retry(bench.session, retry_transition(None)).publish == bench.ref(1)
    assert isinstance(bench.answer(), Claimed)


def test_a_stale_park_changes_nothing(bench: Bench) -> None:
    bench.commit(bench.claim())
    before = bench.snapshot()
    bench.store.steps.park(bench.ref(1), "late")
    assert bench.snapshot() == before


# --- the due index and the sweep --------------------------------------------------------------------------------------


def swept(bench: Bench, lookout: QueueSnapshot | None = None) -> Any:
    return bench.store.housekeeping.sweep(shard_of(bench.session, bench.settings.shards), lookout or QueueSnapshot())


def test_a_lost_step_is_named_once_and_moved(bench: Bench) -> None:
    bench.make_due()
    assert [(ref.session_id, ref.step) for ref in swept(bench).lost] == [(bench.session, 1)]
    moved = bench.due()
    assert moved is not None
    assert moved > 1
    assert swept(bench).lost == ()


def test_what_is_not_due_is_not_looked_at(bench: Bench) -> None:
    before = bench.due()
    found = swept(bench)
    assert (found.lost, found.live, found.queued) == ((), 0, 0)
    assert bench.due() == before


def test_a_live_step_is_moved_to_its_leases_end(bench: Bench) -> None:
    bench.claim()
    bench.make_due()
    found = swept(bench)
    assert (found.lost, found.live) == ((), 1)
    due = bench.due()
    assert due is not None
    assert due > bench.store.housekeeping.now_ms()


def test_a_step_whose_message_is_still_queued_waits(bench: Bench) -> None:
    bench.make_due()
    found = swept(bench, QueueSnapshot(oldest_ms=1))
    assert (found.lost, found.queued) == ((), 1)


def test_no_more_is_published_than_there_is_room_for(bench: Bench) -> None:
    others = [f"{bench.session}-{number}" for number in range(3)]
    for other in others:
        bench.submit(other, execution=uuid.uuid4().hex)
    due = bench.store.context.keys(bench.session).shard.due
    for number, session in enumerate([bench.session, *others]):
        bench.database("ZADD", due, number + 1, session)
    assert len(swept(bench, QueueSnapshot(capacity=2)).lost) == 2
    assert len(swept(bench, QueueSnapshot(capacity=5)).lost) == 2


def test_an_ended_session_in_the_index_is_removed_and_never_revived(bench: Bench) -> None:
    bench.commit(bench.claim(), final=True)
    bench.make_due()
    assert swept(bench).lost == ()
    assert bench.due() is None


def test_each_further_publication_waits_longer_and_a_claim_starts_over(bench: Bench) -> None:
    waits: list[float] = []
    for _ in range(3):
        bench.make_due()
        swept(bench)
        due = bench.due()
        assert due is not None
        waits.append(due - bench.store.housekeeping.now_ms())
    assert waits[0] < waits[1] < waits[2]
    bench.end_lease(bench.claim().claim)
    bench.make_due()
    swept(bench)
    due = bench.due()
    assert due is not None
    assert due - bench.store.housekeeping.now_ms() < waits[1]


def test_after_a_start_of_redis_the_sweep_waits_one_lease(bench: Bench) -> None:
    bench.clock.up_for = 0.5
    bench.make_due()
    assert swept(bench).lost == ()
    assert bench.due() == 1


def test_after_a_start_of_redis_a_claim_waits_for_its_holder(bench: Bench) -> None:
    first = bench.claim().claim
    bench.end_lease(first)
    bench.clock.up_for = 0.5
    assert bench.answer() == NotClaimed(NotClaimedReason.RESTARTED)


def test_one_worker_at_a_time_sweeps_a_shard(bench: Bench) -> None:
    assert bench.store.housekeeping.lock_sweep(0, "one", 60_000) is True
    assert bench.store.housekeeping.lock_sweep(0, "two", 60_000) is False
    assert bench.store.housekeeping.lock_sweep(0, "one", 60_000) is True


# --- what stays -------------------------------------------------------------------------------------------------------


def test_after_the_end_every_key_has_a_life_or_is_permanent(bench: Bench) -> None:
    slept = bench.claim()
    bench.message("more")
    bench.end_lease(slept.claim)
    bench.commit(bench.claim())
    bench.commit(bench.claim(2), final=True)
    with contextlib.suppress(ClaimLost):
        bench.commit(slept)
    inner = bench.spy.inner
    names = (
        inner.keys() if isinstance(inner, MemoryDatabase) else [name.decode() for name in bench.database("KEYS", "*")]
    )
    assert [n for n in names if bench.database("PTTL", n) == -1 and not PERMANENT.match(n)] == []


# --- a full Redis -----------------------------------------------------------------------------------------------------


class Full:
    """A Redis that can be filled."""

    def __init__(self, server: RedisServer) -> None:
        self.client = server.client()

    def __enter__(self) -> Full:
        self.client.config_set("maxmemory", 1)
        return self

    def __exit__(self, *_: object) -> None:
        self.client.config_set("maxmemory", 0)


@pytest.fixture
def full(redis_server: RedisServer) -> Full:
    return Full(redis_server)


@pytest.fixture
def on_redis(redis_url: str) -> Iterator[Bench]:
    opened = connect(redis_url, timeout_seconds=5, connections=16, name="contract")
    found = Bench(opened)
    found.submit()
    yield found
    opened.close()


def test_a_full_redis_refuses_a_submit_and_writes_nothing(on_redis: Bench, full: Full) -> None:
    with full, pytest.raises(StoreFull):
        on_redis.submit("another", execution=uuid.uuid4().hex)
    with pytest.raises(SessionNotFound):
        on_redis.store.sessions.header("another")


def test_a_full_redis_takes_a_paid_answer_and_a_result(on_redis: Bench, full: Full) -> None:
    claim = on_redis.claim().claim
    with full:
        assert on_redis.store.steps.record_answer(claim, b"paid") == b"paid"
        assert on_redis.store.steps.record_answer(claim, b"again") == b"paid"
        on_redis.store.steps.record_results(claim, {0: b"done"})
    on_redis.end_lease(claim)
    journal = on_redis.claim().loaded.journal
    assert (journal.answer, journal.results) == (b"paid", {0: b"done"})


def test_a_full_redis_refuses_a_commit_which_succeeds_later(on_redis: Bench, full: Full) -> None:
    claimed = on_redis.claim()
    before = on_redis.snapshot()
    with full:
        with pytest.raises(StoreFull):
            on_redis.commit(claimed)
        assert on_redis.store.steps.renew([claimed.claim])[0].alive is True
    assert on_redis.snapshot() == before
    assert on_redis.commit(claimed).version == 2


def test_a_full_redis_refuses_messages_and_stops(on_redis: Bench, full: Full) -> None:
    before = on_redis.snapshot()
    with full:
        with pytest.raises(StoreFull):
            on_redis.message("more")
        with pytest.raises(StoreFull):
            on_redis.store.sessions.stop(on_redis.session, None, stop_transition)
    assert on_redis.snapshot() == before


def test_a_key_of_another_type_is_damage_and_not_a_crash(bench: Bench) -> None:
    keys = bench.store.context.keys(bench.session)
    bench.database("DEL", keys.inbox)
    bench.database("SET", keys.inbox, "not a list")
    with pytest.raises(StateUnreadable):
        bench.message("more")
