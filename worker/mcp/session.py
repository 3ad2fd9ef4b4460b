"""One open connection to a server: the list of its tools, and calls, in the values of this package.

Imported inside functions only, because it needs the library `mcp`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import mcp_types as types
from mcp import Client, MCPError
from mcp.client.extension import ClientExtension, ResultClaim
from pydantic import ValidationError

from .lists import RemoteTool, ToolList
from .outages import ConnectionLost, MCPToolError, ServerAway
from .server import Credentials, MCPServer

_TASKS: Final = "io.modelcontextprotocol/tasks"
_PAGES: Final = 100


class _TaskStarted(types.Result):
    """The answer of a server that goes on with a call as a task."""

    result_type: Literal["task"] = "task"
    task_id: str
    status: str = "working"
    poll_interval_ms: int | None = None


class _TaskParams(types.RequestParams):
    task_id: str


class _GetTask(types.Request[_TaskParams, Literal["tasks/get"]]):
    method: Literal["tasks/get"] = "tasks/get"
    params: _TaskParams
    name_param = "taskId"


class _CancelTask(types.Request[_TaskParams, Literal["tasks/cancel"]]):
    method: Literal["tasks/cancel"] = "tasks/cancel"
    params: _TaskParams
    name_param = "taskId"


class _TaskState(types.Result):
    status: str
    status_message: str | None = None
    poll_interval_ms: int | None = None
    result: dict[str, Any] | None = None
    error: dict[str, Any] | None = None


class _TasksExtension(ClientExtension):
    """Tells servers that a call may be answered with a task."""

    identifier = _TASKS

    def claims(self) -> Sequence[ResultClaim[Any]]:
        return (ResultClaim(result_type="task", model=_TaskStarted, resolve=_never_resolve),)


async def _never_resolve(result: Any, context: Any) -> types.CallToolResult:
    raise AssertionError(f"a task is handed to the caller: {result!r:.60} {context!r:.60}")


@dataclass(frozen=True, slots=True)
class Question:
    """A question that a server asks before it goes on with a call.

    Attributes:
        key: The server's name of the question.
        schema: JSON Schema of the answer; None for a visit to `url`.
        url: The address that a person has to visit; "" for a form.
    """

    key: str
    message: str
    schema: Mapping[str, Any] | None
    url: str = ""


@dataclass(frozen=True, slots=True)
class InputNeeded:
    """The server goes on when its questions are answered.

    Attributes:
        state: To be sent back with the answers; None where the server gave none.
        is_repeated: The server asked during the call and was told that nobody answers now: the call is made again.
    """

    questions: tuple[Question, ...]
    state: str | None = None
    is_repeated: bool = False


@dataclass(frozen=True, slots=True)
class TaskRunning:
    """The server works on a call as a task.

    Attributes:
        poll_seconds: Time after which the server wants to be asked.
    """

    task_id: str
    poll_seconds: float


@dataclass(frozen=True, slots=True)
class InputAnswer:
    """The answer to a question: `action` is accept, decline or cancel."""

    action: Literal["accept", "decline", "cancel"]
    content: dict[str, Any] | None = None

    def as_result(self) -> types.ElicitResult:
        """The answer as the protocol has it."""
        return types.ElicitResult(action=self.action, content=self.content)


@dataclass(slots=True)
class RemoteCall:
    """One call, with what is known about it from earlier tries.

    Attributes:
        tool: The server's name of the tool.
        key: The idempotency key.
        answers: Answers by the server's names of its questions, with the state that belongs to them.
        early: Answers to what the server asks during the call, in the order of the questions.
        asked: Filled with what the server asked during the call and got no answer to.
    """

    tool: str
    arguments: dict[str, Any]
    key: str
    answers: Mapping[str, InputAnswer] = field(default_factory=dict[str, InputAnswer])
    state: str | None = None
    early: list[InputAnswer] = field(default_factory=list[InputAnswer])
    asked: list[Question] = field(default_factory=list[Question])


KEY_META: Final = "celery-agents/idempotency-key"
"""The name in `_meta` under which a call carries its idempotency key."""


class ServerSession:
    """An open connection.

    Attributes:
        tools: The list of tools that the server gave when the connection was opened, or since.
        list_ms: Milliseconds for which the server wants its list to be used; 0 when it does not say.
    """

    def __init__(self, server: MCPServer, on_changed: Callable[[], None]) -> None:
        self._server = server
        self._on_changed = on_changed
        self._client: Client | None = None
        self._running: list[RemoteCall] = []
        self.tools = ToolList.of(())
        self.list_ms = 0

    @asynccontextmanager
    async def connect(self, credentials: Credentials, on_end: Callable[[], None]) -> AsyncGenerator[None]:
        """Be connected to the server, in one task from the beginning to the end."""
        from .transports import open_transport

        client = Client(
            open_transport(self._server, credentials, on_end),
            elicitation_callback=self._answer_early,
            extensions=[_TasksExtension()],
            message_handler=self._notice,
            cache=None,
            client_info=types.Implementation(name="celery-agents", version="1"),
        )
        async with client:
            self._client = client
            yield

    async def refresh_tools(self) -> ToolList:
        """Ask the server for its list of tools."""
        tools: list[RemoteTool] = []
        cursor: str | None = None
        for _ in range(_PAGES):
            page = await self._ask(lambda at=cursor: self._open.list_tools(cursor=at))
            tools += map(_remote_tool, page.tools)
            self.list_ms, cursor = page.ttl_ms, page.next_cursor
            if cursor is None:
                break
        self.tools = ToolList.of(tools)
        return self.tools

    async def call(self, call: RemoteCall) -> Any:
        """Make a call.

        Returns:
            Its result as JSON, an `InputNeeded` or a `TaskRunning`.
        Raises:
            ServerAway: It was not sent.
            ConnectionLost: It may have been carried out.
            MCPToolError: The server answered with an error.
        """
        responses: Any = {name: answer.as_result() for name, answer in call.answers.items()} or None
        meta: Any = {KEY_META: call.key}
        self._running.append(call)
        try:
            result = await self._ask(
                lambda: self._open.session.call_tool(
                    call.tool,
                    call.arguments,
                    input_responses=responses,
                    request_state=call.state,
                    meta=meta,
                    allow_input_required=True,
                    allow_claimed=True,
                )
            )
        except MCPToolError:
            if not call.asked:
                raise
            result = None
        finally:
            self._running.remove(call)
        if call.asked:
            return InputNeeded(tuple(call.asked), is_repeated=True)
        return self._read_result(result)

    async def poll_task(self, task_id: str) -> Any:
        """Ask for a task: its result as JSON, or a `TaskRunning`.

        Raises:
            ServerAway, ConnectionLost: The server did not say; ask again.
            MCPToolError: The task failed, was cancelled, or is not known.
        """
        state: _TaskState = await self._ask(
            lambda: self._open.session.send_request(_GetTask(params=_TaskParams(task_id=task_id)), _TaskState)
        )
        if state.status == "completed" and state.result is not None:
            return read_result(types.CallToolResult.model_validate(state.result))
        if state.status in ("working", "submitted"):
            return TaskRunning(task_id, _seconds(state.poll_interval_ms))
        error: dict[str, Any] = state.error or {}
        why = error.get("message") or state.status_message or "the server gave no reason"
        raise MCPToolError(f"the task of the call ended as {state.status}: {why}")

    async def cancel_task(self, task_id: str) -> None:
        """Ask the server to give up a task."""
        await self._ask(
            lambda: self._open.session.send_request(_CancelTask(params=_TaskParams(task_id=task_id)), types.Result)
        )

    @property
    def _open(self) -> Client:
        assert self._client is not None
        return self._client

    async def _ask(self, send: Callable[[], Any]) -> Any:
        """Send a request and translate what the library raises."""
        from .transports import LOST, NOT_SENT

        try:
            return await send()
        except MCPError as error:
            if error.code == NOT_SENT:
                raise ServerAway(self._server.name, error.message) from error
            if error.code in (LOST, types.CONNECTION_CLOSED):
                raise ConnectionLost(self._server.name, error.message) from error
            raise MCPToolError(error.message) from error
        except ValidationError as error:
            raise MCPToolError(f"the server's answer breaks the protocol ({error.error_count()} problems)") from error
        except RuntimeError as error:  # a result that breaks the tool's own output schema
            raise MCPToolError(f"the tool has run, but its result cannot be used: {error}") from error

    def _read_result(self, result: Any) -> Any:
        if isinstance(result, _TaskStarted):
            return TaskRunning(result.task_id, _seconds(result.poll_interval_ms))
        if isinstance(result, types.InputRequiredResult):
            requests = result.input_requests or {}
            return InputNeeded(tuple(_question(key, each) for key, each in requests.items()), result.request_state)
        return read_result(result)

    async def _answer_early(self, context: Any, params: Any) -> types.ElicitResult | types.ErrorData:
        """Answer a question that comes during a call: from what is known already, else that nobody answers now."""
        del context
        if len(self._running) != 1:  # the protocol does not say which of several calls asks
            return types.ElicitResult(action="cancel")
        call = self._running[0]
        if call.early and not call.asked:
            return call.early.pop(0).as_result()
        call.asked.append(_question(str(len(call.asked)), params))
        return types.ElicitResult(action="cancel")

    async def _notice(self, message: Any) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            self._on_changed()


def _remote_tool(tool: types.Tool) -> RemoteTool:
    hints = {} if tool.annotations is None else tool.annotations.model_dump(by_alias=True, exclude_none=True)
    return RemoteTool(name=tool.name, description=tool.description or "", schema=tool.input_schema, annotations=hints)


def _question(key: str, request: Any) -> Question:
    params = getattr(request, "params", request)
    if isinstance(params, types.ElicitRequestURLParams):
        return Question(key, params.message, None, url=params.url)
    if isinstance(params, types.ElicitRequestFormParams):
        return Question(key, params.message, dict(params.requested_schema))
    raise MCPToolError(f"the server asks for {type(request).__name__}, which this client does not offer")


def _seconds(milliseconds: int | None) -> float:
    return 1.0 if milliseconds is None else max(0.05, milliseconds / 1000)


def read_result(result: types.CallToolResult) -> Any:
    """The result of a call as JSON: its structured content, or its texts.

    Raises:
        MCPToolError: The result says that it is an error.
    """
    texts = [_as_text(each) for each in result.content]
    if result.is_error:
        raise MCPToolError("\n".join(texts) or "the server gave no reason")
    return "\n".join(texts) if result.structured_content is None else _unwrap(result.structured_content)


def _unwrap(structured: dict[str, Any]) -> Any:
    """The plain value that a server has wrapped as {"result": …}; other content as it is."""
    value: Any = structured.get("result")
    return structured if len(structured) > 1 or value is None or hasattr(value, "keys") else value


def _as_text(content: Any) -> str:
    match content:
        case types.TextContent():
            return content.text
        case types.EmbeddedResource(resource=types.TextResourceContents() as resource):
            return resource.text
        case types.ResourceLink():
            return str(content.uri)
        case _:
            kind = getattr(content, "mime_type", None) or type(content).__name__
            return f"[{kind} is left out: only text can be stored]"
