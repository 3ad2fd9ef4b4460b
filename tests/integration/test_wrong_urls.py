"""A URL that leads to another kind of server than it says: each command ends with one sentence that names the remedy."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from support import fork_server
from support.cluster import ClusterGroup
from support.processes import TESTS
from support.projects import EXISTING, Project
from support.redis_server import RedisServer
from support.sentinels import SENTINEL_MISSING, SentinelGroup, find_sentinel

COMMANDS = (["worker"], ["doctor"], ["submit", "planned", "hello"], ["list"])


def run_commands(env: Mapping[str, str], commands: Sequence[Sequence[str]] = COMMANDS) -> dict[str, tuple[int, str]]:
    """Run the commands; exit code and output of each by its name."""
    outside = {name: value for name, value in os.environ.items() if not name.startswith("CELERY_AGENTS_")}
    given = {**outside, "PYTHONPATH": str(TESTS), "CELERY_AGENTS_AGENTS": "support.agents", **env}
    done = {
        command[0]: fork_server.run([sys.executable, "-m", "celery_agents", *command], env=given)
        for command in commands
    }
    return {name: (each.returncode, each.stdout + each.stderr) for name, each in done.items()}


def expect_a_sentence(env: Mapping[str, str], *words: str, commands: Sequence[Sequence[str]] = COMMANDS) -> None:
    """Each command ends with exit code 2, the words and no traceback."""
    found = run_commands(env, commands)
    wrong = {
        name: (code, text)
        for name, (code, text) in found.items()
        if code != 2 or "Traceback" in text or not all(word in text for word in words)
    }
    assert wrong == {}


@pytest.fixture(scope="module")
def sentinel_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a Sentinel that watches one server."""
    if find_sentinel() is None:
        pytest.skip(SENTINEL_MISSING)
    group = SentinelGroup(tmp_path_factory.mktemp("sentinel"), servers=1, sentinels=1)
    try:
        yield group.start().ports[0]
    finally:
        group.end()


def test_a_cluster_without_a_broker() -> None:
    expect_a_sentence({"CELERY_AGENTS_REDIS_URL": "redis+cluster://127.0.0.1:1"}, "set CELERY_AGENTS_BROKER_URL to one")


@pytest.mark.timeout(60)
def test_an_option_that_is_none() -> None:
    expect_a_sentence(
        {"CELERY_AGENTS_REDIS_URL": "redis://127.0.0.1:1/0?colour=red"}, "colour is no option of redis://"
    )


@pytest.mark.timeout(120)
@pytest.mark.parametrize("node", [0, 1, 2])
def test_a_node_of_a_cluster_as_one_server(cluster: ClusterGroup, node: int) -> None:
    """On one of the three nodes are the keys that are read first."""
    url = cluster.nodes[node].url()
    with cluster.nodes[node].client() as client:
        before = client.dbsize()  # other tests use the same cluster
    expect_a_sentence(
        {"CELERY_AGENTS_REDIS_URL": url}, "is a node of a Redis Cluster", "redis+cluster://", "CELERY_AGENTS_BROKER_URL"
    )
    with cluster.nodes[node].client() as client:
        assert client.dbsize() == before


BROKERS = [
    ("cluster", "CELERY_AGENTS_BROKER_URL leads to a node of a Redis Cluster, which Celery cannot use"),
    ("sentinel", "CELERY_AGENTS_BROKER_URL leads to a Sentinel, which takes no messages"),
]


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("kind", "sentence"), BROKERS)
def test_a_broker_that_is_no_server_of_its_own(
    cluster: ClusterGroup, sentinel_port: int, redis_url: str, kind: str, sentence: str
) -> None:
    url = cluster.nodes[0].url() if kind == "cluster" else f"redis://127.0.0.1:{sentinel_port}/0"
    found = run_commands(
        {"CELERY_AGENTS_REDIS_URL": redis_url, "CELERY_AGENTS_BROKER_URL": url}, (["worker"], ["doctor"])
    )
    assert {name: (code, "Traceback" in text) for name, (code, text) in found.items()} == {
        "worker": (2, False),
        "doctor": (1, False),
    }
    for _, text in found.values():
        assert sentence in " ".join(text.split())


@pytest.mark.timeout(30)
def test_replicas_that_the_embedded_redis_of_up_does_not_have() -> None:
    expect_a_sentence({"CELERY_AGENTS_REPLICAS": "1"}, "unset CELERY_AGENTS_REPLICAS", commands=(["up"],))


@pytest.mark.timeout(60)
def test_a_worker_of_an_existing_project_that_cannot_use_its_store_ends_with_the_sentence(
    cluster: ClusterGroup, redis_server: RedisServer, tmp_path: Path
) -> None:
    node = {"PROJ_BROKER": redis_server.url(), "CELERY_AGENTS_REDIS_URL": cluster.nodes[0].url()}
    replicas = {"PROJ_BROKER": redis_server.url(), "CELERY_AGENTS_REPLICAS": "1"}  # without an append-only file
    cases = [(node, "is a node of a Redis Cluster"), (replicas, "needs an append-only file on all servers")]
    for env, sentence in cases:
        worker = Project(tmp_path / "existing", EXISTING, env).celery("-A", "proj", "worker", "-P", "threads")
        worker.start()
        try:
            assert worker.wait(30) == 2
        finally:
            worker.end()
        assert "the worker cannot start: " in worker.text()
        assert sentence in worker.text()
        assert "Traceback" not in worker.text()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("database", [0, 1])
def test_a_sentinel_as_one_server(sentinel_port: int, database: int) -> None:
    url = f"redis://127.0.0.1:{sentinel_port}/{database}"
    expect_a_sentence(
        {"CELERY_AGENTS_REDIS_URL": url}, "is a Sentinel and holds no data", "redis+sentinel://", "mymaster"
    )


@pytest.mark.timeout(120)
def test_a_sentinel_as_one_server_where_the_number_of_shards_is_set(sentinel_port: int) -> None:
    url = f"redis://127.0.0.1:{sentinel_port}/0"
    env = {"CELERY_AGENTS_REDIS_URL": url, "CELERY_AGENTS_SHARDS": "64"}
    expect_a_sentence(env, "is a Sentinel and holds no data")
