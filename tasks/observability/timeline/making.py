"""`make_timeline`: the steps of a stored execution, each with its spans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from ....worker.moments import moment, unix_ms
from ....worker.state.execution.execution import ExecutionState
from ....worker.store.event_records import EXECUTION_ENDS, Event
from ....worker.store.sessions.execution_reads import StoredExecution
from .attempts import Attempt, AttemptEnd, StepSource, read_attempts
from .call_spans import CallSpans, ChildFacts
from .known_calls import KnownCall, calls_of_journal, calls_of_record
from .model_calls import KnownAnswer, model_spans
from .pauses import delay_spans, hold_spans, message_spans, queue_spans
from .values import Span, StepStatus, Timeline, TimelineStep


def make_timeline(stored: StoredExecution, first_step: int, limit: int, *, with_data: bool) -> Timeline:
    """Make the timeline of some steps.

    Args:
        stored: With the committed steps from `first_step` on, at most `limit`.
        with_data: With what was given, said and answered.
    """
    execution = stored.execution
    if execution is None:
        return Timeline(
            session_id=stored.session_id, execution_id="", agent=stored.agent, status=stored.status,
            now=moment(stored.now_ms),
        )  # fmt: skip
    numbers = range(first_step, first_step + limit)
    last = stored.committed if stored.current is None else stored.current.number
    steps = _Steps(stored, execution, with_data=with_data)
    made = [steps.make(number) for number in numbers if number <= last]
    return Timeline(
        session_id=stored.session_id,
        execution_id=execution.execution_id,
        agent=stored.agent,
        status=stored.status,
        now=moment(stored.now_ms),
        submitted_at=execution.created_at,
        ended_at=execution.completed_at if execution.status.is_terminal() else None,
        total_steps=stored.committed,
        next_step=numbers.stop if numbers.stop <= last else None,
        steps=tuple(step for step in made if step is not None),
    )


class _Steps:
    """Makes the steps of an execution."""

    def __init__(self, stored: StoredExecution, execution: ExecutionState, *, with_data: bool) -> None:
        self._stored = stored
        self._execution = execution
        self._with_data = with_data
        records = (stored.before, *stored.steps)
        self._records = {each.step.number: each for each in records if each is not None}
        self._events = _by_step(stored.events)
        self._holds = hold_spans(stored.events)
        self._messages = message_spans(stored.events)
        self._children = ChildFacts.of(stored.events)
        self._effects = effects_of(stored.definition)

    def make(self, number: int) -> TimelineStep | None:
        """Make a step; None where no worker had it before the execution ended."""
        done = self._records.get(number)
        current = self._stored.current if done is None else None
        if done is None and (current is None or current.number != number):
            return None
        source = StepSource(
            number=number,
            execution=self._execution,
            done=done,
            current=current,
            events=self._events.get(number, ()),
            due_ms=self._due_ms(number),
            now_ms=self._stored.now_ms,
            with_data=self._with_data,
        )
        attempts = read_attempts(source)
        if source.ended_ms is not None and not attempts:
            return None
        return self._step(source, attempts)

    def _due_ms(self, number: int) -> int | None:
        """Since when a step was due, where nothing else made it due since; None: not known."""
        execution = self._execution
        if number == 1:
            return unix_ms(execution.created_at)
        if execution.retries and number == execution.steps_before_retry + 1:
            return None  # since the retry, which its event tells
        before = self._records.get(number - 1)
        return None if before is None else unix_ms(before.completed_at)

    def _step(self, source: StepSource, attempts: Sequence[Attempt]) -> TimelineStep:
        calls, answer = self._read_calls(source)
        spans = self._spans(source, attempts, calls, answer)
        last = attempts[-1] if attempts else None
        response = answer.response
        return TimelineStep(
            number=source.number,
            status=_status_of(source),
            start_ms=attempts[0].start_ms if attempts else None,
            end_ms=source.ended_ms if source.done is None else unix_ms(source.done.completed_at),
            model=answer.model,
            finish_reason=None if response is None else response.finish_reason.value,
            tokens=answer.tokens,
            cost=answer.cost,
            attempts=_count_attempts(source, attempts),
            worker=None if last is None else last.worker,
            error=self._error_of(source),
            spans=tuple(spans if self._with_data else (replace(span, data=None) for span in spans)),
        )

    def _read_calls(self, source: StepSource) -> tuple[tuple[KnownCall, ...], KnownAnswer]:
        execution_id = self._execution.execution_id
        if source.done is not None:
            step = source.done.step
            calls = calls_of_record(step, self._stored.session_id, execution_id)
            response = step.inference_response
        else:
            calls = () if source.current is None else calls_of_journal(source.current.journal)
            response = None
        began = [each.first_sign_ms for each in calls]
        model = None if response is None else response.model
        return calls, KnownAnswer(response, model, [each for each in began if each is not None])

    def _spans(
        self, source: StepSource, attempts: Sequence[Attempt], calls: Sequence[KnownCall], answer: KnownAnswer
    ) -> list[Span]:
        of_calls = CallSpans(source=source, attempts=attempts, children=self._children, effects=self._effects)
        return _in_order(
            [
                *queue_spans(source, attempts),
                *delay_spans(source, attempts),
                *model_spans(source, attempts, answer),
                *(span for call in calls for span in of_calls.of(call)),
                *self._holds.get(source.number, ()),
                *self._messages.get(source.number, ()),
            ]
        )

    def _error_of(self, source: StepSource) -> str | None:
        """Why a step failed; of the last one also why its execution did."""
        own = () if source.done is None else source.done.step.errors
        is_last = self._stored.current is None and source.number == self._stored.committed
        if not own and (is_last or source.ended_ms is not None):
            own = self._execution.errors
        return own[-1].message if own else None


def _status_of(source: StepSource) -> StepStatus:
    current = source.current
    if current is None:
        return StepStatus.COMMITTED
    if source.ended_ms is not None:
        return StepStatus.ENDED
    if current.phase == "wait":
        return StepStatus.WAITING
    return StepStatus.RUNNING if current.claim and current.is_leased else StepStatus.DUE


def _count_attempts(source: StepSource, attempts: Sequence[Attempt]) -> int | None:
    """How often a worker took a step, where workers were lost; None where its events are gone."""
    is_told = any(each.event is not None for each in attempts) or source.current is not None
    if not attempts or not is_told:
        return None
    return 1 + sum(each.end is AttemptEnd.LOST and each.end_ms is not None for each in attempts)


def _by_step(events: Sequence[Event]) -> dict[int, list[Event]]:
    """Events by the step that they are about; the end of an execution by the step in which it ended."""
    found: dict[int, list[Event]] = {}
    for event in events:
        step = event.data.get("in_step") if event.type in EXECUTION_ENDS else event.step
        found.setdefault(step if isinstance(step, int) else event.step, []).append(event)
    return found


def effects_of(definition: Any) -> dict[str, str]:
    """Effect classes by the names of tools, of an agent's stored definition."""
    if not isinstance(definition, Mapping):
        return {}
    tools: object = cast("Mapping[str, object]", definition).get("tools")
    found = cast("Sequence[object]", tools) if isinstance(tools, list) else ()
    named = [cast("Mapping[str, object]", each) for each in found if isinstance(each, Mapping)]
    return {str(each.get("name")): str(each["effect"]) for each in named if "effect" in each}


def _in_order(spans: Sequence[Span]) -> list[Span]:
    """Spans by their beginnings, those that belong to another one behind it."""
    below: dict[str | None, list[Span]] = {}
    for span in sorted(spans, key=lambda each: each.start_ms):
        below.setdefault(span.parent, []).append(span)
    return [each for span in below.get(None, ()) for each in (span, *below.get(span.id, ()))]
