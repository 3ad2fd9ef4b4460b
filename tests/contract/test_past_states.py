"""The state at each committed step is what its commit has stored, whatever was changed afterwards, on every store."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from celery_agents.worker.engine.applied_step import start_execution
from celery_agents.worker.errors import InvalidInput, NotKept, SessionNotFound
from celery_agents.worker.moments import moment
from celery_agents.worker.state import (
    AgentState,
    AgentStep,
    ExecutionBudget,
    InferenceResponse,
    ListPart,
    Message,
    PartItem,
    PartScope,
    StatePart,
    ToolCall,
)
from celery_agents.worker.state.conversation.context import LLMConfig
from celery_agents.worker.state.execution.usage import InferenceUsage
from celery_agents.worker.store import NextState, Snapshot
from celery_agents.worker.store.database import Database
from celery_agents.worker.store.sessions.past_reads import StepAddress

from support.store import Bench, an_operation

pytestmark = pytest.mark.leaves_keys("executions go on")

Change = Callable[[AgentState], AgentState]


class Plan(StatePart):
    part_name = "plan"
    scope = PartScope.SESSION
    text: str | None = None
    steps: tuple[int, ...] = ()


class Mood(StatePart):
    part_name = "mood"
    value: float = 0.0


class Line(PartItem):
    text: str
    weight: float = 1.0


class Facts(ListPart[Line]):
    part_name = "facts"
    scope = PartScope.SESSION


class Notes(ListPart[Line]):
    part_name = "notes"


VALUES: tuple[Any, ...] = (
    None,
    0,
    1,
    True,
    1.0,
    "",
    "text",
    [],
    [1, None, [True]],
    {"a": None, "b": {"c": []}},
    "ü:~/1.2",
)


def random_change(dice: random.Random) -> Change:
    """One change to a state, of the kinds that steps, hooks and clients make."""
    text = f"text {dice.randrange(1000)}"
    key = dice.choice(("a", "b", "a/b", "x:1.1", "ü"))
    value = dice.choice(VALUES)
    return dice.choice(
        (
            lambda s: s.with_metadata(key, value),
            lambda s: s.without_metadata(key) if key in s.context.metadata else s,
            lambda s: s.with_system_prompt(text),
            lambda s: s.with_llm_config(LLMConfig(model=text, settings={"temperature": 0.5})),
            lambda s: s.with_part(Plan(text=dice.choice((None, text)), steps=(1, 2))),
            lambda s: s.without_part(Plan),
            lambda s: s.with_part(Mood(value=dice.random())) if s.execution else s,
            lambda s: s.with_part(s.part(Facts).append(Line(text=text))),
            lambda s: s.with_part(Facts([Line(text=text)])),
            lambda s: s.with_part(s.part(Notes).append(Line(text=text, weight=1e22))) if s.execution else s,
            lambda s: s.with_messages_added([Message.user(text)], "buffer"),
            lambda s: s.with_messages([Message.user(text)], "summary"),
            lambda s: s.with_messages([*s.store.section().messages[-3:]]),
            lambda s: s.with_usage(InferenceUsage(input=3, output=1), 0.1) if s.execution else s,
            lambda s: s,
        )
    )  # fmt: skip


class Past:
    """A session that is driven step by step, with what each step has stored."""

    def __init__(self, bench: Bench, seed: int) -> None:
        self.bench, self.dice = bench, random.Random(seed)
        self.saved: dict[str, AgentState] = {}
        self.price = 0.1  # sums of it are rounded

    def step(self, number: int, *changes: Change, final: bool = False) -> AgentState:
        bench = self.bench
        claimed = bench.claim(number)

        def transition(fresh: Snapshot) -> NextState:
            now = moment(fresh.now_ms)
            state = start_execution(fresh.state, ExecutionBudget.unlimited(), now)
            inputs = state.store.extents
            for change in changes[::2]:
                state = change(state)
            calls = () if final else (ToolCall(id=f"c{number}", name="tool", args={"n": number}),)
            usage = InferenceUsage(input=10 + number, output=number, requests=1)
            answer = InferenceResponse(
                content=f"answer {number}", tool_calls=calls, usage=usage, cost=self.price * number
            )
            step = AgentStep.from_inference(answer, number=number, inputs=inputs)
            state = state.with_current_step(step, now=now)
            for change in changes[1::2]:
                state = change(state)
            if final:
                return NextState(state.with_execution_completed(claim=claimed.claim.id, now=now))
            return NextState(state.with_current_step_completed(claim=claimed.claim.id, now=now))

        committed = bench.store.steps.commit(claimed.claim, claimed.loaded, transition, results={}, keep_claim=False)
        self.saved[f"{bench.execution}:{number}"] = committed.state
        return committed.state

    def random_step(self, number: int, *, final: bool = False) -> None:
        self.step(number, *(random_change(self.dice) for _ in range(self.dice.randrange(6))), final=final)

    def act(self) -> None:
        """A client changes the session between two steps."""
        change = random_change(self.dice)

        def transition(snapshot: Snapshot) -> NextState:
            return NextState(change(snapshot.state), operations=(snapshot.inbox[0].id,))

        self.bench.store.sessions.act(self.bench.session, an_operation("unused"), transition)

    def check(self, *addresses: str) -> None:
        for address in addresses or self.saved:
            execution, number = address.split(":")
            found = self.bench.store.sessions.state_at(self.bench.session, StepAddress(int(number), execution))
            assert found == self.saved[address], f"step {address}"
            assert found.to_dict() == self.saved[address].to_dict()


@pytest.mark.parametrize("seed", range(6))
def test_the_state_of_every_step_is_what_its_commit_has_stored(bench: Bench, seed: int) -> None:
    past = Past(bench, seed)
    for _ in range(3):
        steps = past.dice.randrange(2, 8)
        for number in range(1, steps + 1):
            past.random_step(number, final=number == steps)
            if past.dice.random() < 0.3:
                past.act()
        past.check()
        bench.execution = bench.message("next").execution_id
    past.check()


def test_two_hundred_steps_with_any_changes_in_between(database: Database) -> None:
    past = Past(Bench(database), seed=7)
    past.bench.submit()
    for number in range(1, 201):
        past.random_step(number)
        if past.dice.random() < 0.2:
            past.act()
    past.check()


def test_nothing_is_kept_where_nothing_changes(bench: Bench) -> None:
    past = Past(bench, 0)
    past.price = 0.125
    for number in range(1, 6):
        past.step(number)
    keys = bench.store.context.keys(bench.session)
    assert not bench.database("EXISTS", keys.old_values)
    past.check()
    past.step(6, lambda state: state.with_metadata("a", None))
    assert bench.database("HGETALL", keys.old_values) == [b"metadata/a:1.5", b""]
    past.check()


def test_a_step_that_does_not_exist_is_named(bench: Bench) -> None:
    past = Past(bench, 0)
    with pytest.raises(InvalidInput, match="has 0 committed steps"):
        bench.store.sessions.state_at(bench.session, StepAddress(1))
    past.step(1)
    with pytest.raises(InvalidInput, match="has 1 committed steps"):
        bench.store.sessions.state_at(bench.session, StepAddress(2))
    with pytest.raises(InvalidInput, match="no such execution"):
        bench.store.sessions.state_at(bench.session, StepAddress(1, "another"))
    with pytest.raises(SessionNotFound):
        bench.store.sessions.state_at("nothing", StepAddress(1))


def test_the_oldest_values_make_room_and_are_named(database: Database) -> None:
    past = Past(Bench(database, history_bytes=5_000), 0)
    past.bench.submit()
    for number in range(1, 21):
        past.step(number, lambda state, n=number: state.with_metadata("large", f"{n}:" + "x" * 1000))
    keys = past.bench.store.context.keys(past.bench.session)
    assert sum(map(len, past.bench.database("HGETALL", keys.old_values))) < 6_500
    kept = [f"{past.bench.execution}:{number}" for number in range(18, 21)]
    past.check(*kept)
    with pytest.raises(NotKept, match="'metadata/large' of step 3 is not kept") as caught:
        past.check(f"{past.bench.execution}:3")
    assert (caught.value.name, caught.value.step) == ("metadata/large", 3)


def test_a_value_beyond_the_bound_is_not_kept_and_fails_nothing(database: Database) -> None:
    past = Past(Bench(database, history_bytes=500), 0)
    past.bench.submit()
    past.step(1, lambda state: state.with_metadata("large", "x" * 1000))
    past.step(2, lambda state: state.with_metadata("large", "small"))
    past.step(3)
    past.check(*[f"{past.bench.execution}:{number}" for number in (2, 3)])
    with pytest.raises(NotKept, match="metadata/large"):
        past.check(f"{past.bench.execution}:1")


def test_steps_before_an_upgrade_are_refused_in_words(bench: Bench) -> None:
    past = Past(bench, 0)
    past.step(1)
    keys = bench.store.context.keys(bench.session)
    bench.database("HDEL", keys.session, "past")  # as an earlier version has left it
    bench.store = bench.another()
    with pytest.raises(NotKept, match="version of this package that kept no old values"):
        past.check(f"{bench.execution}:1")
    past.step(2)
    past.step(3, lambda state: state.with_system_prompt("another"))
    past.check(f"{bench.execution}:2", f"{bench.execution}:3")
    with pytest.raises(NotKept, match="from step 2 of its execution 1 on"):
        past.check(f"{bench.execution}:1")


def test_a_save_by_an_earlier_version_in_between_begins_a_new_past(bench: Bench) -> None:
    past = Past(bench, 0)
    past.step(1, lambda state: state.with_metadata("a", 1))
    past.step(2, lambda state: state.with_metadata("a", 2))
    keys = bench.store.context.keys(bench.session)
    known = bench.database("HGET", keys.session, "past")
    past.step(3, lambda state: state.with_metadata("a", 3))
    bench.database("HSET", keys.session, "past", known)  # it leaves the field as it was
    bench.store = bench.another()
    past.step(4)
    past.check(f"{bench.execution}:4")
    for number in (1, 2, 3):
        with pytest.raises(NotKept):
            past.check(f"{bench.execution}:{number}")


def test_without_a_bound_nothing_is_written(database: Database) -> None:
    past = Past(Bench(database, history_bytes=0), 0)
    past.bench.submit()
    past.step(1, lambda state: state.with_metadata("a", 1))
    past.step(2, lambda state: state.with_metadata("a", 2))
    keys = past.bench.store.context.keys(past.bench.session)
    assert not past.bench.database("EXISTS", keys.old_values)
    assert past.bench.database("HGET", keys.session, "past") is None
    with pytest.raises(NotKept, match="is 0"):
        past.check(f"{past.bench.execution}:1")


def test_a_clear_and_a_deletion_remove_old_values_and_an_end_gives_them_a_life(database: Database) -> None:
    past = Past(Bench(database), 0)
    bench, keys = past.bench, past.bench.store.context.keys(past.bench.session)
    bench.submit()
    past.step(1, lambda state: state.with_metadata("a", 1))
    past.step(2, lambda state: state.with_metadata("a", 2))
    assert bench.database("PTTL", keys.old_values) == -1
    past.step(3, final=True)
    assert bench.database("PTTL", keys.old_values) > 0
    stored = bench.store.sessions.load(bench.session)
    bench.store.sessions.save(bench.session, replace(stored, state=stored.state.without_conversation()))
    assert not bench.database("EXISTS", keys.old_values)
    with pytest.raises(InvalidInput, match="no execution"):
        bench.store.sessions.state_at(bench.session, StepAddress(1))
    bench.execution = bench.message("again").execution_id
    past.saved.clear()
    past.step(1, lambda state: state.with_metadata("a", 3))
    past.step(2, lambda state: state.with_metadata("a", 4), final=True)
    past.check()
    assert bench.database("EXISTS", keys.old_values)
    bench.store.sessions.delete(bench.session)
    assert not bench.database("EXISTS", keys.old_values)


def test_a_save_between_two_reads_makes_the_read_begin_again(bench: Bench) -> None:
    past = Past(bench, 0)
    past.step(1, lambda state: state.with_metadata("a", 1))
    bench.spy.before("past.lists", lambda: past.step(2, lambda state: state.with_metadata("a", 2)))
    past.check(f"{bench.execution}:1")
