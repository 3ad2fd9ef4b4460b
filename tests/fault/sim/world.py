"""A small world in which time, crashes and the order of things are one seeded choice.

Everything that acts is an *actor*: a thread of which the world lets exactly one run. At every *point* (a crash point of
the protocol, the moment before and after each round trip to Redis, the beginning and end of a driver or tool call) the
running actor asks the world whether it goes on, dies, sleeps past its lease, or lets another go first.

The same seed gives the same run: all choices come from one generator, asked by one thread at a time.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

START_MS = 1_800_000_000_000
_FOREVER = float("inf")


class Crashed(BaseException):
    """The process of this actor is gone; nothing below may catch it, and nothing it still does reaches Redis."""


class Violation(Exception):
    """An invariant is broken."""

    def __init__(self, invariant: str, text: str) -> None:
        super().__init__(f"{invariant}: {text}")
        self.invariant = invariant


class _Hand(threading.Thread):
    """A thread that carries out one actor after another."""

    def __init__(self) -> None:
        super().__init__(daemon=True, name="sim-hand")
        self.go = threading.Lock()
        self.go.acquire()
        self.actor: Actor | None = None
        self.start()

    def run(self) -> None:
        while True:
            self.go.acquire()
            actor = self.actor
            assert actor is not None
            actor.execute()
            self.actor = None
            world = actor.world
            _idle_hands.append(self)
            world.turn.release()


_idle_hands: list[_Hand] = []


class Process:
    """A simulated worker process: what dies together."""

    def __init__(self, name: str, world: World) -> None:
        self.name = name
        self.world = world
        self.alive = True
        self.paused_until = 0.0
        self.offset = world.rng.random() * 1000
        self.actors: list[Actor] = []

    def monotonic(self) -> float:
        """This machine's clock: no relation to any other's."""
        return self.world.now / 1000 + self.offset


class Actor:
    """Something that acts until it has ended."""

    def __init__(self, world: World, name: str, process: Process | None, call: Callable[[], Any]) -> None:
        self.world = world
        self.name = name
        self.process = process
        self.dead = False
        self.done = False
        self.crashed = False
        self.wake_at = 0.0
        self.until: Callable[[], bool] | None = None
        self.interrupted: Callable[[], BaseException | None] | None = None
        self.deadline = _FOREVER
        self.facts: dict[str, Any] = {}
        self._call = call
        self._hand: _Hand | None = None

    def execute(self) -> None:
        """In the hand's thread."""
        try:
            if not self.dead:
                self._call()
        except Crashed:
            self.crashed = True
        except Violation as violation:
            self.world.violations.append(violation)
        except BaseException as error:
            self.world.unexpected(self, error)
        finally:
            self.done = True

    def is_ready(self, now: float) -> bool:
        """Whether it could go on now."""
        if self.dead:
            return True
        if self.process is not None and self.process.paused_until > now:
            return False
        return self.wake_at <= now or (self.until is not None and self.until())

    def resume(self) -> None:
        """By the world: let it run until it gives the turn back."""
        hand = self._hand
        if hand is None:
            hand = self._hand = _idle_hands.pop() if _idle_hands else _Hand()
            hand.actor = self
        self.world.current = self
        hand.go.release()
        self.world.turn.acquire()
        self.world.current = None

    def give_turn(self) -> None:
        """By the actor itself: let others run."""
        hand = self._hand
        assert hand is not None
        self.world.turn.release()
        hand.go.acquire()
        if self.dead:
            raise Crashed


@dataclass
class Fault:
    """One planned fault: the n-th time a point is passed."""

    kind: str
    point: str
    nth: int
    seconds: float = 0.0

    def __str__(self) -> str:
        return f"{self.kind} at {self.point} #{self.nth}"


@dataclass
class Rates:
    """Probabilities at each point, beside the planned faults."""

    turn: float = 0.2
    crash: float = 0.0
    pause: float = 0.0
    swallow: float = 0.0
    refuse: float = 0.0
    duplicate: float = 0.0
    drop: float = 0.0
    reorder: float = 0.0


@dataclass
class Tally:
    """What was seen in a run; summed over runs it shows that nothing was tested in vain."""

    points: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    answers: Counter[str] = field(default_factory=Counter)

    def add(self, other: Tally) -> None:
        self.points.update(other.points)
        self.faults.update(other.faults)
        self.answers.update(other.answers)


class World:
    """Time, turns and faults."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        random.seed(seed)  # the product's own jitter
        self.now = float(START_MS)
        self.turn = threading.Lock()
        self.turn.acquire()
        self.current: Actor | None = None
        self.actors: list[Actor] = []
        self.rates = Rates()
        self.plan: list[Fault] = []
        self.faults_on = True
        self.last_fault = self.now
        self.tally = Tally()
        self.violations: list[Violation] = []
        self.story: list[str] = []
        self.seq = 0
        self.on_point: Callable[[str], None] = lambda point: None
        self.on_crash: Callable[[Process], None] = lambda process: None

    # --- what actors call -------------------------------------------------------------------------------------

    def spawn(self, name: str, process: Process | None, call: Callable[[], Any]) -> Actor:
        """A new actor; it runs when its turn comes."""
        actor = Actor(self, name, process, call)
        self.actors.append(actor)
        if process is not None:
            process.actors.append(actor)
        return actor

    def point(self, name: str) -> None:
        """The running actor is somewhere; anything may happen to it here."""
        actor = self.current
        if actor is None:
            return
        if actor.dead:
            raise Crashed
        self.tally.points[name] += 1
        self.seq += 1
        self.on_point(name)
        if self.faults_on:
            self._fault(actor, name)
        if self.rng.random() < self.rates.turn:
            actor.wake_at, actor.until = self.now, None
            actor.give_turn()

    def sleep(self, seconds: float) -> None:
        """The running actor lets virtual time pass."""
        self.wait_for(None, seconds)

    def wait_for(self, condition: Callable[[], bool] | None, seconds: float) -> bool:
        """Wait until a condition holds, no longer than so many seconds; whether it does."""
        actor = self.current
        if actor is None:
            return condition is None or condition()
        if actor.dead:
            raise Crashed
        if condition is not None and condition():
            return True
        actor.wake_at = min(self.now + seconds * 1000, actor.deadline)
        actor.until = condition if actor.interrupted is None else self._or_interrupted(actor, condition)
        actor.give_turn()
        actor.until = None
        if actor.interrupted is not None and (error := actor.interrupted()) is not None:
            raise error
        return condition is not None and condition()

    @staticmethod
    def _or_interrupted(actor: Actor, condition: Callable[[], bool] | None) -> Callable[[], bool]:
        interrupted = actor.interrupted
        assert interrupted is not None
        return lambda: (condition is not None and condition()) or interrupted() is not None

    def crash(self, process: Process) -> None:
        """A process dies, with all its actors."""
        if not process.alive:
            return
        process.alive = False
        self.say(f"{process.name} dies")
        for actor in process.actors:
            actor.dead = True
        self.on_crash(process)

    def die_here(self, why: str) -> None:
        """The running actor's process dies at this place."""
        actor = self.current
        assert actor is not None
        self.fired(why)
        if actor.process is not None:
            self.crash(actor.process)
        else:
            actor.dead = True
        raise Crashed

    # --- faults -----------------------------------------------------------------------------------------------

    def fired(self, kind: str) -> None:
        """A fault has happened."""
        self.tally.faults[kind] += 1
        self.last_fault = max(self.last_fault, self.now)

    def planned(self, kinds: tuple[str, ...], point: str) -> Fault | None:
        """The planned fault for this passing of a point, taken from the plan."""
        for fault in self.plan:
            if fault.point == point and fault.kind in kinds:
                fault.nth -= 1
                if fault.nth <= 0:
                    self.plan.remove(fault)
                    return fault
        return None

    def _fault(self, actor: Actor, point: str) -> None:
        if actor.process is None:
            return
        fault = self.planned(("crash", "pause"), point) if self.plan else None
        if fault is None and self.rates.crash + self.rates.pause > 0:
            chance = self.rng.random()
            if chance < self.rates.crash:
                fault = Fault("crash", point, 0)
            elif chance < self.rates.crash + self.rates.pause:
                fault = Fault("pause", point, 0, self.rng.uniform(3.0, 20.0))
        if fault is None:
            return
        self.say(f"{actor.name}: {fault.kind} at {point}")
        if fault.kind == "crash":
            self.die_here("crash")
        self.fired("pause")
        actor.process.paused_until = self.now + fault.seconds * 1000
        self.last_fault = max(self.last_fault, actor.process.paused_until)
        actor.wake_at, actor.until = self.now, None
        actor.give_turn()

    # --- bookkeeping ------------------------------------------------------------------------------------------

    def say(self, text: str) -> None:
        """For whoever reads a failing run."""
        self.story.append(f"{(self.now - START_MS) / 1000:9.3f}  {text}")

    def expect(self, holds: object, invariant: str, text: str) -> None:
        """Note a broken invariant."""
        if not holds:
            self.violations.append(Violation(invariant, text))

    def unexpected(self, actor: Actor, error: BaseException) -> None:
        """An actor ended with an exception nobody foresaw."""
        import traceback

        text = "".join(traceback.format_exception(error)[-6:])
        self.violations.append(Violation("crash", f"{actor.name}: {type(error).__name__}: {error}\n{text}"))

    # --- the scheduler ----------------------------------------------------------------------------------------

    def sweep_up(self) -> None:
        """Let the dead unwind; they touch nothing any more."""
        for actor in [a for a in self.actors if a.dead and not a.done]:
            if actor._hand is None:
                actor.done = True
                continue
            while not actor.done:
                actor.resume()
        self.actors = [a for a in self.actors if not a.done]

    def ready(self) -> list[Actor]:
        """Actors that could go on now."""
        return [actor for actor in self.actors if actor.is_ready(self.now)]

    def next_wake(self) -> float:
        """When the next sleeping actor wakes; infinity when none does."""
        soonest = _FOREVER
        for actor in self.actors:
            at = actor.wake_at
            if actor.process is not None and actor.process.paused_until > self.now:
                at = max(at, actor.process.paused_until) if actor.until is None else actor.process.paused_until
            soonest = min(soonest, at)
        return soonest

    def end(self) -> None:
        """Free all threads."""
        for actor in self.actors:
            actor.dead = True
        self.sweep_up()
