"""A Redis Cluster of our own, on free ports: what slots move in and nodes are lost from."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from celery_agents.config.redis_urls import ClusterUrl

from .processes import ProcessGroup, free_port
from .redis_server import RedisServer
from .wait import wait_until

CLUSTER_MISSING = (
    "redis-cli and redis-server are not on this machine (Debian: apt-get install redis-server redis-tools)"
)


def can_cluster() -> bool:
    """Whether this machine has what a cluster takes."""
    return shutil.which("redis-cli") is not None and shutil.which("redis-server") is not None


def _takes_bus_port(binary: str | None) -> bool:
    """Whether the port of a node's bus can be chosen; before Redis 7, it is 10 000 above the node's."""
    assert binary is not None, CLUSTER_MISSING
    said = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True).stdout
    return " v=6." not in said


class ClusterGroup(ProcessGroup):
    """Nodes of one cluster, each primary with so many replicas.

    Args:
        directory: Home of the data and the logs.
        timeout_ms: A node that does not answer for this long has failed, and a replica takes over.
        config: More settings of each node.
        binary: The redis-server of all nodes; None: the one on PATH.
    """

    def __init__(
        self,
        directory: Path,
        *,
        primaries: int = 3,
        replicas: int = 1,
        timeout_ms: int = 2_000,
        config: Mapping[str, str] | None = None,
        binary: str | None = None,
    ) -> None:
        self._directory = directory
        self._binary = binary or shutil.which("redis-server")
        self._replicas = replicas
        self._config = {
            "cluster-enabled": "yes", "cluster-node-timeout": str(timeout_ms), "repl-diskless-sync-delay": "0",
            "cluster-require-full-coverage": "no", **(config or {}),
        }  # fmt: skip
        self._removed: list[RedisServer] = []
        self.nodes = [self._new_node() for _ in range(primaries * (1 + replicas))]

    def _new_node(self) -> RedisServer:
        folder = self._directory / f"node-{len(list(self._directory.glob('node-*'))) + 1}"
        more = {"cluster-port": str(free_port())} if _takes_bus_port(self._binary) else {}
        return RedisServer(folder, append_only="everysec", config={**self._config, **more}, binary=self._binary)

    def start(self) -> Self:
        """Start all nodes, and wait until they are a cluster."""
        for node in self.nodes:
            node.start()
        addresses = [f"127.0.0.1:{node.port}" for node in self.nodes]
        if len(self.nodes) == 1:  # redis-cli makes no cluster of fewer than three
            with self.nodes[0].client() as client:
                client.execute_command("CLUSTER ADDSLOTSRANGE", 0, 16_383)
            self.wait_until_whole()
            return self
        self._cli("--cluster", "create", *addresses, "--cluster-replicas", str(self._replicas), "--cluster-yes")
        self.wait_until_whole()
        return self

    def clear(self) -> None:
        """Empty all nodes."""
        for node in self.primaries:
            with node.client() as client:
                client.flushall()

    def wait_until_whole(self, timeout: float = 60.0) -> None:
        """Wait until every living node sees all slots served, and each replica follows its primary."""
        wait_until(self._is_whole, "the cluster is whole", timeout, ignoring=(redis.RedisError, OSError))

    def _is_whole(self) -> bool:
        living = [node for node in self.nodes if node.alive]
        for node in living:
            with node.client() as client:
                state = client.execute_command("CLUSTER INFO")
                state = state if isinstance(state, dict) else dict(x.split(":") for x in state.split())
                if state["cluster_state"] != "ok" or state["cluster_slots_ok"] != "16384":
                    return False
                said = client.info("replication")
                if said["role"] == "slave" and said["master_link_status"] != "up":
                    return False
        return True

    @property
    def url(self) -> str:
        """The cluster's address: three of its nodes."""
        return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes[:3])

    def client(self) -> Any:
        """redis-py's own client, answers decoded."""
        return redis.RedisCluster("127.0.0.1", self.living.port, decode_responses=True, socket_timeout=5)

    @property
    def living(self) -> RedisServer:
        """A node that is not stopped or killed."""
        return next(node for node in self.nodes if node.answers)

    def primary_of(self, slot: int) -> RedisServer:
        """The node that serves a slot."""
        for first, last, port in self._ranges():
            if first <= slot <= last:
                return self._node_at(port)
        raise AssertionError(f"slot {slot} is not served")

    @property
    def primaries(self) -> list[RedisServer]:
        """The nodes that serve slots."""
        return [self._node_at(port) for port in sorted({port for _, _, port in self._ranges()})]

    def _ranges(self) -> list[tuple[int, int, int]]:
        """First and last slot of each range, and the port of its primary."""
        with self.living.client() as client:
            found = client.execute_command("CLUSTER SLOTS")
        return [(int(first), int(last), int(primary[1])) for first, last, primary, *_ in found]

    def _node_at(self, port: int) -> RedisServer:
        return next(node for node in self.nodes if node.port == int(port))

    def id_of(self, node: RedisServer) -> str:
        """The cluster's id of a node."""
        with node.client() as client:
            return str(client.execute_command("CLUSTER MYID"))

    def begin_move(self, slot: int, target: RedisServer) -> RedisServer:
        """Let a slot begin to move; the node that has it."""
        source = self.primary_of(slot)
        with source.client() as from_node, target.client() as to_node:
            to_node.execute_command("CLUSTER SETSLOT", slot, "IMPORTING", self.id_of(source))
            from_node.execute_command("CLUSTER SETSLOT", slot, "MIGRATING", self.id_of(target))
        return source

    def move_keys(self, slot: int, source: RedisServer, target: RedisServer, *, each: Callable[[], object]) -> None:
        """Move the keys of a slot one by one, with something between two of them."""
        with source.client() as client:
            while keys := client.execute_command("CLUSTER GETKEYSINSLOT", slot, 1):
                client.execute_command("MIGRATE", "127.0.0.1", target.port, keys[0], 0, 5_000)
                each()

    def end_move(self, slot: int, source: RedisServer, target: RedisServer) -> None:
        """Give a slot to its new node, and tell the others."""
        owner = self.id_of(target)
        for node in (target, source, *(each for each in self.primaries if each not in (target, source))):
            with node.client() as client:
                client.execute_command("CLUSTER SETSLOT", slot, "NODE", owner)

    def move_slot(self, slot: int, target: RedisServer, *, each: Callable[[], object] = lambda: None) -> RedisServer:
        """Move a slot key by key; the node that had it."""
        source = self.begin_move(slot, target)
        self.move_keys(slot, source, target, each=each)
        self.end_move(slot, source, target)
        return source

    def add_node(self, *, replicas: int = 0) -> RedisServer:
        """Start another node without slots, and let it join, with so many replicas."""
        node = self._join()
        for _ in range(replicas):
            replica = self._join()
            with replica.client() as client:
                client.execute_command("CLUSTER REPLICATE", self.id_of(node))
        self.wait_until_whole()
        return node

    def remove_node(self, node: RedisServer) -> None:
        """Let a node without slots leave the cluster. It goes on running."""
        owner = self.id_of(node)
        self.nodes.remove(node)
        self._removed.append(node)
        self._cli("--cluster", "del-node", f"127.0.0.1:{self.living.port}", owner)

    def _join(self) -> RedisServer:
        node = self._new_node()
        self.nodes.append(node.start())
        self._cli("--cluster", "add-node", f"127.0.0.1:{node.port}", f"127.0.0.1:{self.nodes[0].port}")
        wait_until(lambda: len(self._members(node)) == len(self.nodes), "the new node knows all others", 30)
        return node

    def _members(self, node: RedisServer) -> list[str]:
        with node.client() as client:
            found = client.execute_command("CLUSTER NODES")
        return list(found)

    def _cli(self, *arguments: str) -> None:
        binary = shutil.which("redis-cli")
        assert binary is not None, CLUSTER_MISSING
        done = subprocess.run([binary, *arguments], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    def end(self) -> None:
        """End all nodes, whatever state they are in."""
        for node in (*self.nodes, *self._removed):
            node.end()


def node_of(url: str, slot: int) -> tuple[str, int]:
    """The node of a cluster that serves a slot, by what the named ones tell."""
    for host, port in ClusterUrl.parse(url).nodes:
        try:
            with redis.Redis(host, port, socket_timeout=1, retry=Retry(NoBackoff(), 0)) as client:
                for first, last, primary, *_ in client.execute_command("CLUSTER SLOTS"):
                    if first <= slot <= last:
                        return str(primary[0], "ascii"), int(primary[1])
        except redis.RedisError:
            continue
    raise AssertionError(f"slot {slot} is not served")
