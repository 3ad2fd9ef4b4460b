"""A simulated worker process: the product's runner, lease keeper and store, on virtual time."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any

from celery_agents.config.settings import Settings
from celery_agents.worker.agent import AgentRegistry
from celery_agents.worker.engine import EngineServices, LeaseKeeper, StepRunner
from celery_agents.worker.engine.leases import ActiveLease
from celery_agents.worker.store import (
    Claim,
    Claimed,
    ClaimResult,
    Committed,
    LoadedSession,
    StepRef,
    StepStore,
    Store,
    Suspect,
    Transition,
)
from celery_agents.worker.store.context import StoreContext
from celery_agents.worker.store.flow.records import Settlement

from .world import Actor, Crashed, Process, World

Future = concurrent.futures.Future[Any]


class SimFuture(concurrent.futures.Future[Any]):
    """A future whose work is an actor, and whose waiting lets virtual time pass."""

    def __init__(self, world: World, call: Callable[[], Any], seconds: float | None) -> None:
        super().__init__()
        self._world = world
        self._call_it = call
        self._cancelled_async = False
        running = world.current
        assert running is not None
        self._actor = world.spawn(f"{running.name}+", running.process, self._run)
        self._actor.facts = {**running.facts, "asked": world.seq, "asked_at": world.now}
        if seconds is not None:
            ends = world.now + seconds * 1000
            self._actor.deadline = ends
            self._actor.interrupted = lambda: self._interruption(ends)

    def _interruption(self, ends: float) -> BaseException | None:
        if self._cancelled_async:
            return asyncio.CancelledError()
        return TimeoutError() if self._world.now >= ends else None

    def _run(self) -> None:
        if not self.set_running_or_notify_cancel():
            return
        try:
            result = self._call_it()
            if hasattr(result, "__await__"):
                result = _driven(result)
        except Crashed:
            raise
        except asyncio.CancelledError:
            self.set_exception(concurrent.futures.CancelledError())
        except BaseException as error:
            self.set_exception(error)
        else:
            self.set_result(result)

    def cancel(self) -> bool:
        if self.running():
            self._cancelled_async = self._actor.interrupted is not None
            return self._cancelled_async
        return super().cancel()

    def result(self, timeout: float | None = None) -> Any:
        if not self.done():
            self._world.wait_for(self.done, 1e9 if timeout is None else timeout)
        return super().result(0)


def _driven(awaitable: Awaitable[Any]) -> Any:
    """Nothing here really waits, so a coroutine runs to its end at once; virtual time passes inside."""
    try:
        awaitable.send(None)  # type: ignore[attr-defined]
    except StopIteration as end:
        return end.value
    raise AssertionError("a simulated coroutine waited for something real")


class SimThreads:
    """`Threads` whose plain functions are actors beside the step."""

    def __init__(self, world: World) -> None:
        self._world = world

    def submit(self, call: Callable[..., Any], /, *args: Any) -> Future:
        return SimFuture(self._world, lambda: call(*args), None)

    def wait(self, futures: Collection[Future], seconds: float) -> tuple[set[Future], set[Future]]:
        self._world.wait_for(lambda: any(future.done() for future in futures), seconds)
        done = {future for future in futures if future.done()}
        return done, set(futures) - done


class SimLoop:
    """In place of the event loop: coroutines are actors too, and can be cancelled while time passes for them."""

    def __init__(self, world: World) -> None:
        self._world = world

    def submit(self, call: Callable[[], Awaitable[Any]], timeout: float) -> Future:
        return SimFuture(self._world, call, timeout)


class SimKeeper(LeaseKeeper):
    """`LeaseKeeper` whose steps wait in virtual time."""

    def __init__(self, world: World, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._world = world

    def keep(self, claim: Claim, seconds: float, sent_at: float) -> ActiveLease:
        lease = super().keep(claim, seconds, sent_at)
        world = self._world

        def wait(seconds: float, *, by_cut: bool) -> bool:
            return world.wait_for(lambda: lease.interruption is not None or (by_cut and lease.is_cut), seconds)

        lease.wait = wait  # type: ignore[method-assign]
        return lease


class SimStore(Store):
    """`Store` whose steps count their rarer answers."""

    def __init__(self, *args: Any, world: World, steps: type[SimSteps] | None = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self.steps = (steps or SimSteps)(self.context, world)


class SimSteps(StepStore):
    """`StepStore` that counts its rarer answers."""

    def __init__(self, context: StoreContext, world: World) -> None:
        super().__init__(context)
        self.context = context
        self.world = world

    def claim(self, ref: StepRef, claim_id: str, worker: str, *, alone: bool) -> ClaimResult:
        actor = self.world.current
        if actor is not None:
            actor.facts["read"] = self.world.seq
        answer = super().claim(ref, claim_id, worker, alone=alone)
        if isinstance(answer, Suspect):
            self.world.tally.answers["suspect"] += 1
        if isinstance(answer, Claimed) and actor is not None:
            actor.facts.setdefault("claims", []).append(claim_id)
        return answer

    def record_answer(self, claim: Claim, raw: bytes, settlement: Settlement | None = None) -> bytes:
        stored = super().record_answer(claim, raw, settlement)
        if stored != raw:
            self.world.tally.answers["adopted"] += 1
        return stored

    def commit(
        self,
        claim: Claim,
        base: LoadedSession,
        transition: Transition,
        *,
        results: Mapping[int, bytes],
        keep_claim: bool,
    ) -> Committed:
        committed = super().commit(claim, base, transition, results=results, keep_claim=keep_claim)
        if committed.again:
            self.world.tally.answers["committed again"] += 1
        if committed.carried is not None:
            actor = self.world.current
            self.world.tally.answers["carried on"] += 1
            if actor is not None:
                actor.facts["read"] = self.world.seq
        return committed

    def reload(self, claim: Claim) -> LoadedSession:
        loaded = super().reload(claim)
        self.world.tally.answers["re-applied"] += 1
        return loaded

    def restore(self, claim: Claim) -> bool:
        restored = super().restore(claim)
        self.world.tally.answers["restored" if restored else "claim lost"] += 1
        return restored


class SimDelivery:
    """`StepDelivery` that fails now and then."""

    def __init__(self, world: World, delivered: list[tuple[StepRef, int]]) -> None:
        self._world = world
        self._delivered = delivered

    def has_room(self) -> bool:
        return True

    def deliver(self, ref: StepRef, now_ms: int) -> bool:
        del now_ms
        world = self._world
        if world.rng.random() < 0.1:
            world.tally.answers["not delivered here"] += 1
            return False
        world.tally.answers["delivered here"] += 1
        self._delivered.append((ref, world.seq))
        return True


class Worker:
    """One process with one slot, its heartbeat and, at times, the sweep."""

    def __init__(
        self, world: World, name: str, store: SimStore, agents: AgentRegistry, settings: Settings,
        publish: Callable[[StepRef], None],
    ) -> None:  # fmt: skip
        self.process = Process(name, world)
        self.store = store
        self.keeper = SimKeeper(world, store, settings, publish=publish, monotonic=self.process.monotonic)
        self.services = EngineServices(
            store=store,
            settings=settings,
            keeper=self.keeper,
            loop=SimLoop(world),  # type: ignore[arg-type]
            threads=SimThreads(world),
            monotonic=self.process.monotonic,
            sleep=world.sleep,
        )
        self.runner = StepRunner(self.services, agents, worker=name)
        self.local: list[tuple[StepRef, int]] = []
        self.job: Actor | None = None
        self.beat: Actor | None = None
        self.next_beat = world.now

    def stay(self) -> None:
        """From now on steps may be delivered to this worker by itself; now and then that fails."""

        sticky = self.runner.sticky
        sticky.enable(SimDelivery(self.process.world, self.local))
        sticky.stays_until = lambda waiting, *, others: self.process.monotonic() + 1.0  # type: ignore[method-assign]

    def is_idle(self, now: float) -> bool:
        process = self.process
        return process.alive and process.paused_until <= now and (self.job is None or self.job.done)

    def is_holding(self) -> bool:
        keeps_holders = bool(self.services.concurrency._held)  # of functions, too, that were left running
        return self.process.alive and (self.keeper.running > 0 or keeps_holders)


def named(refs: Sequence[StepRef]) -> str:
    return ", ".join(f"{ref.execution_id}.{ref.step}" for ref in refs)
