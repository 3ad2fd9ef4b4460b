"""Questions to a Redis Cluster about its members, for people who look for what is wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from redis.exceptions import RedisError

from ....config.redis_urls import ClusterUrl
from .cluster import ask_node

_SLOTS_BEGIN: Final = 8
# They are no members yet, or any more.
_STRANGERS: Final = frozenset(("handshake", "noaddr"))


@dataclass(frozen=True, slots=True)
class ClusterMembers:
    """The nodes that a cluster knows, whether they answer or not.

    Attributes:
        primaries: How many serve slots.
        others: How many serve none: replicas, also failed ones, and former primaries that are away.
    """

    primaries: int
    others: int


def ask_members(url: str) -> ClusterMembers | None:
    """Ask the nodes of a URL for the members, one after the other; None: none answers, or this user may not ask."""
    named = ClusterUrl.parse(url)
    for place in named.nodes:
        try:
            return parse_members(ask_node(named, place, ("CLUSTER", "NODES")).decode())
        except (RedisError, OSError):
            continue
    return None


def parse_members(text: str) -> ClusterMembers:
    """Count the members in the reply to CLUSTER NODES."""
    serving: list[bool] = []
    for words in (line.split() for line in text.splitlines()):
        if not _STRANGERS.intersection(words[2].split(",")):
            serving.append(any(not word.startswith("[") for word in words[_SLOTS_BEGIN:]))  # "[": a slot that moves
    return ClusterMembers(primaries=serving.count(True), others=serving.count(False))
