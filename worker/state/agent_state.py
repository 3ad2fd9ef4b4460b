"""`AgentState`: an agent's identity, its context and its execution, in one immutable value.

Every `with_…` gives a new state and leaves this one as it was. Those that stamp time take `now` (None is the clock's).
Chain them: with no execution yet, two calls on the same state make two executions with different ids.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from pydantic import Field

from ..errors import InvalidTransition, StateUnreadable
from .budget import UNLIMITED, ExecutionBudget
from .compilers import ConversationWithCurrentToolTrace, MessageCompiler
from .context import AgentContext, LLMConfig, ResponseFormat
from .execution import ExecutionState, ExecutionStatus
from .frozen import FrozenDict
from .ids import AgentId, ExecutionId
from .messages import DEFAULT, Message, MessageStore
from .outputs import with_step_output
from .problems import ErrorInfo
from .signals import StopReason, StopSignal
from .steps import AgentStep, AgentStepType
from .usage import NO_USAGE, InferenceUsage
from .value import Count, UtcDatetime, Value, utcnow

SCHEMA_VERSION = 1
"""Of the stored form. Raised when an older worker could no longer carry the data without loss."""


def _schema_version() -> int:
    return SCHEMA_VERSION


class AgentState(Value):
    """The whole of an agent between two steps.

    Attributes:
        parent_agent_id: The agent that started it as its sub-agent; None for one that runs by itself.
        updated_at: Never before the last change.
        execution_count: Executions that were started.
        llm_config: A model for this agent alone; None is its definition's.
        execution: The current or last one; None before the first, and after `for_next_execution`.
    """

    schema_version: Count = Field(default_factory=_schema_version)
    agent_id: AgentId = Field(default_factory=AgentId.generate)
    parent_agent_id: AgentId | None = None
    created_at: UtcDatetime = Field(default_factory=utcnow)
    updated_at: UtcDatetime = Field(default_factory=utcnow)
    execution_count: Count = 0
    llm_config: LLMConfig | None = None
    context: AgentContext = AgentContext()
    execution: ExecutionState | None = None

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

    # What it is

    @property
    def store(self) -> MessageStore:
        return self.context.store

    @property
    def metadata(self) -> FrozenDict:
        return self.context.metadata

    @property
    def system_prompt(self) -> str:
        return self.context.system_prompt

    @property
    def messages(self) -> tuple[Message, ...]:
        """As the default compiler gives them; walks over all of them."""
        return ConversationWithCurrentToolTrace().compile(self)

    @property
    def status(self) -> ExecutionStatus | None:
        """None when there is no execution."""
        return self.execution.status if self.execution else None

    @property
    def step_count(self) -> int:
        return self.execution.step_count if self.execution else 0

    @property
    def steps(self) -> tuple[AgentStep, ...]:
        """Those that are done."""
        return tuple(each.step for each in self.execution.step_executions) if self.execution else ()

    @property
    def current_step(self) -> AgentStep | None:
        return self.execution.current_step if self.execution else None

    @property
    def last_step(self) -> AgentStep | None:
        """The last one that is done."""
        return self.execution.last_step if self.execution else None

    @property
    def current_step_or_last(self) -> AgentStep | None:
        return self.execution.current_step_or_last if self.execution else None

    @property
    def last_step_type(self) -> AgentStepType | None:
        return self.last_step.step_type if self.last_step else None

    @property
    def stop_signal(self) -> StopSignal | None:
        """The most authoritative one."""
        return self.execution.stop_signal if self.execution else None

    @property
    def last_stop_reason(self) -> StopReason | None:
        """The most authoritative signal's; `COMPLETED` for a completed execution without signals."""
        return self.execution.final_reason() if self.execution else None

    @property
    def usage(self) -> InferenceUsage:
        """Tokens of the execution so far."""
        return self.execution.usage if self.execution else NO_USAGE

    @property
    def cost(self) -> float | None:
        """US dollars of the execution so far; None when no answer had a known price."""
        return self.execution.cost if self.execution else None

    @property
    def errors(self) -> tuple[ErrorInfo, ...]:
        """All of the execution; those it recovered from too."""
        return self.execution.all_errors() if self.execution else ()

    @property
    def final_response(self) -> str:
        """The answer; empty without one."""
        step = self.current_step_or_last
        return step.output_text if step is not None and step.has_final_response() else ""

    @property
    def current_response(self) -> str:
        """The answer, or else what the latest step said."""
        step = self.current_step_or_last
        return step.output_text if step is not None else ""

    def has_errors(self) -> bool:
        return self.execution is not None and self.execution.has_errors()

    def has_final_response(self) -> bool:
        step = self.current_step_or_last
        return step is not None and step.has_final_response()

    def should_stop(self) -> bool:
        """True without an execution; else see `ExecutionState.should_stop`."""
        return self.execution is None or self.execution.should_stop()

    def execution_duration(self, now: datetime | None = None) -> float | None:
        """Seconds from the execution's start to its end, or to now; None without an execution."""
        return self.execution.duration(now) if self.execution else None

    def input_messages(self, step: AgentStep, compiler: MessageCompiler | None = None) -> tuple[Message, ...]:
        """What the model saw in this step, made from the store as it was then.

        Raises:
            StateUnreadable: A section was replaced since, so that the messages are gone.
        """
        gone = [name for name, seen in step.inputs.items() if self.store.section(name).generation != seen.generation]
        if gone:
            raise StateUnreadable(f"inputs of step {step.number}", f"replaced since: {', '.join(gone)}")
        then = self._with(context=self.context.with_store(self.store.upto(step.inputs)))
        return (compiler or ConversationWithCurrentToolTrace()).compile(then)

    def debug(self) -> dict[str, Any]:
        """The state in a few lines, for logs and assertions."""
        return {
            "status": self.status,
            "execution_count": self.execution_count,
            "has_execution": self.execution is not None,
            "execution_id": self.execution.execution_id if self.execution else None,
            "steps": self.step_count,
            "continuation": self.execution.continuation.explain() if self.execution else "No Execution",
            "has_errors": self.has_errors(),
            "errors": self.errors,
            "usage": self.usage.to_dict(),
        }

    # Context

    def with_context(self, context: AgentContext, *, now: datetime | None = None) -> AgentState:
        """Another context; where its messages do not continue the present ones, they replace them."""
        if context.store is self.store:
            return self._changed(now, context=context)
        store = context.store.after(self.store)
        replaced = any(
            store.section(name).generation != section.generation for name, section in self.store.sections.items()
        )
        execution = self.execution.with_steps_written_anew() if self.execution and replaced else self.execution
        return self._changed(now, context=context.with_store(store), execution=execution)

    def with_user_message(self, message: str | Message, *, now: datetime | None = None) -> AgentState:
        """One message more from the user, untagged."""
        return self.with_messages_added((Message.user(message) if isinstance(message, str) else message,), now=now)

    def with_messages_added(
        self, messages: Iterable[Message], section: str = DEFAULT, *, now: datetime | None = None
    ) -> AgentState:
        return self._changed(now, context=self.context.with_messages_added(messages, section))

    def with_messages(
        self, messages: Iterable[Message], section: str = DEFAULT, *, now: datetime | None = None
    ) -> AgentState:
        """Another content for the section, the default one unless named. Steps keep what they said."""
        return self.with_message_store(self.store.replace(messages, section), now=now)

    def with_message_store(self, store: MessageStore, *, now: datetime | None = None) -> AgentState:
        """Another content for all sections."""
        return self.with_context(self.context.with_store(store), now=now)

    def with_metadata(self, key: str, value: Any, *, now: datetime | None = None) -> AgentState:
        """Raises `InvalidInput`, with the path, when the value is no JSON."""
        return self.with_context(self.context.with_metadata(key, value), now=now)

    def without_metadata(self, key: str, *, now: datetime | None = None) -> AgentState:
        return self.with_context(self.context.without_metadata(key), now=now)

    def with_system_prompt(self, prompt: str, *, now: datetime | None = None) -> AgentState:
        return self.with_context(self.context.with_system_prompt(prompt), now=now)

    def with_response_format(
        self, response_format: ResponseFormat | None, *, now: datetime | None = None
    ) -> AgentState:
        return self.with_context(self.context.with_response_format(response_format), now=now)

    def with_llm_config(self, config: LLMConfig | None, *, now: datetime | None = None) -> AgentState:
        """None returns to the definition's model."""
        return self._changed(now, llm_config=config)

    # Execution

    def with_execution(
        self,
        execution_id: ExecutionId | str | None = None,
        budget: ExecutionBudget = UNLIMITED,
        operation_id: str | None = None,
        *,
        now: datetime | None = None,
    ) -> AgentState:
        """The next execution, pending.

        Raises:
            InvalidTransition: The present one has not ended.
        """
        if self.execution is not None and not self.execution.status.is_terminal():
            advice = "It has not ended; stop it first."
            raise InvalidTransition(self.execution.execution_id, self.execution.status, "the next execution", advice)
        moment = now or utcnow()
        execution = ExecutionState(
            execution_id=ExecutionId.of(execution_id) if execution_id is not None else ExecutionId.generate(),
            number=self.execution_count + 1,
            budget=budget,
            created_at=moment,
            operation_id=operation_id,
        )
        return self._changed(moment, execution=execution)

    def with_execution_started(self, *, now: datetime | None = None) -> AgentState:
        """In progress and counted; unchanged when it is in progress already, so that every step may ask for it."""
        if self.status is ExecutionStatus.IN_PROGRESS:
            return self
        if self.status not in (None, ExecutionStatus.PENDING):
            return self.with_execution_status(ExecutionStatus.IN_PROGRESS, now=now)
        started = self._ensured(now).with_execution_status(ExecutionStatus.IN_PROGRESS, now=now)
        return started._with(execution_count=self.execution_count + 1)

    def with_current_step(
        self, step: AgentStep, *, started_at: datetime | None = None, now: datetime | None = None
    ) -> AgentState:
        """The step being worked on, its messages tagged and appended.

        Given again under the same id, only the messages that are new are appended, and nothing is counted twice.

        Args:
            started_at: When its driver call began, so that its duration covers it; None is now.
        """
        moment = now or utcnow()
        state = self._ensured(moment)
        context, tagged = with_step_output(state, step)
        execution = state._execution.with_current_step(tagged, started_at or moment)
        return state._changed(moment, context=context, execution=execution)

    def with_current_step_completed(
        self, status: ExecutionStatus | None = None, *, claim: str = "", now: datetime | None = None
    ) -> AgentState:
        """The current step archived with the signals of now; unchanged without one."""
        if self.current_step is None:
            return self
        moment = now or utcnow()
        execution = self._execution.with_current_step_completed(moment, claim)
        return self._changed(moment, execution=execution.with_status(status, moment) if status else execution)

    def with_stop_signal(self, signal: StopSignal, *, now: datetime | None = None) -> AgentState:
        """One signal more; none is replaced."""
        state = self._ensured(now)
        continuation = state._execution.continuation.with_signal(signal)
        return state._changed(now, execution=state._execution.with_continuation(continuation))

    def with_execution_continued(self, *, now: datetime | None = None) -> AgentState:
        """Go on in spite of signals, until the end of this step."""
        state = self._ensured(now)
        continuation = state._execution.continuation.with_continuation_requested()
        return state._changed(now, execution=state._execution.with_continuation(continuation))

    def with_usage(
        self, usage: InferenceUsage, cost: float | None = None, *, now: datetime | None = None
    ) -> AgentState:
        """Tokens and dollars that belong to no step of this execution: a useless answer's, a child's."""
        state = self._ensured(now)
        return state._changed(now, execution=state._execution.with_charge(usage, cost))

    def with_execution_status(self, status: ExecutionStatus, *, now: datetime | None = None) -> AgentState:
        """Raises `InvalidTransition` when `TRANSITIONS` does not allow it."""
        moment = now or utcnow()
        state = self._ensured(moment)
        return state._changed(moment, execution=state._execution.with_status(status, moment))

    def with_execution_waiting(self, *, now: datetime | None = None) -> AgentState:
        """Waiting for a person's or a child's answer; the time does not count as elapsed."""
        return self.with_execution_status(ExecutionStatus.WAITING, now=now)

    def with_execution_resumed(self, *, now: datetime | None = None) -> AgentState:
        return self.with_execution_status(ExecutionStatus.IN_PROGRESS, now=now)

    def with_failure(self, error: ErrorInfo, *, now: datetime | None = None) -> AgentState:
        """Failed, with the error on the current step, which is archived, or on the execution. Signals are kept."""
        moment = now or utcnow()
        state = self._ensured(moment)
        execution = state._execution.with_error(error).with_current_step_completed(moment)
        return state._changed(moment, execution=execution.with_status(ExecutionStatus.FAILED, moment))

    def with_execution_completed(self, *, claim: str = "", now: datetime | None = None) -> AgentState:
        """Ended: failed before stopped before completed (`ExecutionState.final_status`)."""
        moment = now or utcnow()
        state = self._ensured(moment)
        execution = state._execution.with_current_step_completed(moment, claim)
        return state._changed(moment, execution=execution.with_status(execution.final_status(), moment))

    def for_retry(self, budget: ExecutionBudget | None = None, *, now: datetime | None = None) -> AgentState:
        """A failed or stopped execution in progress again, with its steps; None keeps its budget.

        Raises:
            InvalidTransition: There is none, or it did not fail or stop.
        """
        moment = now or utcnow()
        if self.execution is None or self.status not in (ExecutionStatus.FAILED, ExecutionStatus.STOPPED):
            execution_id = self.execution.execution_id if self.execution else "(none)"
            raise InvalidTransition(
                execution_id, self.status or "no execution", "retry", "Only failed and stopped ones."
            )
        return self._changed(moment, execution=self.execution.for_retry(moment, budget))

    def for_next_execution(self, *, now: datetime | None = None) -> AgentState:
        """Without execution; identity, context, model and count are kept."""
        return self._changed(now, execution=None)

    # How

    def with_parts(self, context: AgentContext, execution: ExecutionState | None) -> AgentState:
        """The same with these parts, as a store reads them back; no time is stamped."""
        return self._with(context=context, execution=execution)

    @property
    def _execution(self) -> ExecutionState:
        assert self.execution is not None
        return self.execution

    def _ensured(self, now: datetime | None) -> AgentState:
        return self if self.execution is not None else self.with_execution(now=now)

    def _changed(self, now: datetime | None, **changes: Any) -> AgentState:
        return self._with(updated_at=max(now or utcnow(), self.updated_at), **changes)
