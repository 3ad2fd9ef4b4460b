"""`AgentState`: an agent's identity, its context and its execution, in one immutable value.

Every `with_…` gives a new state and leaves this one as it was. Those that stamp time take `now` (None is the clock's).
Chain them: with no execution yet, two calls on the same state make two executions with different ids.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from functools import cache
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Final

from ..errors import InvalidTransition, StateUnreadable
from .agent_fields import schema_version_of
from .agent_parts import AgentWithParts
from .conversation.compilers import ConversationWithCurrentToolTrace, MessageCompiler
from .conversation.context import AgentContext, LLMConfig, ResponseFormat
from .conversation.messages import Message, MessageStore
from .execution.budget import UNLIMITED, ExecutionBudget
from .execution.execution import ExecutionState, ExecutionStatus
from .execution.requests import RequestSummary
from .execution.signals import StopSignal
from .execution.steps import AgentStep, with_step_output
from .execution.usage import InferenceUsage
from .values.error_info import ErrorInfo
from .values.field_types import check_amount, check_kind, utcnow
from .values.frozen import FrozenDict
from .values.ids import AgentId, ExecutionId

if TYPE_CHECKING:
    from ..capabilities.smart.smart_state import SmartView
    from ..run_state.view import RunView

_REPLACED = "only the newest generation of a section is stored; append where it is read later. Replaced since:"

_WORKER: Final = __name__.removesuffix(".state.agent_state")


@cache
def _view(name: str) -> Any:
    """The class of that name, which shows a state; the state imports no capability, so it is loaded when it is read."""
    return resolve_name(f"{_WORKER}.{name}")


class AgentState(AgentWithParts):
    """An agent between two steps; `AgentFields` lists its fields."""

    @classmethod
    def fresh(
        cls,
        *,
        system_prompt: str = "",
        metadata: dict[str, Any] | None = None,
        response_format: ResponseFormat | None = None,
        llm_config: LLMConfig | None = None,
        agent_id: AgentId | str | None = None,
        parent_agent_id: AgentId | str | None = None,
        now: datetime | None = None,
    ) -> AgentState:
        """A new agent, without messages and executions."""
        moment = now or utcnow()
        context = AgentContext(
            system_prompt=system_prompt, metadata=FrozenDict(metadata or {}), response_format=response_format
        )
        return cls(
            agent_id=AgentId.of(agent_id) if agent_id is not None else AgentId.generate(),
            parent_agent_id=AgentId.of(parent_agent_id) if parent_agent_id is not None else None,
            created_at=moment,
            updated_at=moment,
            llm_config=llm_config,
            context=context,
        )

    @classmethod
    def from_checkpoint(cls, checkpoint: dict[str, Any]) -> AgentState:
        """Read what `state.run.to_checkpoint` gave; raises as `from_dict` does."""
        return cls.from_dict(checkpoint)

    @property
    def run(self) -> RunView:
        """The state under the names of Locus, with builders."""
        return _view("run_state.view:RunView")(self)

    @property
    def smart(self) -> SmartView:
        """The state under the names of `SmartState`."""
        return _view("capabilities.smart.smart_state:SmartView")(self)

    @property
    def messages(self) -> tuple[Message, ...]:
        """The messages as the default compiler chooses them; walks over all of them."""
        return ConversationWithCurrentToolTrace().compile(self)

    def input_messages(self, step: AgentStep, compiler: MessageCompiler | None = None) -> tuple[Message, ...]:
        """The messages that the model saw in this step, compiled from the store as it was then.

        Raises:
            StateUnreadable: A section was replaced since, so that the messages are gone.
        """
        gone = [name for name, seen in step.inputs.items() if self.store.section(name).generation != seen.generation]
        if gone:
            raise StateUnreadable(f"inputs of step {step.number}", f"{_REPLACED} {', '.join(gone)}")
        then = self._with(context=self.context.with_store(self.store.upto(step.inputs)))
        return (compiler or ConversationWithCurrentToolTrace()).compile(then)

    def with_execution(
        self,
        execution_id: ExecutionId | str | None = None,
        budget: ExecutionBudget | None = None,
        operation_id: str | None = None,
        *,
        now: datetime | None = None,
        expires_at: datetime | None = None,
        completion_window: str | None = None,
    ) -> AgentState:
        """Begin the next execution, pending.

        Args:
            budget: None: none is given; an agent that has none either gets the default limit of steps.
            expires_at: It is stopped then, where no model has been asked for it. None: never.
            completion_window: The time within which its model may answer. None: that of the execution before.
        Raises:
            InvalidTransition: The present one has not ended.
        """
        if self.execution is not None and not self.execution.status.is_terminal():
            advice = "It has not ended; stop it first."
            raise InvalidTransition(
                execution_id=self.execution.execution_id,
                before=self.execution.status,
                after="the next execution",
                advice=advice,
            )
        moment = now or utcnow()
        execution = ExecutionState(
            execution_id=ExecutionId.of(execution_id) if execution_id is not None else ExecutionId.generate(),
            number=self.execution_count + 1,
            budget=UNLIMITED if budget is None else budget,
            default_steps=None if budget is None else 0,
            created_at=moment,
            operation_id=operation_id,
            expires_at=expires_at,
            completion_window=completion_window or (self.execution and self.execution.completion_window),
        )
        return self._change(moment, execution=execution, schema_version=schema_version_of(self.parts, execution))

    def with_execution_started(self, *, now: datetime | None = None) -> AgentState:
        """Start and count the execution; unchanged when it is in progress already, so that every step may ask for it.

        Raises:
            InvalidTransition: It waits or has ended: resume it, retry it, or begin the next one.
        """
        if self.status is ExecutionStatus.IN_PROGRESS:
            return self
        state = self._ensure_execution(now)
        if state.status is not ExecutionStatus.PENDING:
            advice = "Resume it when it waits, retry it when it failed or was stopped, else begin the next one."
            raise InvalidTransition(
                execution_id=state._execution.execution_id, before=str(self.status), after="started", advice=advice
            )
        return state.with_execution_status(ExecutionStatus.IN_PROGRESS, now=now)._count_execution(self.execution)

    def with_current_step(
        self, step: AgentStep, *, started_at: datetime | None = None, now: datetime | None = None
    ) -> AgentState:
        """Set the current step, and append its messages with their tags.

        Given again under the same id, only the messages that are new are appended, and nothing is counted twice.

        Args:
            started_at: When its driver call began, so that its duration covers it; None is now.
        """
        moment = now or utcnow()
        state = self._ensure_execution(moment)
        context, tagged = with_step_output(state, step)
        execution = state._execution.with_current_step(tagged, started_at or moment)
        return state._change(moment, context=context, execution=execution)

    def with_current_step_completed(
        self, status: ExecutionStatus | None = None, *, claim: str = "", now: datetime | None = None
    ) -> AgentState:
        """Archive the current step with the signals of now; unchanged without one."""
        if self.execution is None or self.execution.current_step is None:
            return self
        moment = now or utcnow()
        execution = self._execution.with_current_step_completed(moment, claim)
        return self._change(moment, execution=execution.with_status(status, moment) if status else execution)

    def with_stop_signal(self, signal: StopSignal, *, now: datetime | None = None) -> AgentState:
        """Add a stop signal; none is replaced."""
        state = self._ensure_execution(now)
        continuation = state._execution.continuation.with_signal(signal)
        return state._change(now, execution=state._execution.with_continuation(continuation))

    def with_execution_continued(self, *, now: datetime | None = None) -> AgentState:
        """Continue in spite of stop signals, until the end of this step."""
        state = self._ensure_execution(now)
        continuation = state._execution.continuation.with_continuation_requested()
        return state._change(now, execution=state._execution.with_continuation(continuation))

    def with_usage(
        self, usage: InferenceUsage, cost: float | None = None, *, now: datetime | None = None
    ) -> AgentState:
        """Charge tokens and dollars that belong to no step of this execution, such as those of a child.

        Raises:
            InvalidInput: The cost is no number from 0.
        """
        if cost is not None:
            cost = check_amount("with_usage(cost)", cost, "give US dollars as a number, from 0.")
        state = self._ensure_execution(now)
        return state._change(now, execution=state._execution.with_charge(usage, cost))

    def with_execution_status(self, status: ExecutionStatus, *, now: datetime | None = None) -> AgentState:
        """Change the status. Raises `InvalidTransition` when `TRANSITIONS` does not allow it."""
        moment = now or utcnow()
        state = self._ensure_execution(moment)
        return state._change(moment, execution=state._execution.with_status(status, moment))

    def with_execution_waiting(
        self, waiting_for: Iterable[RequestSummary] = (), *, now: datetime | None = None
    ) -> AgentState:
        """Let the execution wait for answers to requests; the time does not count as elapsed.

        One that waits already waits for these requests from now on. Resume it first to count the time in between.
        """
        moment = now or utcnow()
        state = self._ensure_execution(moment)
        return state._change(moment, execution=state._execution.with_waiting(tuple(waiting_for), moment))

    def with_execution_resumed(self, *, now: datetime | None = None) -> AgentState:
        """Put a waiting execution in progress again."""
        return self.with_execution_status(ExecutionStatus.IN_PROGRESS, now=now)

    def with_failure(self, error: ErrorInfo, *, now: datetime | None = None) -> AgentState:
        """Fail the execution, with the error on the current step, which is archived, or the execution. Signals stay."""
        moment = now or utcnow()
        state = self._ensure_execution(moment)
        execution = state._execution.with_error(check_kind("error", error, ErrorInfo))
        execution = execution.with_current_step_completed(moment)
        return state._change(moment, execution=execution.with_status(ExecutionStatus.FAILED, moment))

    def with_execution_completed(self, *, claim: str = "", now: datetime | None = None) -> AgentState:
        """End the execution: failed before stopped before completed (`ExecutionState.final_status`)."""
        moment = now or utcnow()
        state = self._ensure_execution(moment)
        execution = state._execution.with_current_step_completed(moment, claim)
        return state._change(moment, execution=execution.with_status(execution.final_status(), moment))

    def for_retry(self, budget: ExecutionBudget | None = None, *, now: datetime | None = None) -> AgentState:
        """Put a failed or stopped execution in progress again, with its steps; None keeps its budget.

        Raises:
            InvalidTransition: There is none, or it did not fail or stop.
        """
        moment = now or utcnow()
        if self.execution is not None and self.execution.rewound_to is not None:
            raise InvalidTransition(
                execution_id=self.execution.execution_id,
                before="rewound",
                after="retry",
                advice="Its session was rewound; send a message.",
            )
        if self.execution is None or self.status not in (ExecutionStatus.FAILED, ExecutionStatus.STOPPED):
            execution_id = self.execution.execution_id if self.execution else "(none)"
            raise InvalidTransition(
                execution_id=execution_id,
                before=self.status or "no execution",
                after="retry",
                advice="Only failed and stopped ones.",
            )
        return self._change(moment, execution=self.execution.for_retry(moment, budget))._count_execution(self.execution)

    def rewound(self, past: AgentState, to: str, *, now: datetime | None = None) -> AgentState:
        """Take conversation, prompt, model, metadata and parts back to those of an earlier state.

        The executions that there were stay, with all that they have spent; the last one cannot be retried any more.

        Args:
            past: An earlier state of the same session.
            to: Its step, as `<execution>:<step>`.
        """
        execution = None if self.execution is None else self.execution.with_rewind(to)
        return self._change(
            now,
            context=past.context,
            llm_config=past.llm_config,
            parts=past.parts,
            execution=execution,
            schema_version=schema_version_of(past.parts, execution),
        )

    def following(self, before: AgentState) -> AgentState:
        """The same state with the generations that its lists have when it is stored after that one."""
        store, sections = self.store.after(before.store), before.store.sections
        replaced = any(store.section(name).generation != section.generation for name, section in sections.items())
        execution, earlier = self.execution, before.execution
        if execution is not None and execution.parts is not None:
            parts = earlier.parts if earlier is not None and earlier.execution_id == execution.execution_id else None
            execution = execution._with(parts=execution.parts.following(parts))
        if execution is not None and earlier is not None and earlier.is_written_like(execution):
            done = earlier.step_executions
            if replaced or execution.step_executions[: len(done)] != done:
                execution = execution.with_steps_written_anew()
        parts = None if self.parts is None else self.parts.following(before.parts)
        return self._with(context=self.context.with_store(store), execution=execution, parts=parts)

    def without_conversation(self, *, now: datetime | None = None) -> AgentState:
        """Remove all messages and the execution; prompt, model, metadata, parts and count stay."""
        return self.for_next_execution(now=now).with_message_store(MessageStore(), now=now)

    def for_next_execution(self, *, now: datetime | None = None) -> AgentState:
        """Remove the execution; identity, context, model and count stay."""
        return self._change(now, execution=None, schema_version=schema_version_of(self.parts, None))

    @property
    def _execution(self) -> ExecutionState:
        assert self.execution is not None
        return self.execution

    def _count_execution(self, before: ExecutionState | None) -> AgentState:
        """Count the execution, unless it had started before."""
        started_before = before is not None and before.started_at is not None
        return self if started_before else self._with(execution_count=self.execution_count + 1)

    def _ensure_execution(self, now: datetime | None) -> AgentState:
        return self if self.execution is not None else self.with_execution(now=now)
