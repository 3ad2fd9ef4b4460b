"""`Timeline`, its steps and their spans, as callers get them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from ....worker.known_secrets import redact_known, redact_known_in
from ....worker.moments import moment


class SpanKind(StrEnum):
    """The kinds of spans.

    Attributes:
        QUEUE: The step was due, and no worker had it.
        MODEL: The model call that gave the answer of the step, or the one that goes on.
        TOOL: A tool call.
        CHILD: A call that started a child session, or one of the children that a call started.
        REQUEST: A request of a call: an approval, a question or a result that a service brings.
        PROVIDER: The wait between a failed model call and the next one, which keeps the worker.
        DELAY: The step was delayed, and no worker had it.
        LOST: A model call without a usable answer, or an attempt whose worker was lost.
        HOLD: The session was suspended.
        MESSAGE: A message came meanwhile.
    """

    QUEUE = "queue"
    MODEL = "model"
    TOOL = "tool"
    CHILD = "child"
    REQUEST = "request"
    PROVIDER = "provider"
    DELAY = "delay"
    LOST = "lost"
    HOLD = "hold"
    MESSAGE = "message"


class SpanOutcome(StrEnum):
    """The outcomes of spans.

    Attributes:
        OK, ERROR, UNKNOWN, NOT_RUN, BLOCKED: Of a tool call, as in its record; OK and ERROR of a model call, too.
        LOST: The worker was lost.
        VOID: Nothing of it counts: a model call without a usable answer.
        OPEN, ANSWERED, EXPIRED, CANCELLED: Of a request.
    """

    OK = "ok"
    ERROR = "error"
    UNKNOWN = "unknown"
    NOT_RUN = "not_run"
    BLOCKED = "blocked"
    LOST = "lost"
    VOID = "void"
    OPEN = "open"
    ANSWERED = "answered"
    EXPIRED = "expired"
    CANCELLED = "cancelled"


class StepStatus(StrEnum):
    """The statuses of a step.

    Attributes:
        COMMITTED: Its record is stored.
        RUNNING: A worker has it.
        WAITING: It waits for answers of people, services or children.
        DUE: No worker has it: it is queued, delayed, suspended or parked, or its worker was lost.
        ENDED: The execution ended in it, before its commit.
    """

    COMMITTED = "committed"
    RUNNING = "running"
    WAITING = "waiting"
    DUE = "due"
    ENDED = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A time in which one thing happened.

    Attributes:
        id: Unique in the execution, and the same whenever the timeline is read, as long as its source is stored.
        parent: The span that it belongs to: a request and a lost attempt belong to their tool call.
        name: Of the model, the tool or the kind of request.
        note: A short sentence for people; "" for none.
        start_ms, end_ms: Redis's time, some as a worker has estimated it: early by what its claim took to be read, a
            third of a second under load. `end_ms` None: it still goes on.
        tokens: Of all kinds; of a child those of the sessions below it, too. None: not known.
        cost: US dollars; None: not known.
        session: The child session.
        request: The id of the request.
        data: What was given, said and answered, as JSON; None where it was not asked for.
    """

    id: str
    kind: SpanKind
    parent: str | None = None
    name: str = ""
    note: str = ""
    start_ms: int
    end_ms: int | None
    outcome: SpanOutcome | None = None
    tokens: int | None = None
    cost: float | None = None
    session: str | None = None
    request: str | None = None
    data: Mapping[str, Any] | None = None

    @property
    def started_at(self) -> datetime:
        """When it began."""
        return moment(self.start_ms)

    @property
    def ended_at(self) -> datetime | None:
        """When it ended; None while it goes on."""
        return None if self.end_ms is None else moment(self.end_ms)

    def redacted(self) -> Span:
        """The same without the secrets that this process knows."""
        data = None if self.data is None else redact_known_in(dict(self.data))
        return replace(self, name=redact_known(self.name), note=redact_known(self.note), data=data)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineStep:
    """A step with its spans, in the order of their beginnings.

    Attributes:
        start_ms, end_ms: Redis's time. None: it has not begun, or has not ended.
        model: As the provider named it; None: not known.
        finish_reason: Why the model ended its answer; None without one.
        tokens: Of all kinds, of its answer; None: not known.
        cost: US dollars of its answer; None: not known.
        attempts: How often a worker took it, the first included, where workers were lost; None: not known.
        worker: The worker that has it or had it last; None: not known.
        error: Why it failed; None where it did not. Errors of tools are in their spans.
    """

    number: int
    status: StepStatus
    start_ms: int | None = None
    end_ms: int | None = None
    model: str | None = None
    finish_reason: str | None = None
    tokens: int | None = None
    cost: float | None = None
    attempts: int | None = None
    worker: str | None = None
    error: str | None = None
    spans: tuple[Span, ...] = ()

    @property
    def started_at(self) -> datetime | None:
        """When a worker took it first; None where that is not known, and before."""
        return None if self.start_ms is None else moment(self.start_ms)

    @property
    def ended_at(self) -> datetime | None:
        """When it was committed, or the execution ended in it; None before."""
        return None if self.end_ms is None else moment(self.end_ms)

    def redacted(self) -> TimelineStep:
        """The same without the secrets that this process knows."""
        error = None if self.error is None else redact_known(self.error)
        return replace(self, error=error, spans=tuple(span.redacted() for span in self.spans))


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """The latest execution of a session as steps and spans.

    Attributes:
        execution_id: "" for a session that has had no execution.
        status: Of the session, as in its header.
        now: Redis's time of the read.
        submitted_at: None without an execution.
        ended_at: None while it goes on.
        total_steps: Committed steps.
        next_step: Where the next page begins; None at the end.
    """

    session_id: str
    execution_id: str
    agent: str
    status: str
    now: datetime
    submitted_at: datetime | None = None
    ended_at: datetime | None = None
    total_steps: int = 0
    next_step: int | None = None
    steps: tuple[TimelineStep, ...] = ()

    def redacted(self) -> Timeline:
        """The same without the secrets that this process knows."""
        return replace(self, steps=tuple(step.redacted() for step in self.steps))
