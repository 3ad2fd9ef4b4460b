"""Checks of a Redis Cluster: its nodes, their replicas and clocks, and whether all sessions can be read."""

from __future__ import annotations

import time
from collections.abc import Iterator

from ....config.redis_urls import uses_cluster
from ....worker.errors import StoreUnavailable
from ..server_policy import find_problems, following_replicas
from .findings import Finding, Installation
from .server import CLOCK_TOLERANCE_SECONDS


def check_cluster(installation: Installation) -> Iterator[Finding]:
    """Each node answers and has a replica, all slots are served, and the clocks agree."""
    if not uses_cluster(installation.settings.redis_url):
        return
    context, nodes = installation.store.context, installation.store.housekeeping.node_facts()
    unserved = [shard.shard for shard in context.shards if not context.database.place(shard.due)]
    if unserved:
        what = f"no node serves the slots of {len(unserved)} of {len(context.shards)} shards, whose sessions wait"
        yield Finding.fail("cluster", what, "look at redis-cli --cluster check, and assign them with --cluster fix")
    else:
        yield Finding.ok("cluster", f"{len(nodes)} nodes serve all slots")
    for place, facts in nodes.items():
        if isinstance(facts, StoreUnavailable):
            shards = sum(context.database.place(shard.due) == place for shard in context.shards)
            what = f"{place}: {facts}; the sessions of {shards} of {len(context.shards)} shards wait"
            yield Finding.fail("cluster", what, "start it, or let a replica take over")
            continue
        for problem in find_problems(facts):
            yield Finding.fail("cluster", f"{place}: {problem}", "see docs/operating.md, Cluster")
        if facts.get("aof_enabled") == "0":
            advice = "set appendonly yes; without it a restart of the node loses its jobs, and empties its replicas"
            yield Finding.warn("cluster", f"{place} has no append-only file", advice)
        if not following_replicas(facts):
            yield Finding.warn(
                "cluster", f"no replica follows {place}", "without one, its sessions wait until it is back"
            )
        ahead = int(facts["now_ms"]) / 1000 - time.time()
        if abs(ahead) > CLOCK_TOLERANCE_SECONDS:
            what = f"the clock of {place} is {ahead:+.0f} s off this machine's"
            yield Finding.warn("clock", what, "run NTP on all nodes")
