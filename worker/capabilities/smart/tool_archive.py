"""`ToolArchive`: shows old tool results as handles, and gives the model `get_tool_response` to fetch them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal, get_args

from pydantic import Field

from ...capability import Capability
from ...errors import ConfigurationError
from ...hooks import Hook, HookContext, HookPoint
from ...state.agent_state import AgentState
from ...state.conversation.compilers import MessageCompiler
from ...state.conversation.messages import DEFAULT, Message, Role
from ...state.parts.state_part import StatePart
from ...state.values.field_types import Count
from ...tools.context import ToolContext
from ...tools.definition import tool
from ...tools.protocol import Tool
from ..guardrails.findings import without_blocked
from ..numbers import check_whole
from .compacted import (
    CompactedConversation,
    Compaction,
    Summaries,
    SummarizationEvent,
    compaction_of,
    newest_turn,
)
from .planning import MANAGE_TODO_LIST
from .tokens import TokenCounter, count_tokens, estimate_tokens

ToolResponsePolicy = Literal["keep_full", "keep_structured", "summarize_archive", "drop"]

GET_TOOL_RESPONSE: Final = "get_tool_response"
DEFAULT_CRITICAL_TOOLS: Final = frozenset({"response", MANAGE_TODO_LIST, GET_TOOL_RESPONSE})
SMALLEST_CONTEXT_TOKENS: Final = 200
TRIGGER_SHARE: Final = 0.75
_SHORT_CHARS: Final = 240
_SHOWN_CHARS: Final = 80
_FETCHED_CHARS: Final = 8_000
_DESCRIPTION: Final = (
    "Return a tool response that is shown as archived, or the arguments of its call. A long one comes in pieces: ask "
    "again with the offset that the answer names."
)


class ArchiveUse(StatePart):
    """How often the model has fetched archived results in this execution."""

    part_name = "smart_archive"
    fetched: Count = 0


@dataclass(frozen=True)
class ToolArchive(Capability):
    """Archives tool results when the conversation gets long. Nothing is lost: the session keeps each of them.

    Before a step whose conversation has more tokens than the trigger, all results but those of the newest answer are
    archived: the model sees a handle in place of each, with the id that `get_tool_response` takes.

    Attributes:
        max_context_tokens: The tokens that the conversation should stay under, from 200.
        trigger_tokens: The tokens above which results are archived; None: three quarters of the maximum.
        policy: `summarize_archive` shows a handle with the beginning of the result, `drop` one without,
            `keep_structured` leaves results that are JSON objects or lists, `keep_full` archives nothing.
        critical_tools: Tools whose results are never archived.
        max_response_chars: A longer result that is not archived shows its beginning, and a handle for the rest. None:
            no limit.
        max_fetches: Calls of `get_tool_response` in an execution; 0: none.
        token_counter: Counts the tokens of a text.
    """

    max_context_tokens: int = 96_000
    trigger_tokens: int | None = None
    policy: ToolResponsePolicy = "summarize_archive"
    critical_tools: Collection[str] = DEFAULT_CRITICAL_TOOLS
    max_response_chars: int | None = None
    max_fetches: int = 8
    token_counter: TokenCounter = field(default=estimate_tokens, repr=False)

    def __post_init__(self) -> None:
        check_whole(f"{self.name}(max_context_tokens)", self.max_context_tokens, least=SMALLEST_CONTEXT_TOKENS)
        if self.trigger_tokens is not None:
            check_whole(f"{self.name}(trigger_tokens)", self.trigger_tokens, least=1)
            if self.trigger_tokens > self.max_context_tokens:
                raise ConfigurationError(
                    f"{self.name}(trigger_tokens)={self.trigger_tokens}: give at most max_context_tokens, "
                    f"{self.max_context_tokens}"
                )
        if self.max_response_chars is not None:
            check_whole(f"{self.name}(max_response_chars)", self.max_response_chars, least=_SHORT_CHARS)
        check_whole(f"{self.name}(max_fetches)", self.max_fetches)
        if self.policy not in get_args(ToolResponsePolicy):
            known = ", ".join(get_args(ToolResponsePolicy))
            raise ConfigurationError(f"{self.name}(policy)={self.policy!r:.60}: there are {known}")
        if not callable(self.token_counter):
            raise ConfigurationError(f"{self.name}(token_counter): give a function of a text, or leave it out")
        if isinstance(self.critical_tools, str):
            raise ConfigurationError(f"{self.name}(critical_tools): give a set of names, as {{'search'}}")
        object.__setattr__(self, "critical_tools", frozenset(self.critical_tools))

    @property
    def trigger(self) -> int:
        """The tokens above which the conversation is compacted."""
        return self.trigger_tokens or round(self.max_context_tokens * TRIGGER_SHARE)

    def tools(self) -> Sequence[Tool | Callable[..., Any]]:
        """The one tool `get_tool_response`."""
        return (tool(effect="pure", name=GET_TOOL_RESPONSE, description=_DESCRIPTION)(self._fetch),)

    def parts(self) -> Sequence[Any]:
        """The compacted results, and how often the model has fetched."""
        return (Compaction, Summaries, ArchiveUse)

    def hooks(self) -> Sequence[Hook]:
        """Compacts before a step, offers the tool while a handle is in sight, and counts its calls."""
        return (
            Hook(HookPoint.BEFORE_STEP, self._compact, name=self.name),
            Hook(HookPoint.BEFORE_INFERENCE, self._offer_tool, name=self.name),
            Hook(HookPoint.AFTER_STEP, self._count_fetches, name=self.name),
        )

    def compiler(self) -> MessageCompiler:
        """The conversation with its handles."""
        return self.shown

    def events(self, before: AgentState, after: AgentState) -> Sequence[Mapping[str, Any]]:
        """An event where the conversation was compacted."""
        was, now = before.part(Compaction), after.part(Compaction)
        if was == now:
            return ()
        summaries = after.part(Summaries)
        is_new = len(summaries) > len(before.part(Summaries))
        event = SummarizationEvent(
            archived=now.archived, covered=now.covered, summary_id=summaries[-1].id if is_new else None
        )
        return [event.to_dict()]

    @property
    def shown(self) -> CompactedConversation:
        """The compiler that shows what is archived by this policy."""
        return CompactedConversation(archived=self._archive, recent=self._shorten, summary_chars=self.summary_chars)

    @property
    def summary_chars(self) -> int:
        """Characters of a summary that the model sees: at most a quarter of the context."""
        return self.max_context_tokens

    # --- compaction -------------------------------------------------------------------------------------------

    def _compact(self, context: HookContext) -> HookContext | None:
        part = compaction_of(context.state)
        if self.count(context.state, part) <= self.trigger:
            return None
        state = self.compact(context, part)
        return None if state is context.state else context.changed(state=state)

    def compact(self, context: HookContext, part: Compaction) -> AgentState:
        """The state with its tool results archived; the same one where there is nothing to archive."""
        after = self.archive(context.state, part)
        return context.state if after == part else context.state.with_part(after, now=context.state.updated_at)

    def archive(self, state: AgentState, part: Compaction) -> Compaction:
        """The compaction with every result archived but those of the newest answer."""
        messages = state.store.section(DEFAULT).messages
        upto = newest_turn(messages, max(part.covered, part.archived))
        if upto <= part.archived or self.policy == "keep_full":
            return part
        return part.replace(archived=upto)

    def count(self, state: AgentState, part: Compaction) -> int:
        """The tokens of the conversation as this compaction shows it."""
        return count_tokens(self.shown.compile_with(state, part), self.token_counter)

    # --- handles ----------------------------------------------------------------------------------------------

    def _archive(self, message: Message) -> Message:
        name = _execution_id(message)
        text = message.content
        if name is None or len(text) <= _SHORT_CHARS or message.name in self.critical_tools or self._stays(text):
            return self._shorten(message)
        begins = "" if self.policy == "drop" else f" It begins: {text[:_SHOWN_CHARS]!r}"
        return message.with_content(
            f"[archived: {len(text)} characters; {GET_TOOL_RESPONSE}(execution_id={name!r}) returns them]{begins}"
        )

    def _stays(self, text: str) -> bool:
        return self.policy == "keep_structured" and text[:1] in ("{", "[")

    def _shorten(self, message: Message) -> Message:
        most, name = self.max_response_chars, _execution_id(message)
        if most is None or name is None or len(message.content) <= most or message.name == GET_TOOL_RESPONSE:
            return message
        rest = f"{GET_TOOL_RESPONSE}(execution_id={name!r}, offset={most}) returns the rest"
        return message.with_content(f"{message.content[:most]}\n[cut: {len(message.content)} characters; {rest}]")

    def _offer_tool(self, context: HookContext) -> HookContext | None:
        """Take the tool out of the request while no handle is in sight."""
        request = context.request
        if request is None or self.max_response_chars is not None or compaction_of(context.state).archived:
            return None
        kept = tuple(each for each in request.tools if each.name != GET_TOOL_RESPONSE)
        return context.changed(request=request.with_tools(kept))

    def _count_fetches(self, context: HookContext) -> HookContext | None:
        step = context.state.current_step
        fetched = sum(each.name == GET_TOOL_RESPONSE for each in step.requested_tool_calls) if step is not None else 0
        if not fetched:
            return None
        use = context.state.part(ArchiveUse)
        changed = context.state.with_part(use.replace(fetched=use.fetched + fetched), now=context.state.updated_at)
        return context.changed(state=changed)

    def _fetch(
        self,
        ctx: ToolContext,
        execution_id: Annotated[str, Field(description="The id that the handle names, or the id of the tool call.")],
        part: Annotated[Literal["output", "args"], Field(description="The response, or the arguments.")] = "output",
        offset: Annotated[int, Field(ge=0, description="Characters to skip.")] = 0,
    ) -> str:
        """Return an archived result, or a piece of it."""
        if ctx.state is None:
            return "There is no session to look into."
        before = sum(each.name == GET_TOOL_RESPONSE for each in ctx.calls[: ctx.index])
        if ctx.state.part(ArchiveUse).fetched + before >= self.max_fetches:
            return f"Not returned: {self.max_fetches} archived responses were fetched already. Go on without."
        text = find_response(ctx.state, execution_id, part)
        if text is None:
            return f"There is no tool response {execution_id!r:.80}. Copy the id from its handle."
        piece = text[offset : offset + self._piece_chars]
        end = offset + len(piece)
        return piece if end >= len(text) else f"{piece}\n[{len(text)} characters; go on with offset={end}]"

    @property
    def _piece_chars(self) -> int:
        """A fetched piece fills at most an eighth of the context."""
        return max(_SHORT_CHARS, min(_FETCHED_CHARS, self.max_context_tokens // 2))


def find_response(state: AgentState, name: str, part: str) -> str | None:
    """The whole result, or the arguments, of the call with this id of its execution, or of the call; None without one.

    The ids of calls may repeat: the newest call counts.
    """
    messages = state.store.section(DEFAULT).messages
    for index in range(len(messages) - 1, -1, -1):
        message = messages[index]
        if message.role is not Role.TOOL or name not in (_execution_id(message), message.tool_call_id):
            continue
        if part == "output":
            return without_blocked(state, [message])[0].content
        return next(
            (
                call.args_json()
                for asking in reversed(messages[:index])
                for call in asking.tool_calls
                if call.id == message.tool_call_id
            ),
            None,
        )
    return None


def _execution_id(message: Message) -> str | None:
    name = message.metadata.get("tool_execution_id")
    return name if isinstance(name, str) else None
