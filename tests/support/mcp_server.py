"""A server of the Model Context Protocol, made with the official library, that writes each delivery on the disk.

    python -m support.mcp_server stdio LEDGER
    python -m support.mcp_server http LEDGER PORT

LEDGER is a file of JSON lines: one for each delivery, with `effect` true where it had one. The tools that end in
`keyed` have one effect for each idempotency key, whatever the server's processes remember: they read the file. The file
`LEDGER.extra` adds a tool, `LEDGER.gate` holds the tools back that are called with `gate`.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import anyio
import mcp_types as types
from mcp.server.extension import Extension, MethodBinding
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.request_state import RequestStateSecurity
from mcp_types import ElicitRequest, ElicitRequestFormParams, InputRequiredResult, ToolAnnotations

KEY = "celery-agents/idempotency-key"
LEDGER = Path(sys.argv[2]) if len(sys.argv) > 2 else Path(os.devnull)
PURE = ToolAnnotations(read_only_hint=True)
KEYED = ToolAnnotations(idempotent_hint=True, destructive_hint=False)


def deliver(kind: str, work: str, key: str, *, dedupe: bool) -> dict[str, Any]:
    """Write one delivery down, and answer with it; with `dedupe` a key has one effect."""
    with LEDGER.open("a+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        known = [json.loads(line) for line in file.read().splitlines()]
        effect = not (dedupe and any(each["key"] == key for each in known))
        line = {"kind": kind, "work": work, "key": key, "effect": effect, "pid": os.getpid()}
        file.write(json.dumps(line).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
    return line


def key_of(ctx: Context[Any, Any]) -> str:
    """The idempotency key that the call carries."""
    return str((ctx.request_context.meta or {}).get(KEY, ""))


async def pause(before: float, gate: bool) -> None:
    """Wait so long, and as long as the gate is closed."""
    await anyio.sleep(before)
    while gate and LEDGER.with_suffix(".gate").exists():
        await anyio.sleep(0.02)


server = MCPServer("ledger")


@server.tool(annotations=PURE)
async def look(work: str, ctx: Context[Any, Any], before: float = 0, gate: bool = False) -> str:
    """Read something."""
    deliver("look", work, key_of(ctx), dedupe=False)
    await pause(before, gate)
    return f"{work} seen"


@server.tool(annotations=KEYED)
async def put_keyed(work: str, ctx: Context[Any, Any], before: float = 0, gate: bool = False) -> str:
    """Have one effect for each key."""
    deliver("put_keyed", work, key_of(ctx), dedupe=True)
    await pause(before, gate)
    return f"{work} put"


@server.tool()
async def fire(work: str, ctx: Context[Any, Any], before: float = 0, gate: bool = False) -> str:
    """Have an effect each time."""
    deliver("fire", work, key_of(ctx), dedupe=False)
    await pause(before, gate)
    return f"{work} fired"


@server.tool()
async def refuse(work: str) -> str:
    """Fail."""
    raise ValueError(f"{work} is refused")


@server.tool(structured_output=False)
async def book(work: str, ctx: Context[Any, Any]) -> str | InputRequiredResult:
    """Ask a person for the number of seats, and have an effect each time."""
    answer = (ctx.input_responses or {}).get("seats")
    if answer is None:
        asked = ElicitRequest(
            params=ElicitRequestFormParams(message=f"How many seats for {work}?", requested_schema=SEATS)
        )
        return InputRequiredResult(input_requests={"seats": asked}, request_state=f"state of {work}")
    assert ctx.request_state == f"state of {work}", ctx.request_state
    if getattr(answer, "action", "") != "accept":
        return f"{work} not booked"
    deliver("book", work, key_of(ctx), dedupe=False)
    return f"{work} booked for {answer.content['seats']}"  # type: ignore[union-attr]


SEATS: Any = {"type": "object", "properties": {"seats": {"type": "integer"}}, "required": ["seats"]}


SIZE: Any = {"type": "object", "properties": {"size": {"type": "string"}}, "required": ["size"]}


def _lines() -> list[dict[str, Any]]:
    return [json.loads(line) for line in LEDGER.read_text().splitlines()] if LEDGER.exists() else []


# --- tasks: a call of `render` is answered with the id of a task -------------------------------------------------------


class TaskStarted(types.Result):
    """The answer to a call that goes on as a task."""

    result_type: Literal["task"] = "task"
    task_id: str
    status: str = "working"
    poll_interval_ms: int = 200


class TaskParams(types.RequestParams):
    """The task that is meant."""

    task_id: str


class UpdateParams(TaskParams):
    """Answers to a task's questions."""

    input_responses: dict[str, Any]


class Tasks(Extension):
    """Runs calls of `render` as tasks whose state is in the ledger: a task ends a second after it has begun."""

    identifier = "io.modelcontextprotocol/tasks"

    async def intercept_tool_call(self, params: Any, ctx: Any, call_next: Any) -> Any:
        if params.name != "render":
            return await call_next(ctx)
        task = f"{uuid.uuid4().hex}.{time.time() + float(params.arguments.get('seconds', 1))}"
        task += ".asks" if params.arguments.get("asks") else ""
        deliver("render", params.arguments["work"], str((params.meta or {}).get(KEY, "")), dedupe=False)
        return TaskStarted(task_id=task).model_dump(by_alias=True, mode="json")

    def methods(self) -> Sequence[MethodBinding]:
        return (
            MethodBinding("tasks/get", TaskParams, self._get),
            MethodBinding("tasks/update", UpdateParams, self._update),
            MethodBinding("tasks/cancel", TaskParams, self._cancel),
        )

    async def _get(self, ctx: Any, params: TaskParams) -> dict[str, Any]:
        ends = float(params.task_id.removesuffix(".asks").partition(".")[2])
        told = next((each for each in _lines() if each["kind"] == "told" and each["work"] == params.task_id), None)
        if params.task_id.endswith(".asks") and told is None:
            form = {"mode": "form", "message": "Which size?", "requestedSchema": SIZE}
            asked = {"size": {"method": "elicitation/create", "params": form}}
            state = {"taskId": params.task_id, "status": "input_required", "inputRequests": asked}
            return {**state, "pollIntervalMs": 200, "resultType": "complete"}
        if time.time() < ends:
            return {"taskId": params.task_id, "status": "working", "pollIntervalMs": 200, "resultType": "complete"}
        text = "rendered" if told is None else f"rendered {told['key']}"
        result = {"content": [{"type": "text", "text": text}], "resultType": "complete"}
        return {"taskId": params.task_id, "status": "completed", "result": result, "resultType": "complete"}

    async def _update(self, ctx: Any, params: UpdateParams) -> dict[str, Any]:
        answer = params.input_responses["size"]
        size = answer["content"]["size"] if answer["action"] == "accept" else answer["action"]
        deliver("told", params.task_id, size, dedupe=False)
        return {"resultType": "complete"}

    async def _cancel(self, ctx: Any, params: TaskParams) -> dict[str, Any]:
        deliver("cancel", params.task_id, "", dedupe=False)
        return {"resultType": "complete"}


@server.tool()
async def render(work: str, seconds: float = 1, asks: bool = False) -> str:
    """Work for a while."""
    raise AssertionError(f"{work} of {seconds} s goes on as a task, {asks}")


if __name__ == "__main__":
    if LEDGER.with_suffix(".extra").exists():
        server.add_tool(refuse, name="extra", description="Only here since the file is.")
        server.remove_tool("refuse")
    tasks = MCPServer(
        "ledger",
        extensions=[Tasks()],
        tools=server._tool_manager.list_tools(),
        request_state_security=RequestStateSecurity(keys=["a key that all processes of the server share"]),
    )
    if sys.argv[1] == "stdio":
        tasks.run("stdio")
    else:
        tasks.run("streamable-http", host="127.0.0.1", port=int(sys.argv[3]))
