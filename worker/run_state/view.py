"""`state.run`: the state under the names of Locus, with builders that give another state."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from ..errors import InvalidInput
from ..state.conversation.messages import DEFAULT, Message
from ..state.execution.status import ExecutionStatus
from ..state.execution.steps import AgentStep
from ..state.execution.tool_calls import ToolExecution
from ..state.execution.usage import InferenceUsage
from ..state.values.field_types import LARGEST_COUNT, is_number
from ..state.values.frozen import FrozenDict
from .parts import (
    Confidence,
    ConfidenceHistory,
    ConfidenceValue,
    IterationShift,
    ReasoningStep,
    ReasoningSteps,
    RecordedError,
    RecordedErrors,
    RecordedExecution,
    RecordedExecutions,
    RepeatedCalls,
    TerminalToolNames,
)
from .reason import RunReason

if TYPE_CHECKING:
    from ..state.agent_state import AgentState

T = TypeVar("T")
S = TypeVar("S")
_CHARS_PER_TOKEN: Final = 4


@dataclass(frozen=True, slots=True)
class RunFields(Generic[S]):
    """The fields and the builders of a run; a subclass says what its builders give.

    Everything but the messages, the metadata and the agent's id belongs to the execution; the next one begins without
    it. A builder on a state without an execution begins the next one, as a submit would.

    Attributes:
        state: The state that is shown.
    """

    state: AgentState

    @abstractmethod
    def _give(self, state: AgentState) -> S:
        """Return a changed state in the form that the builders give."""

    # --- identity and times ----------------------------------------------------------------------------------

    @property
    def run_id(self) -> str | None:
        """The execution's id; None without an execution."""
        return str(self.state.execution.execution_id) if self.state.execution else None

    @property
    def agent_id(self) -> str:
        """The agent's id, the same in each of its runs."""
        return str(self.state.agent_id)

    @property
    def started_at(self) -> datetime:
        """The start of the run (UTC); before it, when the execution, or else the state, was made."""
        execution = self.state.execution
        return self.state.created_at if execution is None else execution.started_at or execution.created_at

    @property
    def updated_at(self) -> datetime:
        """The last change of the state (UTC)."""
        return self.state.updated_at

    # --- conversation ----------------------------------------------------------------------------------------

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation in order, tool traces of earlier runs included."""
        return self.state.store.section(DEFAULT).messages

    @property
    def metadata(self) -> FrozenDict:
        """The values that the application keeps separately from the conversation."""
        return self.state.metadata

    # --- progress --------------------------------------------------------------------------------------------

    @property
    def iteration(self) -> int:
        """Iterations so far, the current one included."""
        return max(0, self.state.step_count + self.state.part(IterationShift).shift)

    @property
    def max_iterations(self) -> int | None:
        """The limit of steps: the budget's, or the default where no budget was given; None is unlimited."""
        execution = self.state.execution
        if execution is None or execution.budget.max_steps is not None:
            return None if execution is None else execution.budget.max_steps
        return execution.default_steps or None

    @property
    def tool_executions(self) -> tuple[ToolExecution, ...]:
        """Every tool call of the run, in order, whether it ran or not."""
        made = [(step.number, each) for step in self._steps() for each in step.tool_executions]
        return _merge(made, [(each.step, each.execution) for each in self.state.part(RecordedExecutions)])

    @property
    def tool_history(self) -> tuple[str, ...]:
        """The names of the called tools, in order."""
        return tuple(each.tool_call.name for each in self.tool_executions)

    @property
    def tool_loop_threshold(self) -> int:
        """So many equal steps are a loop."""
        return self.state.part(RepeatedCalls).threshold

    @property
    def terminal_tools(self) -> frozenset[str]:
        """The tools that end the run."""
        return frozenset(self.state.part(TerminalToolNames).names)

    @property
    def reasoning_steps(self) -> tuple[ReasoningStep, ...]:
        """The records of `Reasoning`, one for each iteration."""
        return tuple(self.state.part(ReasoningSteps))

    @property
    def errors(self) -> tuple[str, ...]:
        """The messages of all errors of tools and models, in order."""
        made = [(step.number, each.message) for step in self._steps() for each in step.all_errors]
        execution = self.state.execution
        own = [] if execution is None else [(execution.step_count, each.message) for each in execution.errors]
        recorded = [(each.step, each.message) for each in self.state.part(RecordedErrors)]
        return _merge([*made, *own], recorded)

    # --- confidence ------------------------------------------------------------------------------------------

    @property
    def confidence(self) -> float:
        """From 0 to 1; 0 at the beginning."""
        return self.state.part(Confidence).value

    @property
    def confidence_threshold(self) -> float:
        """The confidence that is enough."""
        return self.state.part(Confidence).threshold

    @property
    def confidence_history(self) -> tuple[float, ...]:
        """Every confidence that was set, in order; empty without `Reflexion`."""
        return tuple(each.value for each in self.state.part(ConfidenceHistory))

    # --- tokens ----------------------------------------------------------------------------------------------

    @property
    def prompt_tokens_used(self) -> int:
        """Tokens sent, without those of the provider's cache."""
        return self.state.usage.input

    @property
    def completion_tokens_used(self) -> int:
        """Tokens received, those of the model's reasoning included."""
        return self.state.usage.received

    @property
    def total_tokens_used(self) -> int:
        """Prompt and completion tokens; those of the cache are counted apart."""
        return self.prompt_tokens_used + self.completion_tokens_used

    @property
    def cache_creation_tokens_used(self) -> int:
        """Tokens written to the provider's cache."""
        return self.state.usage.cache_write

    @property
    def cache_read_tokens_used(self) -> int:
        """Tokens read from the provider's cache."""
        return self.state.usage.cache_read

    @property
    def total_tokens(self) -> int:
        """The tokens used, or, before any are counted, an estimate of the conversation: four characters a token."""
        used = self.total_tokens_used
        return used or sum(map(_count_chars, self.messages)) // _CHARS_PER_TOKEN

    @property
    def token_budget(self) -> int | None:
        """The budget's limit of tokens; None is unlimited."""
        return self.state.execution.budget.max_tokens if self.state.execution else None

    # --- end -------------------------------------------------------------------------------------------------

    @property
    def reason(self) -> RunReason | None:
        """Why the run ended, or waits; None while it goes on, and without one."""
        execution = self.state.execution
        if execution is None:
            return None
        match execution.status:
            case ExecutionStatus.WAITING:
                return RunReason.INTERRUPTED
            case ExecutionStatus.FAILED:
                return RunReason.ERROR
            case ExecutionStatus.COMPLETED if execution.stop_signal is None:
                return RunReason.COMPLETE
            case ExecutionStatus.COMPLETED | ExecutionStatus.STOPPED:
                return _reason_of_end(self.state)
            case _:
                return None

    @property
    def success(self) -> bool:
        """Tell whether the run ended for a reason that is a success."""
        reason = self.reason
        return reason is not None and reason.is_success

    # --- builders --------------------------------------------------------------------------------------------

    def with_message(self, message: Message, *, now: datetime | None = None) -> S:
        """Append a message."""
        return self.with_messages((message,), now=now)

    def with_messages(self, messages: Iterable[Message], *, now: datetime | None = None) -> S:
        """Append messages; `AgentState.with_messages` replaces them instead."""
        return self._give(self.state.with_messages_added(tuple(messages), now=now))

    def with_iteration(self, iteration: int, *, now: datetime | None = None) -> S:
        """Count on from this iteration; the steps stay. No limit is checked here.

        Raises:
            InvalidInput: It is no whole number from 0.
        """
        is_whole = isinstance(iteration, int) and not isinstance(iteration, bool)  # pyright: ignore[reportUnnecessaryIsInstance]
        if not is_whole or not 0 <= iteration <= LARGEST_COUNT:
            raise InvalidInput("with_iteration(iteration)", iteration, "give a whole number, from 0.")
        return self._give(self.state.with_part(IterationShift(shift=iteration - self.state.step_count), now=now))

    def next_iteration(self, *, now: datetime | None = None) -> S:
        """Count one iteration more."""
        return self.with_iteration(self.iteration + 1, now=now)

    def with_tool_execution(self, execution: ToolExecution, *, now: datetime | None = None) -> S:
        """Append an execution, and its tool to the history. No message is added."""
        recorded = RecordedExecution(step=self.state.step_count, execution=execution)
        return self._give(self.state.with_part(self.state.part(RecordedExecutions).append(recorded), now=now))

    def with_reasoning_step(self, step: ReasoningStep, *, now: datetime | None = None) -> S:
        """Append a reasoning step."""
        return self._give(self.state.with_part(self.state.part(ReasoningSteps).append(step), now=now))

    def with_confidence(self, confidence: float, *, now: datetime | None = None) -> S:
        """Set the confidence, cut to 0 to 1, and append it to the history.

        Raises:
            InvalidInput: It is no number.
        """
        value = min(1.0, max(0.0, _check_number("with_confidence(confidence)", confidence)))
        part = self.state.part(Confidence).replace(value=value)
        history = self.state.part(ConfidenceHistory).append(ConfidenceValue(value=value))
        return self._give(self.state.with_part(part, now=now).with_part(history, now=now))

    def adjust_confidence(self, delta: float, diminishing: bool = True, *, now: datetime | None = None) -> S:
        """Add to the confidence, or take from it.

        Args:
            diminishing: An increase is multiplied by what is missing to 1. A decrease never is.
        Raises:
            InvalidInput: The delta is no number.
        """
        return self.with_confidence(self.confidence + diminish(delta, self.confidence, diminishing), now=now)

    def with_error(self, message: str, *, now: datetime | None = None) -> S:
        """Append an error. The execution does not fail by it; `AgentState.with_failure` fails it."""
        recorded = RecordedError(step=self.state.step_count, message=message)
        return self._give(self.state.with_part(self.state.part(RecordedErrors).append(recorded), now=now))

    def with_metadata(self, key: str, value: Any, *, now: datetime | None = None) -> S:
        """Set one entry of the metadata. Raises `InvalidInput`, with the path, when the value is no JSON."""
        return self._give(self.state.with_metadata(key, value, now=now))

    def with_token_usage(self, prompt_tokens: int = 0, completion_tokens: int = 0, *, now: datetime | None = None) -> S:
        """Add tokens to those used. Raises `InvalidInput` when one is no whole number from 0."""
        return self._give(self.state.with_usage(InferenceUsage(input=prompt_tokens, output=completion_tokens), now=now))

    # --- checkpoints -----------------------------------------------------------------------------------------

    def to_checkpoint(self) -> dict[str, Any]:
        """The whole state as plain JSON values; `AgentState.from_checkpoint` gives it back without loss."""
        return self.state.to_dict()

    def _steps(self) -> Sequence[AgentStep]:
        return self.state.execution.all_steps if self.state.execution else ()


@dataclass(frozen=True, slots=True)
class RunView(RunFields["AgentState"]):
    """One run of the agent: the current execution, or the last one. Its builders give an `AgentState`."""

    def _give(self, state: AgentState) -> AgentState:
        return state


def diminish(delta: float, confidence: float, diminishing: bool = True) -> float:
    """The change that a delta makes of a confidence: an increase loses weight as the confidence grows.

    Raises:
        InvalidInput: The delta is no number.
    """
    checked = _check_number("adjust_confidence(delta)", delta)
    return checked * (1.0 - confidence) if diminishing and checked > 0 else checked


def _reason_of_end(state: AgentState) -> RunReason:
    assert state.execution is not None
    signal = state.execution.stop_signal
    assert signal is not None
    # A finish reason alone completes an execution; it stops one whose answer it cut short.
    if state.status is ExecutionStatus.COMPLETED and not RunReason.of_signal(signal).is_success:
        return RunReason.COMPLETE
    return RunReason.of_signal(signal)


def _merge(made: Iterable[tuple[int, T]], recorded: Sequence[tuple[int, T]]) -> tuple[T, ...]:
    """Join values that steps made with those recorded after that many steps, in order."""
    if not recorded:
        return tuple(each for _, each in made)
    return tuple(each for _, each in sorted([*made, *recorded], key=itemgetter(0)))


def _count_chars(message: Message) -> int:
    return len(message.content) + sum(len(call.args_json()) for call in message.tool_calls)


def _check_number(field: str, value: object) -> float:
    if is_number(value):
        return float(value)
    raise InvalidInput(field, value, "give a finite number.")
