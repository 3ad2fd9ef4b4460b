"""Lists of tools: what a server offers, as a value that workers share and a step is pinned to by its digest."""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ..errors import StateUnreadable
from .schemas import problem_of
from .server import MCPServer

log = logging.getLogger(__name__)

MAX_TOOLS: Final = 500
"""Tools of one server, in the order of their names."""

MAX_LIST_BYTES: Final = 1_000_000
"""Bytes of a server's list of tools, as JSON."""

MAX_DESCRIPTION_CHARS: Final = 8_000
"""Characters of a tool's description; a longer one is cut."""

MAX_TOOL_NAME: Final = 128
"""Characters of a tool's name, as the protocol has it."""

_MAX_NAME: Final = 64
_HASH_CHARS: Final = 8


@dataclass(frozen=True, slots=True)
class RemoteTool:
    """One tool as its server describes it.

    Attributes:
        name: The server's name of it.
        schema: JSON Schema of its arguments.
        annotations: What the server says of its effects, in the names of the protocol: `readOnlyHint` and others.
    """

    name: str
    description: str
    schema: Mapping[str, Any]
    annotations: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def local_name(self, server: str) -> str:
        """The name for the model, which every provider accepts: `<server>_<tool>`; a long one ends in a hash."""
        name = f"{server}_{re.sub('[^A-Za-z0-9_-]', '_', self.name)}"
        if len(name) <= _MAX_NAME:
            return name
        mark = hashlib.sha256(self.name.encode()).hexdigest()[:_HASH_CHARS]
        return f"{name[: _MAX_NAME - _HASH_CHARS - 1]}_{mark}"


@dataclass(frozen=True, slots=True)
class ToolList:
    """The tools of a server at one time.

    Attributes:
        raw: The list as it is stored.
        digest: Changes when the list does.
    """

    tools: tuple[RemoteTool, ...]
    raw: bytes
    digest: str

    @classmethod
    def of(cls, tools: Iterable[RemoteTool]) -> ToolList:
        """Make a list; the order of the tools does not matter for the digest."""
        ordered = tuple(sorted(tools, key=lambda tool: tool.name))
        fields = [[each.name, each.description, dict(each.schema), dict(each.annotations)] for each in ordered]
        raw = json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()
        return cls(ordered, raw, hashlib.sha256(raw).hexdigest()[:32])

    def names(self) -> tuple[str, ...]:
        """The server's names of its tools."""
        return tuple(each.name for each in self.tools)


def read_list(raw: bytes) -> ToolList:
    """Read a stored list.

    Raises:
        StateUnreadable: It is damaged.
    """
    try:
        tools = [
            RemoteTool(name=name, description=description, schema=schema, annotations=hints)
            for name, description, schema, hints in json.loads(raw)
        ]
        return ToolList.of(tools)
    except (ValueError, TypeError, AttributeError) as error:
        raise StateUnreadable("list of tools", "it is no list of an MCP server's tools") from error


def within_limits(server: str, tools: Iterable[RemoteTool]) -> ToolList:
    """The list of a server's tools without what is beyond the limits; the log says what is left out."""
    kept: list[RemoteTool] = []
    size, left_out = 0, 0
    for each in sorted(tools, key=lambda tool: tool.name):
        tool_size = len(each.name) + len(each.description) + len(json.dumps(each.schema))
        is_oversize = len(each.name) > MAX_TOOL_NAME or tool_size > MAX_LIST_BYTES // 4
        if is_oversize or len(kept) >= MAX_TOOLS or size + tool_size > MAX_LIST_BYTES:
            left_out += 1
            continue
        size += tool_size
        kept.append(each)
    if left_out:
        log.warning(
            "MCP server %s: %d tools are left out: names of %d characters, %d tools and %d bytes are the most",
            server, left_out, MAX_TOOL_NAME, MAX_TOOLS, MAX_LIST_BYTES,
        )  # fmt: skip
    return ToolList.of(kept)


def usable_tools(server: MCPServer, offered: ToolList) -> list[RemoteTool]:
    """The tools that the agent may call; those without a usable JSON Schema are left out, and the log says so."""
    unknown = server.unknown_names(offered.names())
    if unknown:
        log.warning("MCP server %s has no tool that fits %s; it has: %s", server.name, ", ".join(map(repr, unknown)),
                    ", ".join(offered.names()) or "none")  # fmt: skip
    usable: list[RemoteTool] = []
    for each in offered.tools:
        if not server.offers(each.name):
            continue
        problem = problem_of(each.schema)
        if problem is None:
            usable.append(each)
        else:
            log.warning("MCP server %s: tool %s is left out: %s", server.name, each.name, problem)
    return usable
