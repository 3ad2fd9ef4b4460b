"""The policies of a Redis that decide whether it may lose sessions."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from ...config.redis_urls import EXAMPLE, uses_cluster
from ...config.settings import Settings
from ...worker.errors import ConfigurationError
from ...worker.store.redis.cluster_views import ask_members
from ...worker.store.redis.outages import NODE_OF_CLUSTER, SENTINEL
from ...worker.store.redis.sentinel_views import WatchedReplica, watched_replicas

log = logging.getLogger(__name__)

REPLAY_ADVICE: Final = "let it do everything and nobody be it: user default off resetpass ~* &* +@all"
# The first releases that ask for no rights when they replay an append-only file; of Redis, the first that may not.
_VALKEY_WITHOUT_CHECK: Final = (9, 1, 2)
_REDIS_WITH_CHECK: Final = (7, 0)
_LONGEST_LAG_SECONDS: Final = 10
_OTHER_BROKERS: Final[Mapping[str, str]] = {
    "cluster": "CELERY_AGENTS_BROKER_URL leads to a node of a Redis Cluster, which Celery cannot use; name one server, "
    "Sentinels or RabbitMQ",
    "sentinel": "CELERY_AGENTS_BROKER_URL leads to a Sentinel, which takes no messages; write it like "
    f"{EXAMPLE}, where mymaster is the name of the primary",
}
_OTHER_MODES: Final[Mapping[str, str]] = {"cluster": NODE_OF_CLUSTER, "sentinel": SENTINEL}


def check_server(facts: Mapping[str, str]) -> None:
    """Refuse a Redis that may lose sessions, before a worker starts.

    Raises:
        ConfigurationError: Redis may evict sessions under memory pressure.
    """
    check_eviction_policy(facts)
    if facts.get("aof_enabled") == "0":
        log.warning("Redis keeps no append-only file: what it holds is lost with its process; set appendonly yes")


def check_replicas(servers: Sequence[Mapping[str, str]], settings: Settings) -> list[WatchedReplica]:
    """Refuse servers that cannot keep what `CELERY_AGENTS_REPLICAS` promises. Replicas that are missing are no reason.

    Args:
        servers: The facts of the primary, or in a cluster of each that answers.
    Returns:
        The replicas that Sentinels know; none without Sentinels, or where nothing has to be confirmed.
    Raises:
        ConfigurationError: There is no append-only file, the replicas have different priorities, or there are fewer.
    """
    if not settings.replicas:
        return []
    named = f"CELERY_AGENTS_REPLICAS={settings.replicas}"
    if any(facts.get("aof_enabled") == "0" for facts in servers):
        raise ConfigurationError(
            f"{named} needs an append-only file on all servers: a primary that starts again without one is empty, and "
            "empties its replicas; set appendonly yes"
        )
    if uses_cluster(settings.redis_url):
        _check_members(settings)
    known = watched_replicas(settings.redis_url)
    priorities = sorted({each.priority for each in known})
    if len(priorities) > 1:
        raise ConfigurationError(
            f"{named} needs equal priorities, and the replicas have {', '.join(map(str, priorities))}: Sentinels would "
            "choose by them, and not who has the newest writes; set the same replica-priority on all servers"
        )
    if 0 < len(known) < settings.replicas:
        raise ConfigurationError(
            f"{named}, and the Sentinels know {len(known)}: nothing would ever be confirmed; set it to {len(known)}, "
            "or add replicas"
        )
    return known


def _check_members(settings: Settings) -> None:
    """Refuse a cluster that has fewer replicas, those that are away included."""
    members = ask_members(settings.redis_url)
    if members is not None and members.others < settings.replicas * members.primaries:
        fits = members.others // members.primaries
        raise ConfigurationError(
            f"CELERY_AGENTS_REPLICAS={settings.replicas}, and the cluster has {members.others} nodes besides its "
            f"{members.primaries} primaries: on some of them nothing would ever be confirmed; set it to {fits}, or add "
            "replicas"
        )


def check_mode(facts: Mapping[str, str]) -> None:
    """Refuse what is not one server, where the URL of one was given.

    Raises:
        ConfigurationError: It is a node of a cluster, or a Sentinel.
    """
    if (advice := _OTHER_MODES.get(facts.get("redis_mode", ""))) is not None:
        raise ConfigurationError(advice)


def describe_wrong_broker(connection: Any) -> str:
    """Say why Celery cannot use a broker of Redis that answers; "": nothing is known against it.

    Args:
        connection: A kombu connection that is open.
    """
    try:
        mode = connection.default_channel.client.info("server").get("redis_mode")
    except connection.channel_errors:  # a user that may not ask
        return ""
    return _OTHER_BROKERS.get(mode, "")


def find_problems(facts: Mapping[str, str], *, replicas: int = 0) -> Iterator[str]:
    """Yield a sentence for each thing by which a running Redis may lose sessions or refuses them.

    Args:
        replicas: How many have to confirm.
    """
    try:
        check_eviction_policy(facts)
    except ConfigurationError as error:
        yield str(error)
    if facts.get("aof_enabled") == "1" and facts.get("aof_last_write_status", "ok") != "ok":
        yield "Redis cannot write its append-only file; look at its disk and log"
    if facts.get("role") == "slave":
        yield "Redis has become a replica; point CELERY_AGENTS_REDIS_URL at the primary, or at Sentinels that know it"
    elif (follow := following_replicas(facts)) < replicas:
        yield (
            f"{follow} of the {replicas} replicas that have to confirm follow; start them: actions are refused, and "
            "effects wait"
        )


def following_replicas(facts: Mapping[str, str]) -> int:
    """Count the replicas that follow the primary; one that has said nothing for ten seconds does not."""
    lines = (value for name, value in facts.items() if name.startswith("slave") and name[5:].isdigit())
    found = [{field: value for field, _, value in (part.partition("=") for part in line.split(","))} for line in lines]
    return sum(each.get("state") == "online" and int(each.get("lag", "0")) <= _LONGEST_LAG_SECONDS for each in found)


def describe_server(facts: Mapping[str, str]) -> str:
    """Name the server as people know it: a version of Redis, or of Valkey with the Redis that it corresponds to."""
    version = facts.get("redis_version", "?")
    return f"{version} (Valkey {facts['valkey_version']})" if "valkey_version" in facts else version


def check_replay(facts: Mapping[str, str], ask: Callable[[], Sequence[str]]) -> str | None:
    """Tell what a restart would lose because of the rights of Redis's user `default`.

    Args:
        ask: Returns the commands of our transactions that this user may not give; called where it matters.
    Returns:
        None: nothing.
    Raises:
        StoreForbidden: This user of Redis may not ask.
    """
    if facts.get("aof_enabled") != "1" or not _checks_replayed_commands(facts):
        return None
    refused = ask()
    if not refused:
        return None
    return (
        "a restart of Redis loses what was written in transactions: it replays them as user default, which may not "
        f"give {', '.join(refused)}"
    )


def _checks_replayed_commands(facts: Mapping[str, str]) -> bool:
    """Whether a server asks for the rights of a user when it replays a transaction of its append-only file."""
    if "valkey_version" in facts:
        return parse_version(facts["valkey_version"]) < _VALKEY_WITHOUT_CHECK
    return parse_version(facts.get("redis_version", "")) >= _REDIS_WITH_CHECK


def parse_version(text: str) -> tuple[int, ...]:
    """Read the numbers of a version, the most important first."""
    return tuple(int(part) for part in text.split(".") if part.isdigit())


def memory_share(facts: Mapping[str, str]) -> float:
    """The part of Redis's memory limit that is used; 0 without a limit."""
    used, limit = int(facts.get("used_memory", "0")), int(facts.get("maxmemory", "0"))
    return used / limit if limit else 0.0


def check_eviction_policy(facts: Mapping[str, str]) -> None:
    """Refuse a Redis that evicts keys when its memory is full.

    Raises:
        ConfigurationError: It does.
    """
    policy = facts.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        raise ConfigurationError(
            f"Redis evicts keys when it is full (maxmemory-policy {policy}), and with them sessions; "
            "set maxmemory-policy noeviction"
        )
