"""`celery-agents doctor`: what could keep agents from running, and what to do about each."""

from __future__ import annotations

import importlib.util
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from celery import Celery

from ...config.celery import GREENLETS, is_redis
from ...config.settings import Settings
from ...worker.agent import Agent, AgentRegistry
from ...worker.errors import CeleryAgentsError, ConfigurationError
from ...worker.redaction import describe_exception, redact
from ...worker.store import Store, redis_store
from ..publishing import TransactionPublisher, oldest_queued_ms, shares_a_database

log = logging.getLogger(__name__)

_OLDEST_REDIS: Final = (6, 2)
_CLOCK_TOLERANCE_SECONDS: Final = 5.0
_OVERDUE_SECONDS: Final = 10.0
_DEAD_SHOWN: Final = 20
_POOLS: Final = ("greenlets", "threads", "prefork", "solo")
_POOL_ADVICE: Final = f"set it to {GREENLETS!r}, or start with --pool=threads; on Redis gevent strands messages"
_KEYS: Final = {
    "openai": ("OPENAI_API_KEY",),
    "anthropic": ("ANTHROPIC_API_KEY",),
    "google": ("GOOGLE_API_KEY", "GEMINI_API_KEY"),
    "mistral": ("MISTRAL_API_KEY",),
    "groq": ("GROQ_API_KEY",),
}


class Level(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at.

    Attributes:
        advice: What to do; "" when all is well.
    """

    name: str
    level: Level
    what: str
    advice: str = ""


def examine(settings: Settings, app: Celery | None = None) -> list[Finding]:
    """Look at Redis, the broker, workers, agents and the backlog.

    Args:
        app: The Celery app whose settings are looked at too. None: ours, which fit.
    Raises:
        StoreUnavailable: Redis does not answer; nothing else can be looked at.
    """
    from ..app import create_app

    mine = app or create_app(settings)
    store = redis_store(settings, name="celery-agents-doctor")
    facts = store.housekeeping.server_facts()
    findings = [*_redis(facts), *_shards(store), *_broker(mine, settings)]
    findings += [*_workers(store), *_backlog(store), *_queue(store, mine, settings), *_dead(store)]
    return [*findings, *_models(), *_own_agents(settings), *_conflicts(app, settings)]


def check_server(facts: Mapping[str, str]) -> None:
    """What a worker asks of Redis before it starts.

    Raises:
        ConfigurationError: Redis may evict sessions under memory pressure.
    """
    policy = facts.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        raise ConfigurationError(
            f"Redis evicts keys when it is full (maxmemory-policy {policy}), and with them sessions; "
            "set maxmemory-policy noeviction"
        )
    if facts.get("aof_enabled") == "0":
        log.warning("Redis keeps no append-only file: what it holds is lost with its process; set appendonly yes")


def _redis(facts: Mapping[str, str]) -> Iterator[Finding]:
    version = facts.get("redis_version", "?")
    known = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if known < _OLDEST_REDIS:
        yield Finding("redis version", Level.FAIL, version, "use Redis 6.2 or newer")
    else:
        yield Finding("redis version", Level.OK, version)
    policy = facts.get("maxmemory_policy", "?")
    if policy != "noeviction":
        yield Finding("eviction", Level.FAIL, policy, "set maxmemory-policy noeviction: eviction deletes sessions")
    else:
        yield Finding("eviction", Level.OK, policy)
    yield from _durability(facts)
    yield from _memory(facts)
    ahead = time.time() - int(facts["now_ms"]) / 1000
    if abs(ahead) > _CLOCK_TOLERANCE_SECONDS:
        yield Finding(
            "clock", Level.WARN, f"this machine is {ahead:+.0f} s off Redis",
            "run NTP; only Redis's clock counts for steps, but logs and deadlines will look odd",
        )  # fmt: skip
    else:
        yield Finding("clock", Level.OK, f"{ahead:+.1f} s off Redis")
    if facts.get("role") == "slave":
        yield Finding("role", Level.FAIL, "a replica", "point CELERY_AGENTS_REDIS_URL at the primary")


def _durability(facts: Mapping[str, str]) -> Iterator[Finding]:
    if facts.get("aof_enabled") != "1":
        advice = "set appendonly yes; without it a restart of Redis loses jobs"
        yield Finding("persistence", Level.WARN, "no append-only file", advice)
    elif facts.get("aof_last_write_status", "ok") != "ok":
        yield Finding("persistence", Level.FAIL, "Redis cannot write its append-only file", "look at its disk and log")
    else:
        yield Finding("persistence", Level.OK, "append-only file")


def _memory(facts: Mapping[str, str]) -> Iterator[Finding]:
    used, limit = int(facts.get("used_memory", "0")), int(facts.get("maxmemory", "0"))
    text = f"{used / 1e6:.0f} MB" + (f" of {limit / 1e6:.0f} MB" if limit else ", no limit")
    if limit and used > 0.9 * limit:
        yield Finding("memory", Level.WARN, text, "raise maxmemory or shorten CELERY_AGENTS_RETENTION_SECONDS")
    else:
        yield Finding("memory", Level.OK, text)


def _shards(store: Store) -> Iterator[Finding]:
    try:
        store.housekeeping.check_shards()
        yield Finding("shards", Level.OK, str(len(store.context.shards)))
    except ConfigurationError as error:
        yield Finding("shards", Level.FAIL, str(len(store.context.shards)), str(error))


def _broker(app: Celery, settings: Settings) -> Iterator[Finding]:
    try:
        with app.connection_for_read() as connection:
            connection.ensure_connection(max_retries=1, timeout=5)
    except Exception as error:  # noqa: BLE001 - whatever a broker's client raises
        yield Finding(
            "broker", Level.FAIL, type(error).__name__, "start the broker, or correct CELERY_AGENTS_BROKER_URL"
        )
        return
    if not shares_a_database(settings):
        advice = "put broker and store into one Redis database, and the next step is published by the commit itself"
        yield Finding("broker", Level.OK, f"answers; messages are published separately ({advice})")
        return
    works = _try(lambda: TransactionPublisher(app, settings).works)
    if works is None:
        yield Finding("broker", Level.OK, "answers; whether messages go out with the commit, this user may not try")
    elif works:
        yield Finding("broker", Level.OK, "answers; messages go out with the commit")
    else:
        yield Finding("broker", Level.WARN, "answers; messages are published separately", "this kombu is not known yet")


def _try(call: Callable[[], bool]) -> bool | None:
    """None when somebody who only looks is not allowed to."""
    try:
        return call()
    except CeleryAgentsError as error:
        return None if "no permissions" in str(error) else False


def _workers(store: Store) -> Iterator[Finding]:
    alive = store.registry.workers()
    if not alive:
        yield Finding("workers", Level.FAIL, "none alive", "start one: celery-agents worker --agents my_service.agents")
    for name, facts in sorted(alive.items()):
        if facts.get("pool") not in _POOLS:
            yield Finding(f"pool of {name}", Level.FAIL, str(facts.get("pool")), _POOL_ADVICE)
        busy = f"{facts['running']} of {facts['slots']} slots busy"
        agents = ", ".join(sorted(facts["agents"])) or "no agents"
        if facts["abandoned"]:
            yield Finding(
                f"worker {name}", Level.WARN, f"{busy}, {facts['abandoned']} lost to functions that never end",
                "make those tools async, or give their clients a timeout",
            )  # fmt: skip
        else:
            yield Finding(f"worker {name}", Level.OK, f"{busy}; {agents}")
    yield from _agents(store.registry.agents(), alive)


def _agents(registered: Mapping[str, Any], alive: Mapping[str, Mapping[str, Any]]) -> Iterator[Finding]:
    for name in sorted(registered):
        hashes = {facts["agents"][name] for facts in alive.values() if name in facts["agents"]}
        if not hashes:
            yield Finding(f"agent {name}", Level.WARN, "no live worker offers it", "start a worker that imports it")
        elif len(hashes) > 1:
            yield Finding(
                f"agent {name}", Level.WARN, f"{len(hashes)} definitions at once",
                "normal while a new version is rolled out; otherwise update the older workers",
            )  # fmt: skip
        else:
            yield Finding(f"agent {name}", Level.OK, f"definition {hashes.pop()}")


def _backlog(store: Store) -> Iterator[Finding]:
    total, late, oldest_ms = store.housekeeping.backlog()
    text = f"{total} sessions due, {late} overdue"
    if oldest_ms > _OVERDUE_SECONDS * 1000:
        yield Finding(
            "due", Level.WARN, f"{text}, the oldest by {oldest_ms / 1000:.0f} s", "start more workers or slots"
        )
    else:
        yield Finding("due", Level.OK, text)


def _queue(store: Store, app: Celery, settings: Settings) -> Iterator[Finding]:
    if not shares_a_database(settings):
        return
    key = f"{dict(app.conf.broker_transport_options or {}).get('global_keyprefix', '')}{settings.queue}"
    length = store.housekeeping.queue_length(key)
    oldest = oldest_queued_ms(store, key)
    waits = (
        f", the oldest for {max(0, store.housekeeping.now_ms() - oldest) / 1000:.1f} s" if length and oldest > 0 else ""
    )
    yield Finding("queue", Level.OK, f"{length} messages{waits}")


def _dead(store: Store) -> Iterator[Finding]:
    """What was put away, but for steps that go on meanwhile."""
    found = [
        finding for entry in store.housekeeping.dead(_DEAD_SHOWN) if (finding := _buried(store, entry)) is not None
    ]
    yield from found or [Finding("parked and quarantined", Level.OK, "none")]


def _buried(store: Store, entry: Mapping[str, str]) -> Finding | None:
    session = entry.get("session", "")
    match entry.get("kind"):
        case "message":
            advice = "find out who writes to the broker; the message was put away"
            what = f"{entry['reason']}: {redact(entry['payload'])[:100]}"
            return Finding("quarantined message", Level.WARN, what, advice)
        case "callback":
            advice = "its receiver did not answer for hours; fetch the result: celery-agents show " + session
            return Finding(f"callback of {session}", Level.WARN, entry["reason"], advice)
        case _:
            standing = _standing(store, session)
            if standing not in ("parked", "failed"):
                return None
            advice = f"mend the cause, then: celery-agents retry {session}"
            return Finding(f"{standing} at step {entry['step']}", Level.WARN, f"{session}: {entry['reason']}", advice)


def _standing(store: Store, session_id: str) -> str:
    try:
        return store.sessions.header(session_id).status
    except CeleryAgentsError:
        return "expired"


def _models() -> Iterator[Finding]:
    if importlib.util.find_spec("pydantic_ai") is None:
        yield Finding("models", Level.OK, "the extra llm is not installed; agents with a driver of their own run")
        return
    present = [name for name, variables in _KEYS.items() if any(os.environ.get(v) for v in variables)]
    yield Finding("provider keys", Level.OK, ", ".join(present) or "none in this environment")


def _own_agents(settings: Settings) -> Iterator[Finding]:
    """The agents of this environment: whether they can be imported, and have the extra and the key they need."""
    for module in settings.agent_modules:
        try:
            agents = AgentRegistry.from_modules([module])
        except ConfigurationError as error:
            yield Finding(f"module {module}", Level.FAIL, str(error), "correct CELERY_AGENTS_AGENTS, or the module")
            continue
        except Exception as error:  # noqa: BLE001 - whatever the user's module raises
            what = describe_exception(error)
            yield Finding(f"module {module}", Level.FAIL, what.message, "correct the module")
            continue
        for agent in agents:
            yield _usable(agent)


def _usable(agent: Agent) -> Finding:
    name = f"{agent.name} here"
    try:
        agent.answering.check()
    except ConfigurationError as error:
        return Finding(name, Level.FAIL, str(error), "set it in the environment of the workers")
    return Finding(name, Level.OK, f"{agent.model or agent.answering.name}, {len(agent.toolset.names())} tools")


def _conflicts(app: Celery | None, settings: Settings) -> Iterator[Finding]:
    """Settings of an existing app that do not go with agents; the app keeps them."""
    if app is None:
        return
    conf: Any = app.conf
    found = list(_conflicting(conf, settings))
    yield from found or [Finding("settings of the app", Level.OK, "none conflicts")]


def _conflicting(conf: Any, settings: Settings) -> Iterator[Finding]:
    if conf.worker_pool not in (*_POOLS, GREENLETS, "processes"):
        yield Finding("worker_pool", Level.FAIL, str(conf.worker_pool), _POOL_ADVICE)
    elif conf.worker_pool not in (GREENLETS, "threads"):
        advice = f"set it to {GREENLETS!r} for the workers of agents: a slot then costs kilobytes, not a process"
        yield Finding("worker_pool", Level.WARN, str(conf.worker_pool), advice)
    if "json" not in conf.accept_content and "application/json" not in conf.accept_content:
        yield Finding("accept_content", Level.FAIL, ", ".join(map(str, conf.accept_content)), "steps are JSON: add it")
    if is_redis(settings.broker) and not conf.worker_disable_prefetch:
        advice = (
            "set it for the workers of agents (or --disable-prefetch), or they take more steps than they have slots"
        )
        yield Finding("worker_disable_prefetch", Level.WARN, "off", advice)
    limits = [limit for limit in (conf.task_time_limit, conf.task_soft_time_limit) if limit]
    if limits and min(limits) < settings.step_timeout_seconds:
        advice = f"raise it beyond CELERY_AGENTS_STEP_TIMEOUT_SECONDS ({settings.step_timeout_seconds:.0f})"
        yield Finding("task_time_limit", Level.WARN, f"{min(limits)} s: with prefork it kills long steps", advice)
    if conf.task_default_rate_limit:
        advice = "unset it, or steps wait for their turn"
        yield Finding("task_default_rate_limit", Level.WARN, str(conf.task_default_rate_limit), advice)
    if not conf.worker_send_task_events:
        advice = "set it, or start workers with --task-events: Flower shows nothing without"
        yield Finding("worker_send_task_events", Level.WARN, "off", advice)
    if not conf.worker_enable_remote_control:
        advice = "set it: without, a revoke in Flower does not stop a session"
        yield Finding("worker_enable_remote_control", Level.WARN, "off", advice)
    if conf.task_always_eager:
        advice = "unset it: nobody carries out what is submitted"
        yield Finding("task_always_eager", Level.FAIL, "on", advice)
