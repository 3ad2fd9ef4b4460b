"""Calls that failed an execution, because their tool raised, and that a retry of the execution makes again.

The step that failed stays as it is. The first step after the retry asks no model: it has the calls of that step which
may run again as its answer, and their results take the place of the errors in the conversation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from ..redaction import describe_exception
from ..state.agent_state import AgentState
from ..state.conversation.messages import Message, Role
from ..state.execution.answers import AnswerVerb
from ..state.execution.execution import ExecutionState
from ..state.execution.tool_calls import ToolExecution, ToolOutcome
from ..state.values.error_info import ErrorInfo
from ..state.values.frozen import FrozenDict
from ..tools.effect import Effect
from ..tools.identity import idempotency_key
from ..tools.stop import FAILS_EXECUTION
from .conversation import REPEATED, repeated_calls

_KEY: Final = "idempotency_key"
_APPROVED: Final = "approved"
_AGAIN: Final = "runs_again"


def failure_of_call(error: Exception, effect: Effect) -> ErrorInfo:
    """Describe what a tool raised, as the error of its call and of the execution, which it fails.

    A pure or keyed call runs again when the execution is retried. The model reads the error of an unsafe one, and of
    one that pydantic-ai itself has ended, for example after too many retries: it would end in the same way.
    """
    from pydantic_ai.exceptions import UnexpectedModelBehavior

    described = describe_exception(error)
    again = effect in (Effect.PURE, Effect.KEYED) and not isinstance(error, UnexpectedModelBehavior)
    details = FrozenDict({**described.details, FAILS_EXECUTION: True, _AGAIN: again})
    return described.model_copy(update={"details": details})


def calls_to_repeat(state: AgentState, messages: Sequence[Message], execution_id: str) -> dict[str, dict[str, Any]]:
    """The calls that the next step makes again, by their ids; none, unless it is the first after such a failure.

    Args:
        messages: Those of the session.
        execution_id: The execution of the step.
    """
    execution = state.execution
    if execution is None or not execution.retries or execution.execution_id != execution_id:
        return {}
    last = execution.last_step
    if last is None or execution.steps_before_retry != len(execution.step_executions):
        return {}
    answer = next((each for each in reversed(messages) if each.role is Role.ASSISTANT), None)
    failed = [each for each in last.tool_executions if FAILS_EXECUTION in _details(each)]
    earlier: Mapping[str, Any] = {} if answer is None else repeated_calls(answer)
    return {
        each.tool_call.id: _facts(execution, last.number, each, earlier.get(each.tool_call.id))
        for each in last.tool_executions
        if _details(each).get(_AGAIN) or (failed and each.outcome is ToolOutcome.NOT_RUN)
    }


def key_of(kept: Mapping[str, Any], call_id: str, key: str) -> str:
    """The idempotency key of a call: that of its first attempt, where it is made again."""
    return kept.get(REPEATED, {}).get(call_id, {}).get(_KEY, key)


def is_approved(kept: Mapping[str, Any], call_id: str) -> bool:
    """Whether a call that is made again was approved before."""
    return bool(kept.get(REPEATED, {}).get(call_id, {}).get(_APPROVED))


def _facts(
    execution: ExecutionState, step: int, made: ToolExecution, earlier: Mapping[str, Any] | None
) -> dict[str, Any]:
    call = made.tool_call
    key = idempotency_key(str(execution.execution_id), step, made.index, call.name, call.args)
    approved = any(each.verb is AnswerVerb.APPROVE for each in made.resolutions)
    return {
        "name": call.name,
        "args": call.args_json(),
        _KEY: key if earlier is None else earlier[_KEY],
        _APPROVED: approved or bool(earlier and earlier[_APPROVED]),
    }


def _details(made: ToolExecution) -> Mapping[str, Any]:
    return made.error.details if made.error is not None else {}
