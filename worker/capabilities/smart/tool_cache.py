"""`ToolCache`: gives the result of an equal earlier call of the session again, and does not run the tool."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from pydantic_core import from_json

from ...capability import Capability
from ...errors import ConfigurationError
from ...hooks import Hook, HookContext, HookPoint
from ...state.agent_state import AgentState
from ...state.conversation.messages import DEFAULT
from ...state.execution.steps import AgentStep
from ...state.execution.tool_calls import ToolCall, ToolExecution, ToolOutcome
from ...state.parts.state_part import PartScope, PartValue, StatePart
from ...state.values.canonical import canonical_digest
from ...state.values.field_types import Count, Flag, Text, UtcDatetime
from ...state.values.frozen import Json
from ..numbers import check_whole
from ..terminal_tools import check_tool_names

_SOURCE: Final = "ToolCache"


class CachedResult(PartValue):
    """The place in the conversation of a result that is given again for an equal call.

    Attributes:
        key: Of the tool and its arguments.
        generation: The generation of the conversation that the index belongs to.
        index: Of the message with the result.
        is_text: The result is a text; else it is JSON.
        at: The time of the call (UTC).
    """

    key: Text
    generation: Count = 0
    index: Count
    is_text: Flag = True
    at: UtcDatetime


class CachedResults(StatePart):
    """The results that `ToolCache` keeps, the least recently made first."""

    part_name = "smart_tool_cache"
    scope = PartScope.SESSION
    results: tuple[CachedResult, ...] = ()


@dataclass(frozen=True)
class ToolCache(Capability):
    """Keeps the successful results of these tools for the whole session, by tool and arguments.

    A hit is marked `idempotent_cache_hit`. The cache holds where the conversation has a result, not the result itself.

    Attributes:
        names: Tools of the agent whose results may be given again.
        ttl: The time after which a result is no longer given again. None: never.
        max_entries: So many results are kept, the newest ones; from 1.
    """

    names: Collection[str] = ()
    ttl: timedelta | None = None
    max_entries: int = 200

    def __post_init__(self) -> None:
        if isinstance(self.names, str) or not self.names:
            raise ConfigurationError(f"ToolCache(names)={self.names!r:.60}: give a set of names, as {{'search'}}")
        if self.ttl is not None and (not isinstance(self.ttl, timedelta) or self.ttl <= timedelta(0)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f"ToolCache(ttl)={self.ttl!r:.60}: give a timedelta above 0, or None")
        check_whole("ToolCache(max_entries)", self.max_entries, least=1)
        object.__setattr__(self, "names", frozenset(self.names))

    def check_tools(self, names: Collection[str]) -> None:
        """Refuse an agent that lacks one of the tools."""
        check_tool_names(_SOURCE, self.names, names)

    def parts(self) -> Sequence[Any]:
        """The kept results."""
        return (CachedResults,)

    def hooks(self) -> Sequence[Hook]:
        """Gives known results before calls, and keeps new ones after a step."""
        return (
            Hook(HookPoint.BEFORE_TOOL, self._give, name=_SOURCE),
            Hook(HookPoint.AFTER_STEP, self._keep, name=_SOURCE),
        )

    def _give(self, context: HookContext) -> HookContext | None:
        call = context.tool_call
        if call is None or call.name not in self.names:
            return None
        known = self._find(context.state, call, context.now or context.state.updated_at)
        return None if known is None else context.changed(tool_execution=known)

    def _find(self, state: AgentState, call: ToolCall, now: datetime) -> ToolExecution | None:
        key, section = _key(call), state.store.section(DEFAULT)
        for each in reversed(state.part(CachedResults).results):
            if each.key != key or each.generation != section.generation:
                continue
            if self._is_over(each.at, now) or each.index >= len(section.messages):
                return None
            text = section.messages[each.index].content
            value = _value_of(text, is_text=each.is_text)
            return ToolExecution(tool_call=call, outcome=ToolOutcome.OK, value=value, started_at=now, completed_at=now)
        return None

    def _is_over(self, at: datetime, now: datetime) -> bool:
        return self.ttl is not None and now - at >= self.ttl

    def _keep(self, context: HookContext) -> HookContext | None:
        state, step = context.state, context.state.current_step
        if step is None:
            return None
        new = [
            CachedResult(
                key=_key(each.tool_call),
                generation=state.store.section(DEFAULT).generation,
                index=index,
                is_text=isinstance(each.value, str),
                at=state.updated_at,
            )
            for each, index in _results(state, step)
            if each.tool_call.name in self.names and each.outcome is ToolOutcome.OK and not each.idempotent_cache_hit
        ]
        if not new:
            return None
        keys = {each.key for each in new}
        kept = [each for each in state.part(CachedResults).results if each.key not in keys]
        part = CachedResults(results=(*kept, *new)[-self.max_entries :])
        return context.changed(state=state.with_part(part, now=state.updated_at))


def _value_of(text: str, *, is_text: bool) -> Json:
    """The value of a result; of one that a fork has edited, which may have become a text, what its message says."""
    try:
        return text if is_text else from_json(text)
    except ValueError:
        return text


def _key(call: ToolCall) -> str:
    return canonical_digest([call.name, call.args])


def _results(state: AgentState, step: AgentStep) -> list[tuple[ToolExecution, int]]:
    """The executions of a step, each with the index of its message in the conversation."""
    messages = state.store.section(DEFAULT).messages
    places = {
        str(messages[index].metadata.get("tool_execution_id")): index
        for span in step.outputs
        if span.section == DEFAULT
        for index in range(span.start, span.stop)
    }
    return [(each, places[str(each.id)]) for each in step.tool_executions if str(each.id) in places]
