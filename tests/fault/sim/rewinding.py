"""Seeds in which people take sessions back to a step: when they do it, and what must be true afterwards."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from celery_agents.worker.engine import stop_transition
from celery_agents.worker.errors import ActionRefused, InvalidInput, NotKept, SessionConflict
from celery_agents.worker.store import ActionResult, StepRef, Store
from celery_agents.worker.store.sessions.past_reads import StepAddress

from .plan import CRASH_POINTS, Action
from .world import Fault, Tally, World
from support.points import OF_REWINDING, OF_WORKERS

if TYPE_CHECKING:
    from .simulation import Simulation

_MOST_TRIES: Final = 300


def plan_rewinds(rng: random.Random, sessions: Sequence[str], now: float) -> list[Action]:
    """Draw who rewinds sessions, and what others say beside it."""
    triggers = [*(f"{side}{p}" for p in OF_WORKERS for side in "<>"), *CRASH_POINTS, "driver", "tool"]
    triggers += [f"{side}{p}" for side in "<>" for p in OF_REWINDING] * 8
    found: list[Action] = []
    for session in sessions:
        for number in range(130, 130 + rng.choices((1, 2, 4), (3, 4, 2))[0]):
            at = now + rng.choice((3000, 20_000, 60_000)) * rng.random()
            step = str(rng.choice((1, 1, 2, 3)))
            target = rng.choice((step, f"first:{step}"))
            kind = rng.choice(("rewind", "rewind twice"))
            point = rng.choice(triggers) if rng.random() < 0.5 else ""
            found.append(Action(kind, session, number, point, rng.choice((1, 1, 2, 3)), at, target=target))
        for number in range(140, 140 + rng.choice((1, 2, 3))):
            kind, at = rng.choice(("message", "message", "twice", "retry", "stop")), now + 60_000 * rng.random()
            point = rng.choice(triggers) if rng.random() < 0.7 else ""
            found.append(Action(kind, session, number, point, rng.choice((1, 2)), at))
            if kind == "message" and rng.random() < 0.5:  # sent again, perhaps behind a rewind
                found.append(Action(kind, session, number, "", 1, at + 90_000 * rng.random()))
    return found


def plan_lost_rewinds(rng: random.Random, kind: str) -> list[Fault]:
    """Draw the replies that rewinds lose."""
    if kind not in ("lost", "pause", "mixed") or rng.random() < 0.5:
        return []
    return [Fault(rng.choices(("swallow", "refuse"), (3, 1))[0], rng.choice(OF_REWINDING), 1)]


def rewind(world: World, store: Store, action: Action, first: str, publish: Callable[[StepRef], None]) -> ActionResult:
    """Rewind as a client does: once under an operation id, behind the end of what waits, as often as it is refused."""
    sessions, session = store.sessions, action.session
    execution, _, number = action.target.rpartition(":")
    address = StepAddress(int(number), first if execution else None)
    for _ in range(_MOST_TRIES):
        header = sessions.header(session)
        if sessions.find_rewind(session, action.operation, action.target):
            return ActionResult("again", "", header.version)
        try:
            past = sessions.state_at(session, address)
            version = header.version
            if header.status == "waiting":
                applied = sessions.stop(session, header.execution_id, stop_transition)
                if applied.publish is not None:
                    publish(applied.publish)
                world.sleep(0.5)
                continue
            return ActionResult(
                "changed", "", sessions.rewind(
                    session, past, action.target, version=version, operation_id=action.operation, by=action.operation,
                )
            )  # fmt: skip
        except SessionConflict:
            world.tally.answers["rewind conflict"] += 1
        except (InvalidInput, NotKept) as refusal:
            raise ActionRefused(str(refusal)) from refusal
        except ActionRefused:
            world.tally.answers["rewind busy"] += 1
            world.sleep(2.0)
    raise ActionRefused("something runs all the time")


def check_rewinds(sim: Simulation, session: str) -> None:
    """W3, W7: each rewind that was acknowledged was made once, readers are told so, and what was spent stays."""
    world, store = sim.world, sim.client
    made = sim.history.rewinds[session]
    told = [event for event in store.sessions.events(session, limit=5000) if event.type == "rewound"]
    by_operation = Counter(str(event.data["by"]) for event in told)
    if sim.client.context.keys(session).events not in sim.history.trimmed:
        world.expect(len(told) == made, "W6", f"{session} was rewound {made} times, and {len(told)} events say so")
        for action in sim.actions:
            if action.session == session and action.kind.startswith("rewind") and not action.refused:
                count = by_operation[action.operation]
                world.expect(count == 1, "W3", f"{action.operation} has rewound {count} times")
    gone = ""
    for event in store.sessions.events(session, limit=5000):
        gone = event.execution_id if event.type == "rewound" else gone
        goes_on = event.type == "step_retried" and event.execution_id == gone
        world.expect(not goes_on, "W5", f"{event.execution_id} goes on behind steps that were rewound")
    for operation, count in by_operation.items():
        world.expect(count == 1, "W3", f"{operation} has rewound {count} times")
    state = store.sessions.load(session).state
    last = state.execution
    record = None if last is None else store.sessions.record(session, last.execution_id)
    if last is not None and record is not None and last.status.is_terminal():
        spent = {name: getattr(last.usage, name) for name in record.usage}
        world.expect(spent == record.usage, "W7", f"{last.execution_id} has spent {spent}, not {record.usage}")


def unseen_rewinding(tally: Tally) -> Iterator[str]:
    """What should have happened in seeds that rewind sessions, and did not."""
    for name in OF_REWINDING:
        if not tally.points[f"<{name}"]:
            yield f"round trip {name}"
    answers = (
        "rewind changed",
        "rewind again",
        "rewind refused",
        "rewind busy",
        "rewind conflict",
        "rewind.exec aborted",
    )
    for answer in answers:
        if not tally.answers[answer]:
            yield f"answer {answer}"
