"""Spend caps in every interleaving: a caller is killed, overtaken or loses a reply at each of its round trips.

The product's own gate, verbs and script run on the database in memory. A provider's bill stands outside.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, Final

from celery_agents.config.settings import Settings
from celery_agents.flow import SpendCap
from celery_agents.worker.engine.spending_gate import SpendingGate
from celery_agents.worker.errors import PutOff, StoreUnavailable
from celery_agents.worker.flow.caps import cap_field
from celery_agents.worker.store import Store
from celery_agents.worker.store.clock import RedisClock
from celery_agents.worker.store.context import Publisher
from celery_agents.worker.store.flow import caps as stored
from celery_agents.worker.store.memory.database import MemoryDatabase

from .strikes import Killed, Strike, StrikingDatabase, explore_worlds
from support.lua_scripts import SCRIPTS
from support.points import Points

ACTS: Final = ("kill", "lose", "overtake", "die", "raise", "lower", "remove")
ESTIMATE: Final = 0.3
COST: Final = 0.1
MOST: Final = 1.0


class World:
    """Callers under one cap, and the bill of their provider.

    Attributes:
        highest: The highest cap that was set; infinite once it was removed.
        unsettled: Calls that may be left unsettled: of callers that have died, and those whose settlement was lost.
    """

    def __init__(self) -> None:
        self.now_ms = 1_800_000_000_000
        self.memory = MemoryDatabase(lambda: self.now_ms, scripts=SCRIPTS)
        self.struck = StrikingDatabase(self.memory)
        self.store = self._store(self.memory)
        self.bill, self.highest = 0.0, 0.0
        self.violations: list[str] = []
        self.unsettled = 0
        self._numbers = itertools.count(1)
        self._set(MOST)
        self.cap = self.store.flow.view().caps["c"]

    def _store(self, database: Any) -> Store:
        return Store(database, Settings.build(), clock=RedisClock(lambda: self.now_ms / 1000), publisher=Publisher())

    def _set(self, usd: float) -> None:
        self.now_ms += 1
        self.highest = max(self.highest, usd)
        self.store.flow.set_value(SpendCap("c", usd=usd, per="month"))

    def act(self, name: str) -> None:
        """Let something happen at this moment."""
        match name:
            case "kill":
                self.unsettled += 1
                raise Killed
            case "lose":
                self.unsettled += self.struck.points[-1] == Points.CAPS_SETTLE
                raise StoreUnavailable("the reply was lost")
            case "overtake":
                for _ in range(3):
                    self.call(self.store)
            case "die":
                self.unsettled += 1
                with contextlib.suppress(Killed):
                    self.call(self.store, dies=True)
            case "raise":
                self._set(2 * MOST)
            case "lower":
                self._set(MOST / 2)
            case _:
                assert name == "remove", name
                self.highest = float("inf")
                self.store.flow.remove_value(cap_field("c"))

    def call(self, store: Store, *, dies: bool = False) -> None:
        """Make one call as a worker does.

        Args:
            dies: The worker is killed in it, behind its provider's answer.
        """
        gate = self._gate(store)
        run: Any = SimpleNamespace(
            agent=SimpleNamespace(
                name="a",
                answering=SimpleNamespace(knows_price=lambda _: True, estimate_cost=lambda *_: ESTIMATE),
            ),
            claim=SimpleNamespace(id=f"claim{next(self._numbers)}"),
            ref=SimpleNamespace(session_id="s"),
            execution=SimpleNamespace(last_step=None),
            model="m",
        )
        request: Any = SimpleNamespace(settings=None, messages=())
        try:
            spending = gate.begin(run, request)
        except PutOff:
            return
        self.bill += COST
        if dies:
            raise Killed
        gate.settle(spending, COST)

    def _gate(self, store: Store) -> SpendingGate:
        known = SimpleNamespace(view=store.flow.view())

        def refresh() -> None:
            known.view = store.flow.view()

        def ask_store(_: Any, request: Callable[[], Any], *__: Any, **___: Any) -> Any:
            while True:
                with contextlib.suppress(StoreUnavailable):
                    return request()

        known.refresh = refresh
        services: Any = SimpleNamespace(store=store, gate=known, redis_ms=lambda _: self.now_ms, ask_store=ask_store)
        return SpendingGate(services)

    def play(self, strikes: Sequence[Strike]) -> int:
        """Let a worker make calls until its cap refuses one, while things happen at its round trips.

        Returns:
            How many round trips it has made.
        """
        store = self._store(self.struck)
        self.struck.begin(strikes, self.act)
        with contextlib.suppress(Killed, StoreUnavailable):  # a worker that cannot read the caps ends
            for _ in range(3):
                self.call(store)
        trips = len(self.struck.sent)
        self.struck.strikes = {}
        self._judge()
        return trips

    def _judge(self) -> None:
        (status,) = self.store.flow.spending_of([self.cap], self.now_ms)
        spent = sum(each.usd for each in status.spent)
        if self.bill > self.highest + 1e-6:
            self.violations.append(f"{self.bill:.2f} $ were charged under a cap of {self.highest:.2f} $")
        if self.highest == float("inf"):
            return  # what began without a cap is not counted
        if spent < self.bill - 1e-6:
            self.violations.append(f"{self.bill:.2f} $ were charged, and {spent:.2f} $ are counted")
        part = self.cap.part_for("a", {}, self.now_ms)
        assert part is not None
        held = self.store.context.fleet.cap("c", part.window).held
        left = [int(each.split()[0]) for each in self.memory.pipeline("held", [("HGETALL", held)])[0][1::2]]
        reserved = sum(left) / 1e9
        if len(left) > self.unsettled:
            self.violations.append(f"{len(left)} calls are not settled")
        if spent > self.bill + reserved + 1e-6:
            self.violations.append(f"{spent:.2f} $ are counted: {self.bill:.2f} $ and {reserved:.2f} $ reserved")


explore = partial(explore_worlds, World, ACTS)


def _not_reserved(patch: Any) -> None:
    patch.setattr(SpendingGate, "_estimate", lambda *_: 0)


def _another_id(patch: Any) -> None:
    numbers = itertools.count()
    reserve = stored.CapVerbs.reserve_spending

    def again(self: Any, parts: Any, _: str, nanos: int, now_ms: int) -> Any:
        return reserve(self, parts, f"r{next(numbers)}", nanos, now_ms)

    patch.setattr(stored.CapVerbs, "reserve_spending", again)


def _settled_again(patch: Any) -> None:
    def add(self: Any, spending: Any, cost: float | None) -> None:
        if spending is None:
            return
        for part in spending.parts:
            key = self._flow._context.fleet.cap(part.cap.name, part.window).spent
            change = round(((cost or 0) - ESTIMATE) * 1e9)
            for attempt in range(2):  # the second one where the reply of the first was lost
                with contextlib.suppress(StoreUnavailable):
                    found = self._flow._context.database.pipeline("read", [("ZSCORE", key, part.value)])[0]
                    self._flow._context.database.pipeline(
                        "add", [("ZADD", key, float(found or 0) + change, part.value)]
                    )
                    break
                del attempt

    patch.setattr(SpendingGate, "settle", add)


def _dropped(patch: Any) -> None:
    settle = SpendingGate.settle
    patch.setattr(SpendingGate, "settle", lambda self, spending, _: settle(self, spending, 0.0))


def _deaf(patch: Any) -> None:
    reserve = stored.CapVerbs.reserve_spending
    patch.setattr(stored.CapVerbs, "reserve_spending", lambda *given: reserve(*given) and None)


MUTANTS: Final[dict[str, Callable[[Any], None]]] = {
    "a call reserves nothing": _not_reserved,
    "a lost reply reserves again": _another_id,
    "a settlement is added and not put in a place": _settled_again,
    "a call settles as if it were free": _dropped,
    "a refused call begins": _deaf,
}
