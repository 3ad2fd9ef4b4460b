"""The plan of a seed, drawn beforehand: its kind, where faults strike, what clients do and when."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from celery_agents.worker import crash_points

from .world import Fault, Rates
from support.points import OF_CLIENTS, OF_QUEUES, OF_WAITING, OF_WORKERS, Points

KINDS: Final = ("calm", "crash", "pause", "lost", "messages", "full", "poison", "driver", "mixed", "restart")
_WEIGHTS: Final = (4, 14, 14, 16, 10, 5, 5, 8, 20, 4)
# Points where a planned fault may strike; those that no run reaches are found by the vacuity check.
CRASH_POINTS: Final = tuple(crash_points.POINTS)
WAITING_POINTS: Final = ("w0", "w1", "w3", "asks")
OF_WAITING_WORKERS: Final = tuple(p for p in OF_WAITING if p.startswith(("journal.", "request.", "wait.")))
OF_WAITING_CLIENTS: Final = tuple(p for p in OF_WAITING if p not in OF_WAITING_WORKERS)
IN_STEP: Final = ("driver", "tool", "effect", "lookup")
# Where a client that interferes does so most often.
_MOMENTS: Final = (
    f"<{Points.COMMIT_ATTEMPT}",
    f">{Points.COMMIT_ATTEMPT}",
    f">{Points.COMMIT_READ}",
    f"<{Points.COMMIT_EXEC}",
    f"<{Points.CLAIM_ATTEMPT}",
    f"<{Points.CLAIM_BEHIND}",
    f">{Points.CLAIM_BEHIND}",
    f"<{Points.CLAIM_NEW}",
    f">{Points.CLAIM_NEW}",
    f"<{Points.CLAIM_FIRST}",
    f">{Points.CLAIM_FIRST}",
    f">{Points.CLAIM_LOAD}",
    f">{Points.CLAIM_READ}",
    "driver",
    "tool",
    "effect",
    "c2",
    "c3",
    "c5",
    "lease ended",
)


_WAITING_MOMENTS: Final = (
    *(f"<{p}" for p in OF_WAITING), *(f">{p}" for p in OF_WAITING), "asks", *crash_points.WAITING_POINTS
)  # fmt: skip


def draw_kind(rng: random.Random) -> str:
    """Draw what a seed is mostly about."""
    return rng.choices(KINDS, _WEIGHTS)[0]


@dataclass
class Action:
    """Something a client does, when a point is passed for the n-th time, or at a time.

    Attributes:
        limit: Most steps that a change of the budget allows.
        target: The message that it is about, by its operation; a concurrency limit; or a label's value, "" for none.
        part: The most at a time with one value of a label, where it sets a concurrency limit; 0: only in all.
    """

    kind: str
    session: str
    number: int
    point: str
    nth: int
    at: float
    started: bool = False
    done: bool = False
    operation: str = ""
    outcome: str = ""
    execution: str = ""
    refused: str = ""
    limit: int = 0
    target: str = ""
    part: int = field(default=0, repr=False)


@dataclass
class FaultPlan:
    """The faults of a seed.

    Attributes:
        faults: Those that strike when a point is passed for the n-th time.
        fulls: When Redis becomes full.
        redis_restarts: How often Redis goes away and comes back.
        slow: How slow the model is where a worker sleeps with an answer in its hands; None: as the session's plan says.
        sleeper: The point at which that worker sleeps; "" for none.
    """

    faults: list[Fault] = field(default_factory=list)
    fulls: list[float] = field(default_factory=list)
    redis_restarts: int = 0
    slow: float | None = None
    sleeper: str = ""


def plan_faults(
    rng: random.Random, kind: str, rates: Rates, now: float, *, waiting: bool = False, smart: bool = False
) -> FaultPlan:
    """Draw the faults of a seed, and set the chances of those that may strike anywhere."""
    drawn = FaultPlan()
    rates.turn = rng.choice((0.05, 0.15, 0.3, 0.5))
    mixed = kind == "mixed"
    plan = drawn.faults
    many = rng.randint(1, 3)
    trips = (*OF_WORKERS, *OF_WAITING_WORKERS * 2) if waiting else OF_WORKERS
    trips = (*trips, *[Points.JOURNAL_AUXILIARY] * 4) if smart else trips
    points = [*CRASH_POINTS, *(f"<{p}" for p in trips), *(f">{p}" for p in trips), *IN_STEP]
    points += WAITING_POINTS * 3 if waiting else ()
    lost = (*trips, *OF_CLIENTS, *OF_WAITING_CLIENTS) if waiting else (*OF_WORKERS, *OF_CLIENTS)
    for _ in range(many):
        nth = rng.choices((1, 2, 3, 4), (6, 4, 2, 1))[0]
        if kind == "crash" or (mixed and rng.random() < 0.5):
            plan.append(Fault("crash", rng.choice(points), nth))
        if kind == "pause" or (mixed and rng.random() < 0.5):
            plan.append(Fault("pause", rng.choice(points), nth, rng.choice((2.0, 8.0, 14.0, 25.0, 60.0))))
        if kind in ("lost", "pause") or (mixed and rng.random() < 0.6):
            trip = rng.choice(lost)
            plan.append(Fault(rng.choices(("swallow", "refuse"), (3, 1))[0], trip, nth))
    if kind == "pause" and rng.random() < 0.35:
        # A worker sleeps with an answer or a call in its hands, and wakes while the next one is in the same step.
        point = rng.choice(("c2", "driver", "effect", f"<{Points.JOURNAL_ANSWER}", "tool", "tool"))
        plan[:] = [Fault("pause", point, 1, rng.uniform(7.0, 10.0))]
        drawn.slow, drawn.sleeper = (0.0 if point == "tool" else 3.0), point
    if kind == "poison" and rng.random() < 0.5:
        plan.append(Fault("pause", rng.choice(points), 1, 14.0))
    if mixed and rng.random() < 0.3:
        rates.crash, rates.pause, rates.swallow, rates.refuse = 0.003, 0.003, 0.006, 0.003
    if kind == "messages" or mixed:
        rates.duplicate, rates.drop, rates.reorder = rng.choice(((0.2, 0.1, 0.5), (0.5, 0.0, 0.5), (0.0, 0.5, 0.0)))
    if kind == "full" or (mixed and rng.random() < 0.1):
        drawn.fulls = sorted(now + rng.random() * 4000 for _ in range(rng.randint(1, 2)))
    if kind in ("lost", "mixed"):  # drawn of what is planned: everything else of a seed is as it would be without it
        plan.append(Fault("swallow", random.Random(repr(plan)).choice(OF_QUEUES), 1))
    drawn.redis_restarts = 1 if kind == "restart" or (mixed and rng.random() < 0.08) else 0
    return drawn


def plan_actions(rng: random.Random, sessions: Sequence[str], now: float, *, waiting: bool = False) -> list[Action]:
    """Draw what clients do to the sessions, which ask for answers or not."""
    found: list[Action] = []
    triggers = [f"<{p}" for p in OF_WORKERS[:15]] + [f">{p}" for p in OF_WORKERS[:12]] + list(CRASH_POINTS)
    triggers += _MOMENTS * 3
    for session in sessions:
        found.append(Action("submit", session, 0, "", 0, now))
        for number in range(1, rng.choices((1, 2, 3, 5), (4, 5, 4, 1))[0]):
            kind = rng.choices(("message", "twice", "stop", "retry", "beside", "beside message"), (9, 2, 5, 4, 3, 2))[0]
            at = now + rng.choice((200, 2000, 9000, 20000, 60000)) * rng.random()
            point = rng.choice(triggers) if rng.random() < 0.8 else ""
            found.append(Action(kind, session, number, point, rng.choices((1, 2, 3), (5, 3, 1))[0], at))
    if waiting:
        found += _plan_holds(rng, sessions, now, [*triggers, *_WAITING_MOMENTS * 3])
    if rng.random() < 0.1:
        found.append(Action("forge", sessions[0], 90, "", 0, now + 3000 * rng.random()))
    # Drawn from what is planned already, so that everything else of a seed is as it would be without them.
    found += _plan_queues(random.Random(repr(found)), sessions, now, triggers)
    return found


def _plan_queues(rng: random.Random, sessions: Sequence[str], now: float, triggers: Sequence[str]) -> list[Action]:
    """Draw who queues messages, takes them back, changes their mode, and releases or clears the queue."""
    found: list[Action] = []
    for session in sessions:
        if rng.random() < 0.6:
            continue
        queued = [f"{session}o{number}" for number in range(70, 70 + rng.randint(1, 3))]
        numbers = range(80, 80 + rng.choices((0, 1, 2, 3), (4, 4, 3, 1))[0])
        kinds = [("queue", operation) for operation in queued]
        acts = ("withdraw", "mode steer", "mode queue", "release", "stop clear", "message")
        kinds += [(rng.choices(acts, (4, 3, 3, 4, 1, 3))[0], rng.choice((*queued, f"{session}o1"))) for _ in numbers]
        for number, (kind, target) in zip((*range(70, 70 + len(queued)), *numbers), kinds, strict=True):
            point = rng.choice(triggers) if rng.random() < 0.7 else ""
            at = now + rng.choice((200, 2000, 9000, 60_000)) * rng.random()
            found.append(Action(kind, session, number, point, rng.choices((1, 2), (4, 1))[0], at, target=target))
    return found


def _plan_holds(rng: random.Random, sessions: Sequence[str], now: float, triggers: Sequence[str]) -> list[Action]:
    """Draw who suspends sessions, and stops and resumes them then."""
    found: list[Action] = []
    for session in sessions:
        for number in range(50, 50 + rng.choices((0, 1, 2, 4), (5, 3, 3, 1))[0]):
            kind = rng.choices(("suspend", "resume", "stop", "message"), (6, 5, 2, 2))[0]
            point = rng.choice(triggers) if rng.random() < 0.7 else ""
            at = now + rng.choice((500, 5000, 30_000)) * rng.random()
            found.append(Action(kind, session, number, point, rng.choices((1, 2), (4, 1))[0], at))
    return found
