"""Seeds in which messages interrupt steps: when they come, and what must be true of each step and message afterwards."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from celery_agents.worker.state import ExecutionStatus, FinishReason, StopReason
from celery_agents.worker.store.event_records import Event

from .plan import CRASH_POINTS, Action
from .sessions import Plan
from .world import Tally
from support.points import OF_WORKERS, Points

if TYPE_CHECKING:
    from .simulation import Simulation

PREFIX: Final = b"!interrupted "
"""What the journal has before an answer that was left off."""
_NEAR: Final = (Points.JOURNAL_ANSWER, Points.JOURNAL_BEGIN, Points.WAIT_READ, Points.WAIT_EXEC, Points.COMMIT_EXEC)
_ACTS: Final = ("withdraw", "mode steer", "mode queue", "mode interrupt", "message", "stop", "suspend", "resume")


def plan_interrupts(rng: random.Random, plans: Mapping[str, Plan], now: float) -> list[Action]:
    """Draw who interrupts sessions, and who takes such messages back, moves them, or holds or stops the session.

    Args:
        plans: By session. Most models take their time from now on, and can be left off: a message has to find them at work.
    """
    triggers = [*(f"{side}{p}" for p in OF_WORKERS for side in "<>"), *CRASH_POINTS, "tool", "effect", "lease ended"]
    triggers += [*(f"{side}{p}" for side in "<>" for p in _NEAR), "driver", "driver"] * 5
    found: list[Action] = []
    for session, plan in plans.items():
        plan.is_async, plan.slow = rng.random() < 0.7, rng.choice((plan.slow, 3.0, 9.0))
        sent = [f"{session}o{number}" for number in range(160, 160 + rng.choices((1, 2, 4), (4, 4, 1))[0])]
        acts = [("interrupt", operation) for operation in sent]
        acts += [(rng.choice(_ACTS), rng.choice((*sent, f"{session}o1"))) for _ in range(rng.choice((0, 1, 1, 2, 3)))]
        for number, (kind, target) in enumerate(acts, 160):
            at = now + rng.choice((300, 3000, 20_000)) * rng.random()
            point = rng.choice(triggers) if rng.random() < 0.8 else ""
            found.append(Action(kind, session, number, point, rng.choice((1, 1, 2, 3)), at, target=target))
    return found


def check_interrupts(sim: Simulation, session: str, steps: Mapping[str, list[Any]]) -> None:
    """N1 to N6: what was left off, what began all the same, and what is left of the mark."""
    _check_answers(sim, session, steps)
    _check_calls(sim, steps)
    _check_requests_to_models(sim, session)
    _check_order(sim, session)
    keys = sim.client.context.keys(session)
    ((field, mark),) = sim.context.database.pipeline("check", [("HMGET", keys.ctl, "interrupt", "cancel")])
    sim.world.expect(field is None and mark != b"!interrupt", "N5", f"{session} has ended with {field!r}, {mark!r}")


def _check_answers(sim: Simulation, session: str, steps: Mapping[str, list[Any]]) -> None:
    """N1: only a step that a message interrupts is left off, and what was left off ends no execution."""
    world, history = sim.world, sim.history
    for (execution, step), journaled in history.answers.items():
        if journaled.raw.startswith(PREFIX) and execution in steps:
            world.tally.answers["left off"] += 1
            marks = history.interrupts.get((execution, step), [])
            is_marked = any(since < journaled.seq for since, _ in marks)
            world.expect(is_marked, "N1", f"{execution}.{step} was left off, and no message has interrupted it")
    for execution, done in steps.items():
        if not done or done[-1].step.inference_response.finish_reason is not FinishReason.INTERRUPTED:
            continue
        record = sim.client.sessions.record(session, execution)
        by_limit = record is None or record.stop_reason not in (None, StopReason.COMPLETED)
        is_right = by_limit or record is None or record.status != ExecutionStatus.COMPLETED
        world.expect(is_right, "N1", f"{execution} was completed by an answer that was left off")


def _check_calls(sim: Simulation, executions: Collection[str]) -> None:
    """N2: no call has begun for the first time, and has run, while its step was interrupted."""
    begun = sim.history.begun
    for call in sim.stage.ledgers.calls:
        place = (call.execution, call.step, call.index)
        at = begun.get((*place, call.job))
        if at is None or call.execution not in executions:
            continue
        is_first = not any(key[:3] == place and seq < at for key, seq in begun.items())
        late = is_first and _is_interrupted(sim, call.execution, call.step, at)
        sim.world.expect(not late, "N2", f"call {call.index} of {call.execution}.{call.step} began all the same")


def _check_requests_to_models(sim: Simulation, session: str) -> None:
    """N3: whoever claims a step that is interrupted, and has no answer, does not ask the model."""
    history = sim.history
    for claim in history.claims:
        if claim.session != session or not _is_interrupted(sim, claim.execution, claim.step, claim.read):
            continue
        sim.world.tally.answers["claimed interrupted"] += 1
        asked = [
            paid for paid in sim.stage.ledgers.payments
            if (paid.execution, paid.step, paid.job) == (claim.execution, claim.step, claim.job) and paid.asked > claim.seq
        ]  # fmt: skip
        sim.world.expect(
            not asked, "N3", f"{claim.execution}.{claim.step} was claimed, and asked the model for nothing"
        )


def _check_order(sim: Simulation, session: str) -> None:
    """N4: in the commit of a step that goes on, messages that interrupt go in front of the others of the inbox."""
    if sim.client.context.keys(session).events in sim.history.trimmed:
        return
    events = sim.client.sessions.events(session, limit=5000)
    waited = {_operation(each) for each in events if each.type == "message_received" and each.data.get("queued")}
    moved = {each.target for each in sim.actions if each.kind.startswith("mode")}
    interrupting = {each.operation for each in sim.actions if each.kind == "interrupt"} - moved
    steering = {each.operation for each in sim.actions if each.kind in ("message", "twice")} - moved
    seen: list[str] | None = None
    for event in events:
        if event.type != "message_joined":
            seen = [] if event.type == "step_committed" else None
        elif seen is not None and _operation(event) in waited:
            is_late = _operation(event) in interrupting and any(each in steering for each in seen)
            sim.world.expect(not is_late, "N4", f"{_operation(event)} was delivered behind {seen}")
            seen.append(_operation(event))


def _operation(event: Event) -> str:
    return str(event.data.get("operation", ""))


def _is_interrupted(sim: Simulation, execution: str, step: int, seq: int) -> bool:
    return any(since < seq < until for since, until in sim.history.interrupts.get((execution, step), []))


def unseen_interrupting(tally: Tally) -> Iterator[str]:
    """What should have happened in seeds in which messages interrupt, and did not."""
    answers = (
        *(f"interrupt {outcome}" for outcome in ("joined", "queued", "started", "again")),
        "left off",
        "claimed interrupted",
        "interrupted a wait",
        "waited interrupted",
    )
    for answer in answers:
        if not tally.answers[answer]:
            yield f"answer {answer}"
