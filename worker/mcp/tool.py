"""`MCPTool`: one tool of a server, as the engine runs it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NoReturn, cast

from pydantic_core import from_json

from ..errors import InvalidInput
from ..requests.schemas import misfit
from ..state.agent_state import AgentState
from ..state.values.frozen import FrozenDict, freeze, thaw
from ..tool_schemas.checking import find_errors, plain_schema
from ..tool_schemas.mending import MendedSchema
from ..tools.approval import Approval
from ..tools.arguments import InvalidArguments
from ..tools.context import ToolContext
from ..tools.effect import Effect
from ..tools.needs import NeedsTime, OutcomeUnknown
from ..tools.protocol import Lookup
from ..tools.results import DEFAULT_MAX_RESULT_CHARS
from .connections import Connection, ServerConnections
from .lists import RemoteTool, ToolList, usable_tools
from .outages import AnswerUnreadable, ConnectionLost, MCPToolError, ServerAway, ToolFailed
from .questions import InputNeeded, RemoteCall, TaskRunning, answers_for_task, ask_person, earlier_answers
from .server import MCPServer

if TYPE_CHECKING:
    from .session import ServerSession

# A call is tried again so often before it gives its worker back.
_TRIES_AT_ONCE: Final = 2
_FIRST_PAUSE_SECONDS: Final = 1.0
_LONGEST_PAUSE_SECONDS: Final = 30.0
_MOST_TRIES: Final = 14
_LONGEST_POLL_SECONDS: Final = 600.0
_MOST_POLLS: Final = 40
_SHORT_POLL_SECONDS: Final = 0.5
_EARLIER_TRY: Final = "; an earlier try may have been carried out"


@dataclass(frozen=True, eq=False)
class MCPTool:
    """A tool of an MCP server.

    Attributes:
        server: The server.
        remote: The tool as the server describes it.
        shown: Its arguments as the model is shown them.
        offered: The list that the model was told of, to which the step is pinned.
    """

    server: MCPServer
    remote: RemoteTool
    shown: MendedSchema
    offered: ToolList
    connections: ServerConnections = field(repr=False)
    parameters: FrozenDict = field(init=False, repr=False)
    lookup: Lookup | None = None  # a task of the server is followed by its id
    max_result_chars: int = DEFAULT_MAX_RESULT_CHARS
    is_async: bool = True  # a call waits on the loop and keeps no thread

    def __post_init__(self) -> None:
        object.__setattr__(self, "parameters", FrozenDict(self.shown.parameters))

    @property
    def name(self) -> str:
        """The name for the model, `<server>_<tool>`."""
        return self.remote.local_name(self.server.name)

    @property
    def remote_name(self) -> str:
        """Server and tool in the server's own names, by which approval rules find it."""
        return f"{self.server.name}.{self.remote.name}"

    @property
    def description(self) -> str:
        """The server's description, with the rules that the schema for the model cannot have."""
        return "\n\n".join(filter(None, (self.remote.description, self.shown.rules)))

    @property
    def effect(self) -> Effect:
        """The effect class; see `MCPServer.effect_of`."""
        return self.server.effect_of(self.remote.name, self.remote.annotations)

    @property
    def annotations(self) -> Mapping[str, Any]:
        """The annotations of a trusted server, which approval rules may look at; empty for another one."""
        return self.remote.annotations if self.server.trust == "annotations" else {}

    @property
    def approval(self) -> Approval:
        """Whether a person approves the calls."""
        return self.server.approval

    @property
    def timeout(self) -> float | None:
        """Seconds a call may take; None is the agent's `tool_timeout`."""
        return None if self.server.timeout is None else self.server.timeout.total_seconds()

    @property
    def edit_schema(self) -> Mapping[str, Any]:
        """JSON Schema of arguments that a person changes in an approval; the call checks them once more."""
        return FrozenDict(plain_schema(self.shown.parameters))

    def bind(self, args: Mapping[str, Any] | str) -> dict[str, Any]:
        """Check the arguments against the server's schema, but for its regular expressions, which the server checks.

        Raises:
            InvalidArguments: They do not fit.
        """
        given = self._read(args) if isinstance(args, str) else args
        try:
            plain = cast("dict[str, Any]", thaw(freeze(given, "arguments")))
            if errors := find_errors(plain, self.remote.schema):
                raise misfit(errors, "arguments")
            return plain
        except InvalidInput as error:
            raise InvalidArguments(self.name, (f"{error.field}: {error.advice}",)) from None

    def _read(self, text: str) -> Any:
        try:
            return from_json(text, allow_inf_nan=False) if text.strip() else {}
        except ValueError as error:
            raise InvalidArguments(self.name, (f"the arguments are not valid JSON ({error})",)) from None

    async def call(self, ctx: ToolContext, bound: Mapping[str, Any]) -> Any:
        """Make the call, or go on with it: with the answers to the server's questions, or by asking for its task.

        Raises:
            NeedsReply: The server asks a person, works on a task, or is away; the call goes on later.
            OutcomeUnknown: The server may have carried out the call, and does not say: the connection ended during a
                call that must not be made twice, or the server was away afterwards for its whole `patience`.
            MCPToolError: The server answered with an error.
        """
        result = await self._obtain(ctx, bound)
        if isinstance(result, InputNeeded):
            ask_person(self.server.name, result)
        if isinstance(result, TaskRunning):
            self._follow(ctx, result)
        return result

    async def abandon(self, state: AgentState, memo: Mapping[str, Any]) -> None:
        """Ask the server to give up the task of a call that waits, because the execution is stopped.

        Args:
            memo: What the call has left for its next run.
        """
        if "task" in memo:
            connection = self.connections.to(self.server, await self.server.credentials(state))
            async with connection.use() as session:
                await session.cancel_task(memo["task"])

    async def _obtain(self, ctx: ToolContext, bound: Mapping[str, Any]) -> Any:
        """The result of one try, or what the server wants; a try that changed nothing is repeated once at once."""
        may_have_run = self._may_have_run(ctx)
        for attempt in range(1, _TRIES_AT_ONCE + 1):
            try:
                connection = self.connections.to(self.server, await self.server.credentials(ctx.state))
                return await self._try(connection, ctx, bound)
            except ServerAway as away:
                if attempt == _TRIES_AT_ONCE or away.seconds > _FIRST_PAUSE_SECONDS:
                    self._wait_for_server(ctx, away, may_have_run=may_have_run)
            except ConnectionLost as lost:
                if not self._may_repeat(ctx):
                    raise OutcomeUnknown(str(lost)) from lost
                may_have_run = may_have_run or self.effect is not Effect.PURE
                if attempt == _TRIES_AT_ONCE:
                    away = ServerAway(self.server.name, str(lost), _FIRST_PAUSE_SECONDS)
                    self._wait_for_server(ctx, away, may_have_run=may_have_run)
            except ToolFailed:
                raise
            except MCPToolError as error:
                is_ambiguous = isinstance(error, AnswerUnreadable) and self.effect is not Effect.PURE
                if may_have_run or is_ambiguous:
                    raise OutcomeUnknown(f"{error}{_EARLIER_TRY if may_have_run else ''}") from error
                raise
        raise AssertionError("the last try returns or raises")

    def _may_have_run(self, ctx: ToolContext) -> bool:
        """Whether an earlier try has reached the server, or may have: what fails from now on says nothing about it."""
        if _find_memo(ctx, "task") is not None:
            return True
        return self.effect is not Effect.PURE and (ctx.is_repeated or _find_memo(ctx, "sent") is not None)

    async def _try(self, connection: Connection, ctx: ToolContext, bound: Mapping[str, Any]) -> Any:
        task = _find_memo(ctx, "task")
        async with connection.use() as session:
            if task is not None:
                answers, answered = answers_for_task(ctx.replies.memos)
                if answers:
                    await session.answer_task(task, answers)
                return await session.poll_task(task, answered)
            try:
                return await session.call(self._remote_call(ctx, bound))
            except MCPToolError as error:
                raise type(error)(await self._explain(connection, session, str(error))) from error

    def _remote_call(self, ctx: ToolContext, bound: Mapping[str, Any]) -> RemoteCall:
        known = earlier_answers(ctx.replies.memos)
        return RemoteCall(
            self.remote.name, dict(bound), ctx.idempotency_key,
            answers=known.answers, state=known.state, early=list(known.early),
        )  # fmt: skip

    async def _explain(self, connection: Connection, session: ServerSession, why: str) -> str:
        """The server's error; where its list has changed since the step began, that too."""
        try:
            current = await session.refresh_tools()
        except (ServerAway, ConnectionLost, MCPToolError):
            return why
        if current.digest == self.offered.digest:
            return why
        self.connections.changed.add(connection.key)
        now = next((each for each in current.tools if each.name == self.remote.name), None)
        if now is None:
            return f"{why} (the MCP server {self.server.name!r} has no tool {self.remote.name!r} any more)"
        if now.schema != self.remote.schema:
            return f"{why} (the MCP server {self.server.name!r} has changed the arguments of {self.remote.name!r})"
        return why

    def _may_repeat(self, ctx: ToolContext) -> bool:
        """Whether a call whose connection was lost may be made again: its effect allows it, or it only asks."""
        return self.effect in (Effect.PURE, Effect.KEYED) or _find_memo(ctx, "task") is not None

    def _wait_for_server(self, ctx: ToolContext, away: ServerAway, *, may_have_run: bool) -> NoReturn:
        """Give the worker back until the next try; after the server's `patience` the model reads what is known."""
        now = ctx.deadline - timedelta(seconds=ctx.remaining_seconds())  # of Redis: other workers have other clocks
        earlier = _outage(ctx)
        since = datetime.fromisoformat(earlier[0]["away"]) if earlier else now
        tries = (_MOST_TRIES if _find_memo(ctx, "task") is None else _MOST_POLLS) - len(ctx.replies.memos)
        left = self.server.patience - (now - since)
        if left <= timedelta(0) or tries <= 0:
            text = f"{away} ({len(earlier) + 1} tries in {_describe(now - since)} failed)"
            raise OutcomeUnknown(text + _EARLIER_TRY) if may_have_run else MCPToolError(text)
        pause = _FIRST_PAUSE_SECONDS * 2 ** len(earlier)
        if pause > _LONGEST_PAUSE_SECONDS:  # the other tries last for all of the patience
            pause = max(_LONGEST_PAUSE_SECONDS, left.total_seconds() / tries)
        pause = max(away.seconds, pause)
        memo = {"away": since.isoformat(), **_task_memo(ctx), **({"sent": True} if may_have_run else {})}
        raise NeedsTime(timedelta(seconds=pause), why=f"{away!s:.400}", has_begun=may_have_run).with_memo(memo)

    def _follow(self, ctx: ToolContext, task: TaskRunning) -> NoReturn:
        """Keep the id of the task before anything else, and ask for it later."""
        polls = _polls(ctx)
        if polls >= _MOST_POLLS:
            raise OutcomeUnknown(f"the MCP server {self.server.name!r} still works on task {task.task_id}")
        pause = min(_LONGEST_POLL_SECONDS, task.poll_seconds * 2 ** max(0, polls - 3))
        why = f"the MCP server {self.server.name!r} works on a task"
        until = timedelta(seconds=max(_SHORT_POLL_SECONDS if polls else 0.0, pause))
        raise NeedsTime(until, why=why, has_begun=True).with_memo({"task": task.task_id})


def tools_of(
    server: MCPServer, offered: ToolList, connections: ServerConnections, taken: Collection[str] = ()
) -> list[MCPTool]:
    """The tools of a server that an agent may call.

    Args:
        taken: Names that other tools of the agent have.
    """
    return [
        MCPTool(server=server, remote=remote, shown=shown, offered=offered, connections=connections)
        for remote, shown in usable_tools(server, offered, connections.notes, taken)
    ]


def _find_memo(ctx: ToolContext, name: str) -> Any:
    """The newest of what earlier runs of the call have left under a name; None for nothing."""
    return next((each.value[name] for each in reversed(ctx.replies.memos) if name in each.value), None)


def _polls(ctx: ToolContext) -> int:
    """How often the task was asked for since the call began, or since a person answered its last question."""
    memos = ctx.replies.memos
    asked = [number for number, each in enumerate(memos) if "keys" in each.value]
    return len(memos) - (asked[-1] + 1 if asked else 0)


def _outage(ctx: ToolContext) -> list[Any]:
    """The memos of the failed tries since the server's last answer, oldest first."""
    found: list[Any] = []
    for each in reversed(ctx.replies.memos):
        if "away" not in each.value:
            break
        found.insert(0, each.value)
    return found


def _task_memo(ctx: ToolContext) -> dict[str, Any]:
    task = _find_memo(ctx, "task")
    return {} if task is None else {"task": task}


def _describe(time: timedelta) -> str:
    return f"{round(time.total_seconds())} s"
