"""What a set of seeds must have seen; a run in which nothing rare happened proves nothing."""

from __future__ import annotations

from collections.abc import Iterator

from celery_agents.worker import crash_points
from celery_agents.worker.engine import Done, RetryLater, TakenOver
from celery_agents.worker.errors import StoreFull, StoreUnavailable
from celery_agents.worker.state import ExecutionStatus, RequestKind, ToolOutcome
from celery_agents.worker.store import NotClaimedReason

from .world import Tally
from support.points import BESIDE, ELSEWHERE, OF_CLIENTS, OF_QUEUES, OF_WAITING, OF_WORKERS, Points

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
# The ways of a first claim in one round trip.
_FIRST_CLAIMS = (Points.CLAIM_ATTEMPT, Points.CLAIM_BEHIND, Points.CLAIM_NEW, Points.CLAIM_FIRST)
# Only seeds whose calls ask see these.
_OF_WAITING = (NotClaimedReason.WAITING, NotClaimedReason.HELD)
ANSWERS = (
    *(outcome.__name__ for outcome in (Done, RetryLater, TakenOver, StoreUnavailable, StoreFull)),
    *(reason.value for reason in NotClaimedReason if reason not in _OF_WAITING),
    *(f"ended {status.value}" for status in ExecutionStatus if status.is_terminal()),
    *(f"tool {outcome.value}" for outcome in ToolOutcome if outcome is not ToolOutcome.BLOCKED),
    *(f"{point} declined" for point in (*_FIRST_CLAIMS, Points.COMMIT_ATTEMPT)),
    *(f"{point} aborted" for point in (Points.COMMIT_EXEC, Points.CLAIM_EXEC, Points.ACT_EXEC, Points.STOP_EXEC)),
    *(f"{point} refused" for point in (Points.COMMIT_ATTEMPT, Points.COMMIT_EXEC, Points.JOURNAL_ANSWER)),
    *(f"message {outcome}" for outcome in ("joined", "queued", "started", "again")),
    *(f"stop {outcome}" for outcome in ("changed", "queued", "again")),
    *(f"queue {outcome}" for outcome in ("queued", "started", "again")),
    *(f"withdraw {outcome}" for outcome in ("changed", "refused")),
    *(f"mode {outcome}" for outcome in ("changed", "started", "again", "refused")),
    *(f"release {outcome}" for outcome in ("changed", "started", "idle")),
    "followed from the queue",
    "twice again",
    "submit again",
    "retry started",
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
    "poison parked",
)
ROUND_TRIPS = (*OF_WORKERS, *OF_CLIENTS, *OF_QUEUES, *BESIDE)


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


# What only some seeds do, and the round trips of the simulation itself.
_OTHERS = {
    *ELSEWHERE,
    "beside.read",
    "beside.load",
    "beside.exec",
    "act.now",
    "flow.now",
    "flow.delayed",
    "flow.put_off",
}


# --- seeds whose calls ask --------------------------------------------------------------------------------------------

WAITING_ANSWERS = (
    "Waiting",
    "waited",
    "claimed at its time",
    *(reason.value for reason in (NotClaimedReason.WAITING, NotClaimedReason.HELD)),
    *(f"asked {kind.value}" for kind in RequestKind if kind is not RequestKind.CHILD),
    *(f"answered {verb}" for verb in ("approve", "deny", "answer", "complete", "fail", "cancel")),
    *(f"expired {verb}" for verb in ("approve", "deny", "answer", "fail", "pass_on")),
    *(f"answer {outcome}" for outcome in ("woken", "recorded", "again")),
    *(f"answer refused {status}" for status in ("answered", "denied", "expired", "passed_on", "cancelled")),
    *(f"{kind} {outcome}" for kind in ("suspend", "resume") for outcome in ("changed", "again")),
    *(f"{point} aborted" for point in (Points.WAIT_EXEC, Points.ANSWER_EXEC, Points.SUSPEND_EXEC, Points.RESUME_EXEC)),
    "tool blocked",
    "closed by a message",
    "answer unseen",
    "answer has to look",
)

CAPABLE_ANSWERS = (
    "recorded result given again",
    *(f"run ended {reason}" for reason in ("complete", "terminal_tool", "cancelled", "error", "max_iterations")),
)


SMART_ANSWERS = (
    "paid beside a step",
    "paid beside a step again",
    "a plan",
    "notes",
    "summaries",
    "blocked by a guardrail",
)


def unseen_smart(tally: Tally) -> Iterator[str]:
    """What should have happened in seeds whose agents have every capability of `state.smart`, and did not."""
    yield from (f"answer {answer}" for answer in SMART_ANSWERS if not tally.answers[answer])
    if not tally.points[f"<{Points.JOURNAL_AUXILIARY}"]:
        yield f"round trip {Points.JOURNAL_AUXILIARY}"


def unseen_capable(tally: Tally) -> Iterator[str]:
    """What should have happened in seeds whose agents have every capability, and did not."""
    return (f"answer {answer}" for answer in CAPABLE_ANSWERS if not tally.answers[answer])


def unseen_waiting(tally: Tally) -> Iterator[str]:
    """What should have happened in seeds whose calls ask, and did not."""
    for point in crash_points.WAITING_POINTS:
        if not tally.points[point]:
            yield f"crash point {point}"
    for name in OF_WAITING:
        if not tally.points[f"<{name}"]:
            yield f"round trip {name}"
    if not tally.faults["answer without message"]:
        yield "fault answer without message"
    for answer in WAITING_ANSWERS:
        if not tally.answers[answer]:
            yield f"answer {answer}"
