"""What a guardrail has blocked is read by no model: not by a child's, not for a note, not where messages are replaced."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from celery_agents.worker.agent import Agent
from celery_agents.worker.capabilities import Guardrail, Guardrails, Reflection, RegexRule, Subagents
from celery_agents.worker.capabilities.guardrails.findings import REMOVED
from celery_agents.worker.drivers import CallTool
from celery_agents.worker.hooks import Hook, HookContext, HookPoint
from celery_agents.worker.state import Role

from support.engine import Bench
from support.smart import Asked
from support.trees import run_tree

NewBench = Callable[..., Bench]
SECRETS = Guardrail("secrets", [RegexRule("password")], phases=["request"])


@pytest.fixture
def new_bench() -> Iterator[NewBench]:
    benches: list[Bench] = []

    def make(*agents: Agent) -> Bench:
        benches.append(Bench(*agents))
        return benches[-1]

    yield make
    for bench in benches:
        bench.close()


def agent(driver: Any, *beside: Any, **fields: Any) -> Agent:
    return Agent("a", driver=driver, capabilities=[Guardrails([SECRETS]), *beside], **fields)


def test_a_note_about_the_work_after_a_retry_does_not_tell_what_was_blocked(new_bench: NewBench) -> None:
    driver = Asked(["an answer"], repeat_last=True, auxiliary={"Reflection.note": "a note"})
    bench = new_bench(agent(driver, Reflection(cadence="every_turn")))
    session = bench.submit("my password is 1234")
    bench.run(session)
    bench.retry(session)
    bench.run(session)
    assert bench.record(session).status == "completed"
    ((asked,),) = [each.messages for each in driver.auxiliary]
    assert f"Task: {REMOVED}" in asked.content


def test_what_was_blocked_stays_so_where_a_hook_replaces_all_messages(new_bench: NewBench) -> None:
    def trim(context: HookContext) -> HookContext:
        return context.changed(state=context.state.with_messages(context.state.messages[-3:]))

    driver = Asked(["an answer"], repeat_last=True)
    bench = new_bench(agent(driver, hooks=[Hook(HookPoint.BEFORE_STEP, trim)]))
    session = bench.submit("my password is 1234")
    bench.run(session)
    for text in ("never mind", "and now?"):
        bench.send(session, text)
        bench.run(session)
    assert all("1234" not in each.content for read in driver.read for each in read)
    assert REMOVED in [each.content for each in driver.read[0]]


def test_a_child_does_not_read_what_was_blocked(new_bench: NewBench) -> None:
    helper = Asked(["helped"])
    call = CallTool("spawn_subagent", subagent="helper", prompt="help")
    subagents = Subagents([Agent("helper", driver=helper)], context="all")
    bench = new_bench(agent(Asked([call, "done"]), subagents), Agent("helper", driver=helper))
    session = bench.submit("my password is 1234")
    bench.run(session)
    bench.send(session, "never mind")
    run_tree(bench, session)
    (read,) = helper.read
    assert [each.content for each in read if each.role is Role.USER] == [REMOVED, "never mind", "help"]
