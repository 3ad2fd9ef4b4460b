"""Turns in every interleaving: a worker is killed, overtaken or loses a reply at each of its round trips.

The product's own fetcher, script, publisher, engine and sweep run on the database in memory.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from typing import Any, Final

from celery_agents.config.settings import Settings
from celery_agents.tasks.consumer import lane_fetcher
from celery_agents.tasks.consumer.lane_fetcher import LaneFetcher
from celery_agents.tasks.names import LANE_HEADER
from celery_agents.tasks.producer import create_producer_app
from celery_agents.tasks.publishing import StepPublisher, oldest_queued_ms
from celery_agents.worker.agent import Agent, AgentRegistry
from celery_agents.worker.concurrency.event_loop import EventLoopThread
from celery_agents.worker.concurrency.tool_threads import ToolThreads
from celery_agents.worker.engine import EngineServices, FirstExecution, LeaseKeeper, StepRunner, first_state
from celery_agents.worker.errors import StoreUnavailable
from celery_agents.worker.moments import moment
from celery_agents.worker.state import AgentState, ExecutionStatus, Message
from celery_agents.worker.store import NextState, StepRef, Store
from celery_agents.worker.store.clock import RedisClock
from celery_agents.worker.store.database import Command, Reply, Word
from celery_agents.worker.store.housekeeping import sweeps
from celery_agents.worker.store.housekeeping.sweeps import QueueSnapshot
from celery_agents.worker.store.lanes import lane_key, lanes_key
from celery_agents.worker.store.memory.database import MemoryDatabase

from .strikes import Killed, Strike, StrikingDatabase, explore_worlds
from support.lua_scripts import SCRIPTS, run_script

ACTS: Final = ("kill", "lose", "overtake", "die", "sweep", "plain")
ACTS_APART: Final = ("kill", "lose", "overtake", "die", "sweep", "silent", "empty")
SETTINGS: Final = Settings.build(events_kept=10)
APART: Final = Settings.build(events_kept=10, broker_url="redis://broker:6379/0")
QUEUE: Final = SETTINGS.step_queue("")
LANES: Final = ("1/a", "1/a", "1/b")
_LOOP: Final = EventLoopThread()
_APP: Final = create_producer_app(SETTINGS)
_TEMPLATES: Final = StepPublisher(_APP, SETTINGS)
_TAKE: Final = lane_fetcher._TAKE  # pyright: ignore[reportPrivateUsage]


def answer(state: AgentState) -> str:
    """The answer of a session's only step."""
    return f"{len(state.messages)} messages"


class QueueTables(MemoryDatabase):
    """The database in memory with what a worker asks of a broker."""

    def _rpop(self, key: str, most: int | None = None) -> Reply:
        if not self._alive(key):
            return None
        value = self._write(key, list)
        found = [value.pop() for _ in range(min(len(value), most or 1))]
        self._drop_empty(key)
        return found[0] if most is None else found

    def _brpop(self, key: str, *_: Word) -> Reply:
        found = self._rpop(key)
        return None if found is None else [key.encode(), found]

    def _zadd(self, key: str, *args: Word) -> int:
        if args[0] != "NX":
            return super()._zadd(key, *args)
        return 0 if self._zscore(key, args[2]) is not None else super()._zadd(key, *args[1:])

    def _eval(self, _: Word, keys: int, *words: Any) -> Reply:
        return run_script(_TAKE, self._run, words[:keys], words[keys:])


class Broker:
    """The connection of a fetcher, whose round trips are struck as those of its store."""

    def __init__(self, struck: StrikingDatabase | QueueTables, tables: QueueTables) -> None:
        self._struck, self._tables = struck, tables

    def exchange(self, commands: Sequence[Command]) -> list[Reply]:
        """Run commands one after another."""
        if isinstance(self._struck, QueueTables):
            return self._tables.pipeline("broker", commands)
        return self._struck.pipeline("broker", commands)


class PublisherApart(StepPublisher):
    """Publishes behind the transactions of the store, to a Redis of the broker's own."""

    def __init__(self, database: Any) -> None:
        super().__init__(_APP, APART)
        self._broker = database
        self._templates = _TEMPLATES._templates  # pyright: ignore[reportPrivateUsage]


class World:
    """Sessions in two lanes, and workers that take their steps.

    Args:
        apart: The broker is another Redis than the store. Their keys differ, so here they have one database, and no
            transaction of both.
    """

    def __init__(self, *, apart: bool = False) -> None:
        self.apart = apart
        self.now_ms = 1_800_000_000_000
        self.tables = QueueTables(lambda: self.now_ms, scripts=SCRIPTS)
        self.struck = StrikingDatabase(self.tables)
        self.store = self._store(self.tables)
        self.violations: list[str] = []
        self.republished = 0
        self._numbers = count(1)
        self.sessions = [self._submit(lane) for lane in LANES]

    def _store(self, database: Any) -> Store:
        clock = RedisClock(lambda: self.now_ms / 1000)
        publisher = PublisherApart(database) if self.apart else _TEMPLATES
        return Store(database, SETTINGS, clock=clock, publisher=publisher)

    def _submit(self, lane: str, *, silent: bool = False) -> str:
        number = next(self._numbers)
        self.now_ms += 2_000  # messages of one moment need not stand in the order of their times

        def first(now_ms: int) -> NextState:
            execution = FirstExecution(f"e{number}", f"op{number}", None)
            return first_state(AgentState.fresh(now=moment(now_ms)), Message.user("go"), execution, moment(now_ms))

        step = self.store.sessions.submit(f"s{number}", "a", "", first, lane=lane).publish
        if step is not None and not silent:
            self._publish([step])
        return f"s{number}"

    def act(self, name: str) -> None:
        """Let something happen at this moment."""
        match name:
            case "kill":
                raise Killed
            case "lose":
                raise StoreUnavailable("the reply was lost")
            case "overtake":
                self._work(self.tables, turns=1)
            case "die":
                self._fetcher(self.tables)._fetch({QUEUE: (QUEUE,)}, 2)  # pyright: ignore[reportPrivateUsage]
            case "sweep":
                self.now_ms += 1
                self._sweep()
            case "silent":  # the client dies before it has published
                self.sessions.append(self._submit("1/b", silent=True))
            case "empty":  # the broker was killed, and has kept nothing
                self.tables.pipeline("empty", [("DEL", key) for key in self._broker_keys()] or [("TIME",)])
            case _:
                assert name == "plain", name
                self.sessions.append(self._submit(""))

    def _broker_keys(self) -> list[str]:
        names = self.tables.keys()
        return [key for key in names if key.startswith(QUEUE)]

    def _publish(self, steps: Sequence[StepRef]) -> None:
        """Publish steps that no transaction has published."""
        publisher: Any = self.store.context.publisher
        for each in steps:
            publisher.publish(each, self.now_ms)

    def _fetcher(self, database: Any) -> LaneFetcher:
        broker: Any = Broker(database, self.tables)
        return LaneFetcher(
            broker, {QUEUE: (QUEUE,)}, count_wanted=lambda: 2, hand_over=lambda _: True, write=_TEMPLATES.message,
            names={QUEUE: ""}, shares=lambda: None,
        )  # fmt: skip

    def _work(self, database: Any, *, turns: int = 20) -> None:
        """Take and run steps, as a worker does, until there is none."""
        store = self._store(database)
        services = EngineServices(
            store=store, settings=SETTINGS, keeper=LeaseKeeper(store, SETTINGS, monotonic=lambda: self.now_ms / 1000),
            loop=_LOOP, threads=ToolThreads(), monotonic=lambda: self.now_ms / 1000,
            sleep=lambda seconds: None,
        )  # fmt: skip
        runner = StepRunner(services, AgentRegistry([Agent("a", driver=answer)]), worker=f"w{next(self._numbers)}")
        fetcher = self._fetcher(database)
        try:
            for _ in range(turns):
                try:
                    fetched = fetcher._fetch({QUEUE: (QUEUE,)}, 2)  # pyright: ignore[reportPrivateUsage]
                except StoreUnavailable:
                    continue
                if not fetched:
                    return
                for element in fetched:
                    headers = json.loads(element.data)["headers"]
                    session, execution = f"s{headers['id'][1:].partition('.')[0]}", headers["id"].partition(".")[0]
                    try:
                        runner.run_step(StepRef(session, execution, 1, lane=headers.get(LANE_HEADER, "")))
                    except StoreUnavailable:
                        continue
                    fetcher.charge(element, 1.0)
        finally:
            services.keeper.close()

    def _sweep(self) -> int:
        """Let whatever is due be looked at; how many steps were published again."""
        self.now_ms += round(SETTINGS.due_max_seconds * 1000)
        queue = QueueSnapshot(oldest_ms=oldest_queued_ms(self.store, QUEUE))
        waiting = {entry.split(b" ")[1].decode() for lane in LANES for entry in self._entries(lane)}
        has_turns = bool(self.tables.pipeline("look", [("LLEN", QUEUE)])[0])
        result = self.store.housekeeping.sweep(queue)
        for ref in result.lost:
            if ref.session_id in waiting and has_turns:
                self.violations.append(f"{ref.session_id} is published again although it waits")
        if not self.store.housekeeping.publish(result.lost, result.at_ms):
            self._publish(result.lost)
        self.republished += len(result.lost)
        return len(result.lost)

    def _entries(self, lane: str) -> list[bytes]:
        return self.tables.pipeline("look", [("LRANGE", lane_key(QUEUE, lane), 0, -1)])[0]

    def play(self, strikes: Sequence[Strike]) -> int:
        """Let a worker take steps until there is none, while things happen at its round trips; then let others go on.

        Returns:
            How many round trips it has made.
        """
        self.struck.begin(strikes, self.act)
        with contextlib.suppress(Killed):
            self._work(self.struck)
        trips = len(self.struck.sent)
        self.struck.strikes = {}
        for _ in range(6):
            self._sweep()
            self._work(self.tables)
        self._judge()
        # An entry of a step that has run stays where its turn was lost; the next turn takes it out.
        self.sessions.append(self._submit("1/c"))
        self._work(self.tables)
        left = [key for key in self._broker_keys() if key in (QUEUE, lanes_key(QUEUE)) or ":lane:" in key]
        if left:
            self.violations.append(f"left behind: {left}")
        return trips

    def _judge(self) -> None:
        for session in self.sessions:
            execution = self.store.sessions.load(session).state.execution
            if execution is None or execution.status is not ExecutionStatus.COMPLETED:
                self.violations.append(f"{session} has not ended")
        if self.republished > 3 * len(self.sessions):
            self.violations.append(f"{self.republished} messages were published again")


explore = partial(explore_worlds, World, ACTS)
explore_apart = partial(explore_worlds, partial(World, apart=True), ACTS_APART)


def _no_share(patch: Any) -> None:
    from celery_agents.tasks import publishing

    wait = publishing.wait_commands
    patch.setattr(publishing, "wait_commands", lambda *given: wait(*given)[:1])


def _blind_to_lanes(patch: Any) -> None:
    patch.setattr(sweeps, "_read_lanes", lambda _, lanes, queue: dict.fromkeys(lanes, queue.oldest_ms))


def _blind_to_turns(patch: Any) -> None:
    read = sweeps._read_lanes  # pyright: ignore[reportPrivateUsage]
    known = QueueSnapshot(oldest_ms=1)
    patch.setattr(sweeps, "_read_lanes", lambda context, lanes, _: read(context, lanes, known))


def _own_step(patch: Any) -> None:
    patch.setattr(lane_fetcher, "_IS_TURN", b"no message is one")


MUTANTS: Final[dict[str, Callable[[Any], None]]] = {
    "a share is not named": _no_share,
    "the sweep knows no lanes": _blind_to_lanes,
    "the sweep does not ask for turns": _blind_to_turns,
    "a turn runs its own step": _own_step,
}
