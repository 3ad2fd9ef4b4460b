"""The agents of the simulation with every capability of `state.smart`, and what their parts must hold at the end.

The model is also asked beside the steps: for notes, summaries and verdicts. Each of these calls is paid for at a ledger of
its own; its key is the execution, the step and the purpose.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from celery_agents.worker.agent import Agent
from celery_agents.worker.capabilities import (
    AgentLimits,
    Guardrail,
    GuardrailIncidents,
    GuardrailPhase,
    Guardrails,
    MemoryFacts,
    ModelRule,
    Planning,
    ReasoningConfig,
    Reflection,
    ReflectionConfig,
    Summarization,
    ToolCache,
)
from celery_agents.worker.capability import Capability
from celery_agents.worker.drivers import InferenceRequest
from celery_agents.worker.state import (
    AgentState,
    FinishReason,
    InferenceResponse,
    InferenceUsage,
    Message,
    StepExecution,
    ToolCall,
    ToolOutcome,
)

if TYPE_CHECKING:
    from .simulation import Simulation

USAGE: Final = InferenceUsage(input=12, output=3)
NOTE: Final = "Reflection.note"
SUMMARY: Final = "Summarization"
MANAGE: Final = "manage_todo_list"
REMEMBER: Final = "remember_fact"
_CONTEXT_TOKENS: Final = 220
_ONE_MESSAGE: Final = 22
_OF_TEN: Final = 10

AuxiliaryKey = tuple[str, int, str]
"""Execution, step, purpose."""


@dataclass(frozen=True)
class AuxiliaryPayment:
    """One answer beside the steps that was paid for."""

    key: AuxiliaryKey
    job: str
    seq: int


@dataclass
class JournaledBeside:
    """An answer beside the steps as it was journaled first.

    Attributes:
        until: The virtual time at which its journal ends.
    """

    raw: bytes
    seq: int
    job: str
    until: float = float("inf")


@dataclass
class AuxiliaryHistory:
    """The answers beside the steps that were journaled, and when each step was committed.

    Attributes:
        journaled: Those of journals that are there; one that ends takes its answers away.
        ever: All of them, with those of journals that have ended.
        committed: When a step was committed, by execution and number.
    """

    journaled: dict[AuxiliaryKey, JournaledBeside] = field(default_factory=dict[AuxiliaryKey, JournaledBeside])
    ever: dict[AuxiliaryKey, list[JournaledBeside]] = field(default_factory=dict[AuxiliaryKey, list[JournaledBeside]])
    committed: dict[tuple[str, int], int] = field(default_factory=dict[tuple[str, int], int])

    def add(self, key: AuxiliaryKey, raw: bytes, seq: int, job: str) -> None:
        """An answer was journaled first."""
        self.journaled[key] = JournaledBeside(raw, seq, job)
        self.ever.setdefault(key, []).append(self.journaled[key])

    def ends_at(self, execution: str, step: int, at: float) -> None:
        """The journal of a step ends at a time."""
        for key, each in self.journaled.items():
            if key[:2] == (execution, step):
                each.until = at

    def gone(self, execution: str, step: int, now: float) -> None:
        """The journal of a step was deleted."""
        for key in [key for key in self.journaled if key[:2] == (execution, step)]:
            self.journaled.pop(key).until = now


def with_smart_capabilities(agents: Sequence[Agent]) -> Sequence[Agent]:
    """The same agents with all capabilities."""
    return tuple(replace(each, capabilities=_every()) for each in agents)


def _every() -> list[Capability]:
    reflection = ReflectionConfig(cadence="initial_then_after_tool", keep_last=2)
    judge = Guardrail("judge", [ModelRule("Is it allowed?")])
    return [
        Guardrails([judge]),
        Planning(),
        Reflection(ReasoningConfig(reflection=reflection)),
        Summarization(_CONTEXT_TOKENS, max_summary_tokens=50, token_counter=lambda text: _ONE_MESSAGE + len(text) // 8),
        MemoryFacts(),
        ToolCache({"pure"}),
        AgentLimits(max_tool_calls=500, max_total_output_tokens=1_000_000),
    ]


# --- the model -------------------------------------------------------------------------------------------------


def answer_beside(request: InferenceRequest, number: int) -> bytes:
    """An answer to a question beside the step; each note and each summary is another one."""
    if request.purpose == NOTE:
        text = f"note n{number}a n{number}b"
    elif request.purpose == SUMMARY:
        text = json.dumps({"summary": f"s{number}", "stable_facts": [{"key": f"f{number}", "value": "yes"}]})
    else:
        text = json.dumps(_verdict(json.loads(request.messages[-1].content)))
    return InferenceResponse(content=text, usage=USAGE, cost=0.0005).to_json()


def _verdict(asked: Mapping[str, Any]) -> dict[str, Any]:
    """A verdict that follows from the text: one request of ten is blocked, and some texts are noted."""
    chance = zlib.crc32(asked["text"].encode()) % _OF_TEN
    if chance == 0 and asked["phase"] == GuardrailPhase.REQUEST:
        return {"allow": False, "reason": "not this"}
    return {"allow": True, "disposition": "warn" if chance == 1 else "allow"}


def calls_beside(number: int, step: int, first: int) -> tuple[ToolCall, ...]:
    """The calls of an answer that change the plan and remember a fact, behind its other calls."""
    item = {"id": 1, "title": f"step {step} of answer {number}", "status": "in-progress"}
    made = [(MANAGE, {"operation": "write", "todo_list": [item]}), (REMEMBER, {"key": f"k{number}", "value": "true"})]
    return tuple(
        ToolCall(id=f"call{number}x{index}", name=name, args=args)  # type: ignore[arg-type]
        for index, (name, args) in enumerate(made, first)
    )


def unpaired(messages: Sequence[Message]) -> str:
    """The first call without a result, or result without a call, among messages for a model; "" without any."""
    wanted: list[str] = []
    for message in messages:
        if message.tool_call_id is not None:
            if message.tool_call_id not in wanted:
                return f"the result of {message.tool_call_id} has no call"
            wanted.remove(message.tool_call_id)
        elif wanted and not message.tool_calls and message.role == "system":
            continue
        elif wanted:
            return f"the calls {wanted} have no result"
        else:
            wanted = [call.id for call in message.tool_calls]
    return f"the calls {wanted} have no result" if wanted else ""


# --- the verdict -----------------------------------------------------------------------------------------------


def check_auxiliary_payments(sim: Simulation) -> None:
    """No answer beside a step is paid for by a job twice, nor by one that found it in the journal."""
    world, history = sim.world, sim.history
    paid: dict[AuxiliaryKey, list[AuxiliaryPayment]] = {}
    for each in sim.stage.ledgers.auxiliary:
        paid.setdefault(each.key, []).append(each)
    for key, payments in paid.items():
        jobs = [each.job for each in payments]
        world.expect(len(set(jobs)) == len(jobs), "I4", f"{key} was paid twice by one of {jobs}")
        for each in payments:
            claims = [claim for claim in history.claims if claim.job == each.job and claim.seq < each.seq]
            if not claims:
                continue
            read, at = claims[-1].read, claims[-1].at
            known = [one for one in history.beside.ever.get(key, ()) if one.seq < read and at < one.until]
            world.expect(not known, "I4", f"{key} was paid by {each.job} although it was journaled")
            world.tally.answers["paid beside a step"] += 1
        if len(payments) > 1:
            world.tally.answers["paid beside a step again"] += 1


def check_smart_parts(sim: Simulation, session: str, state: AgentState, steps: Mapping[str, list[Any]]) -> None:
    """What is journaled beside committed steps stands in the parts once, and is charged once."""
    for problem in _problems(sim, session, state, steps):
        sim.world.expect(False, "parts", f"{session}: {problem}")
    tally = sim.world.tally.answers
    tally["a plan"] += state.smart.plan is not None
    tally["notes"] += len(state.smart.reflections)
    tally["summaries"] += len(state.smart.summaries)
    for done in steps.values():
        blocked = [each for each in done if each.step.inference_response.finish_reason is FinishReason.CONTENT_FILTER]
        tally["blocked by a guardrail"] += len(blocked)


def _problems(
    sim: Simulation, session: str, state: AgentState, steps: Mapping[str, list[StepExecution]]
) -> Iterator[str]:
    smart = state.smart
    notes = {each.id: each.text for each in smart.reflections}
    summaries = {each.id: each.text for each in smart.summary_records}
    if len(notes) != len(smart.reflections) or len(summaries) != len(smart.summary_records):
        yield f"a note or a summary is there twice: {sorted(notes)}, {sorted(summaries)}"
    for execution, done in steps.items():
        for number in range(1, len(done) + 1):
            for purpose, kept, name in ((NOTE, notes, "reflection"), (SUMMARY, summaries, "summary")):
                yield from _problems_of_answer(
                    sim, session, (execution, number, purpose), kept.get(f"{execution}.{number}.{name}")
                )
    before = 0
    for each in smart.summary_records:
        if each.covered_from != before or each.covered_upto <= before:
            yield f"summary {each.id} covers {each.covered_from} to {each.covered_upto}, behind {before}"
        before = each.covered_upto
    calls = [each for done in steps.values() for one in done for each in one.step.tool_executions]
    made = [each for each in calls if each.outcome is ToolOutcome.OK]
    changes = sum(each.tool_call.name == MANAGE for each in made)
    if (smart.plan_version or 0) != changes:
        yield f"the plan has version {smart.plan_version}, and {changes} calls changed it"
    facts = sorted(str(each.tool_call.args["key"]) for each in made if each.tool_call.name == REMEMBER)
    if sorted(each.key for each in smart.memory_facts) != facts:
        yield f"the facts are {[each.key for each in smart.memory_facts]}, not {facts}"
    yield from _problems_of_charges(sim, state)
    yield from _problems_of_incidents(sim, state)


def _problems_of_answer(sim: Simulation, session: str, key: AuxiliaryKey, kept: str | None) -> Iterator[str]:
    """A committed step has the note, or summary, that was journaled before its commit, and no other."""
    journaled = sim.history.beside.ever.get(key, [])
    if kept is None:
        record = sim.client.sessions.record(session, key[0])
        if record is not None and any("times without an answer" in each for each in record.errors):
            return  # no hook that asks runs in a step that has killed its processes; a guardrail may have blocked it
        if key[:2] not in sim.history.answers:
            return  # a later attempt was blocked: nothing behind the guardrail runs
        if any(_was_known(sim, key, each) for each in journaled):
            yield f"{key} was journaled, and is lost"
        return
    said = [json.loads(each.raw)["content"] for each in journaled]
    if not any(kept in text for text in said):
        yield f"{key} is kept as {kept!r}, journaled were {said}"


def _was_known(sim: Simulation, key: AuxiliaryKey, journaled: JournaledBeside) -> bool:
    """Whether the job that committed the step knew the answer: it wrote it, or read the journal behind it."""
    execution, number, _ = key
    committed = sim.history.beside.committed.get((execution, number))
    if committed is None or journaled.seq > committed:
        return False
    claims = [c for c in sim.history.claims if (c.execution, c.step) == (execution, number) and c.seq < committed]
    if not claims:
        return False
    return journaled.job == claims[-1].job or (journaled.seq < claims[-1].read and claims[-1].at < journaled.until)


def _problems_of_charges(sim: Simulation, state: AgentState) -> Iterator[str]:
    execution = state.execution
    if execution is None:
        return
    charged = [name for name in execution.charged_calls if ":rejected:" not in name]
    if len(set(charged)) != len(charged):
        yield f"charged twice: {charged}"
    for name in charged:
        number, _, purpose = name.partition(":")
        if (execution.execution_id, int(number), purpose) not in sim.history.beside.ever:
            yield f"{name} is charged, and was never journaled"
    mine = {key: each for key, each in sim.history.beside.ever.items() if key[0] == execution.execution_id}
    least = sum(any(_was_known(sim, key, one) for one in answers) for key, answers in mine.items())
    most = sum(map(len, mine.values()))
    name = execution.execution_id
    answered = sum((name, each.step.number) in sim.history.answers for each in execution.step_executions)
    beside, rest = divmod(state.usage.total - 11 * answered, USAGE.total)
    if rest or not least <= beside <= most:
        yield f"{state.usage.total} tokens for {answered} answers, and {least} to {most} beside them"


def _problems_of_incidents(sim: Simulation, state: AgentState) -> Iterator[str]:
    """Each verdict of the execution that warns or blocks is an incident, once."""
    execution = state.execution
    if execution is None:
        return
    found = [(each.step, each.phase.value, each.message_index, each.rule) for each in state.part(GuardrailIncidents)]
    if len(set(found)) != len(found):
        yield f"an incident is there twice: {found}"
