"""One open connection to a server: the list of its tools, and calls, in the values of this package.

Imported inside functions only, because it needs the library `mcp`.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, Literal

import mcp_types as types
from mcp import Client, MCPError
from mcp.client.extension import ClientExtension, ResultClaim
from pydantic import ValidationError

from ..tool_schemas.checking import plain_schema, problem_of
from ..tools.results import DEFAULT_MAX_RESULT_CHARS
from .credentials import Credentials
from .lists import MAX_DESCRIPTION_CHARS, MAX_TOOLS, RemoteTool, ToolList, within_limits
from .outages import (
    AWAY,
    REFUSES,
    UNUSABLE,
    AnswerTooLarge,
    AnswerUnreadable,
    CallRefused,
    ConnectionLost,
    MCPToolError,
    ServerAway,
    ToolFailed,
)
from .questions import InputAnswer, InputNeeded, Question, RemoteCall, TaskRunning
from .received import GIVEN_SCHEMA, prepare_result
from .server import MCPServer

_TASKS: Final = "io.modelcontextprotocol/tasks"
_PAGES: Final = 100
_HINTS: Final = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")
_MAX_TEXT_CHARS: Final = 4_000
_MAX_QUESTIONS: Final = 16
_MAX_KEY_CHARS: Final = 200
_MAX_URL_CHARS: Final = 2_048
_MAX_STATE_CHARS: Final = 64_000
_MAX_TASK_ID_CHARS: Final = 1_000
# In the library's errors of a connection; a server's own text with them leaves open whether a call was carried out.
_OF_CONNECTION: Final = re.compile("connection|stream|timed out|timeout", re.IGNORECASE)


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


class _UpdateParams(_TaskParams):
    input_responses: dict[str, types.ElicitResult]


class _UpdateTask(types.Request[_UpdateParams, Literal["tasks/update"]]):
    method: Literal["tasks/update"] = "tasks/update"
    params: _UpdateParams
    name_param = "taskId"


class _CancelTask(types.Request[_TaskParams, Literal["tasks/cancel"]]):
    method: Literal["tasks/cancel"] = "tasks/cancel"
    params: _TaskParams
    name_param = "taskId"


class _TaskState(types.Result):
    status: str
    status_message: str | None = None
    input_requests: types.InputRequests | None = None
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
    async def connect(
        self, credentials: Credentials, on_end: Callable[[], None], *, is_older: bool = False
    ) -> AsyncGenerator[None]:
        """Be connected to the server, in one task from the beginning to the end.

        Args:
            is_older: Begin as the protocol began before 2026: servers may hang or die of what it begins with now.
        """
        from .transports import open_transport

        client = Client(
            open_transport(self._server, credentials, on_end),
            elicitation_callback=self._answer_early,
            extensions=[_TasksExtension()],
            message_handler=self._notice,
            cache=None,
            mode="legacy" if is_older else "auto",
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
            if cursor is None or len(tools) > MAX_TOOLS:
                break
        self.tools = within_limits(self._server.name, tools)
        return self.tools

    async def call(self, call: RemoteCall) -> Any:
        """Make a call.

        Returns:
            Its result as JSON, an `InputNeeded` or a `TaskRunning`.
        Raises:
            ServerAway: It was not sent.
            ConnectionLost, AnswerUnreadable: It may have been carried out.
            ToolFailed: The tool itself says that it failed.
            MCPToolError: The server answered with an error.
        """
        responses: Any = {name: _as_result(answer) for name, answer in call.answers.items()} or None
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
        except AnswerTooLarge as error:
            raise ToolFailed(f"the tool has run, but its result cannot be read: {error}") from error
        except MCPToolError:
            if not call.asked:
                raise
            result = None
        finally:
            self._running.remove(call)
        if call.asked:
            return InputNeeded(tuple(call.asked), is_repeated=True)
        return self._read_result(result)

    async def answer_task(self, task_id: str, answers: Mapping[str, InputAnswer]) -> None:
        """Give a task the answers to its questions. Giving them again changes nothing: each question has one answer.

        Raises:
            ServerAway, ConnectionLost: They may not have reached the task; give them again.
            MCPToolError: The server did not take them.
        """
        responses = {key: _as_result(answer) for key, answer in answers.items()}
        params = _UpdateParams(task_id=task_id, input_responses=responses)
        await self._ask(lambda: self._open.session.send_request(_UpdateTask(params=params), types.Result))

    async def poll_task(self, task_id: str, answered: Collection[str] = ()) -> Any:
        """Ask for a task: its result as JSON, a `TaskRunning`, or an `InputNeeded`.

        Args:
            answered: Questions of the task that have an answer; the server may take a while to notice.
        Raises:
            ServerAway, ConnectionLost: The server did not say; ask again.
            ToolFailed: The task failed, or was cancelled.
            MCPToolError: The server does not say what has become of it, such as of one that it does not know.
        """
        state: _TaskState = await self._ask(
            lambda: self._open.session.send_request(_GetTask(params=_TaskParams(task_id=task_id)), _TaskState)
        )
        if state.status == "completed" and state.result is not None:
            prepare_result(state.result)
            return read_result(types.CallToolResult.model_validate(state.result))
        asked = {} if state.status != "input_required" else state.input_requests or {}
        if new := {key: each for key, each in asked.items() if key not in answered}:
            return InputNeeded(_questions(new), task_id=task_id)
        if state.status in ("working", "submitted", "input_required"):
            return TaskRunning(task_id, _seconds(state.poll_interval_ms))
        error: dict[str, Any] = state.error or {}
        why = error.get("message") or state.status_message or "the server gave no reason"
        raise ToolFailed(f"the task of the call ended as {state.status:.60}: {_cut(str(why))}")

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
        from .metering import TOO_LARGE, too_large
        from .transports import DENIED, FORBIDDEN, LOST, NO_CREDENTIALS, NOT_SENT, UNREADABLE

        try:
            return await send()
        except MCPError as error:
            if error.code in (NOT_SENT, NO_CREDENTIALS, DENIED):
                raise ServerAway(self._server.name, error.message, trouble=trouble_of(error)) from error
            if error.code == FORBIDDEN:
                raise CallRefused(f"the MCP server {self._server.name!r} refuses this call: {error.message}") from error
            sentence = too_large(self._server.max_message_bytes)
            if error.code == TOO_LARGE or sentence in error.message:
                raise AnswerTooLarge(sentence) from error
            if error.code == LOST or _is_of_connection(error):
                raise ConnectionLost(self._server.name, error.message) from error
            if error.code in (UNREADABLE, types.PARSE_ERROR):
                raise AnswerUnreadable(_cut(error.message)) from error
            raise MCPToolError(_cut(error.message)) from error
        except ValidationError as error:
            problems = f"the server's answer breaks the protocol ({error.error_count()} problems)"
            raise AnswerUnreadable(problems) from error

    def _read_result(self, result: Any) -> Any:
        if isinstance(result, _TaskStarted):
            if len(result.task_id) > _MAX_TASK_ID_CHARS:
                raise MCPToolError(f"the id of the server's task has more than {_MAX_TASK_ID_CHARS} characters")
            return TaskRunning(result.task_id, _seconds(result.poll_interval_ms))
        if isinstance(result, types.InputRequiredResult):
            if len(result.request_state or "") > _MAX_STATE_CHARS:
                raise MCPToolError(f"the state of the server's question has more than {_MAX_STATE_CHARS} characters")
            return InputNeeded(_questions(result.input_requests or {}), result.request_state)
        return read_result(result)

    async def _answer_early(self, context: Any, params: Any) -> types.ElicitResult | types.ErrorData:
        """Answer a question that comes during a call: from what is known already, else that no answer comes now."""
        del context
        if len(self._running) != 1:  # the protocol does not say which of several calls asks
            return types.ElicitResult(action="cancel")
        call = self._running[0]
        if call.early and not call.asked:
            return _as_result(call.early.pop(0))
        try:
            if len(call.asked) < _MAX_QUESTIONS:
                call.asked.append(_question(str(len(call.asked)), params))
        except MCPToolError as error:
            return types.ErrorData(code=types.INVALID_PARAMS, message=str(error))
        return types.ElicitResult(action="cancel")

    async def _notice(self, message: Any) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            self._on_changed()


def trouble_of(error: BaseException) -> str:
    """The words for what is wrong with a server, by the error of its first messages."""
    from .transports import DENIED, FORBIDDEN, LOST, NO_CREDENTIALS, NOT_SENT

    if isinstance(error, CallRefused):
        return REFUSES
    if isinstance(error, MCPToolError):
        return UNUSABLE
    if not isinstance(error, MCPError) or error.code in (NOT_SENT, LOST, NO_CREDENTIALS) or _is_of_connection(error):
        return AWAY
    return REFUSES if error.code in (DENIED, FORBIDDEN) else UNUSABLE


def _is_of_connection(error: MCPError) -> bool:
    """Whether the connection was closed, or the time was over: servers have both codes for errors of their own, too."""
    codes = (types.CONNECTION_CLOSED, types.REQUEST_TIMEOUT)
    return error.code in codes and _OF_CONNECTION.search(error.message) is not None


def _remote_tool(tool: types.Tool) -> RemoteTool:
    hints: dict[str, Any] = {}
    if tool.annotations is not None:
        given = tool.annotations.model_dump(by_alias=True)
        hints = {name: given[name] for name in _HINTS if isinstance(given.get(name), bool)}
    description = _cut(tool.description or "", MAX_DESCRIPTION_CHARS)
    given = tool.input_schema.get(GIVEN_SCHEMA, tool.input_schema)
    return RemoteTool(name=tool.name, description=description, schema=given, annotations=hints)


def _questions(requests: Mapping[str, Any]) -> tuple[Question, ...]:
    if len(requests) > _MAX_QUESTIONS:
        raise MCPToolError(f"the server asks {len(requests)} questions at once; {_MAX_QUESTIONS} are the most")
    return tuple(_question(key, each) for key, each in requests.items())


def _question(key: str, request: Any) -> Question:
    params = getattr(request, "params", request)
    if len(key) > _MAX_KEY_CHARS:
        raise MCPToolError(f"the name of the server's question has more than {_MAX_KEY_CHARS} characters")
    if isinstance(params, types.ElicitRequestURLParams):
        if len(params.url) > _MAX_URL_CHARS:
            raise MCPToolError(f"the address of the server's question has more than {_MAX_URL_CHARS} characters")
        return Question(key, _cut(params.message), None, url=params.url)
    if isinstance(params, types.ElicitRequestFormParams):
        schema = plain_schema(dict(params.requested_schema))
        problem = problem_of(schema, "the schema of the server's question")
        if problem is not None:
            raise MCPToolError(problem)
        return Question(key, _cut(params.message), schema)
    raise MCPToolError(f"the server asks for {type(request).__name__}, which this client does not offer")


def _as_result(answer: InputAnswer) -> types.ElicitResult:
    return types.ElicitResult(action=answer.action, content=answer.content)


def _cut(text: str, most: int = _MAX_TEXT_CHARS) -> str:
    return text if len(text) <= most else f"{text[:most]}[… {len(text) - most} characters left out]"


def _seconds(milliseconds: int | None) -> float:
    return 1.0 if milliseconds is None else max(0.05, milliseconds / 1000)


def read_result(result: types.CallToolResult) -> Any:
    """The result of a call as JSON: its structured content, or its texts.

    Raises:
        MCPToolError: The result says that it is an error.
    """
    texts = [str(getattr(each, "text", "")) for each in result.content]
    if result.is_error:
        raise ToolFailed(_cut("\n".join(texts).strip() or _describe_structured(result.structured_content)))
    if not result.structured_content and (texts or result.structured_content is None):
        return "\n".join(texts)
    value = _unwrap(result.structured_content)
    # Many small values take a hundred times the memory of their text; it is the text that is kept of so many.
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) > DEFAULT_MAX_RESULT_CHARS and not isinstance(value, str) else value


def _describe_structured(structured: dict[str, Any] | None) -> str:
    """The reason that a server gives as a value alone."""
    if not structured:
        return "the server gave no reason"
    value = _unwrap(structured)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _unwrap(structured: dict[str, Any]) -> Any:
    """The plain value that a server has wrapped as {"result": …}; other content as it is."""
    value: Any = structured.get("result")
    return structured if len(structured) > 1 or value is None or hasattr(value, "keys") else value
