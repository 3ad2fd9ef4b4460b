"""The script of buckets answers and stores the same on Redis, on fakeredis, and on the database in memory of the tests."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

import pytest

from celery_agents.worker.store.redis.database import connect

from support.buckets import DIGEST, START_MS, LuaBucket, MemoryBucket
from support.fake_redis import FakeRedisDatabase

pytestmark = pytest.mark.leaves_keys("the flow of one bucket is left in its middle")

KINDS: Final = ("ok",) * 24 + ("rate_limit",) * 4 + ("outage",) * 8 + ("quota", "other")
EVERY: Final = (
    "admitted", "probe", "zero", "not_before", "quota", "breaker", "window", "rate",
    "settled", "opened", "closed", "learned", "learned refused",
)  # fmt: skip
CLAIMS: Final = 12
SEEDS: Final = 16
LENGTH: Final = 120


@pytest.fixture(params=["redis", pytest.param("fakeredis", marks=pytest.mark.long)])
def lua(request: pytest.FixtureRequest) -> Iterator[LuaBucket]:
    if request.param == "fakeredis":
        with contextlib.closing(FakeRedisDatabase()) as database:
            yield LuaBucket(database)
        return
    database = connect(request.getfixturevalue("redis_url"), timeout_seconds=5, connections=2, name="buckets")
    yield LuaBucket(database)
    database.close()


def lease_of(claim: int) -> str:
    return f"ca:{{1}}:lease:{claim}"


class Fleet:
    """Random requests of a few sessions, that are reserved and settled, some of them twice."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.now_ms = START_MS
        self.limits = self.chance_limits()
        self.sent: list[tuple[str, str, dict[str, float], int]] = []
        self.calls = 0
        self.seen: Counter[str] = Counter()

    def chance_limits(self) -> dict[str, float]:
        if self.chance.random() < 0.05:
            return {"requests": 0}
        choices = [{}, {"requests": 60}, {"requests": 300, "tokens": 9000.5}, {"requests": 5}, {"output_tokens": 777}]
        return self.chance.choice(choices)

    def pass_time(self) -> None:
        self.now_ms += self.chance.choice([0, 1, 37, 150, 500, 1000, 1500, 5000])
        if self.chance.random() < 0.03:
            self.now_ms += self.chance.choice([20_000, 70_000, 900_000, 3_700_000])

    def some(self, **choices: list[float]) -> dict[str, float]:
        """One of the choices for each of some dimensions."""
        return {name: self.chance.choice(values) for name, values in choices.items() if self.chance.random() < 0.6}

    def ask(self, op: str, name: str, session: str, **more: Any) -> dict[str, Any]:
        always = {"digest": DIGEST, "names": '["m","","g"]', "channel": "ca:wake:flow", "limits": self.limits}
        return {"op": op, "id": name, "session": session, **always, **more}

    def reserve(self) -> dict[str, Any]:
        session, claim = f"s{self.chance.randrange(6)}", self.chance.randrange(CLAIMS)
        self.calls += self.chance.random() < 0.95
        name = f"{lease_of(claim)} n{self.calls}"
        cost = {"requests": 1, **self.some(tokens=[100, 3333, 20_000], output_tokens=[10])}
        self.sent.append((name, session, cost, self.now_ms))
        return self.ask("reserve", name, session, cost=cost, lease=self.chance.choice([10_000, 90_000]))

    def settle(self) -> dict[str, Any]:
        place = self.chance.randrange(max(0, len(self.sent) - 8), len(self.sent))
        name, session, cost, at_ms = self.sent[place]
        tells, pick = self.chance.random() < 0.1, self.chance.choice
        told = self.some(requests=[60, 300.0], tokens=[10_000]) if tells else {}
        retry = {"retry": pick([0, 200, 1000, 1000, 5000, 7_200_000])} if self.chance.random() < 0.5 else {}
        counts = {"worker": f"w{self.chance.randrange(3)}", "ended": self.chance.randrange(1, 12)}
        counts |= {"accepted": self.chance.randrange(9), "busy": self.chance.randrange(9000), "longest": 3_600_000}
        return self.ask(
            "settle", name, session, cost=cost, at=pick([at_ms, at_ms, at_ms, 0]), kind=pick(KINDS),
            source=pick(["header", "text"]), used=self.some(requests=[1], tokens=[50, 5000, 99_999], output_tokens=[3]),
            told=told, remaining=self.some(requests=[0, 3, 59, 900], tokens=[0, 700]) if tells else {},
            reset=self.some(requests=[1500.5, 0]), **counts, **retry,
        )  # fmt: skip

    def next(self) -> dict[str, Any]:
        self.pass_time()
        if self.chance.random() < 0.02:
            self.limits = self.chance_limits()
        return self.settle() if self.sent and self.chance.random() < 0.5 else self.reserve()


def kind_of(asked: dict[str, Any], answer: list[Any]) -> str:
    """What an answer was, for the counts."""
    if asked["op"] == "settle":
        changes = ("opened", "closed", "learned", "refused")
        return " ".join(name for name, changed in zip(changes, answer, strict=True) if changed) or "settled"
    return answer[3].decode() if not answer[0] else "probe" if answer[2] else "admitted"


def play(lua: LuaBucket, seed: int) -> Counter[str]:
    memory, fleet, seen = MemoryBucket(), Fleet(seed), Counter[str]()
    lua.clear()
    for bucket in (lua, memory):
        for claim in range(CLAIMS):
            bucket.lease(lease_of(claim), alive=claim % 4 != 3)
    for step in range(LENGTH):
        asked = fleet.next()
        memory.now_ms = fleet.now_ms
        lua.forget(memory.ended())
        answer = memory.call(fleet.now_ms, asked)
        assert (seed, step, asked, answer) == (seed, step, asked, lua.call(fleet.now_ms, asked))
        assert (seed, step, asked, memory.stored()) == (seed, step, asked, lua.stored())
        seen[kind_of(asked, answer)] += 1
    return seen


def test_both_answer_and_store_the_same(lua: LuaBucket) -> None:
    seen: Counter[str] = Counter()
    for seed in range(SEEDS):
        seen += play(lua, seed)
    lua.clear()
    assert all(seen[each] >= 1 for each in EVERY), seen
