"""Lists of tools: what a server offers, as a value that workers share and a step is pinned to by its digest."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ..errors import StateUnreadable
from ..tool_schemas.checking import problem_of
from ..tool_schemas.mending import MendedSchema, as_object_schema, mend
from .server import MCPServer, local_form

log = logging.getLogger(__name__)

MAX_TOOLS: Final = 500
"""Tools of one server, in the order of their names."""

MAX_LIST_BYTES: Final = 1_000_000
"""Bytes of a server's list of tools, as JSON."""

MAX_DESCRIPTION_CHARS: Final = 8_000
"""Characters of a tool's description; a longer one is cut."""

MAX_TOOL_NAME: Final = 128
"""Characters of a tool's name, as the protocol has it."""

_MOST_LINES: Final = 1_000
_MOST_NOTES: Final = 50
_NOTE_CHARS: Final = 300
_MAX_NAME: Final = 64
_HASH_CHARS: Final = 8


@dataclass(frozen=True, slots=True)
class RemoteTool:
    """One tool as its server describes it.

    Attributes:
        name: The server's name of it.
        schema: JSON Schema of its arguments, which are a JSON object where the server does not say what they are.
        annotations: What the server says of its effects, in the names of the protocol: `readOnlyHint` and others.
    """

    name: str
    description: str
    schema: Mapping[str, Any]
    annotations: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        object.__setattr__(self, "schema", as_object_schema(self.schema))

    def local_name(self, server: str) -> str:
        """The name for the model, which every provider accepts: `<server>_<tool>`; a long one ends in a hash."""
        name = f"{server}_{local_form(self.name)}"
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


@dataclass(slots=True)
class ToolNotes:
    """Notes about odd tools of servers: each is in the log once, and `doctor` shows those of today.

    Attributes:
        left_out: By server, the tools that no agent can call, with the reasons.
        mended: By server, the tools that the model is shown in another form than the server's.
    """

    left_out: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    mended: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    _said: set[str] = field(default_factory=set[str])

    def replace(self, server: str, left_out: Iterable[str], mended: Iterable[str]) -> None:
        """Take the notes about a server's list in the place of earlier ones."""
        self.left_out[server], self.mended[server] = tuple(left_out), tuple(mended)
        for level, lines in ((logging.WARNING, self.left_out[server]), (logging.INFO, self.mended[server])):
            for line in lines:
                self.say_once(level, f"MCP server {server}: {line}")

    def say_once(self, level: int, line: str) -> None:
        """Write a line into the log, unless it is there already."""
        if line not in self._said and len(self._said) < _MOST_LINES:
            self._said.add(line)
            log.log(level, "%s", line)

    def describe(self) -> dict[str, list[str]]:
        """The notes as a worker tells them to `doctor`."""
        named = {"left_out": self.left_out, "mended": self.mended}
        lines = {name: [f"{server}: {each}" for server, of in notes.items() for each in of] for name, notes in
                 ((name, dict(known)) for name, known in named.items())}  # fmt: skip
        return {name: [line[:_NOTE_CHARS] for line in found[:_MOST_NOTES]] for name, found in lines.items()}


def usable_tools(
    server: MCPServer, offered: ToolList, notes: ToolNotes, taken: Collection[str] = ()
) -> list[tuple[RemoteTool, MendedSchema]]:
    """The tools that the agent may call, each with its arguments as the model is shown them, fit for every provider.

    Of two with one name for the model the first is taken.

    Args:
        notes: Gets what is left out and what is mended.
        taken: Names that other tools of the agent have.
    """
    unknown = server.unknown_names(offered.names())
    if unknown:
        missing, known = ", ".join(map(repr, unknown)), ", ".join(offered.names()) or "none"
        notes.say_once(logging.WARNING, f"MCP server {server.name} has no tool that fits {missing}; it has: {known}")
    usable: dict[str, tuple[RemoteTool, MendedSchema]] = {}
    left_out: list[str] = []
    for each in offered.tools:
        if not server.offers(each.name):
            continue
        name = each.local_name(server.name)
        found = _fit(each)
        if name in taken:
            found = f"the agent has another tool {name}"
        elif name in usable:
            found = f"{usable[name][0].name!r} has the same name for the model"
        if isinstance(found, str):
            left_out.append(f"tool {each.name!r} is left out: {found}")
        else:
            usable[name] = (each, found)
    mended = [f"tool {each.name!r} is mended: {'; '.join(shown.changes)}" for each, shown in usable.values()
              if shown.changes]  # fmt: skip
    notes.replace(server.name, left_out, mended)
    return list(usable.values())


def _fit(tool: RemoteTool) -> MendedSchema | str:
    """The arguments of a tool as the model is shown them, or why the tool cannot be used."""
    if not tool.name:
        return "it has no name"
    return problem_of(tool.schema) or mend(tool.schema)
