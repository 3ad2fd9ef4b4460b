"""One seed: a few workers, one or two sessions, clients that interfere, faults; from submit to rest, then the verdict."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from celery_agents.config.settings import Settings
from celery_agents.worker import crash_points
from celery_agents.worker.agent import AgentRegistry
from celery_agents.worker.engine import Done, NothingToDo, Parked, RetryLater, TakenOver, Waiting
from celery_agents.worker.errors import StoreFull, StoreUnavailable
from celery_agents.worker.store import QueueSnapshot, StepRef
from celery_agents.worker.store.context import Publisher

from .asking import plan_asking, with_asking
from .capable import with_capabilities
from .clients import Clients
from .database import Observer, QueueHandover, SimClock, SimTables, StoreContext
from .deleting import plan_deletions, plan_lost_deletions
from .desk import Desk
from .holding import Holding, is_labelled, plan_labels, plan_limits, plan_lost_holds, with_limits
from .interrupting import plan_interrupts
from .limiting import plan_changes, plan_lost_changes
from .observing import PREFIX, History
from .plan import draw_kind, plan_actions, plan_faults
from .process import SimStore, Worker
from .rewinding import plan_lost_rewinds, plan_rewinds
from .sessions import Stage, agents, enter, make_plan
from .smart import with_smart_capabilities
from .substitutes import Substitutes
from .world import Actor, Process, Tally, Violation, World

MOST_TURNS = 20_000
PATIENCE_MS = 400_000
# The secret of the tokens with which the simulated service brings its results.
SECRET = "a secret of the simulation"


@cache
def registry(
    substitutes: Substitutes, waiting: bool, capable: bool, smart: bool, limits: tuple[str, ...]
) -> AgentRegistry:
    given = with_asking(agents()) if waiting else agents()
    given = with_capabilities(given) if capable else given
    given = with_limits(given, limits) if limits else given
    return AgentRegistry(substitutes.agents(with_smart_capabilities(given) if smart else given))


@cache
def settings(burst: int, cache_bytes: int) -> Settings:
    return Settings.build(
        shards=1,
        steps_per_task=burst,
        retry_later_seconds=2.0,
        retry_later_max_seconds=8.0,
        cache_bytes=cache_bytes,
        journal_seconds=30.0,
        token_secret=SECRET,
    )


@dataclass
class Message_:
    """A step message in the queue."""

    ref: StepRef
    at: float
    genuine: bool = True


@dataclass
class Verdict:
    """What a seed showed."""

    seed: int
    kind: str
    violations: tuple[Violation, ...]
    tally: Tally
    story: tuple[str, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        return {
            "seed": self.seed,
            "kind": self.kind,
            "ok": not self.violations,
            "violations": [{"invariant": v.invariant, "text": str(v)} for v in self.violations],
            **self.facts,
        }


PRODUCT = Substitutes()


class Simulation:
    """One seed."""

    def __init__(
        self,
        context: StoreContext,
        seed: int,
        substitutes: Substitutes = PRODUCT,
        *,
        waiting: bool = False,
        capable: bool = False,
        deleting: bool = False,
        smart: bool = False,
        limiting: bool = False,
        rewinding: bool = False,
        interrupting: bool = False,
        holding: bool = False,
    ) -> None:
        """
        Args:
            substitutes: What stands in place of parts of the product.
            waiting: Calls ask for approvals, answers and results from outside, and sessions are held.
            capable: The agents have every capability of `state.run`.
            deleting: Clients delete sessions.
            smart: The agents have every capability of `state.smart`.
            limiting, rewinding, interrupting: Clients do that; calls of every second seed ask, too.
            holding: Steps and calls run under concurrency limits.
        """
        waiting = waiting or ((limiting or rewinding or interrupting) and seed % 2 == 1)
        self.waiting = waiting
        self.capable = capable
        self.smart = smart
        self.context = context
        self.substitutes = substitutes
        self.world = world = World(seed)
        rng = world.rng
        self.kind = draw_kind(rng)
        self.history = History(world, self._handed_over)
        self.observe: Observer = self.history.observe
        self.holding = Holding(self) if holding else None
        self.queue: list[Message_] = []
        self.archive: list[Message_] = []
        self.fused = rng.random() < 0.5
        self.sticky = seed % 3 == 1  # not drawn: it leaves the other seeds as they were
        self.settings = settings(rng.choice((1, 1, 1, 3)), rng.choice((1_000_000, 1_000_000, 0)))
        self.guesses = bool(self.settings.cache_bytes) or seed % 2 == 0
        self.restarted = [world.now - 1e9]
        self.stage = Stage(world)
        self.stage.is_smart = smart
        enter(self.stage)
        self.workers: list[Worker] = []
        self.born = 0
        self.rebirths: list[float] = []
        self.jobs = 0
        self.crashed_jobs: set[str] = set()
        self.unanswered_jobs: set[str] = set()
        self.next_sweep = world.now
        self.sweeper: Actor | None = None
        self.published_lately: dict[tuple[str, str, int], float] = {}
        self.audits = rng.random() < 0.3
        self.full_until = 0.0
        world.on_crash = self._crashed
        drawn = plan_faults(rng, self.kind, world.rates, world.now, waiting=waiting, smart=smart)
        if deleting:
            drawn.faults += plan_lost_deletions(rng, self.kind)
        if limiting:
            drawn.faults += plan_lost_changes(rng, self.kind)
        if rewinding:
            drawn.faults += plan_lost_rewinds(rng, self.kind)
        if holding:
            drawn.faults += plan_lost_holds(rng, self.kind)
        world.plan = drawn.faults
        self.fulls = drawn.fulls
        self.redis_restarts = drawn.redis_restarts
        self.sessions = [f"s{seed}a"] if rng.random() < 0.8 else [f"s{seed}a", f"s{seed}b"]
        if holding:
            self.sessions = [f"s{seed}{letter}" for letter in "abc"]
        for number, session in enumerate(self.sessions):
            plain = "calm" if self.kind in ("poison",) and number else self.kind
            self.stage.plans[session] = plan = make_plan(rng, plain)
            plan.slow = plan.slow if drawn.slow is None else drawn.slow
            if drawn.sleeper == "tool":
                plan.tools = (("lookup",), *plan.tools[1:])
            if waiting:
                plan_asking(rng, plan)
        self.actions = plan_actions(rng, self.sessions, world.now, waiting=waiting)
        if deleting:
            self.actions += plan_deletions(rng, self.sessions, world.now)
        if limiting:
            self.actions += plan_changes(rng, self.sessions, world.now)
        if rewinding:
            self.actions += plan_rewinds(rng, self.sessions, world.now)
        if interrupting:
            self.actions += plan_interrupts(rng, self.stage.plans, world.now)
        if holding:
            limits = plan_limits(rng, seed, self.sessions, world.now)
            self.actions += plan_labels(seed, self.sessions, limits, world.now) if is_labelled(seed) else limits
        for _ in range(rng.choices((2, 3), (3, 1))[0]):
            self._start_worker()
        self.client = self._store(Process("client", world))
        self.clients = Clients(
            world, self.history, self.stage, self.client, self.actions, publish=self._publish, forge=self._forge
        )
        self.desk = Desk(world, self.history, self.client, SECRET, self._publish)
        self.stage.answer_of, self.stage.start_job = self.history.requests.newest, self.desk.start_job
        world.on_point = self._passed

    def _passed(self, point: str) -> None:
        """Somebody passes a point: clients and people whose moment it is begin."""
        self.clients.passed(point)
        if self.waiting:
            self.desk.passed(point)
        if self.holding is not None:
            self.holding.passed(point)

    # --- workers ----------------------------------------------------------------------------------------------

    def _store(self, process: Process) -> SimStore:
        world = self.world
        database = SimTables(self.context.database, world, self.observe, self.restarted)
        publisher = QueueHandover() if self.fused else Publisher()
        return SimStore(
            self.substitutes.database(database), self.settings, world=world, steps=self.substitutes.steps,
            clock=SimClock(world, guesses=self.guesses), publisher=publisher,
        )  # fmt: skip

    def _start_worker(self) -> None:
        self.born += 1
        name = f"w{self.born}"
        worker = Worker(
            self.world, name, self._store(Process(name, self.world)), registry(self.substitutes, self.waiting, self.capable, self.smart, () if self.holding is None else self.holding.names),
            self.settings, self._publish,
        )  # fmt: skip
        if self.sticky:
            worker.stay()
        self.workers.append(worker)

    def _crashed(self, process: Process) -> None:
        for actor in process.actors:
            if not actor.done and "job" in actor.facts:
                self.crashed_jobs.add(actor.facts["job"])
        self.workers = [worker for worker in self.workers if worker.process is not process]
        self.rebirths.append(self.world.now + self.world.rng.choice((100, 2000, 9000)))

    def _publish(self, ref: StepRef) -> None:
        self.queue.append(Message_(ref, self.world.now))

    def _forge(self, ref: StepRef) -> None:
        self.queue.append(Message_(ref, self.world.now, genuine=False))

    def _handed_over(self, session: str, execution: str, step: int) -> None:
        """A transaction put this message into the queue."""
        self.queue.append(Message_(StepRef(session, execution, step), self.world.now))

    # --- what workers do --------------------------------------------------------------------------------------

    def _deliver(self, worker: Worker) -> None:
        world = self.world
        rng, rates = world.rng, world.rates
        place = rng.randrange(len(self.queue)) if rng.random() < rates.reorder else 0
        if place:
            world.fired("reorder")
        message = self.queue.pop(place)
        self.archive.append(message)
        if world.faults_on and rng.random() < rates.drop:
            world.fired("drop")
            world.say(f"the message {message.ref.execution_id}.{message.ref.step} is lost")
            return
        if world.faults_on and rng.random() < rates.duplicate:
            world.fired("duplicate")
            self.queue.append(message)
        self._start_job(worker, message)

    def _deliver_here(self, worker: Worker) -> None:
        """A step whose message this worker has kept."""
        ref, read = worker.local.pop(0)
        message = Message_(ref, self.world.now)
        self.archive.append(message)
        self._start_job(worker, message, read=read)

    def _start_job(self, worker: Worker, message: Message_, **facts: Any) -> None:
        self.jobs += 1
        job = f"job{self.jobs}"
        worker.job = self.world.spawn(
            f"{worker.process.name}/{job}", worker.process, lambda: self._work(worker, message)
        )
        worker.job.facts |= {"job": job, **facts}

    def _work(self, worker: Worker, message: Message_) -> None:
        world, ref = self.world, message.ref
        actor = world.current
        assert actor is not None
        world.say(f"{actor.name} takes {ref.execution_id}.{ref.step}")
        try:
            outcome = worker.runner.run_step(ref)
        except (StoreUnavailable, StoreFull) as error:
            world.tally.answers[type(error).__name__] += 1
            self.unanswered_jobs.add(actor.facts["job"])
            world.say(f"{actor.name}: {error}")
            return
        self._judge(actor, message, outcome)
        publish = getattr(outcome, "publish", None)
        for published in publish if isinstance(outcome, Waiting) else (publish,):
            if published is None:
                continue
            self._publish(published)
            crash_points.at("c9")

    def _judge(self, actor: Actor, message: Message_, outcome: Any) -> None:
        """Count the answer, and hold it against what was written."""
        world, ref = self.world, message.ref
        name = type(outcome).__name__
        match outcome:
            case NothingToDo():
                name = outcome.reason.value
                genuine_ahead = name == "ahead" and message.genuine
                world.expect(
                    not genuine_ahead, "I2", f"a message for {ref.execution_id}.{ref.step} came before its time"
                )
                if name == "missing" and ref.session_id in self.history.deleted:
                    name = "deleted missing"
                world.expect(name != "missing" or not message.genuine, "I8", f"session {ref.session_id} is missing")
            case TakenOver():
                mine = actor.facts.get("claims", [])
                done = [s for s in self.history.steps.get(ref.execution_id, ()) if any(c.encode() in s for c in mine)]
                one_each = len(done) < len(self._steps_of(mine, ref))
                is_gone = ref.session_id in self.history.deleted  # nothing is left that could tell
                world.expect(
                    not done or one_each or is_gone,
                    "I1",
                    f"{actor.name} committed {ref.execution_id}.{ref.step} and does not know it",
                )
            case Parked():
                world.expect(False, "park", f"{ref.session_id} was parked: {outcome.reason}")
            case RetryLater() if "was raised" in outcome.reason:
                world.tally.answers["raised in time"] += 1
            case Done() | Waiting() | RetryLater():
                pass
        world.tally.answers[name] += 1
        world.say(f"{actor.name}: {name} {getattr(outcome, 'summary', '') or getattr(outcome, 'reason', '')}")

    def _steps_of(self, claims: list[str], ref: StepRef) -> list[int]:
        """Steps this job held: one, and in a burst those it carried on with."""
        carried = sum(1 for s in self.history.steps.get(ref.execution_id, ()) if any(c.encode() in s for c in claims))
        return list(range(carried + 1)) if self.sticky or self.settings.steps_per_task > 1 else [ref.step]

    def _sweep(self, worker: Worker) -> None:
        world = self.world
        oldest = int(min(m.at for m in self.queue)) if self.queue else -1
        lookout = QueueSnapshot(oldest_ms=oldest) if world.rng.random() < 0.7 else QueueSnapshot()
        if self.holding is not None and self.holding.is_due():
            self.holding.call_waiting(worker)
        began = world.now
        try:
            swept = worker.store.housekeeping.sweep(lookout)
        except (StoreUnavailable, StoreFull):
            return
        world.tally.answers["swept"] += len(swept.lost)
        world.tally.answers["swept live"] += swept.live
        world.tally.answers["swept queued"] += swept.queued
        for ref in swept.lost:
            key = (ref.session_id, ref.execution_id, ref.step)
            touched = self.history.touched[ref.session_id]
            lately = self.published_lately.get(key)
            world.expect(
                lately is None or world.now - began > 500 or lately[1] != touched or world.now - lately[0] >= 5000,
                "sweep", f"{ref.execution_id}.{ref.step} is swept again after {world.now - (lately or (0, 0))[0]:.0f} ms",
            )  # fmt: skip
            if not self._is_put_off(ref):  # delayed behind the look at what is due; the sweep at its time is right
                self.published_lately[key] = (began, touched)
            self._publish(ref)
        if swept.lost:
            world.say(f"{worker.process.name} sweeps {', '.join(f'{r.execution_id}.{r.step}' for r in swept.lost)}")
        self._mirror_due()

    def _is_put_off(self, ref: StepRef) -> bool:
        ctl = f"{PREFIX}s:{ref.session_id}:ctl"
        (not_before,) = self.context.database.pipeline("due", [("HGET", ctl, "not_before")])
        return float(not_before or 0) > self.world.now

    def _mirror_due(self) -> None:
        (flat,) = self.context.database.pipeline("due", [("ZRANGE", PREFIX + "due", 0, -1, "WITHSCORES")])
        self.history.due = {flat[i].decode(): float(flat[i + 1]) for i in range(0, len(flat), 2)}

    # --- the run ----------------------------------------------------------------------------------------------

    def run(self) -> Verdict:
        """To rest, and then the verdict."""
        from .checker import check

        world = self.world
        self.context.clear()
        crash_points.install(world.point)
        try:
            with self.substitutes.during():
                self._run()
                self._settle_down()
            if not world.violations:
                check(self)
        except Violation as violation:
            world.violations.append(violation)
        finally:
            crash_points.install(None)
            world.end()
        facts = {
            "virtual_seconds": round((world.now - self.start) / 1000, 3),
            "jobs": self.jobs,
            "payments": len(self.stage.ledgers.payments),
            "calls": len(self.stage.ledgers.calls),
            "commits": sum(map(len, self.history.steps.values())),
        }
        return Verdict(world.seed, self.kind, tuple(world.violations), world.tally, tuple(world.story), facts)

    def _run(self) -> None:
        from .checker import audit

        world = self.world
        self.start = world.now
        for _ in range(MOST_TURNS):
            if world.violations:
                return
            world.sweep_up()
            self._timers()
            self.history.requests.look()
            if self._is_over():
                return
            if world.now - max(world.last_fault, self.start) > PATIENCE_MS and not self.waiting:
                self._stuck("nothing was decided for minutes")
            if self.audits and world.rng.random() < 0.01:
                audit(self)
            choices = self._choices()
            if choices and world.rng.random() < 0.97:
                world.rng.choice(choices)()
            elif not choices and not self._advance():
                self._stuck("nothing is left that could happen")
            elif choices:
                world.now += world.rng.random() * 300
                self._expire()
        self._stuck(f"no end after {MOST_TURNS} turns")

    def _stuck(self, why: str) -> None:
        states = {s: self.history.ctl.get(s, {}) for s in self.sessions}
        raise Violation("I2", f"{why}; {states}; due {self.history.due}")

    def _is_over(self) -> bool:
        if (
            self.queue
            or self._is_kept()
            or any(not a.done for a in self.actions)
            or any(not a.done for a in self.world.actors)
            or not self.desk.is_done()
        ):
            return False
        gone = self.history.deleted
        return all(session in gone or self.history.phase(session) == "end" for session in self.sessions)

    def _is_kept(self) -> bool:
        """Whether a worker has a step that it delivers to itself."""
        return any(worker.local for worker in self.workers)

    def _choices(self) -> list[Callable[[], None]]:
        world = self.world
        found: list[Callable[[], None]] = [actor.resume for actor in world.ready()]
        if self.queue:
            found += [lambda w=w: self._deliver(w) for w in self.workers if w.is_idle(world.now)][:1]
        found += [lambda w=w: self._deliver_here(w) for w in self.workers if w.local and w.is_idle(world.now)]
        return found

    def _timers(self) -> None:
        """What begins by itself: heartbeats, sweeps, new processes, clients, a full Redis."""
        world = self.world
        if self.redis_restarts and world.now - self.start > 1500 and world.rng.random() < 0.05:
            self.redis_restarts -= 1
            world.fired("redis restart")
            world.now += world.rng.choice((1000, 6000, 12000))
            self.restarted[0] = world.now
            world.last_fault = max(world.last_fault, world.now)
            world.say("Redis was away and is back")
            self._expire()
        if self.holding is not None:
            self.holding.turn()
        now = world.now
        for at in [at for at in self.rebirths if at <= now]:
            self.rebirths.remove(at)
            self._start_worker()
        for worker in self.workers:
            if worker.next_beat <= now and worker.is_holding() and (worker.beat is None or worker.beat.done):
                worker.next_beat = now + self.settings.lease_renew_seconds * 500
                worker.beat = world.spawn(
                    f"{worker.process.name}/heart", worker.process, lambda w=worker: self._tick(w)
                )
        if self.next_sweep <= now and (self.sweeper is None or self.sweeper.done) and self._is_due(now):
            awake = [w for w in self.workers if w.process.paused_until <= now]
            if awake:
                self.next_sweep = now + self.settings.sweep_seconds * 1000
                worker = world.rng.choice(awake)
                self.sweeper = world.spawn(f"{worker.process.name}/sweep", worker.process, lambda: self._sweep(worker))
        for action in self.actions:
            if not action.started and action.at <= now and self.clients.is_open(action):
                self.clients.begin(action)
        if self.waiting:
            self.desk.timers()
        if self.fulls and self.fulls[0] <= now:
            self.fulls.pop(0)
            self.full_until = now + world.rng.choice((300, 3000, 9000))
            world.fired("full")
            world.last_fault = max(world.last_fault, self.full_until)
            self.context.database.pipeline("full", [("CONFIG", "SET", "maxmemory", 1)])
            world.say("Redis is full")
        if self.full_until and self.full_until <= now:
            self.full_until = 0.0
            self.context.database.pipeline("full", [("CONFIG", "SET", "maxmemory", 0)])
            world.say("Redis has room again")

    def _is_due(self, now: float) -> bool:
        is_called = self.holding is not None and self.holding.is_due()
        return is_called or any(score <= now for score in self.history.due.values())

    def _tick(self, worker: Worker) -> None:
        try:
            worker.keeper.tick()
        except (StoreUnavailable, StoreFull):
            self.world.tally.answers["heartbeat without answer"] += 1

    def _advance(self) -> bool:
        """To the next moment at which anything can happen; False when there is none."""
        world, now = self.world, self.world.now
        moments = [world.next_wake(), *self.rebirths, *self.fulls]
        if self.full_until:
            moments.append(self.full_until)
        moments += self.desk.moments()
        if self.holding is not None and (self.sweeper is None or self.sweeper.done):
            moments.append(max(self.next_sweep, self.holding.next_call))
        moments += [w.next_beat for w in self.workers if w.is_holding() and (w.beat is None or w.beat.done)]
        if self.history.due:
            moments.append(max(self.next_sweep, min(self.history.due.values())))
        if self.queue or self._is_kept():
            moments += [w.process.paused_until for w in self.workers]
        moments += [a.at for a in self.actions if not a.started and self.clients.is_open(a)]
        moments += [w.process.paused_until for w in self.workers if w.process.paused_until > now]
        later = [at for at in moments if at > now]
        soonest = min(later, default=float("inf"))
        if soonest == float("inf"):
            return False
        world.now = soonest + world.rng.random() * 5
        self._expire()
        return True

    def _expire(self) -> None:
        """Leases, and journals of steps that are past, whose time has come are gone."""
        history, now = self.history, self.world.now
        leases = [key for key, at in history.leases.items() if at <= now]
        journals = [key for key, at in history.journals.items() if at <= now]
        for key in leases:
            del history.leases[key]
        for key in journals:
            del history.journals[key]
            *_, execution, step = key.split(":")
            history.requests.forget(execution, int(step))
        if leases or journals:
            self.context.database.pipeline("expire", [("DEL", *leases, *journals)])
        if leases:
            self.clients.passed("lease ended")

    def _settle_down(self) -> None:
        """Everything old comes again, and must change nothing."""
        world = self.world
        if world.violations:
            return
        world.faults_on = False
        before = dict(self.history.versions)
        world.rng.shuffle(self.archive)
        seen: set[tuple[str, str, int]] = set()
        for message in self.archive:
            key = (message.ref.session_id, message.ref.execution_id, message.ref.step)
            if key not in seen:
                seen.add(key)
                self.queue.append(message)
        world.rates.duplicate = world.rates.drop = 0.0
        for _ in range(MOST_TURNS):
            world.sweep_up()
            if not self.queue and all(actor.done for actor in world.actors):
                break
            self._timers()
            choices = self._choices()
            if choices:
                world.rng.choice(choices)()
            elif not self._advance():
                break
        world.expect(before == self.history.versions, "I1", "an old message changed a session")
        world.now += 100_000
        self._expire()
