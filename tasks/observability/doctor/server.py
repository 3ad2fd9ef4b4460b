"""Checks of Redis and of the broker."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from ....config.brokers import is_redis, shares_a_database
from ....worker.errors import CeleryAgentsError, ConfigurationError, StoreForbidden
from ....worker.redaction import describe_exception
from ...broker_keys import queue_key
from ...publishing import StepPublisher
from ..server_policy import (
    REPLAY_ADVICE,
    check_replay,
    describe_server,
    describe_wrong_broker,
    memory_share,
    parse_version,
)
from .findings import Finding, Installation

_OLDEST_REDIS: Final = (6, 2)
# From here on some releases of Redis replay transactions without looking at rights.
_REPLAY_MENDED: Final = (8, 4)
CLOCK_TOLERANCE_SECONDS: Final = 5.0
_MEMORY_SHARE: Final = 0.9


def check_version(installation: Installation) -> Iterator[Finding]:
    """Redis is new enough."""
    version = describe_server(installation.server_facts)
    if parse_version(installation.server_facts.get("redis_version", "?")) < _OLDEST_REDIS:
        yield Finding.fail("redis version", version, "use Redis 6.2 or newer")
    else:
        yield Finding.ok("redis version", version)


def check_eviction(installation: Installation) -> Iterator[Finding]:
    """Redis evicts no sessions when its memory is full."""
    policy = installation.server_facts.get("maxmemory_policy", "?")
    if policy != "noeviction":
        yield Finding.fail("eviction", policy, "set maxmemory-policy noeviction: eviction deletes sessions")
    else:
        yield Finding.ok("eviction", policy)


def check_durability(installation: Installation) -> Iterator[Finding]:
    """Redis writes an append-only file, so that a restart loses no job."""
    facts = installation.server_facts
    if facts.get("aof_enabled") != "1":
        advice = "set appendonly yes; without it a restart of Redis loses jobs"
        yield Finding.warn("persistence", "no append-only file", advice)
    elif facts.get("aof_last_write_status", "ok") != "ok":
        yield Finding.fail("persistence", "Redis cannot write its append-only file", "look at its disk and log")
    else:
        yield Finding.ok("persistence", "append-only file")


def check_restart(installation: Installation) -> Iterator[Finding]:
    """A restart of Redis loses nothing by the rights of its user `default`."""
    facts, housekeeping = installation.server_facts, installation.store.housekeeping
    key = queue_key(installation.app, installation.settings.queue)
    try:
        loss = check_replay(facts, lambda: housekeeping.unreplayable_commands(key))
    except StoreForbidden:
        what = "not known: this user may not ask what Redis's user default may do (ACL DRYRUN); monitor may"
        yield Finding.ok("restart", what)
        return
    if loss is None:
        yield Finding.ok("restart", "loses nothing by the users of Redis")
    elif parse_version(facts.get("redis_version", "")) < _REPLAY_MENDED:
        yield Finding.fail("restart", loss, REPLAY_ADVICE)
    else:
        yield Finding.warn("restart", f"in some releases of Redis {facts['redis_version']}, {loss}", REPLAY_ADVICE)


def check_memory(installation: Installation) -> Iterator[Finding]:
    """Redis has memory left."""
    facts = installation.server_facts
    used, limit = int(facts.get("used_memory", "0")), int(facts.get("maxmemory", "0"))
    text = f"{used / 1e6:.0f} MB" + (f" of {limit / 1e6:.0f} MB" if limit else ", no limit")
    if memory_share(facts) > _MEMORY_SHARE:
        yield Finding.warn("memory", text, "raise maxmemory or shorten CELERY_AGENTS_RETENTION_SECONDS")
    else:
        yield Finding.ok("memory", text)


def check_clock(installation: Installation) -> Iterator[Finding]:
    """This machine's clock agrees with Redis's."""
    ahead = time.time() - int(installation.server_facts["now_ms"]) / 1000
    if abs(ahead) > CLOCK_TOLERANCE_SECONDS:
        what = f"this machine is {ahead:+.0f} s off Redis"
        advice = "run NTP; only Redis's clock counts for steps, but logs and deadlines will look odd"
        yield Finding.warn("clock", what, advice)
    else:
        yield Finding.ok("clock", f"{ahead:+.1f} s off Redis")


def check_shards(installation: Installation) -> Iterator[Finding]:
    """The settings have as many shards as the stored data; whether what is written is compressed."""
    store = installation.store
    count = str(len(store.context.shards))
    try:
        store.context.check_shards()
        is_packed = store.context.layout.packs
        how = (
            "what is written is compressed"
            if is_packed
            else "celery-agents upgrade-data would compress what is written"
        )
        yield Finding.ok("shards", f"{count}; {how}")
    except ConfigurationError as error:
        yield Finding.fail("shards", count, str(error))


def check_broker(installation: Installation) -> Iterator[Finding]:
    """The broker answers, and the commit's own transaction can publish the next step."""
    app, settings = installation.app, installation.settings
    try:
        with app.connection_for_read() as connection:
            connection.ensure_connection(max_retries=1, timeout=5)
            is_apart = not shares_a_database(settings)
            is_other_redis = is_apart and is_redis(settings.broker)
            wrong = describe_wrong_broker(connection) if is_other_redis else ""
            is_replica = is_other_redis and not wrong and _is_replica(connection)
    except Exception as error:  # noqa: BLE001 - whatever a broker's client raises
        advice = "start the broker, or correct CELERY_AGENTS_BROKER_URL"
        yield Finding.fail("broker", describe_exception(error).message, advice)
        return
    if wrong:
        yield Finding.fail("broker", wrong, "workers do not start before that is corrected")
        return
    if is_replica:
        advice = "point CELERY_AGENTS_BROKER_URL at the primary, or at Sentinels that know it"
        yield Finding.fail("broker", "a replica, which takes no messages", advice)
        return
    if is_apart:
        advice = "put broker and store into one Redis database, and the next step is published by the commit itself"
        yield Finding.ok("broker", f"answers; messages are published separately ({advice})")
        return
    works = _try_publishing(lambda: StepPublisher(app, settings).works)
    if works is None:
        yield Finding.ok("broker", "answers; whether messages go out with the commit, this user may not try")
    elif works:
        yield Finding.ok("broker", "answers; messages go out with the commit")
    else:
        yield Finding.warn("broker", "answers; messages are published separately", "this kombu is not known yet")


def _is_replica(connection: Any) -> bool:
    """Ask the broker's Redis for its role; a user that may not ask is told False."""
    client = connection.default_channel.client
    try:
        return client.info("replication").get("role") == "slave"
    except connection.channel_errors:
        return False


def _try_publishing(call: Callable[[], bool]) -> bool | None:
    """Call it; None when the Redis user has read permissions only."""
    try:
        return call()
    except CeleryAgentsError as error:
        return None if "no permissions" in str(error) else False
