from __future__ import annotations

from datetime import UTC, datetime, timedelta

import anyio
import pytest

from celery_agents.worker.state import AgentState
from celery_agents.worker.tools import LookupStatus, ToolContext

from support import agents
from support.agents import call, driver_key, plan
from support.ledger import Ledger


@pytest.fixture(autouse=True)
def _as_in_a_worker(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ledger.env.items():
        monkeypatch.setenv(name, value)


def context(key: str) -> ToolContext:
    return ToolContext(
        session_id="s",
        execution_id="e",
        step=1,
        index=0,
        idempotency_key=key,
        deadline=datetime.now(UTC) + timedelta(minutes=1),
    )


def test_the_driver_follows_the_newest_plan_and_pays_for_each_answer(ledger: Ledger) -> None:
    state = AgentState.fresh().with_user_message(plan([call("keyed", work="a"), call("pure", work="b")]))
    state = state.with_user_message("a remark").with_execution("e1").with_execution_started()
    asked = agents._follow(state)
    assert [(each.name, dict(each.args)) for each in asked] == [("keyed", {"work": "a"}), ("pure", {"work": "b"})]
    assert ledger.deliveries() == {driver_key("e1", 1): 1}
    done = AgentState.fresh().with_user_message(plan(answer="that is all"))
    assert agents._follow(done.with_execution("e2").with_execution_started()) == "that is all"


@pytest.mark.parametrize(("name", "effects"), [("keyed", 1), ("looked_up", 2), ("unsafe", 2)])
def test_effects_count_as_their_class_says(ledger: Ledger, name: str, effects: int) -> None:
    for _ in range(2):
        assert getattr(agents, name)(context("k"), work="a") == "a done"
    assert ledger.deliveries() == {"k": 2}
    assert ledger.effects() == {"k": effects}
    assert {(entry["tool"], entry["work"], entry["step"]) for entry in ledger.entries()} == {(name, "a", 1)}


def test_the_async_tool_has_its_effect_too(ledger: Ledger) -> None:
    assert anyio.run(agents.keyed_async, "a", context("k")) == "a done"
    assert ledger.effects() == {"k": 1}


def test_the_lookup_finds_what_happened(ledger: Ledger) -> None:
    lookup = agents.looked_up.lookup
    assert lookup is not None
    assert lookup("k", context("k")).status is LookupStatus.DID_NOT_HAPPEN
    agents.looked_up(context("k"), work="a")
    found = lookup("k", context("k"))
    assert (found.status, found.value) == (LookupStatus.HAPPENED, "a done")
