"""Checks of the workers, the agents they offer, and the work that waits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

from ....config.brokers import takes_steps_itself
from ....config.celery import GREENLETS
from ....config.settings import GROUP_MARK, shown_queues
from ....config.version import __version__
from ....worker.errors import CeleryAgentsError
from ....worker.flow.values import AT_PROVIDER
from ....worker.redaction import redact
from ....worker.state.agent_fields import PACKED_SCHEMA_VERSION
from ....worker.store.requests.records import RequestFilter
from ....worker.store.store import Store
from ...broker_keys import queue_key
from ...consumer.internals import WITHOUT
from ...publishing import oldest_queued_ms
from ..request_reasons import describe_requests
from .findings import Finding, Installation

POOLS: Final = ("greenlets", "threads", "prefork", "solo")
THREADED_POOLS: Final = ("greenlets", "threads")
SLOTS_ADVICE: Final = f"set it to {GREENLETS!r} for the workers of agents: a slot then costs kilobytes, not a process"
POOL_ADVICE: Final = f"set it to {GREENLETS!r}, or start with --pool=threads; on Redis gevent strands messages"
TOOLS_ADVICE: Final = "the other tools work; have the server's list of tools corrected, or name the others in only=[…]"
_OVERDUE_SECONDS: Final = 10.0
_DEAD_SHOWN: Final = 20
_LONG_OPEN_MS: Final = 86_400_000
_PAYLOAD_SHOWN: Final = 100
_DELAYED_READ: Final = 1000
_REASONS_SHOWN: Final = 5


def check_workers(installation: Installation) -> Iterator[Finding]:
    """At least one worker is alive, with a suitable pool and with slots that come back."""
    if not installation.workers:
        yield Finding.fail("workers", "none alive", "start one: celery-agents worker --agents my_service.agents")
    for name, facts in sorted(installation.workers.items()):
        if facts.get("pool") not in POOLS:
            yield Finding.fail(f"pool of {name}", str(facts.get("pool")), POOL_ADVICE)
        elif installation.existing_app is not None and facts["pool"] not in THREADED_POOLS:
            yield Finding.warn(f"pool of {name}", str(facts["pool"]), SLOTS_ADVICE)
        yield _examine_slots(name, facts)


def _examine_slots(name: str, facts: Mapping[str, Any]) -> Finding:
    busy = f"pool {facts['pool']}, {facts['running']} of {facts['slots']} slots busy"
    agents = ", ".join(sorted(facts["agents"])) or "no agents"
    if not facts["abandoned"]:
        return Finding.ok(f"worker {name}", f"{busy}; {agents}; takes {_describe_queues(facts)}")
    what = f"{busy}, {facts['abandoned']} lost to functions that never end"
    return Finding.warn(f"worker {name}", what, "make those tools async, or give their clients a timeout")


def _describe_queues(facts: Mapping[str, Any]) -> str:
    """The queues that a worker takes, without that of its group."""
    named = shown_queues(facts["queues"])
    return f"queue{'s' if len(named) > 1 else ''} {', '.join(named)}" if named else "no queue"


def check_builds(installation: Installation) -> Iterator[Finding]:
    """The live workers are of the same version as this program."""
    builds = Counter(
        f"{facts.get('version') or 'a version before 0.2.0'}, which reads states up to schema {facts.get('schema', 0)}"
        for facts in installation.workers.values()
    )
    here = f"{__version__}, which reads states up to schema {PACKED_SCHEMA_VERSION}"
    if builds.keys() <= {here}:
        yield Finding.ok("version", here)
        return
    workers = "; ".join(f"{count} of the workers {build}" for build, count in sorted(builds.items()))
    advice = "normal while a new version is rolled out; otherwise update the older ones"
    yield Finding.warn("version", f"here {here}; {workers}", advice)


def check_library_attributes(installation: Installation) -> Iterator[Finding]:
    """The undocumented attributes of Celery, kombu and redis-py are as every worker expects them."""
    advice = "jobs complete all the same; install the versions of celery, kombu and redis that this release knows"
    for name, facts in sorted(installation.workers.items()):
        for attribute in facts.get("missing", ()):
            what = f"worker {name}: {attribute} is not as expected; {_describe_lack(str(attribute))}"
            yield Finding.warn("library attribute", what, advice)


def _describe_lack(attribute: str) -> str:
    """Say what is true of a worker without an attribute; workers of other versions find it at another place."""
    name = attribute.replace(":", ".").rpartition(".")[2]
    known = (without for path, without in WITHOUT.items() if path.replace(":", ".").endswith(f".{name}"))
    return next(known, "it does without what needs the attribute")


def check_agents(installation: Installation) -> Iterator[Finding]:
    """Each registered agent is offered by a live worker, in one definition."""
    for name in sorted(installation.store.registry.agents()):
        hashes = {facts["agents"][name] for facts in installation.workers.values() if name in facts["agents"]}
        if not hashes:
            yield Finding.warn(f"agent {name}", "no live worker offers it", "start a worker that imports it")
        elif len(hashes) > 1:
            what = f"{len(hashes)} definitions at once"
            advice = (
                "normal while a new version is rolled out; otherwise update the older workers, or rename one where two "
                "services share a Redis"
            )
            yield Finding.warn(f"agent {name}", what, advice)
        else:
            yield Finding.ok(f"agent {name}", f"definition {hashes.pop()}")


def check_tools(installation: Installation) -> Iterator[Finding]:
    """Each tool of the MCP servers can be called, as its server describes it."""
    notes: dict[str, set[str]] = {"left_out": set(), "mended": set()}
    for facts in installation.workers.values():
        told: Mapping[str, Any] = facts.get("tools") or {}
        for kind, lines in notes.items():
            lines.update(map(str, told.get(kind, ())))
    for line in sorted(notes["left_out"]):
        yield Finding.warn("MCP server", line, TOOLS_ADVICE)
    for line in sorted(notes["mended"]):
        yield Finding.ok("MCP server", line)


def check_backlog(installation: Installation) -> Iterator[Finding]:
    """No session has been due for long."""
    total, late, oldest_ms = installation.store.housekeeping.backlog()
    text = f"{total} {'session' if total == 1 else 'sessions'} due, {late} overdue"
    if oldest_ms > _OVERDUE_SECONDS * 1000:
        what = f"{text}, the oldest by {oldest_ms / 1000:.0f} s"
        yield Finding.warn("due", what, "start more workers or slots")
    else:
        yield Finding.ok("due", text)


def check_delayed(installation: Installation) -> Iterator[Finding]:
    """Delayed steps but those of jobs at providers, by reason: an outage of a model provider shows here."""
    delayed = installation.store.housekeeping.list_delayed(_DELAYED_READ, without=AT_PROVIDER)
    if not delayed:
        yield Finding.ok("steps put off", "none")
        return
    now_ms = installation.store.housekeeping.now_ms()
    causes = Counter(each.put_off or each.reason for each in delayed)  # a reason of what put it off names a time
    for cause, count in causes.most_common(_REASONS_SHOWN):
        first = next(each for each in delayed if cause == (each.put_off or each.reason))  # the next try comes first
        seconds = max(0, first.next_try_ms - now_ms) / 1000
        what = f"{count} wait for a next try, the first in {seconds:.0f} s: {first.reason}"
        yield Finding.warn("steps put off", what, "they go on by themselves when the cause is gone")


def check_requests(installation: Installation) -> Iterator[Finding]:
    """Requests that wait for people and services, and the one that has waited longest."""
    store = installation.store
    count = store.requests.count_open()
    if not count.open:
        yield Finding.ok("open requests", "none")
        return
    now_ms = store.housekeeping.now_ms()
    oldest = [found.summary for found in store.requests.page(RequestFilter(), limit=1).requests]
    reason = f"; session {oldest[0].session_id} {describe_requests(oldest, now_ms)}" if oldest else ""
    what = f"{count.open}{reason}"
    if count.oldest_ms is not None and now_ms - count.oldest_ms > _LONG_OPEN_MS:
        yield Finding.warn("open requests", what, "answer them, see `celery-agents requests`, or give them an expiry")
    else:
        yield Finding.ok("open requests", what)


def check_callbacks(installation: Installation) -> Iterator[Finding]:
    """No receiver refuses its callbacks again and again."""
    store = installation.store
    failing = [each for each in store.housekeeping.failing_callbacks() if each.attempts > 1]  # once may be chance
    if not failing:
        yield Finding.ok("failed callbacks", "none")
        return
    most = failing[0]
    seconds = max(0, most.next_try_ms - store.housekeeping.now_ms(most.session_id)) / 1000
    one = f"{most.kind.replace('_', ' ')} of session {most.session_id}"
    what = f"{len(failing)}; the {one} has failed {most.attempts} times, and comes again in {seconds:.0f} s"
    yield Finding.warn("failed callbacks", what, "the reason is in the workers' log; mend it or the receiver")


def check_unoffered(installation: Installation) -> Iterator[Finding]:
    """No session waits for a worker that offers its agent."""
    for agent, count in sorted(installation.store.housekeeping.count_unoffered().items()):
        what = f"{count} waiting: no live worker offers the agent"
        advice = "start a worker that imports it; they go on by themselves. If the name is wrong, stop them"
        yield Finding.warn(f"sessions of agent {redact(agent)}", what, advice)


def check_queue(installation: Installation) -> Iterator[Finding]:
    """Each queue's length, the age of its oldest message and its workers, where the broker is a Redis."""
    if not takes_steps_itself(installation.settings):
        return
    takers: dict[str, dict[str, Mapping[str, Any]]] = {}
    for worker, facts in installation.workers.items():
        for queue in facts["queues"]:
            takers.setdefault(queue, {})[worker] = facts
    named = {facts["queue"] for facts in installation.store.registry.agents().values()}
    for name in sorted({"", *takers, *named}):
        found = _examine_queue(installation, name, takers.get(name, {}))
        if found is not None:
            yield found


def _examine_queue(installation: Installation, name: str, takers: Mapping[str, Mapping[str, Any]]) -> Finding | None:
    settings, store = installation.settings, installation.store
    key = queue_key(installation.app, settings.step_queue(name))
    length = store.housekeeping.queue_length(key)
    oldest = oldest_queued_ms(store, key)
    if not length and name.startswith(GROUP_MARK):
        return None
    label = f"queue {name}" if name else "queue"
    seconds = max(0, store.housekeeping.now_ms() - oldest) / 1000 if length and oldest > 0 else 0.0
    what = f"{length} messages" + (f", the oldest for {seconds:.1f} s" if seconds else "")
    if length and not takers and installation.workers:
        advice = "start a worker with an agent of this queue, or look at CELERY_AGENTS_QUEUES"
        return Finding.warn(label, f"{what}, and no live worker takes it", advice)
    free = count_free_slots(takers)
    if seconds > _OVERDUE_SECONDS and free:
        advice = (
            f"no worker takes messages from {key!r}: give the workers this broker, and look at their logs; "
            "add_consumer ends what cancel_consumer has begun"
        )
        return Finding.fail(label, f"{what}, while {free} slots are free", advice)
    return Finding.ok(label, what)


def count_free_slots(workers: Mapping[str, Mapping[str, Any]]) -> int:
    """Count the slots in which workers could run a step now; those of draining workers take none."""
    free = (int(facts["slots"]) - int(facts["running"]) for facts in workers.values() if not facts["draining"])
    return sum(max(0, each) for each in free)


def check_dead(installation: Installation) -> Iterator[Finding]:
    """Nothing is parked or in quarantine, apart from sessions that were retried since."""
    store = installation.store
    entries = store.housekeeping.list_dead(_DEAD_SHOWN)
    findings = [finding for entry in entries if (finding := _examine_entry(store, entry)) is not None]
    yield from findings or [Finding.ok("parked and quarantined", "none")]


def _examine_entry(store: Store, entry: Mapping[str, str]) -> Finding | None:
    session = entry.get("session", "")
    match entry.get("kind"):
        case "message":
            advice = "find out who writes to the broker; no worker runs the message"
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
