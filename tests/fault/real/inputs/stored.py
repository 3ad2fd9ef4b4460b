"""Stored data is damaged and a worker runs on it: it goes on, or parks the session and says why."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from hypothesis import strategies as st

from celery_agents.config.settings import Settings
from celery_agents.worker.agent import Agent
from celery_agents.worker.engine import (
    Done,
    Parked,
    operation_transition,
    retry_transition,
    stop_transition,
)
from celery_agents.worker.errors import (
    CeleryAgentsError,
    SessionNotFound,
    StateUnreadable,
    StoreFull,
    StoreUnavailable,
)
from celery_agents.worker.state import (
    AgentState,
    FinishReason,
    FrozenDict,
    InferenceResponse,
    LLMConfig,
    Message,
    ToolCall,
)
from celery_agents.worker.store import (
    InboxKind,
    Operation,
    StepRef,
    Store,
    memory_store,
    redis_store,
)
from celery_agents.worker.store.database import Command
from celery_agents.worker.store.keys import SessionKeys
from celery_agents.worker.tools import tool

from .examples import Broken, Worker, expect, quick_settings, run_examples
from .extremes import Material, as_json, short
from support.redis_server import RedisServer
from support.verdict import Verdict


@tool(effect="keyed")
def noted(work: str) -> str:
    """Have an effect that may be had again."""
    return work


@tool(effect="unsafe")
def once(work: str) -> str:
    """Have an effect that may not."""
    return work


def _worked(state: AgentState) -> Any:
    assert state.execution is not None
    number = state.execution.step_count
    if number >= 3:
        return "done"
    return [ToolCall(id=f"a{number}", name="noted", args=FrozenDict(work="a")),
            ToolCall(id=f"b{number}", name="once", args=FrozenDict(work="b"))]  # fmt: skip


_at_work: Final = Agent("at-work", driver=_worked, tools=(noted, once), step_timeout=30)


@dataclasses.dataclass(frozen=True)
class Victim:
    """A session as it is stored, to be put back and damaged again and again.

    Attributes:
        ref: The step that is due, or the last one.
        parts: By key: the fields of a hash, or the items of a list.
    """

    ref: StepRef
    keys: SessionKeys
    parts: Mapping[str, Mapping[bytes, bytes] | tuple[bytes, ...]]

    def named(self, key: str) -> str:
        """What a key holds, in a word."""
        if key == self.keys.session:
            return "session"
        return {"ctl": "ctl", "inbox": "inbox", "m": "message", "x": "step", "j": "journal"}[
            key.removeprefix(self.keys.session + ":").partition(":")[0]
        ]

    def restoring(self, now_ms: int) -> list[Command]:
        """Commands that put it back as it was."""
        commands: list[Command] = [("DEL", *self.parts)]
        for key, part in self.parts.items():
            if isinstance(part, tuple):
                commands += [("RPUSH", key, *part)] if part else []
            elif part:
                commands.append(("HSET", key, *(word for pair in part.items() for word in pair)))
        return [*commands, ("ZADD", self.keys.shard.due, now_ms, self.keys.session_id)]


@dataclasses.dataclass(frozen=True)
class Damage:
    """What is wrong with one part: the commands that make it so."""

    part: str
    what: str
    commands: tuple[Command, ...]

    def __repr__(self) -> str:
        return f"{self.part}: {self.what} {short(self.commands[-1][-1])}"


@dataclasses.dataclass(frozen=True)
class Attack:
    """A damaged session, and what is then done with it."""

    victim: Victim
    damages: tuple[Damage, ...]
    action: str
    cold: bool

    def __repr__(self) -> str:
        session = self.victim.keys.session_id
        return f"{session} {'' if self.cold else 'held '}{self.action} after {list(self.damages)!r:.700}"


_STATE: Final = ("head", "message", "step")
_CONTROL: Final = ("session", "ctl", "journal", "inbox")


def state(directory: Path, examples: int, seed: int) -> Verdict:
    """Heads, messages and steps of sessions in memory, damaged."""
    del directory
    settings = quick_settings()
    return _attacked(memory_store(settings), settings, examples, seed, "state", _STATE)


def state_on_redis(directory: Path, examples: int, seed: int) -> Verdict:
    """The same on a Redis."""
    with RedisServer(directory) as server:
        settings = quick_settings(redis_url=server.url())
        store = redis_store(settings, name="inputs")
        return _attacked(store, settings, examples, seed, "state_on_redis", _STATE)


def control(directory: Path, examples: int, seed: int) -> Verdict:
    """What is stored beside the state, damaged together with it: control fields, journals, inboxes, whole keys."""
    del directory
    settings = quick_settings()
    return _attacked(memory_store(settings), settings, examples, seed, "control", _STATE + _CONTROL)


def control_on_redis(directory: Path, examples: int, seed: int) -> Verdict:
    """The same on a Redis."""
    with RedisServer(directory) as server:
        settings = quick_settings(redis_url=server.url())
        store = redis_store(settings, name="inputs")
        return _attacked(store, settings, examples, seed, "control_on_redis", _STATE + _CONTROL)


def _attacked(store: Store, settings: Settings, examples: int, seed: int, border: str, parts: Sequence[str]) -> Verdict:
    verdict = Verdict()
    material = Material(verdict)
    worker = Worker(store, settings, _at_work)
    try:
        victims = _victims(worker)
        neighbour = _dumped(store, worker.submit("neighbour", "at-work"))
        siege = _Siege(worker, verdict, neighbour, contradictions="ctl" in parts)
        run_examples(verdict, border, examples, seed, _attacks(material, victims, parts), siege.judge)
        expect([type(each) for each in worker.run(siege.neighbour.ref)] == [Done] * 4, "the neighbour goes on")
    except Broken as error:
        verdict.expect(False, border, str(error))
    finally:
        worker.close()
    return verdict


def _victims(worker: Worker) -> list[Victim]:
    """A session that was just submitted, one in the middle of its third step, and one that has ended."""
    store = worker.store
    ended = worker.submit("ended", "at-work")
    worker.run(ended)
    middle = worker.submit("middle", "at-work")
    worker.run(middle, 2)
    middle = dataclasses.replace(middle, step=3)
    claim = _claimed(store, middle)
    answer = InferenceResponse(
        tool_calls=_worked(store.sessions.load("middle").state), finish_reason=FinishReason.TOOL_CALLS
    )
    store.steps.record_failure(claim, 1, b'{"kind": "timeout", "transient": true}')
    store.steps.record_answer(claim, answer.to_json())
    store.steps.begin_calls(claim, {0: 1000, 1: 1000}, claim.now_ms)
    store.steps.record_results(claim, {0: _record_of_a_call(store)})
    for operation in (
        Operation("m1", InboxKind.MESSAGE, {"message": Message.user("more").to_dict()}),
        Operation("m2", InboxKind.METADATA, {"key": "b", "value": [1, {"c": None}]}),
        Operation("m3", InboxKind.SYSTEM_PROMPT, {"prompt": "Be brief."}),
        Operation("m4", InboxKind.MODEL, {"model": LLMConfig(model="a:b").to_dict()}),
    ):
        store.sessions.act("middle", operation, operation_transition)
    store.context.database.transaction("test", [("DEL", store.context.keys("middle").shard.lease(claim.id))])
    fresh = worker.submit("fresh", "at-work")
    return [_dumped(store, ref) for ref in (fresh, middle, middle, dataclasses.replace(ended, step=4))]


def _claimed(store: Store, ref: StepRef) -> Any:
    claimed: Any = store.steps.claim(ref, "c1a1", "dead-worker", alone=False)
    return claimed.claim


def _record_of_a_call(store: Store) -> bytes:
    """What the journal holds of a call that has ended, taken from one that did."""
    execution = store.sessions.load("middle").state.execution
    assert execution is not None
    (first, _) = execution.step_executions[0].step.tool_executions
    return as_json({"execution": json.loads(first.to_json())})


def _dumped(store: Store, ref: StepRef) -> Victim:
    keys, ask = store.context.keys(ref.session_id), store.context.database.pipeline
    journal = keys.journal(ref.execution_id, ref.step)
    hashes = (keys.session, keys.ctl, journal)
    lists = (keys.section("messages", 0), keys.steps(ref.execution_id), keys.inbox)
    found = ask("test", [*(("HGETALL", key) for key in hashes), *(("LRANGE", key, 0, -1) for key in lists)])
    parts: dict[str, Any] = {
        key: dict(zip(flat[::2], flat[1::2], strict=True)) for key, flat in zip(hashes, found, strict=False)
    }
    parts |= {key: tuple(items) for key, items in zip(lists, found[3:], strict=True)}
    return Victim(ref, keys, parts)


def _attacks(material: Material, victims: Sequence[Victim], parts: Sequence[str]) -> st.SearchStrategy[Attack]:
    actions = st.sampled_from(("run", "run", "run", "send", "stop", "retry"))
    return st.one_of(
        *(
            st.builds(
                Attack,
                st.just(victim),
                st.one_of(st.tuples(damage), st.tuples(damage), st.tuples(damage, damage)),
                actions,
                st.sampled_from((True, True, True, False)),
            )
            for victim, damage in ((each, _damages(material, each, parts)) for each in victims)
        )
    )


def _damages(material: Material, victim: Victim, parts: Sequence[str]) -> st.SearchStrategy[Damage]:
    chosen: list[st.SearchStrategy[Damage]] = []
    for key, part in victim.parts.items():
        name = victim.named(key)
        if name == "session" and isinstance(part, Mapping) and "head" in parts:
            chosen.append(_damages_of_fields(material, "head", key, {b"head": part[b"head"]}))
        if name not in parts:
            continue
        chosen.append(_damages_of_key(material, name, key))
        if isinstance(part, tuple):
            chosen.append(_damages_of_list(material, name, key, part))
        else:
            chosen.append(_damages_of_fields(material, name, key, part))
    return st.one_of(*chosen)


def _damages_of_list(material: Material, part: str, key: str, items: Sequence[bytes]) -> st.SearchStrategy[Damage]:
    def written(at: int, changed: Sequence[bytes], what: str) -> Damage:
        items_now = [*items[:at], *changed, *items[at + 1 :]]
        return Damage(part, f"{what} {at}", (("DEL", key), *((("RPUSH", key, *items_now),) if items_now else ())))

    place = st.integers(0, max(0, len(items) - 1))
    return st.one_of(
        *(
            material.damaged(item).map(lambda raw, at=at: written(at, [raw], "item"))  # type: ignore[misc]
            for at, item in enumerate(items)
        ),
        place.map(lambda at: written(at, [], "lost")),
        place.map(lambda at: written(at, 2 * items[at : at + 1], "doubled")),
        material.raw.map(lambda raw: written(len(items), [raw], "one more")),
    )


_ODD: Final = (b"t9:r", b"t0:s", b"t1:r", b"t:s", b"tx:r", b":s", b":r", b"llm", b"try:x", b"err:x", b"\xff:s", b"t1:s")


def _damages_of_fields(
    material: Material, part: str, key: str, fields: Mapping[bytes, bytes]
) -> st.SearchStrategy[Damage]:
    changed = [
        material.damaged(value).map(
            lambda raw, name=name: Damage(part, f"field {name.decode()}", (("HSET", key, name, raw),))  # type: ignore[misc]
        )
        for name, value in sorted(fields.items())
    ]
    lost = st.sampled_from(sorted(fields) or [b"none"]).map(
        lambda name: Damage(part, f"lost {name.decode()}", (("HDEL", key, name),))
    )
    if part != "journal":
        return st.one_of(*changed, lost)
    added = st.tuples(st.sampled_from(_ODD), material.raw)
    return st.one_of(
        *changed, lost, added.map(lambda pair: Damage(part, f"added {pair[0]!r}", (("HSET", key, *pair),)))
    )


def _damages_of_key(material: Material, part: str, key: str) -> st.SearchStrategy[Damage]:
    return st.one_of(
        st.just(Damage(part, "gone", (("DEL", key),))),
        material.raw.map(lambda raw: Damage(part, "another type", (("DEL", key), ("SET", key, raw)))),
    )


class _Siege:
    """Judges attacks: works, or says which session cannot be read; nobody else is touched."""

    def __init__(self, worker: Worker, verdict: Verdict, neighbour: Victim, *, contradictions: bool) -> None:
        """
        Args:
            contradictions: Run steps of sessions too whose state and control fields tell of different executions.
        """
        self._contradictions = contradictions
        self._worker = worker
        self._store = worker.store
        self._verdict = verdict
        self.neighbour = neighbour

    def judge(self, attack: Attack) -> None:
        """One attack."""
        store, victim = self._store, attack.victim
        session_id = victim.keys.session_id
        store.context.cache.drop(session_id)
        store.context.database.transaction("test", victim.restoring(store.housekeeping.now_ms()))
        if not attack.cold:
            store.sessions.stop(session_id, "another", stop_transition)  # whatever reads it makes it held
        for each in attack.damages:
            with contextlib.suppress(StateUnreadable):  # the damage before it has made the key another type
                store.context.database.transaction("test", each.commands)
            self._verdict.counts[f"damaged_{each.part}"] += 1
        whole = self._loads(session_id)
        self._header(session_id)
        if whole and self._contradicts(victim):
            self._verdict.counts["contradicting"] += 1
            if not self._contradictions:
                return
        if attack.action == "run":
            self._ran(victim, whole)
        else:
            self._acted(attack.action, session_id)
        self._header(session_id)
        expect(_dumped(store, self.neighbour.ref).parts == self.neighbour.parts, "the neighbour was touched")

    def _loads(self, session_id: str) -> bool:
        try:
            self._store.sessions.load(session_id)
        except SessionNotFound:
            return False
        except StateUnreadable as error:
            expect(0 < len(str(error)) < 2000, "it says what cannot be read")
            return False
        return True

    def _contradicts(self, victim: Victim) -> bool:
        execution = self._store.sessions.load(victim.keys.session_id).state.execution
        return execution is None or execution.execution_id != victim.ref.execution_id

    def _header(self, session_id: str) -> None:
        with contextlib.suppress(SessionNotFound):
            expect(self._store.sessions.header(session_id).session_id == session_id, "the header is another session's")
        listed, _ = self._store.sessions.headers(limit=10)
        expect("neighbour" in {header.session_id for header in listed}, "the listing lacks the neighbour")

    def _ran(self, victim: Victim, whole: bool) -> None:
        counts = self._verdict.counts
        try:
            (outcome,) = self._worker.run(victim.ref, 1)
        except StateUnreadable:
            counts["state_refused"] += 1
            return
        counts[f"state_{type(outcome).__name__}"] += 1
        if isinstance(outcome, Parked):
            expect(bool(outcome.reason), "it is parked without a reason")
        if isinstance(outcome, Done) and whole:
            self._store.context.cache.drop(victim.keys.session_id)
            expect(self._loads(victim.keys.session_id), "it could be read, and after a step it cannot")

    def _acted(self, action: str, session_id: str) -> None:
        store = self._store
        message = Operation(uuid.uuid4().hex, InboxKind.MESSAGE, {"message": Message.user("more").to_dict()})
        calls: Mapping[str, Callable[[], object]] = {
            "send": lambda: store.sessions.act(session_id, message, operation_transition),
            "stop": lambda: store.sessions.stop(session_id, None, stop_transition),
            "retry": lambda: store.sessions.retry(session_id, retry_transition(None)),
        }
        try:
            calls[action]()
        except (StoreUnavailable, StoreFull):
            raise
        except CeleryAgentsError as error:
            self._verdict.counts[f"state_{action}_refused"] += 1
            expect(bool(str(error)), "an error without a word")
