"""Seeds in which concurrency limits hold: who sets them and when, and what an observer outside of the store has seen."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, is_dataclass, replace
from math import inf
from typing import TYPE_CHECKING, Any, Final

from celery_agents.flow import ConcurrencyLimit
from celery_agents.worker.agent import Agent
from celery_agents.worker.errors import StoreFull, StoreUnavailable
from celery_agents.worker.flow.concurrency import concurrency_field, undefined_cause
from celery_agents.worker.store import Store
from celery_agents.worker.store.database import Command, Reply

from .plan import CRASH_POINTS, Action
from .process import Worker
from .world import Fault, Process, Tally
from support.points import OF_HOLDING, OF_WORKERS, Points

if TYPE_CHECKING:
    from .simulation import Simulation

AGENTS: Final = "agents"
TOOLS: Final = "tools"
WHO: Final = "who"
"""The label of sessions in some seeds, of which limits have parts then."""
REMOVED: Final = -1
"""A limit that is removed, in an action."""
_CALLS_MS: Final = 2000
_STOPS_WITHIN_MS: Final = 150_000
_NEAR: Final = (Points.RELEASE_READ, Points.RELEASE_EXEC, *OF_HOLDING)


def names_of(seed: int) -> tuple[str, ...]:
    """The limits of a seed: of its agents, of its tools, or of both."""
    return ((AGENTS,), (AGENTS,), (AGENTS, TOOLS), (TOOLS,))[seed % 4]


def is_labelled(seed: int) -> bool:
    """Whether the sessions of a seed have labels, which change, and its limits have parts for these."""
    return seed % 16 in (5, 6)


def plan_labels(seed: int, sessions: Sequence[str], actions: Sequence[Action], now: float) -> list[Action]:
    """Draw who changes labels, and give the limits of these actions their parts."""
    rng, found = random.Random(f"labels of {seed}"), list[Action]()
    for each in actions:
        has_parts = each.kind == "concurrency" and each.limit != REMOVED
        found.append(replace(each, part=rng.choice((0, 1, 1, 2))) if has_parts else each)
    for place, name in enumerate(names_of(seed)):  # with parts and without them, again and again
        for number in range(rng.choice((0, 2, 5))):
            at, limit = now + rng.choice((500, 5000, 20_000)) * rng.random(), rng.choice((1, 1, 2))
            changed = Action("concurrency", sessions[0], 300 + 10 * place + number, "", 0, at, limit=limit, target=name)
            found.append(replace(changed, part=rng.choice((0, 1))))
    for place, session in enumerate(sessions):
        times = [now, *(now + rng.choice((500, 5000, 20_000)) * rng.random() for _ in range(rng.choice((0, 1, 2, 3))))]
        for number, at in enumerate(times):
            target = rng.choice(("1", "1", "2", ""))
            found.append(Action("label", session, 200 + 10 * place + number, "", 0, at, target=target))
    return found


def with_limits(agents: Sequence[Agent], names: Collection[str]) -> Sequence[Agent]:
    """The agents under the limits of these names."""
    limits = (TOOLS,) if TOOLS in names else ()
    return [
        replace(
            agent,
            concurrency=(AGENTS,) if AGENTS in names else (),
            tools=[replace(each, concurrency=limits) if is_dataclass(each) else each for each in agent.tools],
        )
        for agent in agents
    ]


def plan_limits(rng: random.Random, seed: int, sessions: Sequence[str], now: float) -> list[Action]:
    """Draw who sets the limits first, and who raises, lowers or removes them, and stops sessions that wait."""
    triggers = [f"{side}{p}" for p in OF_WORKERS for side in "<>"] + [*CRASH_POINTS, "driver", "tool"]
    triggers += [f"{side}{p}" for side in "<>" for p in _NEAR] * 6
    found: list[Action] = []
    for place, name in enumerate(names_of(seed)):
        number = 130 + 10 * place
        found.append(Action("concurrency", sessions[0], number, "", 0, now, limit=rng.choice((1, 1, 2)), target=name))
        if rng.random() < 0.4:
            for later in range(1, rng.choice((2, 3, 4))):
                at, point = now + rng.choice((500, 5000, 20_000)) * rng.random(), rng.choice(("", rng.choice(triggers)))
                limit = rng.choice((1, 2, 3, REMOVED))
                changed = Action(
                    "concurrency", sessions[-1], number + later, point, rng.choice((1, 2)), at, limit=limit
                )
                found.append(replace(changed, target=name))
        elif rng.random() < 0.4:  # nobody goes for minutes; a stop does not wait for that
            for later, at, limit in ((1, now + 300 * rng.random(), 0), (2, now + 300_000, 1)):
                found.append(Action("concurrency", sessions[0], number + later, "", 0, at, limit=limit, target=name))
    for place, session in enumerate(sessions):
        if rng.random() < 0.4:
            at = now + rng.choice((500, 5000, 20_000)) * rng.random()
            found.append(Action("stop", session, 160 + place, rng.choice(triggers), rng.choice((1, 1, 2)), at))
    return found


def plan_lost_holds(rng: random.Random, kind: str) -> list[Fault]:
    """Draw the faults beside holders."""
    point, nth = rng.choice(OF_HOLDING), rng.choice((1, 1, 2, 3))
    place = f"{rng.choice('<>')}{point}"
    match kind:
        case "crash" | "poison":
            return [Fault("crash", place, nth)]
        case "pause":
            return [Fault("pause", place, nth, rng.choice((2.0, 8.0, 14.0, 25.0)))]
        case "lost":
            return [Fault(rng.choices(("swallow", "refuse"), (3, 1))[0], point, nth)]
        case "mixed":
            return [
                Fault(rng.choice(("crash", "pause")), place, nth, 14.0),
                Fault("swallow", rng.choice(OF_HOLDING), 1),
            ]
        case _:
            return []


def change_limit(store: Store, action: Action) -> list[Any]:
    """Set or remove a limit, and bring forward what waits for that, as the public client does.

    Returns:
        Steps to publish, and None for those that are published.
    """
    if action.limit != REMOVED:
        per = {WHO: action.part} if action.part else {}
        store.flow.set_value(ConcurrencyLimit(action.target, total=action.limit, per=per))
        return store.flow.bring_forward(undefined_cause(action.target))
    store.flow.remove_value(concurrency_field(action.target))
    return store.flow.bring_forward(concurrency_field(action.target))


@dataclass
class _Grant:
    """A holder as its worker was told of it; times are virtual milliseconds.

    Attributes:
        is_dropped: It counts no more, and its worker has not heard of it.
    """

    part: str
    session: str
    process: Process | None
    since: float
    kept_at: float
    until: float
    is_dropped: bool = False


class Holding:
    """The limits of a seed, who was granted a holder, and who works without one."""

    def __init__(self, sim: Simulation) -> None:
        self._sim = sim
        self._world = sim.world
        self._observe = sim.observe
        sim.observe = self.observe
        self.names = names_of(sim.world.seed)
        self._limits: defaultdict[tuple[str, bool], list[tuple[float, float]]] = defaultdict(list)
        self._grants: dict[tuple[str, str], _Grant] = {}
        self._stops: dict[str, tuple[str, float]] = {}
        self._next_call = 0.0

    # --- what is seen -----------------------------------------------------------------------------------------

    def observe(self, point: str, commands: Sequence[Command], replies: Sequence[Reply]) -> None:
        """One round trip, as Redis answered it."""
        self._observe(point, commands, replies)
        if point == Points.FLOW_CONCURRENCY and isinstance(replies[-1], list):  # else Redis was full
            self._limit_changed(commands)
        if not point.startswith("holders."):
            return
        for command, reply in zip(commands, replies, strict=False):
            if command[0] == "EVALSHA" and not isinstance(reply, Exception):
                self._asked(json.loads(command[3 + int(command[2])]), reply)

    def _limit_changed(self, commands: Sequence[Command]) -> None:
        (words,) = (command for command in commands if command[0] == "HSET")
        name, stored = str(words[2]).partition(":")[2], words[3]
        limit = json.loads(stored) if stored else {}
        self._limits[name, False].append((self._world.now, limit.get("total", inf)))
        self._limits[name, True].append((self._world.now, limit.get("per", {}).get(WHO, inf)))
        self._world.last_fault = max(self._world.last_fault, self._world.now)  # who waits has that much more patience

    def _asked(self, ask: dict[str, Any], reply: Any) -> None:
        tally = self._world.tally.answers
        match ask["op"]:
            case "take" | "keep" if reply[0] == 1:
                for part in ask["parts"]:
                    self._granted(part, ask)
            case "keep":  # its worker asks for it again
                tally["holder keep refused"] += 1
                for grant in (self._grants.get((part, ask["id"])) for part in ask["parts"]):
                    if grant is not None:
                        grant.is_dropped = True
            case "take" if reply[0] < 0:  # nothing was written
                tally["limit changed" if reply[0] == -2 else "taken over"] += 1
            case "take":
                tally["holder take refused"] += 1
                tally["part of a label refused"] += "|" in ask["parts"][reply[2] - 1]
                for part in ask["parts"]:
                    self._grants.pop((part, ask["id"]), None)
            case "give":
                tally["called by a give"] += bool(reply)
                for part in ask["parts"]:
                    self._grants.pop((part, ask["id"]), None)
            case "look":
                tally["look woke" if reply[0] else "look stayed"] += 1
            case "call":
                tally["called by the sweep"] += bool(reply)
                tally["called again"] += any(reply[2::4])
                if ask["settled"]:
                    self._drop(ask["parts"][0])
            case _:
                assert ask["op"] == "leave"
                tally["left the line"] += 1

    def _drop(self, part: str) -> None:
        world = self._world
        for (of, holder), grant in self._grants.items():
            if of == part and grant.until <= world.now and not grant.is_dropped:
                grant.is_dropped = True
                world.tally.answers["holder dropped"] += 1
                is_hindered = world.last_fault >= grant.kept_at or not self._runs(grant, holder.partition(" ")[0])
                world.expect(is_hindered, "H1", f"{grant.session} lost {part}, though nothing has hindered its worker")

    def _runs(self, grant: _Grant, claim: str) -> bool:
        """Whether the step of a claim runs in the process that was granted a holder for it."""
        process = grant.process
        actors = process.actors if process is not None and process.alive else ()
        return any(not each.done and claim in each.facts.get("claims", ()) for each in actors)

    def _granted(self, part: str, ask: dict[str, Any]) -> None:
        world, key = self._world, (part, ask["id"])
        known, actor = self._grants.get(key), world.current
        known = None if known is not None and known.is_dropped else known
        process = known.process if known is not None else None if actor is None else actor.process
        since = world.now if known is None else known.since
        self._grants[key] = _Grant(part, ask["session"], process, since, world.now, world.now + ask["lease"])
        counted = [
            each
            for each in self._grants.values()
            if each.part == part and each.until > world.now and not each.is_dropped
        ]
        world.tally.answers["holder taken" if known is None else "holder kept"] += 1
        # Who came last came under the limit of that moment, and the others under an earlier one.
        most = self._highest_since(part, since if known is None else min(each.since for each in counted))
        world.expect(
            len(counted) <= most,
            "H1",
            f"{len(counted)} hold {part}, of which {most} may: {[each.session for each in counted]}",
        )

    def _highest_since(self, part: str, since: float) -> float:
        """The highest limit of a part that held from a moment on."""
        name, _, pair = part.partition("|")
        limits = self._limits[name, bool(pair)]
        before = [limit for at, limit in limits if at < since][-1:]
        found = [*before, *(limit for at, limit in limits if at >= since)]
        return max(found, default=0.0)

    # --- what happens by itself -------------------------------------------------------------------------------

    def passed(self, point: str) -> None:
        """H2: a request to the model or a call begins only under a holder."""
        actor = self._world.current
        if point not in ("driver", "tool") or actor is None or not actor.facts.get("claims"):
            return
        name = AGENTS if point == "driver" else TOOLS
        if name not in self.names or (name == TOOLS and AGENTS in self.names):
            return
        if name == TOOLS and self._sim.waiting:  # tools that start a job are under no limit
            return
        claim = actor.facts["claims"][-1]
        holds = any(part == name and each.partition(" ")[0] == claim for part, each in self._grants)
        self._world.expect(holds, "H2", f"{actor.name} begins a {point} without a holder")

    def turn(self) -> None:
        """H4: a stop is carried out, also while nobody may go."""
        world = self._world
        for session in self._sim.sessions:
            control = self._sim.history.ctl.get(session, {})
            mark, execution = control.get("cancel", ""), control.get("execution", "")
            if not mark or mark.startswith("!") or control.get("phase") != "run":
                self._stops.pop(session, None)
                continue
            known, since = self._stops.get(session, ("", 0.0))
            if known != execution:
                self._stops[session] = (execution, world.now)
                continue
            late = world.now - max(since, world.last_fault)
            world.expect(late < _STOPS_WITHIN_MS, "H4", f"{execution} was asked to stop {late / 1000:.0f} s ago")

    def is_due(self) -> bool:
        """Whether the sweep calls who waits."""
        return self._sim.world.now >= self._next_call and self.is_wanted()

    def is_wanted(self) -> bool:
        """Whether anybody may wait."""
        return any(control.get("phase") == "run" for control in self._sim.history.ctl.values())

    @property
    def next_call(self) -> float:
        """When the sweep calls again."""
        return self._next_call if self.is_wanted() else float("inf")

    def call_waiting(self, worker: Worker) -> None:
        """The part of the sweep that is about holders."""
        self._next_call = self._world.now + _CALLS_MS
        try:
            worker.services.gate.refresh()
            worker.services.concurrency.call_waiting()
        except (StoreUnavailable, StoreFull):
            self._world.tally.answers["sweep without answer"] += 1

    # --- the verdict ------------------------------------------------------------------------------------------

    def check(self) -> None:
        """H3: nobody holds or waits once everything has ended and the sweep has looked."""
        world, store, database = self._world, self._sim.client, self._sim.context.database
        for _ in range(4):
            for ref in store.flow.call_waiting():
                world.expect(False, "H3", f"{ref.execution_id} has ended, and is called")
            world.now += 15_000
        for part in [part for name in self.names for part in (name, *(f"{name}|{WHO}={each}" for each in "12"))]:
            keys = store.context.fleet.holders(part)
            reads: list[Command] = [("ZCOUNT", keys.held, int(world.now), "+inf"), ("ZRANGE", keys.line, 0, -1)]
            held, line = database.pipeline("check", reads)
            world.expect(not held, "H3", f"{held} hold {part} although everything has ended")
            world.expect(not line, "H3", f"{line} stand in the line of {part} although everything has ended")


def unseen_holding(tally: Tally) -> Iterator[str]:
    """What should have happened in seeds under concurrency limits, and did not."""
    for name in OF_HOLDING:
        if not tally.points[f"<{name}"]:
            yield f"round trip {name}"
    answers = (
        "holder taken", "holder kept", "holder take refused", "holder keep refused", "holder dropped", "called by a give",
        "called by the sweep", "called again", "taken over", "look woke", "look stayed", "left the line",
        "part of a label refused",
    )  # fmt: skip
    for answer in answers:
        if not tally.answers[answer]:
            yield f"answer {answer}"
