"""What a set of seeds must have seen; a run in which nothing rare happened proves nothing."""

from __future__ import annotations

from collections.abc import Iterator

from celery_agents.worker import crash_points

from .world import Tally

FAULTS = (
    "crash",
    "pause",
    "swallow",
    "refuse",
    "duplicate",
    "drop",
    "reorder",
    "full",
    "redis restart",
    "poison",
    "driver error",
    "paid and dropped",
    "unusable answer",
    "tool error",
    "tool hangs",
)
ANSWERS = (
    "Done",
    "RetryLater",
    "TakenOver",
    "StoreUnavailable",
    "StoreFull",
    "stale",
    "busy",
    "ahead",
    "missing",
    "ended",
    "not_yet",
    "restarted",
    "suspect",
    "adopted",
    "committed again",
    "carried on",
    "delivered here",
    "not delivered here",
    "re-applied",
    "restored",
    "claim lost",
    "swept",
    "swept live",
    "swept queued",
    "submit again",
    "message joined",
    "message queued",
    "message started",
    "message again",
    "twice again",
    "stop changed",
    "stop queued",
    "stop again",
    "retry started",
    "ended completed",
    "ended stopped",
    "ended failed",
    "poison parked",
    "tool ok",
    "tool error",
    "tool unknown",
    "tool not_run",
    "claim.attempt declined",
    "claim.behind declined",
    "claim.new declined",
    "claim.first declined",
    "commit.attempt declined",
    "commit.attempt refused",
    "commit.exec aborted",
    "claim.exec aborted",
    "act.exec aborted",
    "stop.exec aborted",
    "commit.exec refused",
    "journal.answer refused",
)
ROUND_TRIPS = (
    "claim.attempt",
    "claim.behind",
    "claim.new",
    "claim.first",
    "claim.load",
    "claim.read",
    "claim.lease",
    "claim.uptime",
    "claim.exec",
    "load.all",
    "renew",
    "restore.read",
    "restore.exec",
    "release.read",
    "release.exec",
    "journal.answer",
    "journal.full",
    "journal.adopt",
    "journal.begin",
    "journal.again",
    "journal.mine",
    "journal.unbegin",
    "journal.past",
    "journal.bury",
    "journal.result",
    "journal.failure",
    "journal.look",
    "journal.drop",
    "commit.attempt",
    "commit.read",
    "commit.entry",
    "commit.exec",
    "reload.read",
    "reload.check",
    "submit.attempt",
    "submit.read",
    "submit.exec",
    "act.read",
    "act.journal",
    "act.load",
    "act.push",
    "act.exec",
    "stop.read",
    "stop.lease",
    "stop.journal",
    "stop.ask",
    "stop.now",
    "stop.exec",
    "retry.read",
    "retry.exec",
    "sweep.now",
    "sweep.pass",
    "unwatch",
)


def unseen(tally: Tally) -> Iterator[str]:
    """What should have happened and did not."""
    for point in crash_points.POINTS:
        if not tally.points[point]:
            yield f"crash point {point}"
    for name in ROUND_TRIPS:
        if not tally.points[f"<{name}"]:
            yield f"round trip {name}"
    for fault in FAULTS:
        if not tally.faults[fault]:
            yield f"fault {fault}"
    for answer in ANSWERS:
        if not tally.answers[answer]:
            yield f"answer {answer}"


def unknown(tally: Tally) -> Iterator[str]:
    """Round trips that nobody listed: a new one needs its place in the fault plan."""
    known = set(ROUND_TRIPS) | _OTHERS
    for point in tally.points:
        if point.startswith("<") and point[1:] not in known:
            yield point[1:]


_OTHERS = {
    "script.load",
    "beside.read",
    "beside.load",
    "beside.exec",
    "load.read",
    "load.check",
    "act.now",
    "park.read",
    "park.exec",
}
