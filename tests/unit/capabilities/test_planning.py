"""Planning: the rules of `manage_todo_list`, its versions, and what a step with several calls makes of the plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from celery_agents.worker.agent import Agent
from celery_agents.worker.capabilities import Plan, PlanEvent, Planning, PlanStatus, PlanStepRecord, smart_event
from celery_agents.worker.capabilities.smart.planning import MANAGE, apply_calls
from celery_agents.worker.drivers import CallTool, ScriptedDriver
from celery_agents.worker.state import AgentState, ToolCall

from support.engine import Bench
from support.smart import Asked, run_dying

NewBench = Callable[..., Bench]


@pytest.fixture
def new_bench() -> Iterator[NewBench]:
    benches: list[Bench] = []

    def make(*agents: Agent, **settings: Any) -> Bench:
        benches.append(Bench(*agents, **settings))
        return benches[-1]

    yield make
    for bench in benches:
        bench.close()


def item(id: int, status: str | None = "not-started", **fields: Any) -> dict[str, Any]:
    return {"id": id, "status": status, "title": f"step {id}", **fields}


def write(*items: Mapping[str, Any], version: int | None = None) -> dict[str, Any]:
    return {"operation": "write", "todo_list": list(items), "expected_version": version}


def update(*items: Mapping[str, Any], version: int | None = None) -> dict[str, Any]:
    return {"operation": "update", "todo_list": list(items), "expected_version": version}


READ = {"operation": "read"}
TWO = write(item(1), item(2))


def plan(*calls: Mapping[str, Any]) -> Plan:
    return apply_calls(
        Plan(), [ToolCall(id=f"c{n}", name="manage_todo_list", args=args) for n, args in enumerate(calls)]
    )


def results(bench: Bench, *answers: Any) -> list[Mapping[str, Any]]:
    session_id = bench.submit()
    bench.run(session_id)
    return [each.value for step in bench.state(session_id).steps for each in step.tool_executions]


def agent(*answers: list[Mapping[str, Any]] | str) -> Agent:
    calls = [
        each if isinstance(each, str) else [CallTool("manage_todo_list", **args) for args in each] for each in answers
    ]
    return Agent("a", driver=ScriptedDriver(calls), capabilities=[Planning()])


# --- rules (L1 to L3) ------------------------------------------------------------------------------------------


def test_l1_write_replaces_the_plan_and_fills_fields_from_each_other() -> None:
    made = plan(TWO, write(item(1, "in-progress", title=None, description="find out"), version=1))
    assert made.version == 2
    assert made.steps == (
        PlanStepRecord(
            id=1, step="find out", owner="agent", exit_criteria="find out", status=PlanStatus.IN_PROGRESS,
            title="find out", description="find out",
        ),
    )  # fmt: skip


def test_l1_update_changes_the_given_fields_alone() -> None:
    made = plan(TWO, update({"id": 2, "status": "completed", "evidence": "seen"}))
    assert made.version == 2
    assert made.steps[0] == plan(TWO).steps[0]
    assert made.steps[1] == plan(TWO).steps[1].replace(status=PlanStatus.COMPLETED, evidence="seen")


def test_l1_read_changes_nothing_and_ignores_the_expected_version() -> None:
    assert plan(TWO, {**READ, "expected_version": 9}) == plan(TWO)


def test_l1_an_empty_plan_may_be_written() -> None:
    assert (plan(TWO, write()).version, plan(TWO, write()).steps) == (2, ())


REFUSED: dict[str, tuple[Mapping[str, Any], str]] = {
    "another version": (write(item(1), version=7), "the plan has version 1, not 7"),
    "two in progress": (write(item(1, "in-progress"), item(2, "in-progress")), "steps 1, 2 would be in-progress"),
    "two in progress by an update": (update(item(1, "in-progress"), item(2, "in-progress")), "would be in-progress"),
    "ids out of order": (write(item(2), item(1)), "must be 1 to 2 in order"),
    "ids not from 1": (write(item(2)), "must be 1 to 1 in order"),
    "an id twice": (update(item(1), item(1)), "stands twice"),
    "a missing id": (update(item(3)), "there is no step 3"),
    "no status": (write(item(1, None)), "step 1 needs a status"),
    "no text": (write({"id": 1, "status": "blocked"}), "step 1 needs a title"),
    "no list": ({"operation": "update"}, "give todo_list"),
    "long evidence": (update({"id": 1, "evidence": "x" * 301}), "evidence of step 1 is longer"),
    "a long text": (update({"id": 1, "owner": "x" * 2001}), "owner of step 1 is longer"),
    "too many steps": (write(*(item(n + 1) for n in range(101))), "are too many"),
    "too large": (write(*(item(n + 1, description="x" * 1900) for n in range(20))), "write shorter texts"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_l2_what_breaks_a_rule_changes_nothing_and_says_which(new_bench: NewBench, name: str) -> None:
    change, message = REFUSED[name]
    assert plan(TWO, change) == plan(TWO)
    (_, refused) = results(new_bench(agent([TWO], [change], "done")))
    assert refused["status"] == "error"
    assert message in refused["error"]
    assert (refused["version"], refused["adherence_score"]) == (1, 0.0)


def test_l2_an_update_without_a_plan_is_refused() -> None:
    assert plan(update(item(1))) == Plan()


def test_what_is_at_its_limit_is_taken() -> None:
    assert plan(write(item(1, evidence="x" * 300, owner="x" * 2_000, description="x" * 2_000))).version == 1
    assert plan(write(*(item(n + 1) for n in range(100)))).version == 1


def test_a_plan_has_24_000_bytes_at_most() -> None:
    def made(chars: int) -> Plan:
        full = [item(n + 1, description="x" * 2_000) for n in range(5)]
        return plan(write(*full, item(6, description="x" * 1_300, exit_criteria="x" * chars)))

    room = 24_000 - sum(len(each.to_json()) for each in made(1).steps)
    assert 0 < room < 1_999
    assert [made(1 + room).version, made(2 + room).version] == [1, 0]


@pytest.mark.parametrize(("statuses", "score"), [((), 1.0), ((0, 0), 0.0), ((1, 0, 0), 0.33), ((1, 1), 1.0)])
def test_l3_the_adherence_score(statuses: tuple[int, ...], score: float) -> None:
    items = [item(n, "completed" if done else "blocked") for n, done in enumerate(statuses, 1)]
    assert plan(write(*items)).adherence_score == score


def test_a_status_that_does_not_exist_is_an_error_for_the_model(new_bench: NewBench) -> None:
    bench = new_bench(agent([write(item(1, "done"))], "done"))
    session_id = bench.submit()
    bench.run(session_id)
    (execution,) = bench.state(session_id).steps[0].tool_executions
    assert "not-started" in execution.error_message()
    assert bench.state(session_id).smart.plan is None


# --- steps -----------------------------------------------------------------------------------------------------


def test_calls_of_one_answer_count_one_after_another(new_bench: NewBench) -> None:
    done = update({"id": 1, "status": "completed"}, version=2)
    begun = update({"id": 2, "status": "in-progress"}, version=3)
    bench = new_bench(agent([write(item(1, "in-progress"), item(2))], [update(item(1)), done, begun, READ], "done"))
    session_id = bench.submit()
    bench.run(session_id)
    state = bench.state(session_id)
    values = [each.value for each in state.steps[1].tool_executions]
    assert [(each["status"], each["version"]) for each in values] == [("ok", 2), ("ok", 3), ("ok", 4), ("ok", 4)]
    assert state.smart.plan is not None
    assert [each.status for each in state.smart.plan.steps] == [PlanStatus.COMPLETED, PlanStatus.IN_PROGRESS]
    assert state.smart.plan_version == 4
    assert state.smart.plan.last_updated is not None


@pytest.mark.parametrize("id_", ["1", 1.0, True])
def test_an_id_is_a_whole_number_and_nothing_that_may_be_read_as_one(id_: Any) -> None:
    assert plan(TWO, update({"id": id_, "status": "completed"})) == plan(TWO)


def test_the_plan_outlives_the_execution_and_the_model_reads_it(new_bench: NewBench) -> None:
    def begin(state: AgentState) -> Any:
        return CallTool("manage_todo_list", **TWO) if state.execution_count == 1 else "done"

    driver = Asked([begin, "done"])
    bench = new_bench(Agent("a", driver=driver, capabilities=[Planning()]))
    session_id = bench.submit()
    bench.run(session_id)
    bench.send(session_id)
    bench.run(session_id)
    assert bench.state(session_id).smart.plan_version == 1
    assert driver.read[0][-1].content == "hello"
    assert "Your plan, version 1" in driver.read[1][-1].content
    assert "2. [not-started] step 2" in driver.read[2][-1].content


def test_each_call_has_an_event_and_a_refused_one_has_none(new_bench: NewBench) -> None:
    bench = new_bench(agent([TWO, READ], [write(item(1), version=9)], "done"))
    session_id = bench.submit()
    bench.run(session_id)
    found = [smart_event(e.data) for e in bench.store.sessions.events(session_id) if e.type == "capability"]
    steps = plan(TWO).steps
    assert found == [
        PlanEvent(operation="write", todo_list=steps, version=1, adherence_score=0.0),
        PlanEvent(operation="read", todo_list=steps, version=1, adherence_score=0.0),
    ]


@pytest.mark.parametrize("point", ["c2", "c3", "c5", "c7"])
def test_a_crash_neither_loses_nor_doubles_a_version(new_bench: NewBench, point: str) -> None:
    changes = [update(item(1, "in-progress")), update(item(1, "completed"))]
    bench = new_bench(agent([TWO], changes, [READ], "done"))
    session_id = bench.submit()
    assert run_dying(bench, session_id, point) >= 4
    assert bench.state(session_id).smart.plan_version == 3
    assert [each.type for each in bench.store.sessions.events(session_id)].count("capability") == 4


def test_l4_two_sessions_of_one_agent_share_no_plan(new_bench: NewBench) -> None:
    def answer(state: AgentState) -> Any:
        if state.messages[0].content == "plan" and not state.step_count:
            return CallTool("manage_todo_list", **TWO)
        return "done"

    bench = new_bench(Agent("a", driver=answer, capabilities=[Planning()]))
    with_plan, without = bench.submit("plan"), bench.submit("no plan")
    for each in (with_plan, without, with_plan):
        bench.step(each)
    assert (bench.state(with_plan).smart.plan_version, bench.state(without).smart.plan) == (1, None)


def test_the_tool_can_be_called_where_there_is_no_session() -> None:
    assert MANAGE.name == "manage_todo_list"
    assert set(MANAGE.parameters["properties"]) == {"operation", "todo_list", "expected_version"}


def test_a_call_that_breaks_a_rule_spoils_no_later_one_of_its_answer() -> None:
    assert plan(update(item(1)), TWO) == plan(TWO)
    other = ToolCall(id="x", name="look", args={})
    assert apply_calls(Plan(), [other, ToolCall(id="c", name="manage_todo_list", args=TWO)]) == plan(TWO)
