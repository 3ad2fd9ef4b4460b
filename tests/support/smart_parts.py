"""What the parts of `state.smart` must hold when `support.smart_agents` is done: each change once, and none lost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from celery_agents.worker.capabilities import PlanStatus
from celery_agents.worker.capabilities.smart.limits import LimitsUsed
from celery_agents.worker.capabilities.smart.tool_archive import find_response
from celery_agents.worker.state import AgentState, ToolOutcome

from .smart_agents import STEPS, plan_calls, planned_calls


def problems_of_smart_parts(state: AgentState) -> Iterator[str]:
    """What is lost or doubled; nothing where all is as it should be."""
    smart = state.smart
    if state.final_response != "done" or state.step_count != STEPS + 1:
        yield f"it ended with {state.final_response!r} after {state.step_count} steps: {state.errors}"
        return
    turns = [each.turn for each in smart.reflections]
    if turns != list(range(STEPS + 1)):
        yield f"the reflections are about the turns {turns}"
    if smart.plan is None or smart.plan.version != plan_calls():
        yield f"the plan has version {smart.plan_version}, not {plan_calls()}"
    elif {each.status for each in smart.plan.steps} != {PlanStatus.COMPLETED}:
        yield f"the plan is {smart.plan.steps}"
    yield from _problems_of_summaries(state)
    facts = {each.key: each.value for each in smart.memory_facts}
    said = {f"k{step % 8}": f"value {step}" for step in range(STEPS) if step % 4 == 1}
    if facts != said:
        yield f"the facts are {facts}, not {said}"
    made = sum(len(planned_calls(step)) for step in range(STEPS))
    if (counted := state.part(LimitsUsed).tool_calls) != made:
        yield f"{counted} calls are counted, not {made}"
    places = [each.message_index for each in smart.guardrail_result.incidents]
    gathered = [index for index, each in enumerate(smart.messages) if each.content.startswith("gathered ")]
    if places != gathered:
        yield f"the guardrail has seen the messages {places}, not {gathered}"
    hits = [each.idempotent_cache_hit for each in smart.tool_history if each.tool_call.name == "look"]
    if hits != [False] * 3 + [True] * (STEPS - 3):
        yield f"the cache gave {hits}"


def _problems_of_summaries(state: AgentState) -> Iterator[str]:
    records = state.smart.summary_records
    if not records:
        yield "nothing was summarized"
    before = 0
    for each in records:
        if each.covered_from != before or each.covered_upto <= before or each.source != "model":
            yield f"summary {each.id} covers {each.covered_from} to {each.covered_upto} by {each.source}"
        before = each.covered_upto
    for each in state.smart.tool_history_archived:
        if each.outcome is ToolOutcome.OK and find_response(state, str(each.id), "output") != each.as_message():
            yield f"the archived result {each.id} is gone"


def problems_of_pairs(entries: list[Mapping[str, Any]]) -> Iterator[str]:
    """Requests of the ledger in which a call and its result are parted."""
    for entry in entries:
        open_calls: list[str] = []
        for pair in entry["pairs"]:
            if isinstance(pair, list):
                if open_calls:
                    yield f"{entry['key']}: {open_calls} have no result"
                open_calls = list(pair)
            elif pair is not None and pair not in open_calls:
                yield f"{entry['key']}: {pair} answers nothing"
            elif pair is not None:
                open_calls.remove(pair)
            elif open_calls:
                yield f"{entry['key']}: {open_calls} have no result"
                open_calls = []
