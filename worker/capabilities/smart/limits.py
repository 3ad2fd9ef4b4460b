"""`AgentLimits`: limits of an execution besides its budget, under the names of Cognipeer's agent SDK."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, Final

from ...capability import Capability
from ...errors import ConfigurationError
from ...guards import PROCEED, Guard, GuardPoint, GuardView, StopWith, Verdict
from ...hooks import Hook, HookContext, HookPoint
from ...state.agent_state import AgentState
from ...state.conversation.messages import Message, Role
from ...state.execution.budget import ExecutionBudget
from ...state.execution.execution import ExecutionState
from ...state.execution.signals import StopReason, StopSignal
from ...state.parts.state_part import StatePart
from ...state.values.field_types import Count, is_number
from ..numbers import check_whole
from .step_events import new_step
from .tokens import TokenCounter, estimate_tokens, message_tokens

_SOURCE: Final = "AgentLimits"
_LAST: Final = -100  # after other hooks have chosen the tools of the request

CostEstimator = Callable[..., float]
"""Gives US dollars; called with model_name, input_tokens, output_tokens, cached_input_tokens, reasoning_tokens."""


class LimitsUsed(StatePart):
    """Counts of `AgentLimits` in this execution.

    Attributes:
        tool_calls: Every call that was asked for, whatever came of it.
    """

    part_name = "smart_limits"
    tool_calls: Count = 0


@dataclass(frozen=True)
class AgentLimits(Capability):
    """Limits each execution. None, and 0 where nothing else is said, is unlimited; a limit is reached at its number.

    Attributes:
        max_tool_calls: Every call that is asked for counts. Those beyond are skipped, the model is told to give its
            final answer, and the execution ends behind that, whatever it asks for. 0: the model gets no tools.
        max_parallel_tools: Calls of a step that run side by side, from 1.
        max_context_tokens: The oldest answers of the model with their results are left out above it. Prefer
            `Summarization`, which loses nothing.
        max_total_output_tokens: Tokens received, those of reasoning included.
        max_cost_usd: US dollars. They are estimated by `cost_estimator`, or else follow from the price that the driver
            knows; an agent with neither is refused.
        max_wall_clock_ms: Milliseconds since the start, without the time in which it waits for people.
        cost_estimator: Gives the dollars of all tokens of the execution so far.
        token_counter: Counts the tokens of a text, for `max_context_tokens`.
    """

    max_tool_calls: int | None = None
    max_parallel_tools: int | None = None
    max_context_tokens: int | None = None
    max_total_output_tokens: int | None = None
    max_cost_usd: float | None = None
    max_wall_clock_ms: int | None = None
    cost_estimator: CostEstimator | None = None
    token_counter: TokenCounter = field(default=estimate_tokens, repr=False)

    def __post_init__(self) -> None:
        names = ("max_tool_calls", "max_context_tokens", "max_total_output_tokens", "max_wall_clock_ms")
        for name in names:
            if getattr(self, name) is not None:
                check_whole(f"{_SOURCE}({name})", getattr(self, name))
        if self.max_parallel_tools is not None:
            check_whole(f"{_SOURCE}(max_parallel_tools)", self.max_parallel_tools, least=1)
        cost: object = self.max_cost_usd
        if cost is not None and not (is_number(cost) and cost >= 0):
            raise ConfigurationError(f"{_SOURCE}(max_cost_usd)={cost!r:.60}: give US dollars, from 0")

    def parts(self) -> Sequence[Any]:
        """The counts of the execution."""
        return (LimitsUsed,)

    def hooks(self) -> Sequence[Hook]:
        """Counts and skips calls; offers no tools in the final turn."""
        if self.max_tool_calls is None:
            return ()
        return (
            Hook(HookPoint.BEFORE_INFERENCE, self._end_with_an_answer, priority=_LAST, name=_SOURCE),
            Hook(HookPoint.BEFORE_TOOL, self._skip, name=_SOURCE),
            Hook(HookPoint.AFTER_STEP, self._count, name=_SOURCE),
        )

    def guards(self) -> Sequence[Guard]:
        """Ends the execution at a limit that its budget does not know."""
        return (self,)

    def budget(self) -> ExecutionBudget | None:
        """The limits that a budget knows."""
        cost = self.max_cost_usd if self.cost_estimator is None else None
        seconds = self.max_wall_clock_ms / 1000 if self.max_wall_clock_ms else None
        return ExecutionBudget(max_cost=cost or None, max_seconds=seconds) if cost or seconds else None

    def parallel_tools(self) -> int | None:
        """Calls of a step that run side by side."""
        return self.max_parallel_tools

    def check(self, view: GuardView) -> Verdict:
        """Stop at a limit."""
        signals = tuple(self._signals(view))
        return StopWith(signals) if signals else PROCEED

    def events(self, before: AgentState, after: AgentState) -> Sequence[Mapping[str, Any]]:
        """An event `metadata` with the limit that has ended the execution."""
        execution = after.execution
        if execution is None or (new_step(before, after) is None and not execution.status.is_terminal()):
            return ()
        known = before.execution.continuation.stop_signals if before.execution is not None else ()
        new = [each for each in execution.continuation.stop_signals if each not in known and each.reason.is_limit()]
        return [{"type": "metadata", "limit_breached": each.message, "reason": each.reason.value} for each in new]

    def compile(self, state: AgentState, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        """Leave the oldest answers with their results out, as far as the limit of the context asks for it."""
        if not self.max_context_tokens:
            return messages
        return clamp(messages, self.max_context_tokens, self.token_counter)

    def estimate(self, execution: ExecutionState, model: str | None) -> float:
        """The dollars of an execution so far, by the estimator."""
        assert self.cost_estimator is not None
        usage = execution.usage
        return self.cost_estimator(
            model_name=model,
            input_tokens=usage.sent,
            output_tokens=usage.output,
            cached_input_tokens=usage.cache_read,
            reasoning_tokens=usage.reasoning,
        )

    def _signals(self, view: GuardView) -> Sequence[StopSignal]:
        execution, signals = view.execution, list[StopSignal]()
        used = execution.usage.received
        if self.max_total_output_tokens and used >= self.max_total_output_tokens:
            message = f"{used} of {self.max_total_output_tokens} output tokens used"
            signals.append(_signal(StopReason.TOKEN_LIMIT_REACHED, message))
        if self.max_cost_usd and self.cost_estimator is not None:
            cost = self.estimate(execution, view.model)
            if not cost < self.max_cost_usd:  # not a number counts as too much
                signals.append(_signal(StopReason.COST_LIMIT_REACHED, f"${cost:.4f} of ${self.max_cost_usd:g} used"))
        step = view.state.current_step
        if view.point is GuardPoint.BEFORE_NEXT and step is not None and self.max_tool_calls is not None:
            before = view.state.part(LimitsUsed).tool_calls - len(step.requested_tool_calls)
            if before >= self.max_tool_calls:
                message = f"the limit of {self.max_tool_calls} tool calls is reached, and the final turn asked for more"
                signals.append(_signal(StopReason.STEPS_LIMIT_REACHED, message))
        return signals

    # --- tool calls -------------------------------------------------------------------------------------------

    def _skip(self, context: HookContext) -> HookContext | None:
        call, response = context.tool_call, context.response
        assert call is not None
        assert response is not None
        assert self.max_tool_calls is not None
        place = next((i for i, each in enumerate(response.tool_calls) if each.id == call.id), 0)
        if context.state.part(LimitsUsed).tool_calls + place < self.max_tool_calls:
            return None
        return context.changed(blocked=f"Skipped: the limit of {self.max_tool_calls} tool calls is reached.")

    def _count(self, context: HookContext) -> HookContext | None:
        step = context.state.current_step
        if step is None or not step.requested_tool_calls:
            return None
        used = context.state.part(LimitsUsed)
        counted = used.replace(tool_calls=used.tool_calls + len(step.requested_tool_calls))
        return context.changed(state=context.state.with_part(counted, now=context.state.updated_at))

    def _end_with_an_answer(self, context: HookContext) -> HookContext | None:
        request, used = context.request, context.state.part(LimitsUsed).tool_calls
        assert request is not None
        assert self.max_tool_calls is not None
        if used < self.max_tool_calls:
            return None
        request = request.with_tools(())
        if used:
            notice = f"All {self.max_tool_calls} tool calls are used. Give your final answer now, without tools."
            request = request.with_messages((*request.messages, Message.user(notice)))
        return context.changed(request=request)


def clamp(messages: Sequence[Message], most: int, counter: TokenCounter) -> tuple[Message, ...]:
    """The messages without the oldest answers and their results, so that at most `most` tokens are left.

    System messages, the first message of the user and the newest answer stay, even where that is more.
    """
    sizes = [message_tokens(each, counter) for each in messages]
    surplus = sum(sizes) - most
    answers = [i for i, each in enumerate(messages) if each.role is Role.ASSISTANT]
    dropped: set[int] = set()
    for index in answers[:-1]:
        if surplus <= 0:
            break
        results = takewhile(lambda i: messages[i].role is Role.TOOL, range(index + 1, len(messages)))
        group = [index, *results]
        dropped.update(group)
        surplus -= sum(sizes[each] for each in group)
    return tuple(each for index, each in enumerate(messages) if index not in dropped)


def _signal(reason: StopReason, message: str) -> StopSignal:
    return StopSignal(reason=reason, message=message, source=_SOURCE)
