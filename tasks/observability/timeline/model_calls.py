"""Spans of the model calls of a step: the one that gave the answer, failed ones, pauses after them, lost attempts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from ....worker.state.execution.inference import InferenceResponse
from ....worker.state.execution.usage import NO_USAGE
from ....worker.store.event_records import Event, EventType
from ..next_try import read_time
from .attempts import Attempt, AttemptEnd, StepSource
from .values import Span, SpanKind, SpanOutcome

_ANSWERED: Final = (AttemptEnd.COMMITTED, AttemptEnd.WAITING)


@dataclass(frozen=True, slots=True)
class KnownAnswer:
    """The model's answer as far as it is stored.

    Attributes:
        response: None where the step is not committed, and only its driver can read what the journal has.
        model: None: not known.
        began: When the calls of the answer began or asked (Redis ms).
    """

    response: InferenceResponse | None
    model: str | None
    began: Sequence[int]

    @property
    def tokens(self) -> int | None:
        """Tokens of all kinds; None where they are not known."""
        usage = NO_USAGE if self.response is None else self.response.usage
        return None if usage == NO_USAGE else usage.total

    @property
    def cost(self) -> float | None:
        """US dollars; None where the price is not known."""
        return None if self.response is None else self.response.cost


def model_spans(source: StepSource, attempts: Sequence[Attempt], answer: KnownAnswer) -> Iterator[Span]:
    """The spans of all attempts."""
    has_answer = False
    failures = [event for event in source.events if event.type == EventType.MODEL_CALL_FAILED]
    previous_ms: int | None = None
    for number, attempt in enumerate(attempts, 1):
        mine = [each for each in failures if _is_within(each, previous_ms, attempt.end_ms)]
        calls = _Calls(source=source, attempt=attempt, number=number, answer=answer)
        yield from calls.failed(mine)
        if not has_answer:
            yield from calls.last()
        elif attempt.end is AttemptEnd.LOST:
            yield from calls.lost()
        has_answer = has_answer or attempt.is_answered
        previous_ms = attempt.end_ms


def _is_within(event: Event, after_ms: int | None, until_ms: int | None) -> bool:
    return (after_ms is None or event.at_ms > after_ms) and (until_ms is None or event.at_ms <= until_ms)


class _Calls:
    """The model calls of one attempt."""

    def __init__(self, *, source: StepSource, attempt: Attempt, number: int, answer: KnownAnswer) -> None:
        self._source = source
        self._attempt = attempt
        self._number = number
        self._answer = answer
        self._step = source.number
        self._from_ms = attempt.known_start_ms

    def failed(self, failures: Sequence[Event]) -> Iterator[Span]:
        """The calls that gave no usable answer, and the pause after each."""
        for event in failures:
            start_ms = event.at_ms if self._from_ms is None else min(self._from_ms, event.at_ms)
            note, facts = _describe_failure(event), dict(event.data)
            yield Span(
                id=f"{self._step}.f{event.id}", kind=SpanKind.LOST, name=self._name_of(event, "model"), note=note,
                start_ms=start_ms, end_ms=event.at_ms, outcome=SpanOutcome.VOID, data=self._data(error=facts),
            )  # fmt: skip
            # The worker's estimate of Redis's clock, which may be behind the time of the event.
            next_ms = max(event.at_ms, read_time(event.data.get("next_try_ms")) or 0)
            latest_ms = self._source.now_ms if self._attempt.end_ms is None else self._attempt.end_ms
            is_over = next_ms <= latest_ms
            end_ms = next_ms if is_over else self._attempt.end_ms
            yield Span(
                id=f"{self._step}.p{event.id}", kind=SpanKind.PROVIDER, name="provider",
                note="waits before the model is asked again", start_ms=event.at_ms, end_ms=end_ms,
            )  # fmt: skip
            self._from_ms = next_ms

    def last(self) -> Iterator[Span]:
        """The call that gave the answer, that goes on, or that ended without one."""
        attempt = self._attempt
        if attempt.end in _ANSWERED or attempt.is_answered:
            yield self._model(self._end_of_answer(), SpanOutcome.OK, self._note_of_answer())
        elif attempt.end is AttemptEnd.RUNNING:
            if self._from_ms is None or self._from_ms <= self._source.now_ms:
                yield self._model(None, None, "")
        elif attempt.end is AttemptEnd.ENDED and not self._has_not_asked():
            errors = self._source.execution.errors
            outcome = SpanOutcome.ERROR if errors else SpanOutcome.VOID
            note = errors[-1].message if errors else "the execution was ended"
            yield replace(self._model(attempt.end_ms, outcome, note), id=f"{self._step}.x{self._number}")
        elif attempt.end is AttemptEnd.DELAYED:
            yield from self._delayed()
        if attempt.end is AttemptEnd.LOST:
            yield from self.lost()

    def lost(self) -> Iterator[Span]:
        """The attempt whose worker was lost; where it had begun calls, their spans say so."""
        attempt = self._attempt
        if attempt.begun:
            return
        start_ms = attempt.known_start_ms
        where = " after the model had answered" if attempt.is_answered else ""
        yield Span(
            id=f"{self._step}.l{self._number}", kind=SpanKind.LOST, name=self._answer.model or "attempt",
            note=describe_loss(attempt, self._number) + where,
            start_ms=self._source.now_ms if start_ms is None else start_ms, end_ms=attempt.end_ms,
            outcome=SpanOutcome.LOST, data=self._data(),
        )  # fmt: skip

    def _has_not_asked(self) -> bool:
        """Whether the execution is known to have ended before a model was asked."""
        event = self._attempt.event
        return event is not None and event.data.get("asked") is False

    def _delayed(self) -> Iterator[Span]:
        """The call that failed last; a step is also put off before anything is asked."""
        event, start_ms, end_ms = self._attempt.event, self._from_ms, self._attempt.end_ms
        has_failed = event is not None and bool(event.data.get("failed_model"))
        if event is None or not has_failed or start_ms is None or end_ms is None:
            return
        yield Span(
            id=f"{self._step}.l{self._number}", kind=SpanKind.LOST, name=self._name_of(event, "failed_model"),
            note=str(event.data.get("reason") or ""), start_ms=min(start_ms, end_ms), end_ms=end_ms,
            outcome=SpanOutcome.VOID, data=self._data(),
        )  # fmt: skip

    def _name_of(self, event: Event, field: str) -> str:
        """Name of the model that was asked, without its provider; events of earlier versions do not tell it."""
        asked = event.data.get(field)
        return asked.partition(":")[2] or asked if isinstance(asked, str) else self._answer.model or "model call"

    def _end_of_answer(self) -> int | None:
        """When the answer was there, at the latest: its first call began or asked, or the attempt ended."""
        attempt = self._attempt
        first = min((each for each in self._began() if attempt.holds(each)), default=None)
        if first is None:
            return attempt.end_ms
        return first if attempt.end_ms is None else min(first, attempt.end_ms)

    def _began(self) -> Iterator[int]:
        yield from self._attempt.begun.values()
        yield from self._answer.began

    def _note_of_answer(self) -> str:
        attempt = self._attempt
        if attempt.start_ms is None and attempt.due_ms is not None:
            return "from the time at which the step was due; when a worker took it is not known"
        if attempt.end is AttemptEnd.RUNNING and self._end_of_answer() is None:
            return "it has answered"
        return ""

    def _model(self, end_ms: int | None, outcome: SpanOutcome | None, note: str) -> Span:
        start_ms = self._from_ms
        if start_ms is None:
            start_ms = self._source.now_ms if end_ms is None else end_ms
        if end_ms is not None:
            end_ms = max(start_ms, end_ms)
        return Span(
            id=f"{self._step}.m", kind=SpanKind.MODEL, name=self._answer.model or "", note=note, start_ms=start_ms,
            end_ms=end_ms, outcome=outcome, tokens=self._answer.tokens, cost=self._answer.cost,
            data=self._data(**self._answer_data()),
        )  # fmt: skip

    def _answer_data(self) -> dict[str, Any]:
        """The content of the answer, as JSON; empty where it is not wanted or not known."""
        response = self._answer.response
        if response is None or not self._source.with_data:
            return {}
        return {
            "text": response.content,
            "thinking": response.thinking,
            "tool_calls": [call.to_dict() for call in response.tool_calls],
            "usage": response.usage.to_dict(),
            "finish_reason": response.finish_reason.value,
            "request_id": response.request_id,
        }

    def _data(self, **more: Any) -> dict[str, Any]:
        return {"attempt": self._number, "worker": self._attempt.worker, **more}


def describe_loss(attempt: Attempt, number: int) -> str:
    """Say which attempt was lost, and with which worker."""
    worker = f" {attempt.worker}" if attempt.worker else ""
    if attempt.end_ms is None:
        return f"attempt {number}: worker{worker} is gone or cut off; another one takes the step over"
    return f"attempt {number}, lost with worker{worker}" if worker else f"attempt {number}, its worker was lost"


def _describe_failure(event: Event) -> str:
    status, message = event.data.get("status"), str(event.data.get("message") or event.data.get("kind") or "")
    return message if status is None or str(status) in message else f"{status}: {message}"
