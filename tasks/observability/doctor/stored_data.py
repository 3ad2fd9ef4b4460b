"""Checks of what is stored: keys and entries that another program has damaged, and what workers refused."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Final, cast

from ....config.brokers import shares_a_database
from ....config.celery import is_our_queue
from ....worker.errors import CeleryAgentsError
from ....worker.redaction import redact
from ...broker_keys import broker_key_types, record_keys, unacked_key
from ...consumer.kombu_records import examine_unacked, names_another_queue
from .findings import Finding, Installation

_SHOWN: Final = 20
_TEXT_SHOWN: Final = 100
_REASON_SHOWN: Final = 300


def check_key_types(installation: Installation) -> Iterator[Finding]:
    """Every key holds the type that it should."""
    app, settings = installation.app, installation.settings
    more = broker_key_types(app, settings) if shares_a_database(settings) else {}
    found = installation.store.housekeeping.wrong_types(more)
    for damage in found:
        advice = f"somebody else wrote to it: look who may, then RENAME {damage.key!r} away; what it held is lost to us"
        yield Finding.fail("key type", f"{damage.key!r}: {damage.what}", advice)
    if not found:
        yield Finding.ok("key types", "as they should be")


def check_entries(installation: Installation) -> Iterator[Finding]:
    """Every entry of an index names a session, and has a time."""
    found = installation.store.housekeeping.bad_entries()
    for damage in found[:_SHOWN]:
        what = f"{damage.entry[:_TEXT_SHOWN]!r} in {damage.key!r}: {damage.what}"
        yield Finding.warn("index entry", what, f"find out who wrote it, then ZREM it from {damage.key!r}")
    if len(found) > _SHOWN:
        yield Finding.warn("index entries", f"{len(found) - _SHOWN} more of this kind", "ZREM them")
    if not found:
        yield Finding.ok("index entries", "all name sessions")


def check_histories(installation: Installation) -> Iterator[Finding]:
    """Redis has lost the end of no session's history."""
    count, found = installation.store.housekeeping.list_lost()
    for session, loss in found:
        advice = f"celery-agents show {session}; compare the calls with the services that they reached"
        yield Finding.warn("history lost", redact(f"{session}: {loss.describe()}"), advice)
    if count > len(found):
        yield Finding.warn("histories lost", f"{count - len(found)} more sessions", "look for the event history_lost")
    if not count:
        yield Finding.ok("histories", "no session is known to have lost its end")


def check_archive(installation: Installation) -> Iterator[Finding]:
    """The archive answers, where there is one."""
    if installation.store.archived is None:
        return
    try:
        facts = installation.store.archived.archive.facts()
    except CeleryAgentsError as error:
        advice = "sessions that ended stay in Redis meanwhile; start the database, or correct CELERY_AGENTS_ARCHIVE_URL"
        yield Finding.fail("archive", redact(str(error)), advice)
        return
    yield Finding.ok("archive", f"{facts.sessions} sessions, {facts.size} bytes")


def check_unacked(installation: Installation) -> Iterator[Finding]:
    """Every record of an unacknowledged control message can be delivered again."""
    if not shares_a_database(installation.settings):
        return
    key = unacked_key(installation.app)
    old, records = installation.store.housekeeping.unacked_records(key)
    count, _ = installation.store.housekeeping.unacked_records(
        record_keys(installation.app, installation.settings.control_queue)[0]
    )
    if installation.existing_app is None:
        is_ours = partial(is_our_queue, installation.settings)
        records = {tag: record for tag, record in records.items() if not names_another_queue(record, is_ours)}
    bad = [(tag, reason) for tag, record in records.items() if (reason := examine_unacked(record)) is not None]
    for tag, reason in bad[:_SHOWN]:
        advice = "a worker quarantines it after the visibility timeout; find out who writes to the broker"
        yield Finding.warn("unacknowledged message", f"{tag[:_TEXT_SHOWN]!r} in {key!r}: {redact(reason)}", advice)
    if not bad:
        yield Finding.ok("unacknowledged", f"{old + count} control messages")


_REFUSED_ADVICE: Final = (
    "find out who writes to the broker, or what the worker's Redis user may not do; nothing of it was carried out"
)


def check_refused(installation: Installation) -> Iterator[Finding]:
    """No worker has refused anything that came from the broker, and none has found a problem of Redis."""
    for name, facts in sorted(installation.workers.items()):
        for source, refused in sorted(facts["refused"].items()):
            fact = cast("dict[str, Any]", refused) if isinstance(refused, dict) else {}
            last = redact(str(fact.get("reason")))[:_REASON_SHOWN]
            what = f"worker {name}: {fact.get('count')} times, {str(source)[:_TEXT_SHOWN]}; the last: {last}"
            yield Finding.warn("refused", what, _REFUSED_ADVICE)
        for problem in facts["problems"]:
            what = f"worker {name}: {redact(str(problem))[:_REASON_SHOWN]}"
            yield Finding.fail("seen by a worker", what, "look at the other findings, and at the worker's log")
