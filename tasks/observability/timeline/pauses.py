"""Spans of a step in which no worker had it, and of what came meanwhile: queue, delay, hold, message."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ....worker.moments import moment
from ....worker.store.event_records import EXECUTION_ENDS, Event, EventType
from ..next_try import describe_next_try, read_time
from .attempts import Attempt, AttemptEnd, StepSource
from .values import Span, SpanKind


def queue_spans(source: StepSource, attempts: Sequence[Attempt]) -> Iterator[Span]:
    """The times in which the step was due and no worker had it."""
    for each in attempts:
        due_ms, start_ms = each.due_ms, each.start_ms
        if due_ms is not None and start_ms is not None and start_ms > due_ms:
            yield _queue(source, due_ms, start_ms, each.due_note)
    current = source.current
    if current is None or current.phase not in ("run", "parked") or current.claim or current.hold is not None:
        return
    if current.not_before_ms > source.now_ms:
        return  # a delay
    note, due_ms = _last_cause(source)
    if due_ms is not None:
        yield _queue(source, due_ms, None, note)


def _queue(source: StepSource, start_ms: int, end_ms: int | None, note: str) -> Span:
    return Span(
        id=f"{source.number}.q{start_ms}",
        kind=SpanKind.QUEUE,
        name="queue",
        note=note,
        start_ms=start_ms,
        end_ms=end_ms,
    )


def _last_cause(source: StepSource) -> tuple[str, int | None]:
    """Why the step is due now, and since when; None where that is not known."""
    note, due_ms = "", source.due_ms
    for event in source.events:
        if event.type == EventType.STEP_RETRIED:
            note, due_ms = "retried", event.at_ms
        elif event.type == EventType.EXECUTION_RESUMED:
            note, due_ms = "", event.at_ms
        elif event.type == EventType.STEP_DELAYED:
            note, due_ms = "", read_time(event.data.get("next_try_ms"))
        elif event.type == EventType.PARKED:
            note = f"parked: {event.data.get('reason') or 'no reason was given'}"
        elif event.type == EventType.WAITING_FOR_WORKER:
            note = "no live worker offers the agent"
    return note, due_ms


def delay_spans(source: StepSource, attempts: Sequence[Attempt]) -> Iterator[Span]:
    """The times for which the step was delayed, and the one before which it must not begin."""
    for place, each in enumerate(attempts):
        if each.end is AttemptEnd.DELAYED and each.end_ms is not None and each.event is not None:
            following = attempts[place + 1] if place + 1 < len(attempts) else None
            yield _delay(source, each, each.event, following)
    current = source.current
    is_later = current is not None and not current.claim and current.not_before_ms > source.now_ms
    if is_later and current is not None and current.phase == "run" and source.due_ms is not None and not attempts:
        when = describe_next_try(current.not_before_ms, source.now_ms)
        yield Span(
            id=f"{source.number}.d{source.due_ms}", kind=SpanKind.DELAY, name="later start", note=f"begins {when}",
            start_ms=source.due_ms, end_ms=None,
        )  # fmt: skip


def _delay(source: StepSource, delayed: Attempt, event: Event, following: Attempt | None) -> Span:
    assert delayed.end_ms is not None
    next_try_ms = read_time(event.data.get("next_try_ms"))
    end_ms = source.ended_ms if following is None else following.known_start_ms
    current = source.current
    if following is None and end_ms is None and current is not None and current.not_before_ms <= source.now_ms:
        end_ms = next_try_ms  # its time is over, and it is queued
    return Span(
        id=f"{source.number}.d{event.id}",
        kind=SpanKind.DELAY,
        name="at the provider" if event.data.get("at_provider") else "delay",
        note=str(event.data.get("reason") or ""),
        start_ms=delayed.end_ms,
        end_ms=end_ms,
        data={
            "reason": event.data.get("reason"),
            "next_try_at": None if next_try_ms is None else moment(next_try_ms).isoformat(),
            "delays": event.data.get("delays"),
        },
    )


def hold_spans(events: Sequence[Event]) -> dict[int, list[Span]]:
    """The times for which the session was suspended, by the step that was due or ran then."""
    found: dict[int, list[Span]] = {}
    for place, event in enumerate(events):
        if event.type != EventType.EXECUTION_SUSPENDED:
            continue
        end = next((each for each in events[place + 1 :] if _ends_hold(each)), None)
        by, reason = event.data.get("by"), event.data.get("reason")
        named = f"suspended by {by}" if by else "suspended"
        span = Span(
            id=f"{event.step}.h{event.id}",
            kind=SpanKind.HOLD,
            name="hold",
            note=f"{named}: {reason}" if reason else named,
            start_ms=event.at_ms,
            end_ms=None if end is None else end.at_ms,
            data={"by": by, "reason": reason, "resumed_by": _by(end)},
        )
        found.setdefault(event.step, []).append(span)
    return found


def _ends_hold(event: Event) -> bool:
    is_resumed = event.type == EventType.EXECUTION_RESUMED and event.data.get("cause") == "resume"
    return is_resumed or event.type in EXECUTION_ENDS


def _by(event: Event | None) -> Any:
    return None if event is None else event.data.get("by")


def message_spans(events: Sequence[Event]) -> dict[int, list[Span]]:
    """The messages that came while the execution went on, as moments, by step."""
    found: dict[int, list[Span]] = {}
    seen: set[str] = set()
    for event in events:
        operation = str(event.data.get("operation"))
        if event.type == EventType.MESSAGE_RECEIVED:
            step, note = event.step, "a message came; the running step went first"
        elif event.type == EventType.MESSAGE_JOINED and not event.data.get("started") and operation not in seen:
            step, note = event.step + 1, "a message came"  # the event names the last committed step
        else:
            continue
        seen.add(operation)
        span = Span(
            id=f"{step}.n{event.id}", kind=SpanKind.MESSAGE, name="message", note=note, start_ms=event.at_ms,
            end_ms=event.at_ms, data={"operation": operation},
        )  # fmt: skip
        found.setdefault(step, []).append(span)
    return found
