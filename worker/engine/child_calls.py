"""Tool calls that other agents work on: what their children see, how the journaled ends become results, and the cost.

These are functions of the run and its journal alone, so that every leg of a step comes to the same.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import Any, cast

from pydantic_core import to_json

from ...config.settings import Settings
from ..capability import compiler_of
from ..concurrency.fibers import run_users_code
from ..redaction import describe_exception, redact
from ..state.agent_state import AgentState
from ..state.conversation.compilers import ConversationWithCurrentToolTrace
from ..state.conversation.messages import Message
from ..state.execution.answers import AnswerRecord, AnswerVerb
from ..state.execution.budget import ExecutionBudget
from ..state.execution.children import ChildEnd, JoinRule
from ..state.execution.requests import Request
from ..state.execution.reservations import keep_closing_step
from ..state.execution.signals import StopSignal
from ..state.execution.status import ExecutionStatus
from ..state.execution.tool_calls import ToolOutcome
from ..state.parts.state_part import StatePart
from ..state.values.error_info import ErrorInfo
from ..state.values.frozen import thaw
from ..state.values.value import Value
from ..tools.arguments import InvalidArguments
from ..tools.delegation import ContextRule, MergeRules, is_delegating
from .call_records import CallTimes, RequestedCall, record_call, record_error, record_not_run, record_value
from .charges import charge_execution, used_by
from .run import Run
from .run_values import CallRecord, Ending


class EndingRecord(Value):
    """Why an execution ends after a step, as the journal keeps it for a later leg of the step."""

    signals: tuple[StopSignal, ...] = ()
    failure: ErrorInfo | None = None
    end_status: ExecutionStatus | None = None

    @classmethod
    def of(cls, ending: Ending) -> EndingRecord:
        """The record of how a run ends its execution."""
        return cls(signals=ending.signals, failure=ending.failure, end_status=ending.status)


def first_messages(run: Run, request: Request, prompt: str) -> list[Message]:
    """The messages that a child begins with, the prompt or what a function makes of it last."""
    rule: ContextRule = _context_rule(run, request)
    if rule == "input":
        return [Message.user(prompt)]
    if not callable(rule):
        # A capability may hide messages from the model, which those of a child must not read either.
        compiler = compiler_of(ConversationWithCurrentToolTrace(), run.agent.capabilities)
        shown = run_users_code(compiler.compile, run.state)
        return [*context_messages(shown, rule), Message.user(prompt)]
    given: Any = run_users_code(rule, run.state, prompt)
    listed = [given] if isinstance(given, str | Message) else [*given] or [prompt]
    messages = [Message.user(each) if isinstance(each, str) else each for each in listed]
    if isinstance(given, Mapping) or not all(isinstance(each, Message) for each in messages):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError("a function for context= gives a text, a Message, or a list of these")
    return messages


def context_messages(messages: Iterable[Message], rule: str) -> list[Message]:
    """The messages of a conversation that another agent sees: the last of the user, or all without tool calls."""
    spoken = [each for each in messages if each.role.value in ("user", "assistant") and not each.tool_calls]
    if rule == "last":
        return [each for each in spoken if each.role.value == "user"][-1:]
    return [Message(role=each.role, content=each.content) for each in spoken]


def _context_rule(run: Run, request: Request) -> ContextRule:
    """The rule of the tool that wants the child; a tool that was changed since gives the prompt alone."""
    tool = run.agent.toolset.get(request.tool)
    if request.child is not None and not request.child.is_result:
        return cast("ContextRule", request.options) if isinstance(request.options, str) else "input"
    bind = None if tool is None else tool.bind
    if bind is None or not is_delegating(tool):
        return "input"
    try:
        return tool.delegate(bind(request.args)).context
    except (InvalidArguments, ValueError):
        return "input"


def find_group(run: Run, request: Request) -> list[Request]:
    """The requests of one call that belong together: all children of one `ctx.spawn`, or the one child of a call."""
    order, rounds = request.child, run.journal.requests.get(request.index, ())
    if order is None or order.is_result:
        return [request]
    return [each for each in rounds if each.child is not None and each.child.group == order.group]


def find_open_child(run: Run, request: Request) -> Request | None:
    """The first request of a group whose child has not ended; None when all have."""
    return next((each for each in find_group(run, request) if run.journal.answer_to(each) is None), None)


def is_delegated(run: Run, index: int) -> bool:
    """Whether the end of a child is the result of this call."""
    rounds = run.journal.requests.get(index)
    order = rounds[-1].child if rounds else None
    return order is not None and order.is_result


def find_race(run: Run, request: Request) -> list[Request]:
    """The requests that race with this one, itself included; it alone where nothing races."""
    order = request.child
    if order is None or order.join is not JoinRule.FIRST:
        return [request]
    return [
        each
        for each in run.journal.child_requests
        if each.child is not None and each.child.join is JoinRule.FIRST and each.child.group == order.group
    ]


def is_won(run: Run, request: Request) -> bool:
    """Whether another child of the race has completed."""
    ends = (run.child_end(each) for each in find_race(run, request) if each.id != request.id)
    return any(end is not None and end.status is ExecutionStatus.COMPLETED for end in ends)


def read_end(run: Run, request: Request, answer: AnswerRecord) -> ChildEnd:
    """Describe a child's end, even if it reported none."""
    end = run.child_end(request)
    order = request.child
    if end is not None or order is None:
        return end or ChildEnd(session_id="", status=ExecutionStatus.STOPPED)
    status = ExecutionStatus.FAILED if has_failed(run, request, answer) else ExecutionStatus.STOPPED
    return ChildEnd(session_id=order.session_id, agent=order.agent, status=status, message=answer.reason)


def has_failed(run: Run, request: Request, answer: AnswerRecord) -> bool:
    """Whether a child failed, could not be made, or was late and gave no end."""
    end = run.child_end(request)
    if end is not None:
        return end.has_failed
    return answer.verb is AnswerVerb.FAIL or (answer.verb is AnswerVerb.CANCEL and answer.by_expiry)


def read_spawned_ends(run: Run, index: int) -> tuple[tuple[ChildEnd, ...], ...]:
    """How the children of each `ctx.spawn` of a call have ended, in the order in which the tool spawned them."""
    groups: dict[str, list[Request]] = {}
    for request in run.journal.requests.get(index, ()):
        if request.child is not None and not request.child.is_result:
            groups.setdefault(request.child.group, []).append(request)
    found: list[tuple[ChildEnd, ...]] = []
    for requests in groups.values():
        answers = [(each, run.journal.answer_to(each)) for each in requests]
        found.append(tuple(read_end(run, each, answer) for each, answer in answers if answer is not None))
    return tuple(found)


def record_child(
    run: Run, requested: RequestedCall, request: Request, answer: AnswerRecord, settings: Settings
) -> CallRecord:
    """Record a call by the end of its child."""
    times, end = CallTimes(request.asked_at_ms, answer.at_ms), run.child_end(request)
    if end is None:
        return _record_without_end(run, requested, request, answer)
    if end.has_failed:
        return record_error(run, requested, ErrorInfo(kind="child_failed", message=_failure_text(request, end)), times)
    value: Any = end.response if end.output is None else thaw(end.output)
    if end.is_partial:
        reason, message = _why_partial(request, answer, end)
        value = {"partial": True, "stopped_by": reason, "message": message, "result": value}
    return record_value(run, requested, value, times, settings, "the agent has answered")


def _why_partial(request: Request, answer: AnswerRecord, end: ChildEnd) -> tuple[str, str]:
    """Why a child was stopped, and what is said about it: its time was over, or what stopped it by itself."""
    if request.expires_at_ms is not None and request.is_expired(answer.at_ms):
        seconds = (request.expires_at_ms - request.asked_at_ms) / 1000
        return "timeout", f"it had {seconds:g} s"
    return (end.reason.value if end.reason is not None else "stopped"), end.message


def find_failure(run: Run, request: Request) -> ErrorInfo | None:
    """The error of a child that has failed; None where it has not."""
    answer = run.journal.answer_to(request)
    if answer is None or not has_failed(run, request, answer):
        return None
    return ErrorInfo(kind="child_failed", message=_failure_text(request, read_end(run, request, answer)))


def left_for_children(run: Run, now: datetime, unmade: Collection[Request] = ()) -> ExecutionBudget:
    """Compute what an execution has left, without the present step and what its children have used or reserved.

    Args:
        unmade: Requests whose reservations do not count.
    """
    execution = charge_execution(run, run.execution)
    left = execution.budget.remaining_from(execution, now)
    response = run.obtained.response
    if response is not None:
        left = left.remaining(steps=1, tokens=response.usage.total, cost=response.cost or 0.0)
    longest, ignored = 0.0, {each.id for each in unmade}
    for request in run.journal.child_requests:
        if request.id in ignored:
            continue
        used = used_by(run, request, reserved=True)
        left = left.remaining(steps=used.steps, tokens=used.usage.total, cost=used.cost or 0.0)
        longest = max(longest, used.seconds)
    return left.remaining(seconds=longest)


def shared_with_children(run: Run, left: ExecutionBudget) -> ExecutionBudget:
    """The part of what is left that the children of a step may get; the next step is assumed to use as much as this."""
    response = run.obtained.response
    return left if response is None else keep_closing_step(left, response.usage.total, response.cost or 0.0)


def merge_children(run: Run, state: AgentState, now: datetime) -> tuple[AgentState, ErrorInfo | None]:
    """Combine what the children of the step bring with what the session has, in the order of the calls.

    Returns:
        The state; and the error of a rule that failed, which fails the execution.
    """
    for request in run.journal.child_requests:
        rules: MergeRules = getattr(run.agent.toolset.get(request.tool), "merge", None) or {}
        end = run.child_end(request) if rules else None
        for key, reducer in rules.items() if end is not None else ():
            try:
                state = _merge_one(state, key, reducer, end, now)
            except Exception as error:  # noqa: BLE001 - a reducer of the user's
                described = describe_exception(error).message
                return state, ErrorInfo(kind="merge_failed", message=f"merging {_name_of(key)} failed: {described}")
    return state, None


def _merge_one(state: AgentState, key: Any, reducer: Any, end: ChildEnd | None, now: datetime) -> AgentState:
    assert end is not None
    if isinstance(key, str):
        if key not in end.metadata:
            return state
        present = state.context.metadata.get(key)
        return state.with_metadata(key, run_users_code(reducer, thaw(present), thaw(end.metadata[key])), now=now)
    kind: type[StatePart] = key
    brought = end.parts.get(kind.part_name)
    if brought is None:
        return state
    return state.with_part(run_users_code(reducer, state.part(kind), kind.from_json(to_json(brought))), now=now)


def _name_of(key: Any) -> str:
    return key if isinstance(key, str) else key.part_name


def _record_without_end(run: Run, requested: RequestedCall, request: Request, answer: AnswerRecord) -> CallRecord:
    """Record a call whose child has not been made, or did not end in time."""
    times = CallTimes(request.asked_at_ms, answer.at_ms)
    if answer.verb is AnswerVerb.FAIL:
        return record_error(run, requested, ErrorInfo(kind="child_refused", message=answer.reason), times)
    if answer.by_expiry:
        return record_error(run, requested, ErrorInfo(kind="child_timeout", message=answer.reason), times)
    if is_won(run, request):
        error = ErrorInfo(kind="not_needed", message=answer.reason)
        return record_call(run, requested, ToolOutcome.BLOCKED, times, error=error)
    return record_not_run(run, requested, answer.at_ms)


def _failure_text(request: Request, end: ChildEnd) -> str:
    """Write what the model reads of a child that failed."""
    order = request.child
    agent = order.agent if order is not None else end.agent
    facts = {"session": end.session_id, "status": end.status.value, "steps": end.steps, "tokens": end.usage.total}
    return redact(f"the agent {agent} failed: {end.message or 'no reason is known'} {json.dumps(facts)}")
