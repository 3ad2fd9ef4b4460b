"""An agent of a user's under fire: what holds, and what is caught."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai import RunContext
from pydantic_ai.models.test import TestModel

from celery_agents import Agent, AgentState, Approve, CeleryDurability, ExecutionBudget, LookupResult, ToolContext, tool
from celery_agents.testing import (
    CallTool,
    CrashPlan,
    DidNotSurvive,
    EffectLedger,
    Fault,
    FaultKind,
    assert_survives,
    script,
)
from celery_agents.worker import crash_points
from celery_agents.worker.drivers import TokenPrice
from celery_agents.worker.errors import ConfigurationError, DriverError
from celery_agents.worker.state import Request

from support.counting_agents import Counted, CountSteps

ledger = EffectLedger()


@tool(effect="pure")
def look(word: str) -> str:
    """Look something up."""
    return word.upper()


@tool(effect="keyed")
async def pay(ctx: ToolContext, cents: int) -> str:
    """Pay; the bank deduplicates."""
    await asyncio.sleep(0)
    ledger.happened("payment", key=ctx.idempotency_key)
    return f"{cents} under {ctx.idempotency_key[:6]}"


def find_letter(key: str, ctx: ToolContext) -> LookupResult:
    return LookupResult.happened("sent") if ledger.count("letter", key=key) else LookupResult.did_not_happen()


@tool(effect="lookup", lookup=find_letter, timeout=5)
def send_letter(ctx: ToolContext, text: str) -> str:
    """Send a letter."""
    ledger.happened("letter", key=ctx.idempotency_key)
    return "sent"


@tool
def ring(times: int) -> str:
    """Ring a bell."""
    ledger.happened("ring")
    return "rung"


ALL_CLASSES = script(
    [
        CallTool("look", word="a"),
        CallTool("pay", cents=5),
        CallTool("send_letter", text="b"),
        CallTool("ring", times=1),
    ],
    CallTool("ring", times=2),
    "Done.",
)
careful = Agent("careful", driver=ALL_CLASSES, tools=[look, pay, send_letter, ring])


def at(kind: str, point: str, nth: int = 1, seconds: float = 0.0) -> Callable[[int], CrashPlan]:
    return lambda seed: CrashPlan.of(Fault(FaultKind(kind), point, nth, seconds))


def told(agent: Agent, **options: Any) -> DidNotSurvive:
    with pytest.raises(DidNotSurvive) as caught:
        assert_survives(agent, "go", **{"ledger": ledger, **options})
    return caught.value


@pytest.mark.parametrize("steps_per_task", [1, 3])
def test_an_agent_with_tools_of_every_class_survives(steps_per_task: int) -> None:
    survival = assert_survives(careful, seeds=range(40), ledger=ledger, steps_per_task=steps_per_task)
    assert survival.seeds == 40
    assert survival.response == "Done."
    assert survival.interrupted > 0
    assert survival.driver_calls >= survival.least_driver_calls == 120
    # Its calls end together, so that their results need no record before the commit (c6).
    assert all(survival.points[f"c{number}"] for number in (2, 3, 4, 5, 7, 8)), survival.points
    assert len(survival.faults) >= 4, survival.faults


def test_the_same_seed_goes_the_same_way() -> None:
    def trace(seed: int) -> tuple[str, ...]:
        return told(known, seeds=[seed], observe=object).trace

    known = Agent(
        "known", driver=script(CallTool("pay", cents=5), CallTool("look", word="a"), "Done."), tools=[look, pay]
    )

    assert [trace(seed) for seed in (4, 7, 11)] == [trace(seed) for seed in (4, 7, 11)]


# --- what is caught -----------------------------------------------------------------------------------------------


def wrong_agent() -> Agent:
    @tool(effect="pure")
    def charge() -> str:
        ledger.happened("charge")
        return "ok"

    return Agent("wrong", driver=script(CallTool("charge"), "Paid."), tools=[charge])


def test_an_effect_declared_pure_is_caught_and_named_with_its_replay() -> None:
    failure = told(wrong_agent())
    assert failure.problems == (
        (
            "charge (declared pure) in step 1, call 0: the effect 'charge' happened 2 times; "
            "such a tool is not pure: declare it keyed, lookup or unsafe"
        ),
    )
    assert failure.faults
    assert f"replay, with the other arguments as they are: assert_survives(wrong, 'go', seeds=[{failure.seed}])" in str(
        failure
    )
    assert re.search(r"\d\.\d{3}  w1 takes step 1", str(failure))
    assert told(wrong_agent(), seeds=[failure.seed]).problems == failure.problems


def test_a_key_of_its_own_making_is_caught() -> None:
    numbers = iter(range(10_000))

    @tool(effect="keyed")
    def charge() -> str:
        ledger.happened("charge", key=f"fresh {next(numbers)}")
        return "ok"

    failure = told(Agent("a", driver=script(CallTool("charge"), "Paid."), tools=[charge]))
    assert "hand ctx.idempotency_key to the service" in failure.problems[0]


def test_a_lookup_that_finds_nothing_is_caught() -> None:
    @tool(effect="lookup", lookup=lambda key, ctx: LookupResult.did_not_happen(), timeout=1)
    def send(text: str) -> str:
        ledger.happened("letter")
        return "sent"

    blind = Agent("a", driver=script(CallTool("send", text="x"), "Sent."), tools=[send])
    assert "its lookup did not find what had happened" in told(blind).problems[0]


def test_a_world_that_is_not_as_undisturbed_is_caught_without_a_ledger() -> None:
    rows: list[str] = []

    @tool(effect="pure")
    def insert() -> str:
        rows.append("row")
        return "ok"

    agent = Agent("a", driver=script(CallTool("insert"), "Inserted."), tools=[insert])
    failure = told(agent, ledger=None, reset=rows.clear, observe=lambda: len(rows))
    assert failure.problems == ("the world is 2, and undisturbed it is 1",)


def test_an_answer_that_depends_on_the_attempt_is_caught_unless_it_may() -> None:
    asked = iter(range(10_000))
    agent = Agent("a", driver=lambda state: f"answer {next(asked)}")
    assert "undisturbed it is 'answer" in told(agent).problems[0]
    assert assert_survives(agent, seeds=range(8), deterministic=False).seeds == 8


def test_an_agent_that_falls_over_an_unknown_outcome_is_caught() -> None:
    def decide(state: AgentState) -> Any:
        if not state.step_count:
            return CallTool("ring", times=1)
        return state.steps[-1].tool_executions[0].value.upper()

    failure = told(Agent("a", driver=decide, tools=[ring]))
    assert failure.problems[0].startswith("it ended failed (")


def test_an_agent_that_fails_by_itself_is_told_so_before_any_fault() -> None:
    agent = Agent("a", driver=script(DriverError("bad_request", "no such model", transient=False)))
    failure = told(agent)
    assert failure.seed is None
    assert failure.problems[0].startswith("it ends failed, not completed")
    assert assert_survives(agent, seeds=range(6), expect="failed").seeds == 6


# --- single faults ------------------------------------------------------------------------------------------------


def test_a_worker_killed_during_an_unsafe_call_leaves_one_effect_and_an_unknown_outcome() -> None:
    agent = Agent("a", driver=script(CallTool("ring", times=1), "Done."), tools=[ring])
    survival = assert_survives(agent, seeds=[0], ledger=ledger, plan=at("kill", "c5"))
    assert survival.interrupted == 1
    assert ledger.count("ring") == 1
    assert [run.tool for run in ledger.runs] == ["ring"]


def test_a_keyed_call_runs_again_under_its_key_and_has_one_effect() -> None:
    agent = Agent("a", driver=script(CallTool("pay", cents=1), "Done."), tools=[pay])
    assert_survives(agent, seeds=[0], ledger=ledger, plan=at("kill", "c5"))
    assert list(ledger.runs_by_key().values()) == [2]
    assert list(ledger.effects_by_key().values()) == [1]
    assert len(ledger.told) == 2
    assert ledger.count("payment") == 1


def test_an_answer_lost_before_its_record_is_asked_for_again_and_one_after_it_is_not() -> None:
    agent = Agent("a", driver=script("Done."))
    assert assert_survives(agent, seeds=[0], plan=at("kill", "c2")).driver_calls == 2
    assert assert_survives(agent, seeds=[0], plan=at("kill", "c3")).driver_calls == 1


@pytest.mark.parametrize("point", ["c3", "after journal.answer", "before commit.attempt"])
def test_a_worker_that_wakes_up_after_its_lease_finds_the_step_taken(point: str) -> None:
    survival = assert_survives(careful, seeds=[0], ledger=ledger, plan=at("pause", point, 1, 30.0))
    assert survival.faults == {"pause": 1}


def test_time_limits_do_not_end_a_job_in_virtual_time() -> None:
    limits = ExecutionBudget(max_seconds=1.0, max_steps=9)
    agent = Agent("a", driver=script(CallTool("look", word="x"), "Done."), tools=[look], budget=limits, step_timeout=1)
    assert assert_survives(agent, seeds=[0], plan=at("kill", "c3")).seeds == 1


def test_a_provider_that_is_away_for_a_while_costs_virtual_time_only() -> None:
    away = iter([TimeoutError("slow")] * 5)

    def decide(state: AgentState) -> str:
        for error in away:
            raise error
        return "Back."

    assert assert_survives(Agent("a", driver=decide), seeds=range(3)).response == "Back."


# --- the parts ----------------------------------------------------------------------------------------------------


def test_a_wrapped_tool_looks_to_the_model_as_before_and_can_be_called_by_hand() -> None:
    wrapped = ledger.wrap(look)
    assert (wrapped.name, wrapped.parameters, wrapped.effect) == (look.name, look.parameters, look.effect)
    ledger.clear()
    assert wrapped("a") == "A"
    assert ledger.runs == ()


def test_a_ledger_knows_a_key_again() -> None:
    mine = EffectLedger()
    assert mine.happened("payment", key="k")
    assert not mine.happened("payment", key="k")
    assert mine.happened("refund", key="k")
    assert (mine.count("payment"), mine.count(), len(mine.told)) == (1, 2, 3)


def test_a_plan_kills_at_every_crash_point_over_as_many_seeds() -> None:
    passed = ["message", "c0", "before claim.read", "after claim.read", "c1", "c2", "c0"]
    first = [CrashPlan(seed).faults(passed)[0] for seed in range(4)]
    assert [(fault.point, fault.nth) for fault in first] == [("c0", 1), ("c1", 1), ("c2", 1), ("c0", 2)]
    assert all(fault.kind is FaultKind.KILL for fault in first)
    assert all(1 <= len(CrashPlan(seed, most=4).faults(passed)) <= 4 for seed in range(40))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Fault(FaultKind.KILL, "c77"), "a point is one of c0"),
        (lambda: Fault(FaultKind.REFUSE, "c3"), "refuse cannot happen at 'c3'"),
        (lambda: CrashPlan(-1), "give a seed from 0"),
        (lambda: CrashPlan(0, most=9), "most from 1 to 4"),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused(make: Callable[[], object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        make()


def test_nothing_stays_armed_and_an_agent_stays_as_it_was() -> None:
    assert_survives(careful, seeds=range(2), ledger=ledger)
    crash_points.at("c0")
    assert careful.driver is ALL_CLASSES
    assert careful.tools == [look, pay, send_letter, ring]


def test_the_parts_of_a_capability_count_each_step_once_under_fire() -> None:
    def answer(state: AgentState) -> str | CallTool:
        return CallTool("look", word="a") if state.step_count < 2 else f"counted {state.part(Counted).steps}"

    agent = Agent("counting", driver=answer, tools=[look], capabilities=[CountSteps()])
    assert assert_survives(agent, "go").response == "counted 2"


# --- agents of pydantic-ai, metadata, answers -------------------------------------------------------------------------


def desk(effect: str, *, approve: bool = False, durable: bool = True) -> Any:
    """An agent of pydantic-ai whose model calls each of its tools once."""
    capabilities = [CeleryDurability(deps=lambda metadata: metadata["customer"])] if durable else []
    agent: PydanticAgent[str, str] = PydanticAgent(TestModel(), name="desk", deps_type=str, capabilities=capabilities)

    @agent.tool(metadata={"celery": {"effect": effect}}, requires_approval=approve)
    def refund(ctx: RunContext[str], cents: int) -> str:
        key = (ctx.metadata or {})["celery"]["idempotency_key"]
        ledger.happened("refund", key="" if effect == "pure" else key)
        return f"{ctx.deps} gets {cents}"

    return agent


def test_an_agent_of_pydantic_ai_survives_with_its_metadata() -> None:
    survival = assert_survives(desk("keyed"), ledger=ledger, metadata={"customer": "Ada"}, seeds=range(20))
    assert survival.response == '{"refund":"Ada gets 0"}'
    assert survival.points["c2"]
    assert survival.points["c5"]
    assert ledger.count("refund") == 1


def test_a_wrong_effect_class_of_a_pydantic_ai_tool_is_caught() -> None:
    failure = told(desk("pure"), metadata={"customer": "Ada"})
    assert "refund (declared pure)" in failure.problems[0]


def test_an_unsafe_pydantic_ai_tool_may_stay_unknown_and_runs_once() -> None:
    survival = assert_survives(desk("unsafe"), ledger=ledger, metadata={"customer": "Ada"}, seeds=range(20))
    assert survival.interrupted > 0


@pytest.mark.parametrize("kind", ["pydantic-ai", "ours"])
def test_what_a_job_asks_is_answered_under_faults_too(kind: str) -> None:
    @tool(effect="keyed", approval="always")
    def refund(ctx: ToolContext, cents: int) -> str:
        ledger.happened("refund", key=ctx.idempotency_key)
        return f"Ada gets {cents}"

    ours = Agent("asks", driver=script(CallTool("refund", cents=0), '{"refund":"Ada gets 0"}'), tools=[refund])
    asked: list[str] = []

    def answer(request: Request) -> Approve:
        asked.append(request.tool)
        return Approve()

    survival = assert_survives(
        desk("keyed", approve=True) if kind == "pydantic-ai" else ours,
        ledger=ledger,
        metadata={"customer": "Ada"},
        answer=answer,
        seeds=range(20),
    )
    assert survival.response == '{"refund":"Ada gets 0"}'
    assert set(asked) == {"refund"}
    assert len(asked) >= 21
    assert ledger.count("refund") == 1


@pytest.mark.parametrize("answer", [None, pytest.param(lambda request: None, marks=pytest.mark.long)])
def test_a_job_that_asks_without_an_answer_says_what_to_give(answer: Any) -> None:
    failure = told(desk("keyed", approve=True), metadata={"customer": "Ada"}, answer=answer)
    assert failure.seed is None
    assert "answer=" in failure.problems[0]


def test_what_cannot_be_run_is_refused_with_a_sentence() -> None:
    with pytest.raises(ConfigurationError, match="driver= is for agents of ours"):
        assert_survives(desk("keyed"), driver=script("Done."))
    with pytest.raises(ConfigurationError, match="CeleryDurability"):
        assert_survives(desk("keyed", durable=False))


class Answer(BaseModel):
    text: str


@pytest.mark.parametrize(
    "more",
    [
        {"model_settings": {"temperature": 0.1}},
        {"output_type": Answer},
        {"price": TokenPrice(input=1, output=1)},
        {"base_url": "http://127.0.0.1:1/v1"},
        {"completion_window": "24h"},
        {"background": True},
        {"model": ["openai:gpt-5-mini", "openai:gpt-5"]},
    ],
)
def test_a_script_answers_in_the_place_of_a_model_whatever_belongs_to_the_model(more: dict[str, Any]) -> None:
    agent = Agent("modelled", tools=[look], **{"model": "openai:gpt-5-mini", **more})
    survival = assert_survives(agent, driver=script(CallTool("look", word="a"), "A."), seeds=range(2))
    assert survival.response == "A."


def starter(*tools: Any, **more: Any) -> Agent:
    def answer(state: AgentState) -> Any:
        if state.steps:
            return f"it said {state.messages[-1].content}"
        return CallTool("ask_helper", prompt="help") if tools else CallTool("transfer_to_helper")

    return Agent("starter", driver=answer, tools=tools, **more)


@pytest.mark.parametrize("context", ["child", "handoff"])
def test_an_agent_survives_with_those_that_it_starts_and_hands_over_to(context: str) -> None:
    def help_once(state: AgentState) -> Any:
        called = [each.tool_call.name for step in state.steps for each in step.tool_executions]
        return "helped" if "pay" in called else CallTool("pay", cents=5)

    helper = Agent("helper", driver=help_once, tools=[pay])
    agent = starter(helper.as_tool()) if context == "child" else starter(handoffs=[helper])
    survival = assert_survives(agent, others=[helper], seeds=range(12), ledger=ledger)
    assert "helped" in survival.response
    assert ledger.count("payment") == 1


@tool(effect="keyed", approval="always")
def sign(ctx: ToolContext) -> str:
    """Sign."""
    return "signed"


def test_what_a_child_asks_is_answered_too() -> None:
    helper = Agent("helper", driver=lambda state: "helped" if state.steps else CallTool("sign"), tools=[sign])
    agent = starter(helper.as_tool())
    asked: list[Request] = []

    def approve(request: Request) -> Approve:
        asked.append(request)
        return Approve()

    assert_survives(agent, others=[helper], answer=approve, seeds=range(3))
    assert {request.tool for request in asked} == {"sign"}


def test_an_agent_that_is_started_and_not_given_is_named_at_once() -> None:
    helper = Agent("helper", driver=lambda state: "helped")
    failure = told(starter(helper.as_tool()))
    assert "others=[helper]" in failure.problems[0]


def test_a_job_may_be_expected_to_wait() -> None:
    survival = assert_survives(
        Agent("signer", driver=script(CallTool("sign"), "Done."), tools=[sign]), expect="waiting", seeds=range(4)
    )
    assert survival.seeds == 4
