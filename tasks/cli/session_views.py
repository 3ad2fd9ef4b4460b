"""A session as lines for people, and as a row of a listing. Pure.

Text of a model, of a tool or of a user is always indented, so that it cannot look like a line of this program.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ...worker.moments import moment, unix_ms
from ...worker.state.agent_state import AgentState
from ...worker.state.conversation.messages import Message, Role
from ...worker.state.execution.answers import AnswerRecord, RequestResolution
from ...worker.state.execution.execution import ExecutionState
from ...worker.state.execution.inference import FinishReason
from ...worker.state.execution.steps import AgentStep, StepExecution
from ...worker.state.execution.tool_calls import ToolExecution, ToolOutcome
from ...worker.state.values.error_info import ErrorInfo
from ...worker.store.records import InboxKind
from .event_lines import ANSWERS
from .views import age, clean, one_line, plural, seconds, table

if TYPE_CHECKING:
    from ...worker.store.children.trees import TreeNode
    from ...worker.store.records import MessageQueue, Operation
    from ...worker.store.requests.records import FoundRequest
    from ...worker.store.session_records import Header
    from ..observability.listed_sessions import ListedSession

HEAD: Final = ("SESSION", "AGENT", "STATUS", "STEPS", "COST", "AGE", "FIRST MESSAGE", "REASON")
_TREE_HEAD: Final = ("SESSION", "AGENT", "STATUS", "STEPS", "TOKENS", "COST", "WAITS FOR")
_FIRST_CHARS: Final = 40
_REASON_CHARS: Final = 200
_MAX_CHARACTERS: Final = 2_000
_SHORT: Final = 200
_INDENT: Final = "    "


def row(listed: ListedSession) -> tuple[str, ...]:
    """A session as a line of a listing."""
    header, summary = listed.header, listed.summary
    status = f"{header.status} ({header.problem})" if header.problem else str(header.status)
    status += "" if header.session_status == "active" else f", {header.session_status}"
    cost = f"${summary.cost:.4f}" if summary is not None and summary.cost else ""
    return (
        header.session_id,
        header.agent,
        status,
        str(summary.steps) if summary is not None else "",
        cost,
        age(moment(header.created_ms)),
        one_line(summary.first_message, _FIRST_CHARS) if summary is not None else "",
        one_line(listed.reason, _REASON_CHARS),
    )


@dataclass(frozen=True, slots=True)
class Beside:
    """Facts that are stored of a session apart from its state.

    Attributes:
        requests: Its requests; those of the step that waits are shown.
        waiting: What waits for the step that runs, the oldest first.
        queue: The messages that wait for executions of their own. None: none do.
    """

    requests: Sequence[FoundRequest] = ()
    waiting: Sequence[Operation] = ()
    queue: MessageQueue | None = None


def session_lines(
    header: Header, state: AgentState, reason: str, beside: Beside | None = None, *, verbose: bool = False
) -> list[str]:
    """A session for people.

    Args:
        reason: Why it has not ended yet; "" when it has.
        beside: None: nothing but its state is shown.
        verbose: Nothing is shortened.
    """
    created, changed = age(moment(header.created_ms)), age(moment(header.updated_ms))
    text = _Text(shorten=not verbose)
    lines = [
        one_line(f"session {header.session_id}  agent {header.agent}  version {header.version}"),
        f"created {created} ago, changed {changed} ago, {plural(state.execution_count, 'execution')}",
    ]
    lines += [f"the session is {clean(header.session_status)}"] if header.session_status != "active" else []
    lines += [f"fork of {clean(header.forked_from)}"] if header.forked_from else []
    lines += ["it is in the archive; a message or a retry brings it back"] if header.is_archived else []
    if header.labels:
        lines.append(clean("labels " + ", ".join(f"{key}={value}" for key, value in header.labels.items())))
    if header.history_lost is not None:
        lines.append(
            f"history lost {age(moment(header.history_lost.at_ms))} ago: {clean(header.history_lost.describe())}"
        )
    if header.confirmed is False:
        lines.append("its end is not confirmed by a replica: a failover may forget it, and its result is not given yet")
    lines += [f"now: {clean(one_line(reason, _MAX_CHARACTERS))}"] if reason else []
    beside = beside or Beside()
    lines += [line for each in beside.requests if each.answer is not None for line in _answered_lines(each, text)]
    if state.execution is not None:
        lines += ["", *_execution_lines(header, state.execution, text)]
    lines += ["", *_conversation_lines(state, text)]
    lines += (line for each in beside.waiting for line in _waiting_lines(each, "waits for the step", text))
    if beside.queue is not None:
        place = f"queued, and held since the last execution {beside.queue.held}" if beside.queue.held else "queued"
        lines += (line for each in beside.queue.messages for line in _waiting_lines(each, place, text))
    return lines


def step_numbers(state: AgentState) -> list[int]:
    """The numbers of the steps that are done."""
    return [done.step.number for done in state.execution.step_executions] if state.execution else []


def step_lines(state: AgentState, number: int) -> list[str]:
    """One step of the execution, with nothing shortened."""
    assert state.execution is not None
    done = next(each for each in state.execution.step_executions if each.step.number == number)
    return list(_step_lines(done, _Text(shorten=False)))


def tree_lines(tree: TreeNode, reasons: Mapping[str, str]) -> list[str]:
    """A tree for people: a line for each session, those below another one indented.

    Args:
        reasons: Why sessions have not ended yet, by id.
    """
    count = sum(1 for _ in tree.walk())
    cost = "" if tree.cost is None else f", ${tree.cost:.4f}"
    total = f"{plural(count, 'session')}, {plural(tree.steps, 'step')}, {plural(tree.tokens, 'token')}{cost}"
    return [*table(_TREE_HEAD, _rows(tree, reasons, 0)), total]


@dataclass(frozen=True, slots=True)
class _Text:
    """Prepares texts of others for a terminal."""

    shorten: bool

    def line(self, text: str) -> str:
        """A text on one line."""
        return one_line(text, _SHORT if self.shorten else len(text) + 1)

    def block(self, text: str, indent: str) -> Iterator[str]:
        """A text on as many lines as it has, each indented."""
        whole = clean(text).strip()
        rest = len(whole) - _MAX_CHARACTERS if self.shorten else 0
        shown = whole if rest <= 0 else f"{whole[:_MAX_CHARACTERS]} … ({plural(rest, 'character')} more)"
        return (f"{indent}{line}" for line in shown.splitlines())


def _execution_lines(header: Header, execution: ExecutionState, text: _Text) -> Iterator[str]:
    numbers = [plural(execution.step_count, "step"), seconds(execution.duration())]
    numbers += [plural(execution.usage.total, "token")] if execution.usage.total else []
    numbers += [f"${execution.cost:.4f}"] if execution.cost else []
    reason = execution.final_reason()
    why = f" ({reason.value})" if reason is not None and reason.value != "completed" else ""
    yield f"execution {execution.execution_id}  {text.line(str(header.status))}{why}: {', '.join(numbers)}"
    signal = execution.stop_signal
    if signal is not None and signal.message:
        yield f"  ended by {text.line(signal.source or 'a signal')}: {text.line(signal.message)}"
    for done in execution.step_executions:
        yield from _step_lines(done, text)
    for error in execution.errors:
        if signal is None or error.message != signal.message:
            yield f"  error: {_describe_error(error, text)}"


def _step_lines(done: StepExecution, text: _Text) -> Iterator[str]:
    """A step: model, time, tokens, cost, then its text, its calls with what came of them, and its own errors."""
    step, response = done.step, done.step.inference_response
    since = " since it waited" if _has_waited(done) else ""
    facts = [text.line(response.model or ""), f"{seconds(done.duration)}{since}"]
    facts += [plural(response.usage.total, "token")] if response.usage.total else []
    facts += [f"${response.cost:.4f}"] if response.cost else []
    facts.append(_describe_finish(response.finish_reason))
    yield f"step {step.number}: {'  '.join(fact for fact in facts if fact)}"
    if response.thinking and not text.shorten:
        yield f"{_INDENT}thinking"
        yield from text.block(response.thinking, _INDENT * 2)
    if step.output_text.strip():
        said = [text.line(step.output_text)] if text.shorten else text.block(step.output_text, "")
        yield from (f"{_INDENT}{line}" for line in said)
    for execution in step.tool_executions:
        yield from _call_lines(execution, text)
    for call in _calls_without_result(step):
        yield f"{_INDENT}call {text.line(call)}: no result"
    for error in step.errors:
        yield f"{_INDENT}error: {_describe_error(error, text)}"


def _has_waited(done: StepExecution) -> bool:
    """Whether the step asked for something, and a worker took it again: its time is that since then."""
    asked = [each.asked_at_ms for call in done.step.tool_executions for each in call.resolutions]
    return any(0 < asked_ms < unix_ms(done.started_at) for asked_ms in asked)


def _call_lines(execution: ToolExecution, text: _Text) -> Iterator[str]:
    call = execution.tool_call
    for each in execution.resolutions:
        yield f"{_INDENT}{text.line(call.name)}: {_describe_answer(each.kind.value, each, text)}"
    took = f"  {seconds(execution.duration)}" if execution.duration else ""
    head = f"{_INDENT}call {text.line(call.name)}({text.line(_arguments(call.args_json()))})"
    if execution.outcome is ToolOutcome.OK:
        yield f"{head}: ok{took}"
        yield from text.block(
            text.line(execution.as_message()) if text.shorten else execution.as_message(), _INDENT * 2
        )
        return
    error = execution.error_info()
    why = f": {_describe_error(error, text)}" if error is not None else ""
    yield f"{head}: {execution.outcome.value.replace('_', ' ')}{took}{why}"


def _answered_lines(found: FoundRequest, text: _Text) -> Iterator[str]:
    """An answer that the step which waits has got already."""
    assert found.answer is not None
    said = _describe_answer(found.summary.kind.value, found.answer, text)
    yield f"{text.line(found.summary.call)}: {said}"


def _describe_answer(kind: str, answer: AnswerRecord | RequestResolution, text: _Text) -> str:
    """Say how a request was answered: by whom, when and why."""
    by = f" by {text.line(answer.by)}" if answer.by else ""
    reason = text.line(answer.note or answer.reason)
    why = f": {reason}" if reason else ""
    return f"{kind} {ANSWERS.get(answer.verb.value, answer.verb.value)}{by}, {age(moment(answer.at_ms))} ago{why}"


def _waiting_lines(operation: Operation, place: str, text: _Text) -> Iterator[str]:
    """A message or a change that waits.

    Args:
        place: Where it waits, in words.
    """
    if operation.kind is not InboxKind.MESSAGE:
        yield f"{place}: {operation.kind.value.replace('_', ' ')}"
        return
    first, *others = [*text.block(operation.text, "")] or [""]
    yield f"user, {clean(place)}: {first}"
    yield from (f"{_INDENT}{line}" for line in others)


def _arguments(given: str) -> str:
    """Arguments as they are written in a call; an empty object is nothing."""
    return "" if given == "{}" else given


def _calls_without_result(step: AgentStep) -> Sequence[str]:
    done = {execution.tool_call.id for execution in step.tool_executions}
    return [call.name for call in step.requested_tool_calls if call.id not in done]


def _describe_error(error: ErrorInfo, text: _Text) -> str:
    named = error.message.startswith(f"{error.kind}: ") or error.message == error.kind
    return text.line(error.message if named else f"{error.kind}: {error.message}")


def _describe_finish(reason: FinishReason) -> str:
    """Why an answer is not whole; "" where it is."""
    if reason is FinishReason.LENGTH:
        return "cut off: the answer reached its longest length"
    if reason is FinishReason.INTERRUPTED:
        return "interrupted by a message"
    return f"cut short: {reason.value}" if reason.is_cut_short() else ""


def _conversation_lines(state: AgentState, text: _Text) -> Iterator[str]:
    """The messages of the user and of the agent, without the results of tools."""
    for message in state.store.section().messages:
        if message.role in (Role.USER, Role.ASSISTANT) and message.content.strip():
            yield from _message_lines(message, text)


def _message_lines(message: Message, text: _Text) -> Iterator[str]:
    first, *others = [*text.block(message.content, "")] or [""]
    yield f"{message.role.value}: {first}"
    yield from (f"{_INDENT}{line}" for line in others)


def _rows(node: TreeNode, reasons: Mapping[str, str], depth: int) -> Iterator[tuple[str, ...]]:
    header = node.header
    cost = "" if node.cost is None else f"${node.cost:.4f}"
    reason = one_line(reasons.get(header.session_id, ""), _REASON_CHARS)
    mark = f"{'  ' * (depth - 1)}└ " if depth else ""
    # A table puts a cell on one line and drops the spaces before it, so the mark keeps the place.
    name = f"{mark}{header.session_id}".replace("  ", "· ")
    yield (name, header.agent, str(header.status), str(node.steps), str(node.tokens), cost, reason)
    for child in node.children:
        yield from _rows(child, reasons, depth + 1)
