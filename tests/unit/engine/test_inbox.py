"""Messages and other changes that arrive while an execution runs, between its steps, and after it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from celery_agents.worker.agent import Agent
from celery_agents.worker.drivers import CallTool
from celery_agents.worker.engine import Done, operation_transition
from celery_agents.worker.state import AgentState, ExecutionBudget, Role
from celery_agents.worker.tools import tool

from support.engine import Bench

NewBench = Callable[..., Bench]


@tool(effect="pure")
def look() -> str:
    """Look."""
    return "seen"


class Talking:
    """Calls a tool in its first step and answers in its second with what it read; `during` runs in a step."""

    def __init__(self, during: dict[int, Callable[[], Any]]) -> None:
        self.during = during
        self.read: list[list[str]] = []

    def __call__(self, state: AgentState) -> Any:
        self.read.append([message.content for message in state.messages if message.role is Role.USER])
        happening = self.during.pop(len(self.read), None)
        if happening is not None:
            happening()
        return "answer" if state.step_count else CallTool("look")


def talking(new_bench: NewBench, **during: Callable[[], Any]) -> tuple[Bench, Talking]:
    driver = Talking({int(name.removeprefix("step")): what for name, what in during.items()})
    return new_bench(Agent("a", driver=driver, tools=[look])), driver


def test_a_message_during_a_step_joins_at_its_commit(new_bench: NewBench) -> None:
    bench, driver = talking(new_bench, step1=lambda: bench.send("s1", "more"))
    session_id = bench.submit()
    assert len(bench.run(session_id)) == 2
    assert driver.read == [["hello"], ["hello", "more"]]
    assert bench.state(session_id).execution_count == 1
    joined = next(event for event in bench.store.sessions.events(session_id) if event.type == "message_joined")
    assert (joined.execution_id, joined.data["started"]) == ("e1", False)


def test_a_message_between_two_steps_joins_at_once(new_bench: NewBench) -> None:
    bench, driver = talking(new_bench)
    session_id = bench.submit()
    bench.step(session_id)
    assert bench.send(session_id, "more").outcome == "joined"
    bench.run(session_id)
    assert driver.read == [["hello"], ["hello", "more"]]


def test_a_message_during_the_final_step_starts_the_next_execution_in_the_same_commit(new_bench: NewBench) -> None:
    bench, driver = talking(new_bench, step2=lambda: bench.send("s1", "more"))
    session_id = bench.submit()
    bench.step(session_id)
    outcome = bench.step(session_id)
    assert isinstance(outcome, Done)
    assert outcome.next is not None
    assert (outcome.next.execution_id != "e1", outcome.next.step, outcome.status.value) == (True, 1, "completed")
    first = bench.store.sessions.record(session_id, "e1")
    assert first is not None
    assert (first.status, first.final_response) == ("completed", "answer")
    bench.run(session_id)
    assert driver.read[-1] == ["hello", "more"]
    assert bench.record(session_id).status == "completed"
    assert bench.state(session_id).execution_count == 2


def test_several_messages_during_the_final_step_are_one_execution(new_bench: NewBench) -> None:
    def send() -> None:
        for text in ("one", "two", "three"):
            bench.send("s1", text)

    bench, driver = talking(new_bench, step2=send)
    session_id = bench.submit()
    bench.run(session_id)
    assert driver.read[-1] == ["hello", "one", "two", "three"]
    assert bench.state(session_id).execution_count == 2


@pytest.mark.parametrize("comes_first", ["message", "stop"])
def test_a_message_before_a_stop_is_held_and_one_behind_it_starts_the_next_execution(
    new_bench: NewBench, comes_first: str
) -> None:
    def both() -> None:
        if comes_first == "stop":
            bench.stop("s1")
        bench.send("s1", "more")
        if comes_first == "message":
            bench.stop("s1")

    bench, _ = talking(new_bench, step1=both)
    session_id = bench.submit()
    bench.run(session_id)
    queue = bench.store.sessions.read_waiting(session_id).queue
    assert (len(queue.messages), queue.held) == ((1, "stopped") if comes_first == "message" else (0, ""))
    if comes_first == "message":
        bench.store.sessions.release_queue(session_id, "r1", operation_transition)
        bench.run(session_id)
    first = bench.store.sessions.record(session_id, "e1")
    assert first is not None
    assert first.status == "stopped"
    assert bench.record(session_id).status == "completed"
    assert bench.state(session_id).execution_count == 2


@pytest.mark.parametrize("when", ["during", "between", "after"])
def test_metadata_prompt_and_a_message_keep_their_order_whenever_they_come(new_bench: NewBench, when: str) -> None:
    def act() -> None:
        bench.write_metadata("s1", "key", {"a": [1]})
        bench.change_prompt("s1", "be brief")
        bench.write_metadata("s1", "key", 2)

    bench, _ = talking(new_bench, **({"step1": act} if when == "during" else {}))
    session_id = bench.submit()
    bench.step(session_id)
    if when == "between":
        act()
    bench.run(session_id)
    if when == "after":
        act()
    state = bench.state(session_id)
    assert (dict(state.metadata), state.system_prompt) == ({"key": 2}, "be brief")
    assert bench.record(session_id).status == "completed"
    assert bench.due(session_id) is None, "a change that is no message makes no work"


def test_a_conflict_applies_the_same_answer_and_results_to_what_is_stored_now(new_bench: NewBench) -> None:
    made: list[int] = []

    @tool(effect="unsafe")
    def act() -> str:
        """Act once, while somebody saves."""
        made.append(1)
        bench.save_beside("s1", lambda state: state.with_metadata("beside", len(made)))
        return "acted"

    asked: list[int] = []

    def driver(state: AgentState) -> Any:
        asked.append(1)
        return "done" if state.step_count else [CallTool("act"), CallTool("act")]

    bench = new_bench(Agent("a", driver=driver, tools=[act], max_parallel_tools=1))
    session_id = bench.submit()
    assert len(bench.run(session_id)) == 2
    state = bench.state(session_id)
    assert (state.metadata["beside"], state.final_response) == (2, "done")
    assert (len(made), len(asked)) == (2, 2)
    assert [each.value for each in state.steps[0].tool_executions] == ["acted", "acted"]


def test_a_message_saved_beside_the_final_step_does_not_stay_without_an_answer(new_bench: NewBench) -> None:
    def saves() -> None:
        bench.save_beside("s1", lambda state: state.with_user_message("beside"))

    bench, driver = talking(new_bench, step2=saves)
    session_id = bench.submit()
    bench.run(session_id)
    assert driver.read[-1] == ["hello", "beside"]
    assert bench.state(session_id).execution_count == 2


def test_a_conflict_in_a_step_that_a_limit_ends_keeps_the_reason(new_bench: NewBench) -> None:
    class Saving:
        done = False

        def check(self, view: Any) -> Any:
            from celery_agents.worker.guards import PROCEED

            if not Saving.done and view.execution.step_count:
                Saving.done = True
                bench.save_beside("s1", lambda state: state.with_metadata("beside", True))
            return PROCEED

    bench = new_bench(Agent("a", driver=lambda state: CallTool("look"), tools=[look], guards=[Saving()]))
    session_id = bench.submit(budget=ExecutionBudget(max_seconds=10))
    bench.step(session_id)
    bench.clock.go_on(11)
    Saving.done = False
    bench.run(session_id)
    assert bench.state(session_id).metadata["beside"] is True
    assert (bench.record(session_id).status, bench.record(session_id).stop_reason) == ("stopped", "time_limit")
