"""A URL that leads to another kind of server than it says: each command ends with one sentence that names the remedy."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping

import pytest

from support import fork_server
from support.cluster import ClusterGroup
from support.processes import TESTS
from support.sentinels import SENTINEL_MISSING, SentinelGroup, find_sentinel

COMMANDS = (["worker"], ["doctor"], ["submit", "planned", "hello"], ["list"])


def run_commands(env: Mapping[str, str]) -> dict[str, tuple[int, str]]:
    """Run the commands; exit code and output of each by its name."""
    outside = {name: value for name, value in os.environ.items() if not name.startswith("CELERY_AGENTS_")}
    given = {**outside, "PYTHONPATH": str(TESTS), "CELERY_AGENTS_AGENTS": "support.agents", **env}
    done = {
        command[0]: fork_server.run([sys.executable, "-m", "celery_agents", *command], env=given)
        for command in COMMANDS
    }
    return {name: (each.returncode, each.stdout + each.stderr) for name, each in done.items()}


def expect_a_sentence(env: Mapping[str, str], *words: str) -> None:
    """Each command ends with exit code 2, the words and no traceback."""
    found = run_commands(env)
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
