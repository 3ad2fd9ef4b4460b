"""The tools of a pydantic-ai agent: a call goes through the agent's own toolsets, validators and hooks."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from ..drivers.pydantic_ai.failures import may_pass
from ..errors import CeleryAgentsError
from ..requests.tokens import TokenPurpose
from ..state.conversation.messages import DEFAULT
from ..state.execution.inference import InferenceResponse
from ..state.execution.tool_calls import ToolCall
from ..state.values.frozen import FrozenDict, thaw
from ..tools.context import ToolContext
from ..tools.effect import Effect
from ..tools.needs import NeedsTime, OutcomeUnknown
from ..tools.stop import FailExecution, StopExecution
from ..tools.toolset import ToolSet
from . import internals
from .conversation import (
    ANSWER_AGAIN,
    KEY,
    Counters,
    KeptMessages,
    call_part,
    is_rejected,
    make_call_ids_unique,
    read_conversation,
)
from .driver import closing_quietly, deps_of, limits_of, metadata_of_run
from .repeating import failure_of_call, is_approved, key_of
from .stored_messages import CallResult, write_result
from .tool_options import TOOLS, ToolOptions
from .usages import dump_usage, load_usage

if TYPE_CHECKING:
    from pydantic_ai import Agent
    from pydantic_ai.messages import ModelMessage, ToolCallPart
    from pydantic_ai.run import AgentRun
    from pydantic_ai.usage import UsageLimits

    from ..tools.protocol import Tool
    from .deferring import RequestWaiter
    from .definition import KnownTool
    from .durability import CeleryDurability

_MOST_CHARS = 100_000_000
"""Characters of a result; its bytes are limited by the setting, and media have more characters than a text should."""

_MOST_TRIES = 8
"""Tries of a call whose toolset cannot connect, each after twice the time: four minutes in all."""

_MOST_REASON_CHARS = 400


@dataclass(frozen=True, eq=False)
class PydanticTool:
    """A tool that a pydantic-ai agent has, or that its model has made up: pydantic-ai tells the model so.

    Attributes:
        name: What the model calls it.
        effect: The effect class, from the tool's metadata.
        sequential: A call runs while no other call of the answer runs.
    """

    agent: Agent[Any, Any]
    options: CeleryDurability
    name: str
    effect: Effect = Effect.UNSAFE
    sequential: bool = False
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=lambda: FrozenDict({"type": "object"}))
    timeout: float | None = None
    lookup: None = None
    max_result_chars: int = _MOST_CHARS
    is_async: bool = True
    defers: bool = True

    def bind(self, args: Mapping[str, Any] | str) -> Mapping[str, Any]:
        """The arguments as they are: the agent's run validates them, and words what the model reads."""
        return {"args": args}

    async def call(self, ctx: ToolContext, bound: Mapping[str, Any]) -> Any:
        """Make the call in a run that goes on from the answer.

        Raises:
            FailExecution: The tool raised what ends a run of pydantic-ai.
            NeedsReply: The call waits for an approval, an answer, a result from outside, or a server that is away.
        """
        from pydantic_ai.exceptions import ApprovalRequired, CallDeferred
        from pydantic_ai.external_events import external_event_scope

        from .deferring import RequestWaiter, Suspended, needs_of

        if self.name == ANSWER_AGAIN and ctx.provider is not None and is_rejected(thaw(ctx.provider[KEY])):
            return "The output was rejected; the model is asked again."
        waiter = RequestWaiter(self.name, ctx.calls[ctx.index].id, ctx.replies)
        try:
            with external_event_scope(waiter):
                return await self._call_in_run(ctx, bound, waiter)
        except Suspended as suspended:
            raise suspended.needs from None
        except (ApprovalRequired, CallDeferred) as deferral:
            raise needs_of(self.name, deferral) from None
        except (CeleryAgentsError, StopExecution, OutcomeUnknown):
            raise
        except Exception as error:
            failure = failure_of_call(error, self.effect if waiter.has_begun else Effect.PURE)
            if not waiter.has_begun and may_pass(error):
                _wait_for_server(ctx, failure.message)
            raise FailExecution(failure) from error

    async def _call_in_run(self, ctx: ToolContext, bound: Mapping[str, Any], waiter: RequestWaiter) -> Any:
        assert ctx.state is not None
        assert ctx.provider is not None
        kept: Any = thaw(ctx.provider[KEY])
        before = read_conversation(ctx.state.store.section(DEFAULT).messages, ctx.state.tag_id_of(ctx.execution_id))
        counters = Counters(**kept["counters"])
        limits = limits_of(self.options, ctx.state.metadata)
        added = KeptMessages.read(kept)
        history = added.extend(before.history[: before.known])
        make_call_ids_unique(history, before.known if added.earlier is None else 0)
        opened = self.agent.iter(
            message_history=history,
            deps=deps_of(self.agent, self.options, ctx.state.metadata),
            usage=load_usage(kept["usage"]),
            usage_limits=limits,
            conversation_id=ctx.session_id,
            metadata={**metadata_of_run(ctx.state.metadata), "celery": _metadata(ctx, kept)},
        )
        async with closing_quietly(opened) as run:
            internals.seed_run(run, counters, run_step=counters.run_step - 1, prompt=before.asked)
            await run.next(run.next_node)  # type: ignore[arg-type]
            internals.restore_history(run, history, prompt=before.asked)
            waiter.has_begun = True
            _check_limit(limits, run, len(kept.get("calls", ())))
            internals.tool_manager_of(run, counters)
            call = _part_of_call(ctx.calls[ctx.index].id, self.name, bound["args"], history[-1])
            approved = ctx.approval is not None or is_approved(kept, call.tool_call_id)
            parts = await internals.tell_of_call(
                run, call, lambda: internals.parts_of_call(run, call, approved=approved, answer=waiter.answer_to)
            )
            queued = internals.queued_messages(run)
            used = dump_usage(run.usage - load_usage(kept["usage"]))
            return write_result(CallResult(parts, used, queued), ctx.max_result_bytes)


class PydanticToolSet(ToolSet):
    """The tools of a pydantic-ai agent. It has a tool for each name, since toolsets may add tools at run time."""

    __slots__ = ("_agent", "_known", "_options")

    def __init__(self, agent: Agent[Any, Any], options: CeleryDurability, known: Mapping[str, KnownTool]) -> None:
        self._agent, self._options, self._known = agent, options, known
        super().__init__(self._make(name) for name in known)

    def _make(self, name: str, options: ToolOptions | None = None) -> PydanticTool:
        known = self._known.get(name)
        if options is None:
            options = known.options if known is not None else ToolOptions(Effect(self._options.effect))
        described: dict[str, Any] = {}
        if known is not None:
            described = {"description": known.description, "parameters": known.parameters}
        return PydanticTool(
            agent=self._agent,
            options=self._options,
            name=name,
            effect=Effect.PURE if name == ANSWER_AGAIN and known is None else options.effect,
            sequential=options.sequential,
            **described,
        )

    def of_answer(self, response: InferenceResponse) -> ToolSet:
        """The tools as the run had them that gave this answer; see `ToolSet.of_answer`."""
        kept: Any = None if response.provider is None else response.provider.get(KEY)
        if not kept or TOOLS not in kept:
            return self
        changed = {name: self._make(name, ToolOptions.read(each)) for name, each in kept[TOOLS].items()}
        return _ToolsOfAnswer(changed, self)

    def get(self, name: str) -> Tool | None:
        """The tool of that name; there always is one."""
        return super().get(name) or self._make(name)


class _ToolsOfAnswer(ToolSet):
    """The tools of an answer that were not known when the agent was found, or were changed; else those of the agent."""

    __slots__ = ("_agents", "_changed")

    def __init__(self, changed: Mapping[str, PydanticTool], agents: PydanticToolSet) -> None:
        self._changed, self._agents = changed, agents
        super().__init__()

    def get(self, name: str) -> Tool | None:
        """The tool of that name; there always is one."""
        return self._changed.get(name) or self._agents.get(name)


def _wait_for_server(ctx: ToolContext, why: str) -> None:
    """Give the worker back for a while: what a toolset connects to is away, and the call has not begun.

    Raises:
        NeedsTime: The call goes on later; not after so many tries.
    """
    tries = sum("away" in memo.value for memo in ctx.replies.memos)
    if tries < _MOST_TRIES:
        raise NeedsTime(timedelta(seconds=2**tries), why=why[:_MOST_REASON_CHARS]).with_memo({"away": tries})


def _check_limit(limits: UsageLimits | None, run: AgentRun[Any, Any], calls: int) -> None:
    """Refuse all calls of an answer that would go beyond the limit of pydantic-ai for calls, as a run does.

    Raises:
        UsageLimitExceeded: They would.
    """
    if limits is not None and limits.tool_calls_limit is not None:
        projected = copy(run.usage)
        projected.tool_calls += calls
        limits.check_before_tool_call(projected)


def _part_of_call(call_id: str, name: str, args: Mapping[str, Any] | str, answer: ModelMessage) -> ToolCallPart:
    """The call as it is in the answer; with other arguments or another tool, where a person or a hook changed them."""
    changed = call_part(ToolCall(id=call_id, name=name, args=args))
    for part in answer.parts:
        if part.part_kind == "tool-call" and part.tool_call_id == call_id and part.tool_name == name:
            return part if part.args_as_json_str() == changed.args_as_json_str() else replace(part, args=changed.args)
    return changed


def _metadata(ctx: ToolContext, kept: Mapping[str, Any]) -> dict[str, Any]:
    """The metadata that a tool finds in its context: its key, and a completion token where tokens can be signed."""
    token = ctx.replies.offered_token(TokenPurpose.COMPLETE)
    key = key_of(kept, ctx.calls[ctx.index].id, ctx.idempotency_key)
    return {"idempotency_key": key, **({} if token is None else {"completion_token": token})}
