"""Seeds in which people delete sessions: when they do it, and what must be left afterwards."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from celery_agents.worker.engine import stop_transition
from celery_agents.worker.errors import ActionRefused
from celery_agents.worker.store import ActionResult, StepRef, Store

from .plan import CRASH_POINTS, Action
from .world import Fault, Tally, World
from support.points import OF_DELETING, OF_WORKERS

if TYPE_CHECKING:
    from .simulation import Simulation

_MOST_TRIES: Final = 1000
_INDEXES: Final = ("sessions", "due", "delayed", "failed", "ending", "children", "unoffered", "callbacks", "requests")


def plan_deletions(rng: random.Random, sessions: Sequence[str], now: float) -> list[Action]:
    """Draw who deletes sessions, and who submits one again whose reply they never had."""
    triggers = [*(f"<{p}" for p in OF_WORKERS), *(f">{p}" for p in OF_WORKERS), *CRASH_POINTS, "driver", "tool"]
    triggers += [f"{side}{p}" for side in "<>" for p in OF_DELETING] * 4
    found: list[Action] = []
    for session in sessions:
        for number in range(70, 70 + rng.choices((0, 1, 2), (1, 6, 2))[0]):
            at = now + rng.choice((500, 5000, 30_000)) * rng.random()
            point = rng.choice(triggers) if rng.random() < 0.6 else ""
            found.append(Action("delete", session, number, point, rng.choice((1, 1, 2, 4)), at))
        for number in range(190, 190 + rng.choices((1, 3), (1, 1))[0]):
            at = now + rng.choice((5000, 30_000, 60_000)) * rng.random()
            kind = rng.choice(("submit again", "submit again", "message"))
            found.append(Action(kind, session, number, rng.choice(triggers), rng.choice((1, 2)), at))
    return found


def plan_lost_deletions(rng: random.Random, kind: str) -> list[Fault]:
    """Draw the replies that deletions lose."""
    if kind not in ("lost", "pause", "mixed") or rng.random() < 0.5:
        return []
    return [Fault(rng.choices(("swallow", "refuse"), (3, 1))[0], rng.choice(OF_DELETING), 1)]


def delete(world: World, store: Store, session: str, publish: Callable[[StepRef], None]) -> ActionResult:
    """Stop the session as often as something of it runs, and delete it."""
    for _ in range(_MOST_TRIES):
        try:
            return store.sessions.delete(session)
        except ActionRefused:
            applied = store.sessions.stop(session, None, stop_transition)
            if applied.publish is not None:
                publish(applied.publish)
            world.sleep(0.2)
    raise AssertionError(f"{session} cannot be deleted")


def check_deleted(sim: Simulation, session: str) -> None:
    """I16: nothing is left but the mark, and nothing of the session happened afterwards."""
    world, database = sim.world, sim.context.database
    keys = sim.client.context.keys(session)
    (names,) = database.pipeline("check", [("KEYS", keys.session + "*")])
    # Who slept longer than a journal lives, revived it, and died before removing it: that one stays.
    late = {key for key, jobs in sim.history.late_writers.items() if jobs & (sim.crashed_jobs | sim.unanswered_jobs)}
    left = sorted({name.decode() for name in names} - {keys.session} - late)
    world.expect(not left, "I16", f"of the deleted {session} there is still {left}")
    fields, life = database.pipeline("check", [("HKEYS", keys.session), ("PTTL", keys.session)])
    # The virtual time goes on, and that of Redis hardly does: a mark cannot have ended.
    world.expect(fields == [b"created"] and life > 0, "I16", f"the mark of {session} is {fields}, for {life} ms")
    for name in _INDEXES:
        (members,) = database.pipeline("check", [("ZRANGE", getattr(keys.shard, name), 0, -1)])
        named = [each for each in members if session.encode() in each]
        world.expect(not named, "I16", f"the index {name} still has {named}")
    gone = sim.history.deleted[session]
    claimed = [each for each in sim.history.claims if each.session == session and each.seq > gone]
    world.expect(not claimed, "I16", f"{session} was claimed after its deletion")
    begun = [key for key, seq in sim.history.begun.items() if key[0].startswith(session) and seq > gone]
    made = [each for each in sim.stage.ledgers.calls if (each.execution, each.step, each.index, each.job) in begun]
    world.expect(not [each for each in made if each.effect != "pure"], "I16", f"a call of {session} began afterwards")


def unseen_deleting(tally: Tally) -> Iterator[str]:
    """What should have happened in seeds that delete sessions, and did not."""
    for name in OF_DELETING:
        if not tally.points[f"<{name}"]:
            yield f"round trip {name}"
    for answer in ("delete changed", "delete again", "deleted missing", "delete.exec aborted", "submit refused"):
        if not tally.answers[answer]:
            yield f"answer {answer}"
