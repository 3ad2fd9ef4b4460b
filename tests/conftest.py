"""Fixtures for tests that need Redis, the ledger, the provider or workers: real ones, in processes of their own.

Nothing here is started before a test asks for it. Servers live as long as the session of pytest; what a test sees of
them is its own: an empty Redis, and a space of the ledger and the provider.
"""

from __future__ import annotations

import gc
import itertools
import os
import re
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from support import fork_server, processes
from support.cluster import CLUSTER_MISSING, ClusterGroup, can_cluster
from support.fault_proxy import FaultProxy
from support.http_service import ServiceProcess
from support.ledger import Ledger
from support.postgresql import POSTGRESQL_MISSING, PostgresqlServer, find_programs
from support.provider import Provider
from support.redis_keys import immortal_keys
from support.redis_server import RedisServer, known_binaries
from support.worker_process import WorkerProcess

_numbers = itertools.count(1)
_of_the_session: list[processes.Process] = []


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "one_server(reason): is not for a cluster")
    config.addinivalue_line("markers", "leaves_keys(reason): may leave keys without a time to live in Redis")
    _let_children_keep_bytecode(config)
    _forget_keys_of_providers()
    fork_server.enable()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Leave the collector out while tests are collected, and what was collected out of its later passes.

    Fourteen thousand tests are kept to the end. To look through them again and again takes half the time of collecting
    them, which each process of a parallel run does.
    """
    gc.disable()
    collected = yield
    gc.freeze()
    gc.enable()
    return collected


def _forget_keys_of_providers() -> None:
    """No test, and no process that it starts, may reach a real provider."""
    for name in [each for each in os.environ if each.endswith("_API_KEY")]:
        del os.environ[name]


def _let_children_keep_bytecode(config: pytest.Config) -> None:
    """Where Python is told to write no bytecode, each of some hundred processes would compile the product again."""
    cache: pytest.Cache | None = getattr(config, "cache", None)  # none with -p no:cacheprovider
    if sys.dont_write_bytecode and cache is not None and "PYTHONPYCACHEPREFIX" not in os.environ:
        os.environ["PYTHONPYCACHEPREFIX"] = str(cache.mkdir("bytecode"))
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


@pytest.fixture(scope="session")
def redis_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """The Redis that the tests of one pytest process share; do not stop it, see `new_redis`."""
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        _of_the_session.append(server.process)
        yield server


@pytest.fixture
def redis_server(redis_process: RedisServer, request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    """A running Redis with nothing in it. A test that leaves a key for ever behind fails."""
    with redis_process.client() as client:
        client.flushall()
    yield redis_process
    _expect_mortal_keys(redis_process, request)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--cluster-server",
        choices=list(known_binaries()),
        default="redis-on-path",
        help="the server of shared clusters",
    )


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[ClusterGroup]:
    """A cluster of three primaries that tests share; do not stop or move anything."""
    binary = known_binaries()[request.config.getoption("--cluster-server")]
    if binary is None or not can_cluster():
        pytest.skip(CLUSTER_MISSING)
    with ClusterGroup(tmp_path_factory.mktemp("cluster"), replicas=0, binary=binary) as group:
        _of_the_session.extend(node.process for node in group.nodes)
        yield group


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgresqlServer]:
    """A PostgreSQL that tests share; each takes a database of its own."""
    if find_programs() is None:
        pytest.skip(POSTGRESQL_MISSING)
    with tempfile.TemporaryDirectory(prefix="postgresql-") as folder, PostgresqlServer(Path(folder)) as server:
        _of_the_session.append(server.process)
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def archive_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database for an archive, or of an empty schema of one."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/history.db"
    server: PostgresqlServer = request.getfixturevalue("postgresql")
    return server.new_schema()


@pytest.fixture
def redis_url(redis_server: RedisServer) -> str:
    """The address of an empty database."""
    return redis_server.url()


@pytest.fixture
def redis_client(redis_server: RedisServer) -> Iterator[redis.Redis]:
    """A client of `redis_server` that decodes, without retries."""
    with redis_server.client() as client:
        yield client


@pytest.fixture
def new_redis(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[..., RedisServer]]:
    """Starts a Redis of the test's own, to be stopped, killed and filled: `new_redis(append_only="always")`."""
    servers: list[RedisServer] = []

    def start(**options: Any) -> RedisServer:
        server = RedisServer(tmp_path / f"redis-{len(servers) + 1}", **options)
        servers.append(server)
        return server.start()

    yield start
    try:
        for server in servers:
            server.resume()
            if server.alive:
                _expect_mortal_keys(server, request)
    finally:
        for server in servers:
            server.end()


@pytest.fixture
def new_proxy() -> Iterator[Callable[[RedisServer], FaultProxy]]:
    """Puts a proxy with faults in front of a Redis: `server.url(port=proxy.port)` goes through it."""
    proxies: list[FaultProxy] = []

    def start(server: RedisServer) -> FaultProxy:
        proxies.append(FaultProxy(server.port).start())
        return proxies[-1]

    yield start
    for proxy in proxies:
        proxy.end()


@pytest.fixture(scope="session")
def ledger_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    with ServiceProcess("support.ledger", tmp_path_factory.mktemp("ledger")) as service:
        _of_the_session.append(service.process)
        yield service


@pytest.fixture
def ledger(ledger_process: ServiceProcess, request: pytest.FixtureRequest) -> Ledger:
    """The effect ledger, empty."""
    return Ledger(ledger_process, _space(request))


@pytest.fixture(scope="session")
def provider_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    with ServiceProcess("support.provider", tmp_path_factory.mktemp("provider")) as service:
        _of_the_session.append(service.process)
        yield service


@pytest.fixture
def provider(provider_process: ServiceProcess, request: pytest.FixtureRequest) -> Provider:
    """The provider with an empty payment ledger; it answers "ok" until it is given a plan."""
    return Provider(provider_process, _space(request))


@pytest.fixture
def new_worker(
    tmp_path: Path,
    redis_url: str,
    new_redis: Callable[..., RedisServer],  # named here so that a worker ends before the Redis it works for
) -> Iterator[Callable[..., WorkerProcess]]:
    """Starts a worker and waits until it consumes: `new_worker(agents="support.agents", env={…})`.

    Without `redis_url` it works for the test's `redis_server`. `wait=False` returns at once. All end with the test.
    """
    workers: list[WorkerProcess] = []

    def start(url: str = redis_url, *, wait: bool = True, **options: Any) -> WorkerProcess:
        name = f"worker-{len(workers) + 1}"
        worker = WorkerProcess(tmp_path / name, url, name=name, **options)
        workers.append(worker)
        worker.start(wait=wait)
        return worker

    yield start
    for worker in workers:
        worker.end(patience=0.0)  # a drain is tested where it matters; here it would only take time


@pytest.fixture(autouse=True)
def _no_process_left_over() -> Iterator[None]:
    """A test ends what it has started, apart from the servers of the session that it was the first to use."""
    before = processes.running()
    yield
    left = [process for process in processes.running() if process not in before + _of_the_session]
    for process in left:
        process.end(patience=0.0)
    assert not left, f"left running: {[process.name for process in left]}"


def _space(request: pytest.FixtureRequest) -> str:
    name = re.sub(r"[^A-Za-z0-9_]+", "-", request.node.name)[:60]
    return f"{next(_numbers)}-{name}"


def _expect_mortal_keys(server: RedisServer, request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("leaves_keys") is not None:
        return
    with server.client() as client:
        left = immortal_keys(client)
    assert not left, f"keys without a time to live that no live session holds: {left[:20]}"
