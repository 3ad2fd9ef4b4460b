"""The attributes of pydantic-ai that carry no promise. No other module touches them; a contract test covers each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..errors import ConfigurationError
from .conversation import Counters, Prompt, with_unique_call_ids
from .stored_messages import dump_messages, load_messages

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, ModelRequestPart, ModelResponse, ToolCallPart
    from pydantic_ai.run import AgentRun
    from pydantic_ai.tool_manager import ToolManager


def check_installed() -> None:
    """Check that the installed pydantic-ai has the attributes that this module touches.

    Raises:
        ConfigurationError: It has not; the text says which, and what to install.
    """
    import pydantic_ai
    from pydantic_ai import _agent_graph, _enqueue, _tool_execution, exceptions, run, tool_manager  # pyright: ignore

    missing = [
        f"{getattr(owner, '__name__', owner)}.{name}"
        for owner, names in (
            (_agent_graph.GraphAgentState, ("run_step", "output_retries_used", "pending_messages", "message_history")),
            (_agent_graph.GraphAgentState, ("default_output_modes", "last_max_tokens", "check_incomplete_tool_call")),
            (_enqueue.PendingMessage, ("messages", "priority", "enqueue_id", "_tool_call")),
            (_agent_graph.GraphAgentDeps, ("tool_manager", "prompt", "established_tool_names", "get_model_settings")),
            (_agent_graph.CallToolsNode, ("tool_call_results", "model_response")),
            (tool_manager.ToolManager, ("ctx", "tools", "handle_call", "get_tool_def")),
            (tool_manager.ToolManager, ("for_run_step", "validate_tool_call", "availability_refused")),
            (tool_manager.ToolManager, ("resolve_deferred_tool_calls",)),
            (_tool_execution, ("build_tool_return_part", "tool_bound_retry_part", "cancelled_sub_agent_return")),
            (_tool_execution, ("_reject_unloaded_capability_reveals",)),
            (run.AgentRun, ("_result_override",)),
            (run.AgentRunResult, ("_output_tool_name",)),
            (exceptions, ("ToolFailedError", "ToolRetryError")),
        )
        for name in names
        if not hasattr(owner, name) and name not in getattr(owner, "__dataclass_fields__", ())
    ]
    if missing:
        raise ConfigurationError(
            f"pydantic-ai {pydantic_ai.__version__} has no {', '.join(missing)}, which durable agents need; "
            "install a version that this package's extra llm allows"
        )


def seed_run(run: AgentRun[Any, Any], counters: Counters, *, run_step: int, prompt: Prompt) -> None:
    """Let a run that has made no request count on from an earlier one, with what the user has asked that one for."""
    state = run.ctx.state
    state.run_step, state.output_retries_used = run_step, counters.output_retries
    run.ctx.deps.prompt = prompt


def settle(run: AgentRun[Any, Any], settled: Mapping[str, Any]) -> None:
    """Let a run that has made no request offer tools and outputs as the first request of its execution has."""
    if settled:
        run.ctx.deps.established_tool_names = set(settled["tools"])
        run.ctx.state.default_output_modes.update(settled["modes"])


def settled_by(run: AgentRun[Any, Any]) -> dict[str, Any]:
    """Tell what the first request of a run settles: which tools are no newcomers, and how outputs are asked for."""
    tools = run.ctx.deps.established_tool_names
    return {} if tools is None else {"tools": sorted(tools), "modes": dict(run.ctx.state.default_output_modes)}


def restore_history(run: AgentRun[Any, Any], history: Sequence[ModelMessage], *, prompt: Prompt) -> None:
    """Give a run that has just begun the messages that precede what it is about to do, and its prompt.

    A run repairs its history when it begins, and takes what a tool has added to a result for its prompt. A run that
    goes on does neither, so that its processors and instructions find what they left.
    """
    run.ctx.state.message_history[:] = history
    run.ctx.deps.prompt = prompt


def response_with_unique_call_ids(run: AgentRun[Any, Any], node: Any) -> ModelResponse:
    """Give each call of an answer that a run has got an id of its own, by which the run matches results with calls."""
    response: Any = with_unique_call_ids(node.model_response)
    if response is not node.model_response:
        history = run.ctx.state.message_history
        history[:] = [response if message is node.model_response else message for message in history]
        node.model_response = response
    return response


def queued_messages(run: AgentRun[Any, Any]) -> list[Any]:
    """The messages that were enqueued in a run and that no request has carried, as JSON."""
    return [
        {
            "messages": dump_messages(each.messages),
            "priority": each.priority,
            "id": each.enqueue_id,
            "call": each._tool_call,  # pyright: ignore
        }
        for each in run.ctx.state.pending_messages
    ]


def queue_messages(run: AgentRun[Any, Any], stored: Sequence[Any]) -> None:
    """Enqueue what `queued_messages` of an earlier run has found."""
    from pydantic_ai._enqueue import PendingMessage  # pyright: ignore

    for each in stored:
        call = each["call"]
        run.ctx.state.pending_messages.append(
            PendingMessage(
                messages=load_messages(each["messages"]),
                priority=each["priority"],
                enqueue_id=each["id"],
                _tool_call=None if call is None else (call[0], call[1]),
            )
        )


def tool_manager_of(run: AgentRun[Any, Any], counters: Counters) -> ToolManager[Any]:
    """The tools of a run that has an answer to carry out, with the retries that earlier steps have used."""
    manager = run.ctx.deps.tool_manager
    if manager.ctx is not None:
        manager.ctx.retries.update(counters.tool_retries)
        manager.availability_refused.update(counters.refused)
    return manager


def counters_of(run: AgentRun[Any, Any], counters: Counters) -> Counters:
    """The counters after a request; the retries of tools change by their results only."""
    state = run.ctx.state
    return replace(counters, run_step=state.run_step, output_retries=state.output_retries_used)


def names_of_outputs(manager: ToolManager[Any]) -> frozenset[str]:
    """The names of the tools that take the final output."""
    return frozenset(name for name, tool in (manager.tools or {}).items() if tool.tool_def.kind == "output")


def output_tool(run: AgentRun[Any, Any]) -> str | None:
    """The name of the output tool that took the output of a run; None where a text is the output."""
    result: Any = run.result
    return result._output_tool_name


def hooks_have_passed(run: AgentRun[Any, Any]) -> bool:
    """Whether the hooks behind the end of a run have let its result pass, or there is none."""
    return run.result is None or run._result_override is not None  # pyright: ignore[reportPrivateUsage]


class CallsFirst(BaseException):
    """Unwinds a run that is about to make calls that have to be journaled; no code of the run may catch it."""


async def take_outputs_first(run: AgentRun[Any, Any], node: Any) -> tuple[Any, list[ModelRequestPart] | None]:
    """Let a run take the output of an answer that has calls of other tools, too; none of those is made.

    Returns:
        The next node, where an output was taken; else None, and what the model gets of the outputs that were rejected.
    """
    _refuse_calls(run.ctx.deps.tool_manager)
    try:
        return await run.next(node), None
    except CallsFirst:
        interrupted: Any = run.ctx.state.message_history.pop()  # it holds the parts of the outputs before
        return None, list(interrupted.parts)


def _refuse_calls(manager: ToolManager[Any]) -> None:
    prepare = manager.for_run_step

    async def for_run_step(ctx: Any) -> ToolManager[Any]:
        following = await prepare(ctx)
        if following is not manager:
            _refuse_calls(following)
        return following

    async def validate_tool_call(*_: Any, **__: Any) -> Any:
        raise CallsFirst

    changed: Any = manager
    changed.for_run_step, changed.validate_tool_call = for_run_step, validate_tool_call


async def take_outputs_after(
    run: AgentRun[Any, Any], node: Any, results: Mapping[str, Sequence[ModelRequestPart]]
) -> Any:
    """Let a run take the outputs of an answer whose other calls were made before.

    Args:
        results: The results of the other calls, by their ids.
    Returns:
        The next node: the end, or the next request. The run's own rules decide; the parts are those that are given.
    """
    usage, messages = run.ctx.state.usage, run.ctx.state.message_history
    known = len(messages)
    usage.tool_calls -= len(results)  # the run checks its limit as if the calls were still to be made
    node.tool_call_results = {
        call.tool_call_id: _result_of(results[call.tool_call_id]) if call.tool_call_id in results else True
        for call in node.model_response.tool_calls
    }
    following: Any = await run.next(node)
    usage.tool_calls += len(results)
    requests: list[Any] = messages[known:] if run.result is not None else [*messages[known:], following.request]
    for request in requests:
        request.parts = [
            results[part.tool_call_id][0] if part.part_kind == "tool-return" and part.tool_call_id in results else part
            for part in request.parts
        ]
    return following


def _result_of(parts: Sequence[ModelRequestPart]) -> Any:
    """A result in the form in which a run takes one from outside."""
    from pydantic_ai.exceptions import ModelRetry, ToolFailed
    from pydantic_ai.messages import ToolReturn
    from pydantic_ai.tools import ToolDenied

    part: Any = parts[0]
    said = str(part.content)
    if part.outcome == "retried":
        return ModelRetry(said)
    if part.outcome == "denied":
        return ToolDenied(said)
    if part.outcome == "failed":
        return ToolFailed(said)
    content: Any = next((each.content for each in parts if each.part_kind == "user-prompt"), None)
    revealed = next((each.tools_added for each in parts if each.part_kind == "tool-availability-delta"), None)
    return ToolReturn(return_value=part.content, content=content, tools=revealed)


async def parts_of_call(
    run: AgentRun[Any, Any], call: ToolCallPart, *, approved: bool, answer: Callable[[Any], Any]
) -> list[ModelRequestPart]:
    """Validate and make a call; what the model gets of it, as the run itself would have put it.

    Args:
        answer: The results of deferred calls that no capability has resolved, as far as they are known.
    """
    from pydantic_ai._tool_execution import (  # pyright: ignore
        _reject_unloaded_capability_reveals,  # pyright: ignore
        build_tool_return_part,
        cancelled_sub_agent_return,
        tool_bound_retry_part,
    )
    from pydantic_ai.exceptions import RunCancelled, ToolFailedError, ToolRetryError, UnexpectedModelBehavior
    from pydantic_ai.messages import ToolAvailabilityDeltaPart, ToolCallPart, UserPromptPart

    manager: Any = run.ctx.deps.tool_manager
    _answer_deferred_calls(manager, answer)
    try:
        result = await manager.handle_call(call, approved=approved)
    except ToolRetryError as error:
        return [tool_bound_retry_part(error)]
    except ToolFailedError as error:
        return [error.tool_failed]
    except RunCancelled as error:  # of an agent that the tool has run
        return [cancelled_sub_agent_return(call, error)]
    except UnexpectedModelBehavior:
        _check_is_whole(run)
        raise
    definition = manager.get_tool_def(call.tool_name)
    part, content, revealed = build_tool_return_part(
        result, call=call, tool_kind=definition.tool_kind if definition is not None else None
    )
    parts: list[ModelRequestPart] = [part]
    known = _revealed_in(manager.ctx.messages) if revealed and manager.ctx is not None else ()
    if revealed := [name for name in dict.fromkeys(revealed or ()) if name not in known]:
        loaded = getattr(ToolCallPart.narrow_type(call), "capability_id", None)
        _reject_unloaded_capability_reveals(revealed, manager, activating_capability_id=loaded)
        parts.append(ToolAvailabilityDeltaPart(tools_added=revealed, tool_call_id=call.tool_call_id))
    return parts if content is None else [*parts, UserPromptPart(content=content)]


def _answer_deferred_calls(manager: Any, answer: Callable[[Any], Any]) -> None:
    resolve = manager.resolve_deferred_tool_calls

    async def resolve_or_answer(requests: Any) -> Any:
        return await resolve(requests) or answer(requests)

    manager.resolve_deferred_tool_calls = resolve_or_answer


def _check_is_whole(run: AgentRun[Any, Any]) -> None:
    """Check the last call of the answer.

    Raises:
        IncompleteToolCall: There were no tokens left for it.
    """
    ctx: Any = run.ctx.deps.tool_manager.ctx
    settings = run.ctx.deps.get_model_settings(ctx).merged or {}
    run.ctx.state.last_max_tokens = settings.get("max_tokens")
    run.ctx.state.check_incomplete_tool_call()


def _revealed_in(messages: Iterable[ModelMessage]) -> frozenset[str]:
    """The names of the tools that results have revealed."""
    deltas = (part for each in messages for part in each.parts if part.part_kind == "tool-availability-delta")
    return frozenset(name for delta in deltas for name in delta.tools_added)


async def tell_of_call(
    run: AgentRun[Any, Any], call: ToolCallPart, make: Callable[[], Awaitable[list[ModelRequestPart]]]
) -> list[ModelRequestPart]:
    """Make a call, and let the capabilities of the run that take its events see those of the call.

    Args:
        make: Makes the call; it is made once, also where a capability takes no event.
    """
    capability, ctx = run.ctx.deps.root_capability, run.ctx.deps.tool_manager.ctx
    if ctx is None or not (capability.has_wrap_run_event_stream or capability.has_on_event):
        return await make()
    ended: list[list[ModelRequestPart] | BaseException] = []

    async def events() -> AsyncIterator[Any]:
        from pydantic_ai.messages import FunctionToolCallEvent, FunctionToolResultEvent

        yield FunctionToolCallEvent(call)
        try:
            parts: list[Any] = await make()
        except (asyncio.CancelledError, GeneratorExit):
            raise
        except BaseException as error:  # noqa: BLE001 - raised below: not through the capabilities, which may group it
            ended.append(error)
            return
        ended.append(parts)
        content: Any = next((part.content for part in parts if part.part_kind == "user-prompt"), None)
        yield FunctionToolResultEvent(parts[0], content=content)

    async for _ in capability.wrap_run_event_stream(ctx, stream=events()):
        pass
    result = ended[0] if ended else await make()
    if isinstance(result, BaseException):
        raise result
    return result
