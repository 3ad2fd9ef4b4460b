"""What a step has asked its model is found later, or named as not kept, on every store."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from typing import Any

import pytest

from celery_agents.worker.engine.applied_step import start_execution
from celery_agents.worker.errors import InvalidInput, NotKept, StateUnreadable
from celery_agents.worker.moments import moment
from celery_agents.worker.state import AgentState, AgentStep, ExecutionBudget, InferenceResponse, Message
from celery_agents.worker.state.past.seen_requests import ModelRequest
from celery_agents.worker.store import NextState, Snapshot
from celery_agents.worker.store.asked import Asked
from celery_agents.worker.store.database import Database
from celery_agents.worker.store.sessions.past_reads import StepAddress

from support.store import Bench

pytestmark = pytest.mark.leaves_keys("executions go on")


def asked(prompt: str, **facts: Any) -> Asked:
    """A question with this prompt, whose text is named by it."""
    named = {"agent": "agent", "prompt": f"digest of {prompt[:9]}", "tools": "digest of tools", **facts}
    texts = {named["prompt"]: json.dumps(prompt).encode(), "digest of tools": b'[{"name": "look"}]'}
    return Asked(json.dumps(named).encode(), texts)


def step(bench: Bench, number: int, question: Asked | None, *, final: bool = False, summary: str = "") -> AgentState:
    """Commit a step that has asked; with a summary, its hooks replace the conversation afterwards."""
    claimed = bench.claim(number)

    def transition(fresh: Snapshot) -> NextState:
        now = moment(fresh.now_ms)
        state = start_execution(fresh.state, ExecutionBudget.unlimited(), now)
        answer = InferenceResponse(content=f"answer {number}")
        taken = AgentStep.from_inference(answer, number=number, inputs=state.store.extents)
        state = state.with_current_step(taken, now=now)
        if summary:
            state = state.with_messages([Message.user(summary)])
        if final:
            return NextState(state.with_execution_completed(claim=claimed.claim.id, now=now), asked=question)
        return NextState(state.with_current_step_completed(claim=claimed.claim.id, now=now), asked=question)

    return bench.store.steps.commit(claimed.claim, claimed.loaded, transition, results={}, keep_claim=False).state


def request(bench: Bench, number: int, execution: str | None = None) -> ModelRequest:
    return bench.store.sessions.request_at(bench.session, StepAddress(number, execution, "step"))


def prompts(bench: Bench, *numbers: int, execution: str | None = None) -> list[str | None]:
    return [request(bench, number, execution).system_prompt for number in numbers]


def stored(bench: Bench) -> Mapping[bytes, bytes]:
    found = bench.database("HGETALL", bench.store.context.keys(bench.session).old_values)
    return dict(zip(found[::2], found[1::2], strict=True))


def test_each_step_of_each_execution_finds_what_it_has_asked(bench: Bench) -> None:
    for number, prompt in enumerate(("a", "a", "b", "a"), 1):
        step(bench, number, asked(prompt), final=number == 4)
    first, bench.execution = bench.execution, bench.message("next").execution_id
    step(bench, 1, asked("a"))
    step(bench, 2, asked("c"))
    assert prompts(bench, 1, 2, 3, 4, execution=first) == ["a", "a", "b", "a"]
    assert prompts(bench, 1, 2) == ["a", "c"]
    assert [each["name"] for each in request(bench, 1).tools or ()] == ["look"]
    assert [message.content for message in request(bench, 3, first).messages or ()][-2:] == ["answer 1", "answer 2"]
    texts = [name for name in stored(bench) if name.startswith(b"=")]
    assert sorted(texts) == [b"=digest of a", b"=digest of b", b"=digest of c", b"=digest of tools"]


def test_the_messages_of_a_step_are_found_after_the_conversation_was_replaced(bench: Bench) -> None:
    step(bench, 1, asked("a"), summary="the first summary")
    step(bench, 2, asked("a"), summary="the second summary")
    step(bench, 3, asked("a"))
    seen = [[message.content for message in request(bench, number).messages or ()] for number in (1, 2, 3)]
    assert len(seen[0]) == 1, "the message of the user"
    assert seen[1:] == [["the first summary"], ["the second summary"]]


def test_steps_before_the_first_known_question_are_named_as_unknown(bench: Bench) -> None:
    step(bench, 1, None)  # as a fork has steps of its origin
    step(bench, 2, asked("a"))
    found = request(bench, 1)
    assert (found.system_prompt, found.tools, found.agent) == (None, None, "")
    assert found.not_kept == ("request",)
    assert "is not known" in found.notes[0]
    assert found.messages
    assert prompts(bench, 2) == ["a"]


def test_a_text_that_is_not_kept_any_more_is_named(bench: Bench) -> None:
    step(bench, 1, asked("a"))
    step(bench, 2, asked("b"))
    bench.database("HDEL", bench.store.context.keys(bench.session).old_values, "=digest of a", "=digest of tools")
    found = request(bench, 1)
    assert found.not_kept == ("tools", "prompt")
    assert (found.system_prompt, found.tools) == (None, None)
    assert [message.role.value for message in found.messages or ()] == ["user"]


def test_the_oldest_questions_make_room_with_the_texts_that_only_they_name(database: Database) -> None:
    bench = Bench(database, history_bytes=6_000)
    bench.submit()
    texts = [f"{number} {random.Random(number).randbytes(1000).hex()}" for number in range(21)]
    for number in range(1, 21):
        step(bench, number, asked(texts[number]))
    assert sum(len(name) + len(value) for name, value in stored(bench).items()) < 9_000
    assert prompts(bench, 20, 19) == [texts[20], texts[19]]
    oldest = request(bench, 1)
    assert oldest.not_kept == ("request",)
    assert oldest.messages
    named = [json.loads(value)["prompt"] for name, value in stored(bench).items() if name.startswith(b"request:")]
    kept = {name.decode()[1:] for name in stored(bench) if name.startswith(b"=")}
    assert kept == {*named, f"digest of {texts[20][:9]}", "digest of tools"}


def test_a_text_beyond_the_bound_is_named_and_fails_nothing(database: Database) -> None:
    bench = Bench(database, history_bytes=300)
    bench.submit()
    step(bench, 1, asked(random.Random(1).randbytes(1000).hex()))
    assert request(bench, 1).not_kept == ("prompt",)
    assert request(bench, 1).tools


def test_without_a_bound_nothing_is_kept(database: Database) -> None:
    bench = Bench(database, history_bytes=0)
    bench.submit()
    step(bench, 1, asked("a"))
    assert bench.database("HGET", bench.store.context.keys(bench.session).session, "asked") is None
    with pytest.raises(NotKept, match="is 0"):
        request(bench, 1)


def test_steps_before_an_upgrade_are_refused_and_the_first_one_after_it_is_not(bench: Bench) -> None:
    step(bench, 1, None)
    bench.database("HDEL", bench.store.context.keys(bench.session).session, "past")  # as an earlier version leaves it
    bench.store = bench.another()
    step(bench, 2, asked("a"))
    with pytest.raises(NotKept, match="from step 2 of its execution 1 on"):
        request(bench, 1)
    assert prompts(bench, 2) == ["a"]


def test_a_step_that_does_not_exist_is_named_by_the_field(bench: Bench) -> None:
    step(bench, 1, asked("a"))
    for number, execution, said in ((2, None, "has 1 committed steps"), (1, "another", "no such execution")):
        with pytest.raises(InvalidInput, match=said) as caught:
            request(bench, number, execution)
        assert caught.value.field == "step"


def test_a_damaged_text_is_named(bench: Bench) -> None:
    step(bench, 1, asked("a"))
    bench.database("HSET", bench.store.context.keys(bench.session).old_values, "=digest of a", b"\x01nothing")
    with pytest.raises(StateUnreadable, match="damaged"):
        request(bench, 1)


def test_a_stored_question_is_read_back_as_it_was() -> None:
    question = asked("long " * 1000)
    assert Asked.from_stored(question.to_stored()) == question
    assert len(question.to_stored()) < 500
    for damaged in (b"", b"\x01", b"[]", b"{}", b'{"facts": 1, "texts": {}}'):
        with pytest.raises(StateUnreadable):
            Asked.from_stored(damaged)
