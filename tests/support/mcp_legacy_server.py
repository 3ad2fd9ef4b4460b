"""A server of the protocol's version 2025-11-25 over standard streams, by hand: it asks in the middle of a call.

    python -m support.mcp_legacy_server LEDGER

`reserve` asks for a name and has its effect when somebody has given one; `grow` adds a tool and says that the list has
changed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

LEDGER = Path(sys.argv[1])
NAME = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
tools = ["reserve", "grow"]


def send(**message: Any) -> None:
    """Write one message."""
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def receive() -> dict[str, Any]:
    """Read the next message; the process ends with its input."""
    line = sys.stdin.readline()
    if not line:
        sys.exit(0)
    return json.loads(line)


def elicit(message: str) -> dict[str, Any]:
    """Ask the client, and wait for its answer."""
    send(id="asked", method="elicitation/create", params={"message": message, "requestedSchema": NAME})
    while True:
        reply = receive()
        if reply.get("id") == "asked":
            return reply["result"]


def call(params: dict[str, Any]) -> dict[str, Any]:
    """The result of a call."""
    if params["name"] == "grow":
        tools.append("grown")
        send(method="notifications/tools/list_changed")
        return {"content": [{"type": "text", "text": "grown"}]}
    if params["name"] == "grown":
        return {"content": [{"type": "text", "text": "here"}]}
    answer = elicit("For whom?")
    if answer["action"] != "accept":
        return {"content": [{"type": "text", "text": f"nobody: {answer['action']}"}], "isError": True}
    key = params["_meta"]["celery-agents/idempotency-key"]
    with LEDGER.open("a") as file:
        line = {"kind": "reserve", "work": answer["content"]["name"], "key": key, "effect": True}
        file.write(json.dumps(line) + "\n")
    return {"content": [{"type": "text", "text": f"reserved for {answer['content']['name']}"}]}


def answer(message: dict[str, Any]) -> None:
    """Answer one request."""
    match message["method"]:
        case "initialize":
            about = {"name": "legacy", "version": "1"}
            capabilities = {"tools": {"listChanged": True}}
            result: dict[str, Any] = {
                "protocolVersion": "2025-11-25",
                "capabilities": capabilities,
                "serverInfo": about,
            }
        case "tools/list":
            schema = {"type": "object", "properties": {}}
            result = {"tools": [{"name": name, "inputSchema": schema} for name in tools]}
        case "tools/call":
            result = call(message["params"])
        case _:
            send(id=message["id"], error={"code": -32601, "message": "Method not found"})
            return
    send(id=message["id"], result=result)


if __name__ == "__main__":
    while True:
        received = receive()
        if "method" in received and "id" in received:
            answer(received)
