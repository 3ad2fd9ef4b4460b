"""The verdict of a run: ledgers, final Redis and event streams against I1 to I8 and I11."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from typing import TYPE_CHECKING, Any

from celery_agents.worker.state import (
    AgentState,
    ExecutionStatus,
    FinishReason,
    Role,
    StepExecution,
    StopReason,
    ToolOutcome,
)
from celery_agents.worker.store.keys import PERMANENT
from celery_agents.worker.store.packing import read_steps

from .capable import check_hit, check_parts
from .database import QUEUE
from .deleting import check_deleted
from .interrupting import PREFIX, check_interrupts
from .limiting import check_limits
from .observing import History
from .past import check_past
from .queues import find_places
from .request_checks import check_requests
from .rewinding import check_rewinds
from .sessions import MESSAGE, Called, Payment, Plan
from .smart import MANAGE, REMEMBER, check_auxiliary_payments, check_smart_parts
from .world import World

if TYPE_CHECKING:
    from .simulation import Simulation

_SENT = ("message", "twice", "queue", "interrupt")
_MESSAGES = (*_SENT, "beside message", "beside")
_END = ("execution_completed", "execution_stopped", "execution_failed")


def check(sim: Simulation) -> None:
    """Note every broken invariant in the world."""
    if sim.holding is not None:
        sim.holding.check()
    _keys(sim)
    _payments(sim)
    if sim.smart:
        check_auxiliary_payments(sim)
    _stops(sim)
    for session in sim.sessions:
        if session in sim.history.deleted:
            check_deleted(sim, session)
        else:
            _session(sim, session)
    if sim.waiting:
        check_requests(sim)


def audit(sim: Simulation) -> None:
    """Invariant D, and no time to live while an execution is active."""
    world = sim.world
    for session in sim.history.versions:
        keys = sim.client.context.keys(session)
        phase, score, life, steps = sim.context.database.pipeline(
            "audit",
            [
                ("HGET", keys.ctl, "phase"),
                ("ZSCORE", keys.shard.due, session),
                ("PTTL", keys.session),
                ("PTTL", keys.section("messages", 0)),
            ],
        )
        running = phase in (b"run", b"wait")
        world.expect(running == (score is not None), "D", f"{session}: phase {phase}, due {score}")
        world.expect(
            not running or (life == -1 and steps in (-1, -2)), "I11", f"{session} has a time to live while it runs"
        )
        world.expect(running or life > 0, "I11", f"{session} has none although nothing runs")


def _keys(sim: Simulation) -> None:
    """I11: nothing is due, and nothing stays for ever."""
    database, world = sim.context.database, sim.world
    names, due = database.pipeline("check", [("KEYS", "*"), ("ZRANGE", "ca:{0}:due", 0, -1)])
    world.expect(not due, "I11", f"still due: {due}")
    lives = database.pipeline("check", [("PTTL", name) for name in names])
    for name, life in zip(names, lives, strict=True):
        text = name.decode()
        # Who slept longer than a journal lives, revived it, and died before burying it again: that one stays.
        left = sim.history.late_writers.get(text, set()) & (sim.crashed_jobs | sim.unanswered_jobs)
        if life == -1 and not PERMANENT.match(text) and text != QUEUE and not left:
            world.expect(False, "I11", f"{text} stays for ever")


def _payments(sim: Simulation) -> None:
    """I4: each call beyond the first is explained; none once the journal has the answer."""
    world, history = sim.world, sim.history
    by_step: dict[tuple[str, int], list[Payment]] = {}
    for paid in sim.stage.ledgers.payments:
        by_step.setdefault((paid.execution, paid.step), []).append(paid)
    for (execution, step), payments in by_step.items():
        journaled = history.answers.get((execution, step))
        for one, other in itertools.pairwise(payments):
            claims = [c for c in history.claims if (c.execution, c.step) == (execution, step)]
            reads = [c.read for c in claims if c.job == other.job]
            # The other had begun before the answer stood there, or had and tries again, or began within a lease after it
            # had claimed, or had restored its lease: nobody looks again in between, and a look would leave as much time after it. It adopts the answer.
            begun = journaled is None or other.asked < journaled.seq or other.again
            lease_ms = sim.settings.lease_seconds * 1000
            begun = begun or any(
                c.job == other.job
                and c.seq < journaled.seq
                and other.asked_at - max(c.at, history.restored.get(c.job, 0)) <= lease_ms
                for c in claims
            )
            in_vain = journaled is None or not reads or (begun and reads[-1] < journaled.seq)
            name = f"{execution}.{step}"
            world.expect(
                not one.usable or in_vain, "I4", f"{name} was paid by {other.job} although its answer was journaled"
            )
            taken = any(one.seq < c.seq < other.seq for c in claims)
            explained = not one.usable or one.job in sim.crashed_jobs or (one.job != other.job and (taken or in_vain))
            world.expect(explained, "I4", f"{name} was paid by {one.job} and again by {other.job} without need")


def _stops(sim: Simulation) -> None:
    """I6: what was begun after the stop did not run."""
    history, world = sim.history, sim.world
    for call in sim.stage.ledgers.calls:
        stopped = history.stops.get(call.execution)
        begun = history.begun.get((call.execution, call.step, call.index, call.job))
        if call.effect != "pure":
            world.expect(begun is not None, "I5", f"{_name(call)} ran without a record")
        if stopped is not None and begun is not None:
            world.expect(begun < stopped, "I6", f"{_name(call)} began after the stop and ran")
    for paid in sim.stage.ledgers.payments:
        stopped = history.stops.get(paid.execution)
        claims = [c for c in history.claims if c.job == paid.job]
        if stopped is not None and claims:
            world.expect(
                claims[0].seq < stopped, "I6", f"{paid.execution}.{paid.step} was claimed after the stop and paid"
            )


def _name(call: Called) -> str:
    return f"{call.effect} call {call.index} of {call.execution}.{call.step}"


def _session(sim: Simulation, session: str) -> None:
    world, history = sim.world, sim.history
    store = sim.client
    state = store.sessions.load(session).state
    events = store.sessions.events(session, limit=5000)
    steps = _steps(sim, session, state)
    _messages(sim, session, state, steps)
    _effects(sim, session, steps)
    if sim.capable:
        check_parts(sim, session, state)
    if sim.smart:
        check_smart_parts(sim, session, state, steps)
    check_past(sim, session)
    if history.interrupts:
        check_interrupts(sim, session, steps)
    if history.rewinds[session]:
        check_rewinds(sim, session)
    if sim.history.limits and state.execution is not None:
        check_limits(sim, session, state.execution)
    world.expect(store.sessions.header(session).version == history.versions[session], "I1", f"{session}: version lost")
    begun = Counter(e.execution_id for e in events if e.type == "execution_started")
    ended = Counter(e.execution_id for e in events if e.type in _END)
    committed = Counter((e.execution_id, e.step) for e in events if e.type == "step_committed")
    # A full Redis makes room for a paid answer by trimming the session's events to the last of them.
    least = 0 if sim.client.context.keys(session).events in history.trimmed else 1
    for execution, done in steps.items():
        record = store.sessions.record(session, execution)
        retried = sum(1 for e in events if e.type == "step_retried" and e.execution_id == execution)
        world.expect(record is not None, "I8", f"{execution} ended without a record")
        is_right = ended[execution] == 1 + retried or not least
        world.expect(is_right, "I1", f"{execution} ended {ended[execution]} times, retried {retried}")
        # One that was stopped before it began, and is retried, goes on.
        is_told = begun[execution] == 1 or (not begun[execution] and (retried or not done or not least))
        world.expect(is_told, "I1", f"{execution} has begun {begun[execution]} times")
        for number in range(1, len(done) + 1):
            count = committed[execution, number]
            world.expect(least <= count <= 1, "I1", f"{execution}.{number} has {count} events of its commit")
        if record is not None:
            world.expect(
                record.step_count == len(done), "I1", f"{execution}: {record.step_count} steps, stored {len(done)}"
            )
            budget = sim.stage.plans[session].budget if execution == sim.stage.first_of(session) else None
            if execution in sim.history.limits:  # `check_limits` holds it against each of them
                budget = None
            if budget is not None and budget.max_steps is not None:
                world.expect(
                    len(done) <= budget.max_steps, "I7", f"{execution} has {len(done)} of {budget.max_steps} steps"
                )
            world.tally.answers[f"ended {record.status}"] += 1
            _poison(sim, session, execution, record.status, record.stop_reason)
    places = find_places(sim, session, state, steps)
    joined = Counter(e.data["operation"] for e in events if e.type in ("message_joined", "execution_submitted"))
    for action in sim.actions:
        if action.session == session and action.kind in ("submit", *_SENT) and not action.refused:
            count = joined[action.operation]
            found = store.sessions.read_joined(session, action.operation)
            if action.operation in places.elsewhere:
                world.expect(not count, "I8", f"{action.operation} is not delivered, and {count} events say so")
                continue
            world.expect(least <= count <= 1, "I8", f"{action.operation} has {count} events of what it became part of")
            world.expect(found in steps, "I8", f"the handle of {action.operation} finds {found!r}")


def _poison(sim: Simulation, session: str, execution: str, status: str, reason: str | None) -> None:
    plan: Plan = sim.stage.plans[session]
    if not plan.poison or execution != sim.stage.first_of(session):
        return
    claims = [c for c in sim.history.claims if (c.execution, c.step) == (execution, plan.poison)]
    deaths = [c for c in claims if c.job in sim.crashed_jobs]
    limit = sim.settings.attempts_limit
    retries = sum(a.kind == "retry" and a.session == session for a in sim.actions)
    sim.world.expect(len(deaths) <= limit * (1 + retries) + 1, "I9", f"{execution} was tried {len(deaths)} times")
    if reason == StopReason.RETRY_LIMIT_REACHED and status == "failed":
        sim.world.tally.answers["poison parked"] += 1


def _steps(sim: Simulation, session: str, state: AgentState) -> dict[str, list[Any]]:
    """I1: the stored steps are the ones that were committed, each once, in order."""
    world, history = sim.world, sim.history
    keys = sim.client.context.keys(session)
    names = sim.context.database.pipeline("check", [("HGET", keys.session, "executions")])[0]
    found: dict[str, list[Any]] = {}
    for execution in json.loads(names):
        (stored,) = sim.context.database.pipeline("check", [("LRANGE", keys.steps(execution), 0, -1)])
        world.expect(stored == history.steps.get(execution, []), "I1", f"the history of {execution} was changed")
        done = [StepExecution.from_json(item) for item in read_steps(sim.context.database.pipeline, keys, stored)]
        numbers = [each.step.number for each in done]
        world.expect(numbers == list(range(1, len(done) + 1)), "I1", f"{execution} has the steps {numbers}")
        found[execution] = done
        for each in done:
            _one_step(sim, execution, each)
    last = state.execution
    if last is not None:
        world.expect(last.status.is_terminal(), "I2", f"{last.execution_id} is {last.status}")
    for (execution, step), journaled in history.answers.items():
        looked, by = history.closed.get(execution, (0, ""))
        in_time = journaled.seq <= looked or (by != "" and journaled.job == by)
        if execution in found and in_time and not journaled.raw.startswith(b"unusable"):
            world.expect(step <= len(found[execution]), "I5", f"the paid answer of {execution}.{step} was lost")
    return found


def _one_step(sim: Simulation, execution: str, done: StepExecution) -> None:
    """I5: the committed step is the journaled answer, with the results of its own calls."""
    world = sim.world
    step = done.step
    response = step.inference_response
    journaled = sim.history.answers.get((execution, step.number))
    if sim.smart and response.finish_reason is FinishReason.CONTENT_FILTER:
        return  # a guardrail has answered, or has replaced the answer
    if journaled is None:
        world.expect(False, "I5", f"{execution}.{step.number} was committed without a journaled answer")
        return
    content = json.loads(journaled.raw.removeprefix(PREFIX)).get("content", "")
    world.expect(
        response.content == content, "I5", f"{execution}.{step.number} says {response.content}, journaled {content}"
    )
    for called in response.tool_calls:
        if called.name in (MANAGE, REMEMBER):
            continue
        world.expect(
            f"p{called.args['payment']}" == content, "I5", f"{execution}.{step.number} calls of another answer"
        )
    world.expect(len(step.tool_executions) == len(response.tool_calls), "I5", f"{execution}.{step.number} lost calls")
    for each in step.tool_executions:
        if each.tool_call.name in (MANAGE, REMEMBER):
            continue
        if each.idempotent_cache_hit:
            check_hit(sim, f"{execution}.{step.number}", each, step.tool_executions)
        elif each.outcome is ToolOutcome.OK:
            call = sim.stage.ledgers.calls[int(str(each.value)[1:])]
            same = (call.execution, call.step, call.index) == (execution, step.number, each.index)
            world.expect(same, "I5", f"{execution}.{step.number} call {each.index} has the result of {_name(call)}")
        world.tally.answers[f"tool {each.outcome.value}"] += 1


def _effects(sim: Simulation, session: str, steps: dict[str, list[Any]]) -> None:
    """I3 and I5: how often each effect happened, and that the history knows it."""
    world = sim.world
    calls: dict[tuple[str, int, int], list[Called]] = {}
    for call in sim.stage.ledgers.calls:
        if call.execution in steps:
            calls.setdefault((call.execution, call.step, call.index), []).append(call)
    for (execution, number, index), made in calls.items():
        happened = [call for call in made if call.happened]
        name = _name(made[0])
        if made[0].effect == "keyed":
            world.expect(len({call.key for call in happened}) <= 1, "I3", f"{name} happened under two keys")
        elif made[0].effect == "unsafe":
            world.expect(len(made) <= 1, "I3", f"{name} ran {len(made)} times")
        elif made[0].effect == "lookup":
            world.expect(len(happened) <= 1, "I3", f"{name} happened {len(happened)} times")
        done = steps[execution]
        stored = number <= len(done)
        world.expect(stored or made[0].effect == "pure", "I5", f"{name} ran, and its step is not in the history")
        if not stored:
            continue
        payments = {call.payment for call in made}
        content = done[number - 1].step.inference_response.content
        world.expect(
            {f"p{p}" for p in payments} == {content}, "I5", f"{name} ran for the answers {payments}, not {content}"
        )
        outcomes = {each.index: each.outcome for each in done[number - 1].step.tool_executions}
        if happened and made[0].effect != "pure":
            world.expect(
                outcomes.get(index) not in (ToolOutcome.NOT_RUN, ToolOutcome.BLOCKED, None),
                "I5",
                f"{name} happened, and the history says {outcomes.get(index)}",
            )


def _messages(sim: Simulation, session: str, state: AgentState, steps: dict[str, list[Any]]) -> None:
    """I8: every acknowledged operation once; no message without an answer."""
    world = sim.world
    texts = [
        message.content.removeprefix(MESSAGE)
        for section in state.store.sections.values()
        for message in section.messages
        if message.role is Role.USER
    ]
    counts, places = Counter(texts), find_places(sim, session, state, steps)
    metadata = dict(state.context.metadata)
    for action in sim.actions:
        if action.session != session or action.kind not in ("submit", *_MESSAGES):
            continue
        times = metadata.get(action.operation, 0) if action.kind == "beside" else counts[action.operation]
        times += action.operation in places.elsewhere
        if action.refused or sim.history.rewinds[session]:  # what was delivered may have been rewound
            world.expect(times <= 1, "I8", f"{action.operation} was refused and applied {times} times")
        elif action.done:
            world.expect(
                times == 1, "I8", f"the acknowledged {action.kind} {action.operation} was applied {times} times"
            )
    last = state.execution
    if last is None or last.rewound_to is not None:
        return
    if last.status is not ExecutionStatus.COMPLETED or not steps.get(last.execution_id):
        return
    final = steps[last.execution_id][-1]
    if final.step.inference_response.finish_reason is FinishReason.INTERRUPTED:
        return  # a limit has ended it
    paid = sim.stage.ledgers.payments[int(final.step.inference_response.content[1:])]
    saw = set(paid.saw)
    if not any(claim.claim == final.claim and claim.job == paid.job for claim in sim.history.claims):
        # Who adopts a journaled answer cannot know what was saved beside the step before; no action of the product is.
        saw.update(action.operation for action in sim.actions if action.kind == "beside message")
    missing = [text for text in texts if text not in saw]
    world.expect(not missing, "I8", f"{session} has ended, and nobody answered {missing}")


__all__ = ["History", "World", "check"]
