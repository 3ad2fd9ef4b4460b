"""The tools of a pydantic-ai agent: a call goes through the agent's own toolsets, validators and hooks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pydantic_core import to_jsonable_python

from ..errors import CeleryAgentsError
from ..state import DEFAULT, FrozenDict, StopReason, thaw
from ..tools import NeedsApproval, StopExecution, ToolContext, ToolSet
from ..tools.effect import Effect
from . import internals
from .conversation import ANSWER_AGAIN, KEY, Counters, call_part, load_messages, read_conversation, write_result
from .driver import deps_of

if TYPE_CHECKING:
    from pydantic_ai import Agent
    from pydantic_ai.run import AgentRun

    from ..tools.protocol import Tool
    from .durability import CeleryDurability

_MOST_CHARS = 1_000_000


@dataclass(frozen=True, eq=False)
class PydanticTool:
    """A tool that a pydantic-ai agent has, or that its model has made up: pydantic-ai tells the model so.

    Attributes:
        name: What the model calls it.
        effect: The effect class, from the tool's metadata.
    """

    agent: Agent[Any, Any]
    options: CeleryDurability
    name: str
    effect: Effect = Effect.UNSAFE
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=lambda: FrozenDict({"type": "object"}))
    timeout: float | None = None
    lookup: None = None
    max_result_chars: int = _MOST_CHARS
    is_async: bool = True

    def bind(self, args: Mapping[str, Any] | str) -> Mapping[str, Any]:
        """The arguments as they are: the agent's run validates them, and words what the model reads."""
        return {"args": args}

    async def call(self, ctx: ToolContext, bound: Mapping[str, Any]) -> Any:
        """Make the call in a run that goes on from the answer.

        Raises:
            StopExecution: The tool raised what ends a run of pydantic-ai.
            NeedsApproval: The tool wants a person's approval.
        """
        from pydantic_ai.exceptions import ApprovalRequired, CallDeferred

        if self.name == ANSWER_AGAIN:
            return "The output was rejected; the model is asked again."
        try:
            return await self._call(ctx)
        except ApprovalRequired:
            raise NeedsApproval(f"May {self.name} be called?", edits=False) from None
        except CallDeferred:
            raise StopExecution(
                f"tool {self.name}: its result comes from outside, which durable agents cannot wait for yet",
                reason=StopReason.ERROR_FORBADE,
            ) from None
        except CeleryAgentsError:
            raise
        except Exception as error:
            raise StopExecution(f"{type(error).__name__}: {error}", reason=StopReason.ERROR_FORBADE) from error

    async def _call(self, ctx: ToolContext) -> Any:
        assert ctx.state is not None
        assert ctx.provider is not None
        kept: Any = thaw(ctx.provider[KEY])
        before = read_conversation(ctx.state.store.section(DEFAULT).messages, ctx.execution_id)
        counters = Counters(**kept["counters"])
        async with self.agent.iter(
            message_history=[*before.history[: before.known], *load_messages(kept["messages"])],
            deps=deps_of(self.agent, self.options, ctx.state.metadata),
            usage=_read_usage(kept["usage"]),
            usage_limits=self.options.usage_limits,
            conversation_id=ctx.session_id,
            metadata={"celery": {"idempotency_key": ctx.idempotency_key}},
        ) as run:
            internals.seed_run(run, counters, run_step=counters.run_step - 1)
            await run.next(run.next_node)  # type: ignore[arg-type]
            manager = internals.tool_manager_of(run, counters)
            call = call_part(ctx.calls[ctx.index])
            parts = await internals.parts_of_call(manager, call, approved=ctx.approval is not None)
            return write_result(parts, _used_since(run, kept["usage"]))


class PydanticToolSet(ToolSet):
    """The tools of a pydantic-ai agent. It has a tool for each name, since toolsets may add tools at run time."""

    __slots__ = ("_agent", "_default", "_effects", "_options")

    def __init__(self, agent: Agent[Any, Any], options: CeleryDurability, effects: Mapping[str, Effect]) -> None:
        self._agent, self._options, self._effects = agent, options, effects
        self._default = Effect(options.effect)
        super().__init__(self._make(name) for name in effects)

    def _make(self, name: str) -> PydanticTool:
        effect = Effect.PURE if name == ANSWER_AGAIN else self._effects.get(name, self._default)
        return PydanticTool(agent=self._agent, options=self._options, name=name, effect=effect)

    def get(self, name: str) -> Tool | None:
        """The tool of that name; there always is one."""
        return super().get(name) or self._make(name)


def _read_usage(kept: Mapping[str, Any]) -> Any:
    from pydantic_ai.usage import RunUsage

    return RunUsage(**kept)


def _used_since(run: AgentRun[Any, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """The usage that a call has added, that of its sub-agents included; numbers only, and none that are 0."""
    now: dict[str, Any] = to_jsonable_python(run.usage)
    return {
        name: value - before.get(name, 0)
        for name, value in now.items()
        if isinstance(value, (int, float)) and value != before.get(name, 0)
    }
