"""Checks of the workers, the agents they offer, and the work that waits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from ....config.celery import GREENLETS
from ....worker.errors import CeleryAgentsError
from ....worker.redaction import redact
from ....worker.store import Store
from ...publishing import oldest_queued_ms, shares_a_database
from .findings import Finding, Installation

POOLS: Final = ("greenlets", "threads", "prefork", "solo")
POOL_ADVICE: Final = f"set it to {GREENLETS!r}, or start with --pool=threads; on Redis gevent strands messages"
_OVERDUE_SECONDS: Final = 10.0
_DEAD_SHOWN: Final = 20
_PAYLOAD_SHOWN: Final = 100

# By the attribute's own name, without the module and the class it belongs to.
_WITHOUT: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        ("_brpop_start", "_brpop_read", "_flush_brpop_reauth", "_in_poll", "_q_for_pri", "_deliver"),
        "it takes one message in each round trip",
    ),
    **dict.fromkeys(("loads", "bytes_to_str", "no_ack_consumers"), "it does not put malformed messages aside"),
    **dict.fromkeys(("basic_publish", "_publish_batch"), "it publishes messages separately from the commit"),
    "_callbacks": "the next step of a session always goes through the queue",
    **dict.fromkeys(
        ("poller", "call_soon", "_epoll", "_kqueue", "loop"), "it takes messages in a thread beside the steps"
    ),
    **dict.fromkeys(("reserved_requests", "on_apply"), "it takes further messages only at its next look at the queue"),
    **dict.fromkeys(("data", "active_requests", "revoked"), "a revoke in Flower does not stop a session"),
    **dict.fromkeys(("_sock", "_parser"), "it uses the documented calls of redis-py, which take longer"),
}


def check_workers(installation: Installation) -> Iterator[Finding]:
    """At least one worker is alive, with a suitable pool and with slots that come back."""
    if not installation.workers:
        yield Finding.fail("workers", "none alive", "start one: celery-agents worker --agents my_service.agents")
    for name, facts in sorted(installation.workers.items()):
        if facts.get("pool") not in POOLS:
            yield Finding.fail(f"pool of {name}", str(facts.get("pool")), POOL_ADVICE)
        yield _examine_slots(name, facts)


def _examine_slots(name: str, facts: Mapping[str, Any]) -> Finding:
    busy = f"{facts['running']} of {facts['slots']} slots busy"
    agents = ", ".join(sorted(facts["agents"])) or "no agents"
    if not facts["abandoned"]:
        return Finding.ok(f"worker {name}", f"{busy}; {agents}")
    what = f"{busy}, {facts['abandoned']} lost to functions that never end"
    return Finding.warn(f"worker {name}", what, "make those tools async, or give their clients a timeout")


def check_library_attributes(installation: Installation) -> Iterator[Finding]:
    """The undocumented attributes of Celery, kombu and redis-py are as every worker expects them."""
    advice = "jobs complete all the same; install the versions of celery, kombu and redis that this release knows"
    for name, facts in sorted(installation.workers.items()):
        for attribute in facts.get("missing", ()):
            without = _WITHOUT.get(str(attribute).rpartition(".")[2], "it does without what needs the attribute")
            what = f"worker {name}: {attribute} is not as expected; {without}"
            yield Finding.warn("library attribute", what, advice)


def check_agents(installation: Installation) -> Iterator[Finding]:
    """Each registered agent is offered by a live worker, in one definition."""
    for name in sorted(installation.store.registry.agents()):
        hashes = {facts["agents"][name] for facts in installation.workers.values() if name in facts["agents"]}
        if not hashes:
            yield Finding.warn(f"agent {name}", "no live worker offers it", "start a worker that imports it")
        elif len(hashes) > 1:
            what = f"{len(hashes)} definitions at once"
            advice = "normal while a new version is rolled out; otherwise update the older workers"
            yield Finding.warn(f"agent {name}", what, advice)
        else:
            yield Finding.ok(f"agent {name}", f"definition {hashes.pop()}")


def check_backlog(installation: Installation) -> Iterator[Finding]:
    """No session has been due for long."""
    total, late, oldest_ms = installation.store.housekeeping.backlog()
    text = f"{total} sessions due, {late} overdue"
    if oldest_ms > _OVERDUE_SECONDS * 1000:
        what = f"{text}, the oldest by {oldest_ms / 1000:.0f} s"
        yield Finding.warn("due", what, "start more workers or slots")
    else:
        yield Finding.ok("due", text)


def check_queue(installation: Installation) -> Iterator[Finding]:
    """The queue's length and the age of its oldest message, where the broker is the store's Redis."""
    settings, store = installation.settings, installation.store
    if not shares_a_database(settings):
        return
    options = dict(installation.app.conf.broker_transport_options or {})
    key = f"{options.get('global_keyprefix', '')}{settings.queue}"
    length = store.housekeeping.queue_length(key)
    oldest = oldest_queued_ms(store, key)
    age = ""
    if length and oldest > 0:
        age = f", the oldest for {max(0, store.housekeeping.now_ms() - oldest) / 1000:.1f} s"
    yield Finding.ok("queue", f"{length} messages{age}")


def check_dead(installation: Installation) -> Iterator[Finding]:
    """Nothing is parked or in quarantine, apart from sessions that were retried since."""
    store = installation.store
    entries = store.housekeeping.dead(_DEAD_SHOWN)
    findings = [finding for entry in entries if (finding := _examine_entry(store, entry)) is not None]
    yield from findings or [Finding.ok("parked and quarantined", "none")]


def _examine_entry(store: Store, entry: Mapping[str, str]) -> Finding | None:
    session = entry.get("session", "")
    match entry.get("kind"):
        case "message":
            advice = "find out who writes to the broker; the message was put away"
            what = f"{entry['reason']}: {redact(entry['payload'])[:_PAYLOAD_SHOWN]}"
            return Finding.warn("quarantined message", what, advice)
        case "callback":
            advice = "its receiver did not answer for hours; fetch the result: celery-agents show " + session
            return Finding.warn(f"callback of {session}", entry["reason"], advice)
        case _:
            status = _read_status(store, session)
            if status not in ("parked", "failed"):
                return None
            advice = f"mend the cause, then: celery-agents retry {session}"
            return Finding.warn(f"{status} at step {entry['step']}", f"{session}: {entry['reason']}", advice)


def _read_status(store: Store, session_id: str) -> str:
    try:
        return store.sessions.header(session_id).status
    except CeleryAgentsError:
        return "expired"
