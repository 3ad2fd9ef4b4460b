"""The attempts at a step, by its events and its record: who had it, from when to when, and how that ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final, cast

from ....worker.moments import unix_ms
from ....worker.state.execution.execution import ExecutionState
from ....worker.state.execution.steps import StepExecution
from ....worker.store.event_records import EXECUTION_ENDS, Event, EventType
from ....worker.store.sessions.execution_reads import CurrentStep
from ..next_try import read_time

_INDEX_DIGITS: Final = 9


class AttemptEnd(StrEnum):
    """The ways in which an attempt ends.

    Attributes:
        COMMITTED: With the step's commit.
        WAITING: The step waits for answers, and the worker gave it back.
        DELAYED: The step was delayed, and the worker gave it back.
        LOST: The worker was lost.
        ENDED: The execution ended before the step's commit.
        RUNNING: It goes on.
    """

    COMMITTED = "committed"
    WAITING = "waiting"
    DELAYED = "delayed"
    LOST = "lost"
    ENDED = "ended"
    RUNNING = "running"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One claim of a step. Times are Redis's, in milliseconds.

    Attributes:
        due_ms: Since when the step had waited for a worker. None: not known, or it had not.
        due_note: Why it had waited; "" where it was only queued.
        start_ms: When it was claimed; None: not known.
        end_ms: None: it has not ended.
        worker: None: not known.
        is_answered: The model had answered at its end.
        begun: When it began calls that had no result at its end, by call index.
        event: The event that ended it; None without one.
    """

    end: AttemptEnd
    due_ms: int | None = None
    due_note: str = ""
    start_ms: int | None = None
    end_ms: int | None = None
    worker: str | None = None
    is_answered: bool = False
    begun: Mapping[int, int] = field(default_factory=dict[int, int])
    event: Event | None = None

    @property
    def known_start_ms(self) -> int | None:
        """When it began, or else since when it might have; None where nothing is known."""
        return self.due_ms if self.start_ms is None else self.start_ms

    def holds(self, at_ms: int) -> bool:
        """Whether a moment is within it."""
        start, end = self.known_start_ms, self.end_ms
        return (start is None or start <= at_ms) and (end is None or at_ms <= end)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSource:
    """A step with everything that is stored of it.

    Attributes:
        done: Its record; None for the step that the execution is at.
        current: What is stored of that step; None for a committed one.
        events: Those of the step, the oldest first.
        due_ms: When the step before it ended, or the execution was submitted; None: not known.
        with_data: Spans have what was given, said and answered.
    """

    number: int
    execution: ExecutionState
    done: StepExecution | None
    current: CurrentStep | None
    events: Sequence[Event]
    due_ms: int | None
    now_ms: int
    with_data: bool = False

    @property
    def ended_ms(self) -> int | None:
        """When the execution ended in this step, which was not committed; None where it did not."""
        has_ended = self.current is not None and self.current.phase == "end" and self.execution.completed_at is not None
        return unix_ms(self.execution.completed_at) if has_ended and self.execution.completed_at else None


def read_attempts(source: StepSource) -> tuple[Attempt, ...]:
    """The attempts at a step that are known, in order."""
    reader = _Reader(source)
    for event in source.events:
        reader.read(event)
    return reader.finish()


class _Reader:
    """Reads the events of a step one after the other.

    What happened at a claim is told by the event of the claim, or by that which ended the attempt.
    """

    def __init__(self, source: StepSource) -> None:
        self._source = source
        self._found: list[Attempt] = []
        self._due_ms = source.due_ms
        self._note = ""
        self._start_ms: int | None = None
        self._worker: str | None = None

    def read(self, event: Event) -> None:
        """Take an event in; those that say nothing about attempts are left out."""
        handler = _HANDLERS.get(str(event.type))
        if handler is not None:
            handler(self, event)
        elif event.type in EXECUTION_ENDS and event.data.get("in_step") == self._source.number:
            # The event is stored a moment after the end that the execution has.
            ended_ms = event.at_ms if self._source.ended_ms is None else min(event.at_ms, self._source.ended_ms)
            self._close(AttemptEnd.ENDED, event, end_ms=ended_ms)

    def finish(self) -> tuple[Attempt, ...]:
        """The attempts, with the one that has not ended and the one that the step's record alone tells of."""
        source = self._source
        has_ended = bool(self._found) and self._found[-1].end in (AttemptEnd.COMMITTED, AttemptEnd.ENDED)
        if source.done is not None and not has_ended:
            self._add_unknown_waits(source.done)
            self._commit(None)
        elif source.current is not None and source.current.claim:
            self._add_running(source.current)
        elif source.ended_ms is not None and not has_ended and self._has_begun(source):
            self._close(AttemptEnd.ENDED, None)
        return _without_overlaps(self._found)

    def begin(self, event: Event) -> None:
        """A worker has claimed the step at this event."""
        self._start_ms, self._worker = event.at_ms, _text(event, "worker")

    def recover(self, event: Event) -> None:
        """A worker has claimed the step of one that was lost."""
        data = event.data
        self._worker = _text(event, "lost_worker") or self._worker
        self._close(
            AttemptEnd.LOST, event, is_answered=data.get("answered") is True, begun=_read_begun(data.get("begun"))
        )
        self._due_ms = None
        self.begin(event)

    def delay(self, event: Event) -> None:
        """The worker has given the step back, and it is delayed."""
        self._close(AttemptEnd.DELAYED, event, is_answered=event.data.get("answered") is True)
        self._due_ms = None

    def wait(self, event: Event) -> None:
        """The worker has given the step back, and it waits."""
        self._close(AttemptEnd.WAITING, event, is_answered=True)
        self._due_ms = None

    def resume(self, event: Event) -> None:
        """The step was woken; by its time it is claimed in the same moment."""
        if event.data.get("cause") == "time":
            self._start_ms, self._due_ms = event.at_ms, None
        else:
            self._due_ms, self._note = event.at_ms, ""

    def retry(self, event: Event) -> None:
        """A client had the execution go on."""
        by = _text(event, "by")
        self._due_ms, self._note = event.at_ms, f"retried by {by}" if by else "retried"

    def note(self, text: str) -> None:
        """Say why no worker takes the step."""
        self._note = text

    def commit(self, event: Event) -> None:
        """The step was committed."""
        if self._source.done is not None:
            self._worker = _text(event, "worker") or self._worker
            self._commit(event)

    def _commit(self, event: Event | None) -> None:
        done = self._source.done
        assert done is not None
        self._start_ms = unix_ms(done.started_at)
        self._close(AttemptEnd.COMMITTED, event, end_ms=unix_ms(done.completed_at), is_answered=True)

    def _close(self, end: AttemptEnd, event: Event | None, *, end_ms: int | None = None, **facts: Any) -> None:
        """End the attempt that the step is at; the event may tell its worker and its beginning."""
        since_ms = None if event is None else read_time(event.data.get("since_ms"))
        told = None if event is None or end is AttemptEnd.LOST else _text(event, "worker")
        ended_ms = event.at_ms if event is not None else self._source.ended_ms
        self._found.append(
            Attempt(
                end=end,
                due_ms=self._due_ms,
                due_note=self._note,
                start_ms=self._start_ms if since_ms is None else since_ms,
                end_ms=ended_ms if end_ms is None else end_ms,
                worker=told or self._worker,
                event=event,
                **facts,
            )
        )
        self._start_ms, self._worker, self._note = None, None, ""

    def _add_running(self, current: CurrentStep) -> None:
        """The attempt whose claim stands; where its lease is over, its worker is lost."""
        journal = current.journal
        begun = {i: each.at_ms for i, each in journal.begun.items() if each.claim == current.claim}
        self._found.append(
            Attempt(
                end=AttemptEnd.RUNNING if current.is_leased else AttemptEnd.LOST,
                due_ms=self._due_ms,
                due_note=self._note,
                start_ms=journal.asked_ms.get(current.claim) or self._start_ms,
                worker=current.worker or self._worker,
                is_answered=journal.answer is not None,
                begun={i: at_ms for i, at_ms in begun.items() if i not in journal.results},
            )
        )

    def _has_begun(self, source: StepSource) -> bool:
        """Whether a worker had the step in which the execution ended."""
        if self._start_ms is None and source.current is not None:
            self._start_ms = max(source.current.journal.asked_ms.values(), default=0) or None
        return self._start_ms is not None

    def _add_unknown_waits(self, done: StepExecution) -> None:
        """A wait whose events are gone: the record says when the calls asked, and that the step was claimed later."""
        asked = [each.asked_at_ms for call in done.step.tool_executions for each in call.resolutions]
        if asked and min(asked) < unix_ms(done.started_at) and not self._found:
            self._found.append(
                Attempt(end=AttemptEnd.WAITING, due_ms=self._due_ms, end_ms=min(asked), is_answered=True)
            )
            self._due_ms = None


def _without_overlaps(attempts: Sequence[Attempt]) -> tuple[Attempt, ...]:
    """The attempts, none of which ends after the next one began: a step has one claim at a time.

    An event has the time at which it was stored, a beginning that at which the claim was read, which is earlier.
    """
    found: list[Attempt] = []
    next_start: int | None = None
    for each in reversed(attempts):
        overlaps = (
            next_start is not None and each.end_ms is not None and (each.start_ms or 0) <= next_start < each.end_ms
        )
        found.append(replace(each, end_ms=next_start) if overlaps else each)
        next_start = each.start_ms
    return tuple(reversed(found))


def _text(event: Event, name: str) -> str | None:
    value: object = event.data.get(name)
    return value if isinstance(value, str) and value else None


def _read_begun(value: object) -> dict[int, int]:
    """Read the times of calls of an event's data; what is none is left out, since others may have stored it."""
    if not isinstance(value, Mapping):
        return {}
    times = {name: read_time(at_ms) for name, at_ms in cast("Mapping[str, object]", value).items()}
    return {
        int(name): at_ms
        for name, at_ms in times.items()
        if name.isdecimal() and len(name) <= _INDEX_DIGITS and at_ms is not None
    }


_HANDLERS: Final[Mapping[str, Callable[[_Reader, Event], None]]] = {
    EventType.EXECUTION_STARTED: _Reader.begin,
    EventType.STEP_RESUMED: _Reader.begin,
    EventType.STEP_RECOVERED: _Reader.recover,
    EventType.STEP_DELAYED: _Reader.delay,
    EventType.EXECUTION_WAITING: _Reader.wait,
    EventType.EXECUTION_RESUMED: _Reader.resume,
    EventType.STEP_RETRIED: _Reader.retry,
    EventType.STEP_COMMITTED: _Reader.commit,
    EventType.PARKED: lambda reader, event: reader.note(f"parked: {_text(event, 'reason') or 'no reason was given'}"),
    EventType.WAITING_FOR_WORKER: lambda reader, _: reader.note("no live worker offered the agent"),
}
"""What the events of a step say about its attempts."""
