"""An MCP server over standard streams that keeps notes in a file, and each effect once for its key.

The file is the only thing that it remembers, because every worker runs a process of its own.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mcp.server.mcpserver import Context, MCPServer
from mcp_types import ToolAnnotations

FILE = Path(os.environ.get("NOTES", "notes.json"))
KEY = "celery-agents/idempotency-key"

server = MCPServer("notes")


@contextmanager
def notes() -> Generator[dict[str, Any]]:
    """The notes and the keys of what was done; they are saved at the end, and nobody else changes them meanwhile."""
    with FILE.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        stored = json.loads(file.read() or '{"notes": {}, "done": {}, "next": 1}')
        yield stored
        file.truncate(0)
        file.write(json.dumps(stored))


@server.tool(annotations=ToolAnnotations(idempotent_hint=True, destructive_hint=False))
def write(text: str, ctx: Context[Any, Any]) -> str:
    """Write a note, and get its number."""
    key = str((ctx.request_context.meta or {}).get(KEY, ""))
    with notes() as stored:
        if key not in stored["done"]:
            stored["done"][key] = str(stored["next"])
            stored["notes"][str(stored["next"])] = text
            stored["next"] += 1
        return f"note {stored['done'][key]}"


@server.tool(annotations=ToolAnnotations(idempotent_hint=True))
def delete(text: str) -> str:
    """Delete the notes with this text."""
    with notes() as stored:
        stored["notes"] = {number: note for number, note in stored["notes"].items() if note != text}
    return f"{text} is gone"


@server.tool(name="list", annotations=ToolAnnotations(read_only_hint=True))
def list_notes() -> str:
    """All notes."""
    with notes() as stored:
        return ", ".join(f"{number}: {note}" for number, note in enumerate(stored["notes"].values(), 1))


if __name__ == "__main__":
    server.run("stdio")
