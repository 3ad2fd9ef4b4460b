"""One execution: from a message to its answer, over as many steps as it takes."""

from __future__ import annotations

import sys
from datetime import datetime
from typing import Final

from ...errors import InvalidTransition
from ..parts.storage import StoredParts
from ..values.error_info import ErrorInfo
from ..values.field_types import LARGEST_COUNT, Amount, Count, Text, UtcDatetime, default_from, utcnow
from ..values.ids import ExecutionId
from ..values.value import Value
from .budget import UNLIMITED, ExecutionBudget
from .inference import FinishReason
from .requests import RequestSummary
from .signals import NO_CONTINUATION, ExecutionContinuation, StopReason, StopSignal
from .status import ADVICE, ExecutionStatus
from .steps import AgentStep, StepExecution
from .tool_calls import ToolOutcome
from .usage import NO_USAGE, InferenceUsage

_LARGEST_COST: Final = sys.float_info.max
# Reasons for which a person, or what a person began, ends an execution.
_ASKED_FOR: Final = (StopReason.USER_REQUESTED, StopReason.STOP_REQUESTED, StopReason.HOLD_EXPIRED)


class ExecutionState(Value):
    """One execution in its current state.

    Attributes:
        number: From 1 within its session.
        waited_seconds: Time that does not count as elapsed: waiting for a person or a provider, and ended before a
            retry.
        waiting_since: Since when it waits; None when it does not.
        waiting_for: The requests that were open when it began to wait; the journal has those that are open now.
        step_executions: The steps that are done, in order.
        step_count: Steps, the current one included.
        usage: Tokens of all steps, the current one included.
        cost: US dollars of all steps whose price is known; None when none is.
        current_step: The step being worked on; None between steps.
        errors: Errors that belong to no step.
        operation_id: The message that started it.
        retries: How often it was retried.
        steps_before_retry: Steps that were done at the last retry; their signals no longer count.
        steps_generation: Raised when stored steps must be written again (see `split`).
        charged_calls: Auxiliary calls of the current step, as `<step>:<key>`, whose usage is counted already.
        parts: What capabilities keep for this execution; None without any.
        child_steps: Steps that children made for it; they count against the limit of steps.
        child_tokens, child_cost: The part of its usage and cost that children had. None: none was charged, or an
            earlier version has charged some.
        handed_over_by: Agents that have handed the execution over, in order.
        default_steps: Most steps of its own, where no budget was given; 0: one was given, and only that holds. None:
            not decided before it starts; no limit in one that an earlier version has started.
        rewound_to: The step, as `<execution>:<step>`, to which the session was taken back behind its end. It cannot be
            retried then: it would go on behind steps that the conversation lacks. None: it was not.
        expires_at: It is stopped at this time, where no model has been asked for it by then. None: it waits for as long
            as it takes.
        tags: The id of the execution that a fork goes on with: its messages are tagged as those of one execution. None:
            it began in this session, and they have its own id.
        completion_window: The time within which its model may answer, for a lower price. None: as its agent says.
    """

    execution_id: ExecutionId = default_from(ExecutionId.generate)
    number: Count = 1
    status: ExecutionStatus = ExecutionStatus.PENDING
    budget: ExecutionBudget = UNLIMITED
    created_at: UtcDatetime = default_from(utcnow)
    started_at: UtcDatetime | None = None
    completed_at: UtcDatetime | None = None
    waited_seconds: Amount = 0.0
    waiting_since: UtcDatetime | None = None
    waiting_for: tuple[RequestSummary, ...] = ()
    step_executions: tuple[StepExecution, ...] = ()
    step_count: Count = 0
    usage: InferenceUsage = NO_USAGE
    cost: Amount | None = None
    continuation: ExecutionContinuation = NO_CONTINUATION
    current_step_started_at: UtcDatetime | None = None
    current_step: AgentStep | None = None
    errors: tuple[ErrorInfo, ...] = ()
    operation_id: Text | None = None
    retries: Count = 0
    steps_before_retry: Count = 0
    steps_generation: Count = 0
    charged_calls: tuple[Text, ...] = ()
    parts: StoredParts | None = None
    child_steps: Count = 0
    child_tokens: Count | None = None
    child_cost: Amount | None = None
    handed_over_by: tuple[Text, ...] = ()
    default_steps: Count | None = None
    rewound_to: Text | None = None
    expires_at: UtcDatetime | None = None
    tags: Text | None = None
    completion_window: Text | None = None

    @property
    def tag_id(self) -> str:
        """The `execution_id` in the metadata of its messages."""
        return self.tags or self.execution_id

    @property
    def steps_used(self) -> int:
        """Steps that count against the limit: its own and those of its children."""
        return self.step_count + self.child_steps

    @property
    def all_steps(self) -> tuple[AgentStep, ...]:
        """The steps in order, the current one included."""
        done = tuple(each.step for each in self.step_executions)
        return done if self.current_step is None else (*done, self.current_step)

    @property
    def current_step_or_last(self) -> AgentStep | None:
        """The current step, or else the last one that is done."""
        return self.current_step or self.last_step

    @property
    def last_step(self) -> AgentStep | None:
        """The last step that is done."""
        return self.step_executions[-1].step if self.step_executions else None

    @property
    def stop_signal(self) -> StopSignal | None:
        """The most authoritative of the last step's signals and the live ones; of equals the step's."""
        return min(self._signals(), key=lambda signal: signal.reason.priority, default=None)

    def has_tool_calls(self) -> bool:
        """Whether the current or last step requested tool calls."""
        step = self.current_step_or_last
        return step is not None and step.has_tool_calls()

    def is_interrupted(self) -> bool:
        """Whether a message has interrupted the answer of the current or last step, which so is never the last one."""
        step = self.current_step_or_last
        return step is not None and step.inference_response.finish_reason is FinishReason.INTERRUPTED

    def should_stop(self) -> bool:
        """Whether to stop: a stop signal decides, else a request to continue, else whether tools were called."""
        if self.continuation.should_stop():
            return True
        if self.continuation.is_continuation_requested:
            return False
        return not (self.has_tool_calls() or self.is_interrupted())

    def duration(self, now: datetime | None = None) -> float:
        """Seconds from its start to its end, or to now; 0 before the start."""
        if self.started_at is None:
            return 0.0
        return max(0.0, ((self.completed_at or now or utcnow()) - self.started_at).total_seconds())

    def elapsed_seconds(self, now: datetime | None = None) -> float:
        """Seconds that count against `max_seconds`: its duration without the waiting."""
        end = self.completed_at or now or utcnow()
        waiting = max(0.0, (end - self.waiting_since).total_seconds()) if self.waiting_since else 0.0
        return max(0.0, self.duration(end) - self.waited_seconds - waiting)

    def all_errors(self) -> tuple[ErrorInfo, ...]:
        """The errors of all steps, then its own; the error of a call that failed the execution counts once."""
        of_steps = [error for step in self.all_steps for error in step.all_errors]
        return (*of_steps, *(error for error in self.errors if error not in of_steps))

    def has_errors(self) -> bool:
        """Tell whether any step, or the execution itself, has an error."""
        return bool(self.errors) or any(step.has_errors() for step in self.all_steps)

    def final_status(self) -> ExecutionStatus:
        """The status it would end with now: failed before stopped before completed. Recovered errors do not fail it.

        A tool error in the last step fails the execution, unless a limit of the budget ends it: it is stopped then.
        """
        if self.status.is_terminal():
            return self.status
        last = self.current_step_or_last
        if self.errors or (last is not None and last.has_failed() and not self._was_cut_short(last)):
            return ExecutionStatus.FAILED
        return ExecutionStatus.STOPPED if self._was_stopped(last) else ExecutionStatus.COMPLETED

    def final_reason(self) -> StopReason | None:
        """Why it stopped: the strongest signal's reason, else completed; None while it runs without a signal."""
        signal = self.stop_signal
        if signal is not None:
            return signal.reason
        return StopReason.COMPLETED if self.status is ExecutionStatus.COMPLETED else None

    def _was_cut_short(self, last: AgentStep) -> bool:
        """Tell whether a limit or a person ended it before the agent could react to the errors of its last calls."""
        if last.errors:
            return False
        if any(signal.reason.is_limit() for signal in self._signals()):
            return True
        signal = self.stop_signal
        asked = signal is not None and signal.reason in _ASKED_FOR
        # Calls that were in flight at a stop are unknown, which is no failure.
        return asked and not any(each.outcome is ToolOutcome.ERROR for each in last.tool_executions)

    def _was_stopped(self, last: AgentStep | None) -> bool:
        """Tell whether its strongest signal makes it stopped; a finish reason does when it cut the answer short."""
        signal = self.stop_signal
        if signal is None or signal.reason is not StopReason.FINISH_REASON_RECEIVED:
            return signal is not None and signal.reason.was_force_stopped()
        return last is not None and last.inference_response.finish_reason.is_cut_short()

    def with_status(self, status: ExecutionStatus, now: datetime) -> ExecutionState:
        """The same in this status, with the times that go with it; unchanged when it is in it already.

        Raises:
            InvalidTransition: `TRANSITIONS` does not allow it.
        """
        if status is self.status:
            return self
        if not self.status.may_become(status):
            raise InvalidTransition(
                execution_id=self.execution_id, before=self.status, after=status, advice=ADVICE.get(self.status, "")
            )
        return self._add_waiting(now)._with(
            status=status,
            started_at=self.started_at or (now if status is ExecutionStatus.IN_PROGRESS else None),
            completed_at=now if status.is_terminal() else None,
            waiting_since=now if status is ExecutionStatus.WAITING else None,
            waiting_for=(),
        )

    def with_waiting(self, waiting_for: tuple[RequestSummary, ...], now: datetime) -> ExecutionState:
        """Waiting for these requests; one that waits already waits for these from now on.

        Raises:
            InvalidTransition: It neither runs nor waits.
        """
        return self.with_status(ExecutionStatus.WAITING, now)._with(waiting_for=waiting_for)

    def with_continuation(self, continuation: ExecutionContinuation) -> ExecutionState:
        """Replace the stop signals and the request to continue."""
        return self._with(continuation=continuation)

    def with_limits(self, limits: ExecutionBudget, default_steps: int) -> ExecutionState:
        """Its budget capped by the agent's limits.

        Args:
            default_steps: Most steps where no budget was given with the message either; 0: no limit.
        """
        decided = default_steps if self.default_steps is None else self.default_steps
        return self._with(budget=limits.capped_by(self.budget), default_steps=decided)

    def with_budget(self, budget: ExecutionBudget) -> ExecutionState:
        """Another budget while it runs; only that holds from now on."""
        return self._with(budget=budget, default_steps=0)

    def with_rewind(self, to: str) -> ExecutionState:
        """The same behind a rewind of its session to this step."""
        return self._with(rewound_to=to)

    def with_charge(self, usage: InferenceUsage, cost: float | None = None) -> ExecutionState:
        """Add tokens and dollars: of a step, of an unusable answer, of a child. Never infinite."""
        known = cost if self.cost is None else min(self.cost + (cost or 0.0), _LARGEST_COST)
        return self._with(usage=self.usage + usage, cost=known)

    def with_child_charge(self, usage: InferenceUsage, cost: float | None, steps: int) -> ExecutionState:
        """Add what a child has used: tokens, dollars and steps."""
        charged = self.with_charge(usage, cost)._with(child_steps=self.child_steps + steps)
        if self.child_steps and self.child_tokens is None:
            return charged
        tokens, dollars = (self.child_tokens or 0) + usage.total, (self.child_cost or 0.0) + (cost or 0.0)
        return charged._with(child_tokens=min(tokens, LARGEST_COUNT), child_cost=min(dollars, _LARGEST_COST))

    def with_child_time(self, seconds: float) -> ExecutionState:
        """Count `seconds` as elapsed: the time for which it has waited for children."""
        return self._with(waited_seconds=max(0.0, self.waited_seconds - seconds))

    def with_time_apart(self, seconds: float) -> ExecutionState:
        """Do not count `seconds` as elapsed: the time for which it has waited for a provider."""
        return self._with(waited_seconds=self.waited_seconds + seconds)

    def with_handoff(self, by: str) -> ExecutionState:
        """Handed over by this agent to another one."""
        return self._with(handed_over_by=(*self.handed_over_by, by))

    def with_auxiliary_charge(self, step: int, key: str, usage: InferenceUsage, cost: float | None) -> ExecutionState:
        """Add the usage of an auxiliary call of a step; unchanged when the call is counted already."""
        name = f"{step}:{key}"
        if name in self.charged_calls:
            return self
        return self.with_charge(usage, cost)._with(charged_calls=(*self.charged_calls, name))

    def without_charged_calls(self) -> ExecutionState:
        """The same where no journal has the auxiliary answers of its next step: they are asked for, and paid, again."""
        return self._with(charged_calls=()) if self.charged_calls else self

    def as_fork(self, execution_id: ExecutionId, *, idle: float) -> ExecutionState:
        """The same in another session; `idle` seconds since its last step do not count."""
        waited = self.waited_seconds + idle
        return self._with(execution_id=execution_id, tags=self.tag_id, operation_id=None, waited_seconds=waited)

    def with_parts(self, parts: StoredParts | None) -> ExecutionState:
        """Other parts of capabilities."""
        return self._with(parts=parts)

    def with_current_step(self, step: AgentStep, started_at: datetime) -> ExecutionState:
        """The step being worked on. A new one is counted and charged; the same one again, by its id, is not.

        A current step with another id is archived first.

        Raises:
            InvalidTransition: The execution has ended, so that no step can be added.
        """
        if self.status.is_terminal():
            raise InvalidTransition(
                execution_id=self.execution_id, before=self.status, after="another step", advice=ADVICE[self.status]
            )
        if self.current_step is not None and self.current_step.id == step.id:
            return self._with(current_step=step)
        if self.current_step is not None:
            return self.with_current_step_completed(started_at).with_current_step(step, started_at)
        charged = self.with_charge(step.inference_response.usage, step.inference_response.cost)
        if charged.charged_calls:
            own = tuple(name for name in charged.charged_calls if name.startswith(f"{step.number}:"))
            charged = charged._with(charged_calls=own)
        return charged._with(current_step=step, current_step_started_at=started_at, step_count=self.step_count + 1)

    def with_current_step_completed(self, now: datetime, claim: str = "") -> ExecutionState:
        """The current step archived with the signals of now; unchanged without one. The request to continue ends."""
        step = self.current_step
        if step is None:
            return self
        continuation = self.continuation.with_continuation_requested(False)
        done = StepExecution(
            id=step.id,
            step=step,
            continuation=continuation,
            started_at=self.current_step_started_at or now,
            completed_at=now,
            claim=claim,
        )
        return self._with(
            step_executions=(*self.step_executions, done),
            continuation=continuation,
            current_step=None,
            current_step_started_at=None,
        )

    def with_end_taken_back(self, errors: tuple[ErrorInfo, ...]) -> ExecutionState:
        """In progress with these errors, as before a hook ended it: what the step has obtained can still be added."""
        return self._with(status=ExecutionStatus.IN_PROGRESS, completed_at=None, errors=errors)

    def with_last_claim(self, claim: str) -> ExecutionState:
        """The last step that is done with the claim that commits it, where it names none."""
        if not self.step_executions or self.step_executions[-1].claim:
            return self
        *earlier, last = self.step_executions
        return self._with(step_executions=(*earlier, last.with_claim(claim)))

    def with_error(self, error: ErrorInfo) -> ExecutionState:
        """The error on the current step, or on the execution when there is none."""
        if self.current_step is not None:
            return self._with(current_step=self.current_step.with_error(error))
        return self._with(errors=(*self.errors, error))

    def for_retry(self, now: datetime, budget: ExecutionBudget | None = None) -> ExecutionState:
        """In progress again with its steps; what ended it is cleared, and the time since then does not count."""
        idle = max(0.0, (now - self.completed_at).total_seconds()) if self.completed_at and self.started_at else 0.0
        return self.with_status(ExecutionStatus.IN_PROGRESS, now)._with(
            budget=self.budget if budget is None else budget,
            default_steps=self.default_steps if budget is None else 0,
            continuation=NO_CONTINUATION,
            errors=(),
            expires_at=None,
            retries=self.retries + 1,
            steps_before_retry=len(self.step_executions),
            waited_seconds=self.waited_seconds + idle,
        )

    def is_written_like(self, after: ExecutionState) -> bool:
        """Tell whether the stored steps of this one are the beginning of the stored steps of `after`."""
        return self.execution_id == after.execution_id and self.steps_generation == after.steps_generation

    def with_steps_written_anew(self) -> ExecutionState:
        """The steps hold their messages themselves from now on, because the store's section was replaced."""
        if not any(each.step.outputs for each in self.step_executions) and not self.current_step:
            return self
        return self._with(
            step_executions=tuple(each.with_step(_detach_outputs(each.step)) for each in self.step_executions),
            current_step=_detach_outputs(self.current_step) if self.current_step else None,
            steps_generation=self.steps_generation + 1,
        )

    def with_steps_read(self, done: tuple[StepExecution, ...], current: AgentStep | None) -> ExecutionState:
        """The same with these steps, as a store reads them back."""
        return self._with(step_executions=done, current_step=current)

    def _add_waiting(self, now: datetime) -> ExecutionState:
        if self.waiting_since is None:
            return self
        waited = max(0.0, (now - self.waiting_since).total_seconds())
        return self._with(waited_seconds=self.waited_seconds + waited)

    def _signals(self) -> tuple[StopSignal, ...]:
        return (*self._archived_continuation().stop_signals, *self.continuation.stop_signals)

    def _archived_continuation(self) -> ExecutionContinuation:
        if len(self.step_executions) <= self.steps_before_retry:
            return NO_CONTINUATION
        return self.step_executions[-1].continuation


def _detach_outputs(step: AgentStep) -> AgentStep:
    return step.with_outputs(step.output_messages, ())
