"""A bench on each kind of store, by the fast path and by the long one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from celery_agents.tasks.consumer.internals import plain_socket
from celery_agents.worker.store.database import Database
from celery_agents.worker.store.memory.database import MemoryDatabase
from celery_agents.worker.store.redis.cluster import connect_cluster
from celery_agents.worker.store.redis.database import connect

from support.archive_lab import ArchiveLab
from support.cluster import ClusterGroup
from support.fake_redis import FakeRedisDatabase
from support.fiber_thread import DatabaseInFibers, FiberThread
from support.lua_scripts import SCRIPTS
from support.store import Bench, NewBench

HERE = Path(__file__).parent

# What a cluster does otherwise, and the transactions of a step; on a cluster and in fibers, the other modules are long.
_ON_A_CLUSTER = frozenset(
    f"test_{name}.py"
    for name in (
        "children", "claims", "commits", "conflicts", "failovers", "flow", "flow_on_a_cluster", "histories", "housekeeping",
        "journals", "live_text", "queues", "shards", "submit", "tool_lists",
    )
)  # fmt: skip


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    for item in items:
        params = getattr(item, "callspec", None)
        is_on_cluster = params is not None and params.params.get("database") == "cluster"
        if is_on_cluster and item.path.parent == HERE and item.path.name not in _ON_A_CLUSTER:
            item.add_marker(pytest.mark.long)
        # Fibers change how a connection is shared, fakeredis what runs scripts, and the long way what is sent: the suite
        # has each of them alone, and the long way on Redis, in memory and on a cluster.
        is_long_way = params is not None and params.params.get("bench") == "the long way"
        if is_long_way and params.params.get("database") in ("redis in fibers", "fakeredis"):
            item.add_marker(pytest.mark.long)
        # Whoever watches and writes does so by the same few functions, which these modules use in each way.
        in_fibers = params is not None and params.params.get("database") == "redis in fibers"
        if in_fibers and item.path.parent == HERE and item.path.name not in _ON_A_CLUSTER:
            item.add_marker(pytest.mark.long)


@pytest.fixture(params=["redis", "redis in fibers", "fakeredis", "memory", "cluster"])
def database(request: pytest.FixtureRequest) -> Iterator[Database]:
    if request.param == "memory":
        yield MemoryDatabase(scripts=SCRIPTS)
        return
    if request.param == "fakeredis":
        with contextlib.closing(FakeRedisDatabase()) as faked:
            yield faked
        return
    if request.param == "cluster":
        if (marked := request.node.get_closest_marker("one_server")) is not None:
            pytest.skip(marked.args[0])
        group: ClusterGroup = request.getfixturevalue("cluster")
        group.clear()
        opened = connect_cluster(group.url, timeout_seconds=5, connections=16, name="contract")
        yield opened
        opened.close()
        return
    url = request.getfixturevalue("redis_url")
    opened = connect(url, timeout_seconds=5, connections=16, name="contract", plain_socket=plain_socket)
    if request.param == "redis":
        yield opened
    else:
        with contextlib.closing(FiberThread()) as thread:
            yield DatabaseInFibers(opened, thread)
    opened.close()


@pytest.fixture
def cached_bench(database: Database) -> Bench:
    """A bench whose process caches sessions."""
    found = Bench(database)
    found.submit()
    return found


@pytest.fixture(params=["as expected", "the long way"])
def bench(request: pytest.FixtureRequest, database: Database) -> Bench:
    """What a claim and a commit do in one script each, and by WATCH and a transaction; both keep the promises."""
    found = Bench(database) if request.param == "as expected" else Bench(database, cache_bytes=0)
    found.submit()
    return found


@pytest.fixture(params=["as expected", "the long way"])
def new_bench(request: pytest.FixtureRequest, database: Database) -> NewBench:
    """`new_bench(max_inbox_bytes=10_000)`: both ways to claim and to commit."""
    way = {} if request.param == "as expected" else {"cache_bytes": 0}
    return lambda **settings: Bench(database, **way, **settings)


@pytest.fixture
def lab(database: Database, tmp_path: Path) -> Iterator[ArchiveLab]:
    """A store with an archive that takes a state for durable at once."""
    found = ArchiveLab(database, f"sqlite:///{tmp_path}/history.db", archive_settle_seconds=0)
    yield found
    found.archive.close()
