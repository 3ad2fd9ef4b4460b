"""The verdict about requests: each was answered once, whoever was told so, and what was decided is what happened."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from celery_agents.worker.state import AnswerVerb, RequestKind, StepExecution, ToolOutcome

from .desk import Answering

if TYPE_CHECKING:
    from .simulation import Simulation

# The outcomes of a call that nobody let run.
_NEVER_RAN = (ToolOutcome.BLOCKED, ToolOutcome.NOT_RUN)


def check_requests(sim: Simulation) -> None:
    """Note every broken invariant in the world."""
    (listed,) = sim.context.database.pipeline("check", [("ZRANGE", "ca:{0}:requests", 0, -1)])
    sim.world.expect(not listed, "I11", f"requests are still listed as open: {listed}")
    for each in sim.desk.everybody:
        _told(sim, each)
    for session in sim.sessions:
        keys = sim.client.context.keys(session)
        (names,) = sim.context.database.pipeline("check", [("HGET", keys.session, "executions")])
        for execution in json.loads(names or "[]"):  # a session may be deleted
            _committed(sim, execution)


def _told(sim: Simulation, each: Answering) -> None:
    """I8, I12: an answer that was accepted is stored, once; one that was refused is not."""
    world, requests = sim.world, sim.history.requests
    mine = [answered for answered in requests.all_answers() if answered.record.operation_id == each.operation]
    if each.outcome:
        world.expect(
            len(mine) == len(each.answers), "I8", f"{each.operation} was accepted, and {len(mine)} answers are stored"
        )
    elif each.started:
        world.expect(not mine, "I8", f"{each.operation} was refused ({each.refused}), and is stored")
    # An answer is stored a moment after the look at the clock; its copy may look in between, and find it expired.
    both = each.outcome and each.refused and each.refused not in ("expired", "SessionDeleted")
    world.expect(not both, "I8", f"{each.operation} was told {each.outcome} and {each.refused}")


def _committed(sim: Simulation, execution: str) -> None:
    for item in sim.history.steps.get(execution, ()):
        step = StepExecution.from_json(item).step
        for call in step.tool_executions:
            _call(sim, (execution, step.number, call.index), call)


def _call(sim: Simulation, at: tuple[str, int, int], call: Any) -> None:
    """I12: the history of a call says how its requests were answered, and its outcome fits the newest answer."""
    world, requests = sim.world, sim.history.requests
    rounds = sorted(place for place in requests.answered if place[:3] == at)
    asked = [place for place in requests.asked if place[:3] == at]
    if not asked:
        return
    name = f"{call.tool_call.name} at {at}"
    told = [(each.round, each.verb, each.operation_id) for each in call.resolutions]
    stored = [(p[3], requests.answered[p].record.verb, requests.answered[p].record.operation_id) for p in rounds]
    world.expect(told == stored, "I12", f"{name} says {told}, journaled {stored}")
    newest = max(asked)
    answered = requests.answered.get(newest)
    if answered is None:
        world.expect(call.outcome is not ToolOutcome.OK, "I12", f"{name} is ok, and nobody answered")
        return
    kind, verb = requests.asked[newest].request.kind, answered.record.verb
    if verb is AnswerVerb.DENY and kind is RequestKind.APPROVAL:
        ran = [c for c in sim.stage.ledgers.calls if (c.execution, c.step, c.index) == at]
        world.expect(not ran, "I12", f"{name} was denied, and ran")
        world.expect(call.outcome in _NEVER_RAN, "I12", f"{name} was denied, and is {call.outcome}")
    if verb is AnswerVerb.APPROVE and at[0] not in sim.history.stops and at[:2] not in sim.history.interrupts:
        expected = call.outcome not in _NEVER_RAN or _ended_early(sim, at)
        world.expect(expected, "I12", f"{name} was approved, and is {call.outcome}")
    if verb is AnswerVerb.APPROVE and call.outcome is ToolOutcome.UNKNOWN:
        begun = [seq for place, seq in sim.history.begun.items() if place[:3] == at]
        later = any(seq > answered.seq for seq in begun)
        world.expect(later, "I12", f"{name} was approved, and is unknown although nobody began it since")
    if kind is RequestKind.EXTERNAL and verb is AnswerVerb.COMPLETE:
        world.expect(call.outcome is ToolOutcome.OK, "I12", f"{name} was completed, and is {call.outcome}")


def _ended_early(sim: Simulation, at: tuple[str, int, int]) -> bool:
    """Whether the execution ended with this step for another reason than a stop: a hold, an expiry, a sibling call."""
    is_last = len(sim.history.steps.get(at[0], ())) == at[1]
    return is_last or any(action.kind == "retry" and action.outcome == "started" for action in sim.actions)
