"""What is measured: the quick figures, and everything."""

from __future__ import annotations

import dataclasses

from engines.dbos import dbos
from engines.dramatiq import dramatiq
from engines.floor import floor
from engines.langgraph import langgraph
from engines.naive import naive
from engines.product import product
from engines.restate import restate_engine
from engines.taskiq import taskiq
from yardstick.engine import Engine
from yardstick.load import Load
from yardstick.rounds import Plan

SLOTS = 100
# 100 sessions of 50 steps: the throughput that ratios are taken of.
MANY = Load(100, 50)
# One session: the time of a step. It is short, so engines take turns with it this many times.
ONE = Load(1, 200, at_once=False)
TURNS, QUICK_TURNS = 20, 15
# The same number of steps in short sessions and in a long one: what grows with a session.
SHORT = Load(100, 10, at_once=False)
LONG = Load(1, 1000)
# Fewer sessions where whole states are copied at every step, so that a round ends.
DEEP = Load(20, 200)
FEW = Load(20, 50)
CURVE = (Load(20, 10, at_once=False), Load(5, 50, at_once=False), Load(1, 200), LONG)
THOUSAND = Load(1000, 10)
QUICK_MODEL = Load(100, 50, 0.05)
SLOW_MODEL = Load(1000, 10, 1.0)
SLOW_SLOTS, MORE_SLOTS = 500, 1000


def floors(*, events: bool = False) -> tuple[Engine, ...]:
    """Bare Celery in threads, where the product's pool runs it too, and in prefork; on both kinds of queue."""
    return tuple(
        floor(pool, slots, queue, events=events)
        for pool, slots in (("threads", SLOTS), ("prefork", 2))
        for queue in ("stock", "no_ack")
    )


def two_workers() -> tuple[Plan, ...]:
    """Two processes on either side; prefork has them anyway."""
    return (
        Plan(floor("threads", SLOTS, "no_ack", processes=2), (MANY,)),
        Plan(product("keyed", processes=2), (MANY,)),
        Plan(product("pure", processes=2), (MANY,)),
        Plan(product("burst", processes=2), (MANY,)),
    )


def quick_products() -> tuple[Plan, ...]:
    return (
        Plan(product("keyed"), (MANY, SHORT, LONG)),
        Plan(product("pure"), (MANY,)),
        Plan(product("burst"), (MANY,)),
        *two_workers(),
    )


def with_events() -> tuple[Plan, ...]:
    """Task events on both sides, as they are by default."""
    bare = [engine for engine in floors(events=True) if "no_ack" in engine.name]
    return tuple(Plan(engine, (MANY, ONE), rounds=1) for engine in (*bare, product("keyed", events=True)))


def one_session() -> tuple[Engine, ...]:
    """Whose time a step is compared with the floor's."""
    return (product("keyed"), product("pure"))


def floor_of_slow_model() -> Engine:
    """Bare Celery with the slots that the slow model's sessions get."""
    engine = floor("threads", SLOW_SLOTS, "no_ack")
    return dataclasses.replace(engine, name=f"{engine.name}_{SLOW_SLOTS}")


def with_more_slots() -> Engine:
    """This product with a slot for each session of the slow model."""
    engine = product("keyed", MORE_SLOTS)
    return dataclasses.replace(engine, name="product_keyed_more", title=f"{engine.title}, {MORE_SLOTS} slots")


def full_plans() -> tuple[Plan, ...]:
    """Three rounds of what ratios are taken of; one of the rest."""
    return (
        Plan(naive(SLOTS), (MANY, DEEP)),
        Plan(product("keyed"), (MANY, DEEP, SHORT, LONG)),
        Plan(product("pure"), (MANY,)),
        Plan(product("burst"), (MANY,)),
        Plan(product("burst_pure"), (MANY,), rounds=1),
        Plan(product("keyed_plain"), (MANY,), rounds=1),
        *two_workers(),
        Plan(dbos("postgres", "1"), (MANY,)),
        Plan(langgraph("files", "1"), (MANY,)),
    )


def once_plans() -> tuple[Plan, ...]:
    """Measured in one round: curves over K, waiting models, two workers, and peers that no target names."""
    return (
        Plan(floor("threads", SLOTS, "no_ack"), (*CURVE, THOUSAND, QUICK_MODEL)),
        Plan(floor_of_slow_model(), (SLOW_MODEL,)),
        Plan(floor("prefork", 2, "no_ack", processes=2), (MANY,)),
        Plan(floor("solo", 1, "no_ack", processes=2), (MANY,)),
        Plan(naive(SLOTS), CURVE),
        Plan(product("keyed"), (*CURVE, THOUSAND, QUICK_MODEL)),
        Plan(product("keyed", SLOW_SLOTS), (SLOW_MODEL,)),
        Plan(with_more_slots(), (SLOW_MODEL,)),
        Plan(product("pure"), CURVE),
        Plan(product("burst"), CURVE),
        Plan(dbos("postgres", "1"), CURVE),
        Plan(dbos("postgres", "2"), (MANY, *CURVE)),
        Plan(dbos("postgres", "agent"), (FEW,)),
        Plan(dbos("files", "1"), (FEW,)),
        Plan(langgraph("files", "1"), CURVE),
        Plan(langgraph("files", "2"), (FEW,)),
        Plan(langgraph("postgres", "1"), (FEW, *CURVE[:3])),
        Plan(langgraph("postgres", "2"), (FEW,)),
        Plan(restate_engine(), (MANY, *CURVE)),
        Plan(taskiq(SLOTS), (MANY, *CURVE)),
        Plan(dramatiq(SLOTS), (MANY, *CURVE)),
    )
