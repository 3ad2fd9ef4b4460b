"""Standard streams as the way to a server: one child process, with limits on what it writes.

The library's own transport keeps a line of any length in memory, and lets the process write into the worker's log. The
messages, the order of the end (input closed, then signals to the process group) and the environment are the library's.
"""

from __future__ import annotations

import codecs
import logging
import os
import re
import subprocess
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import anyio
from anyio.abc import ByteReceiveStream, Process
from mcp.client.stdio import get_default_environment
from mcp.os.posix.utilities import terminate_posix_process_tree
from mcp.shared.message import SessionMessage
from mcp_types import PARSE_ERROR, ErrorData, JSONRPCError, jsonrpc_message_adapter

from ..redaction import redact
from .line_limit import LINES_A_SECOND, LineLimit
from .metering import TOO_LARGE, Pace, too_large, whole_characters
from .server import MCPServer

T = TypeVar("T")

log = logging.getLogger(__name__)

_GOODBYE_SECONDS: Final = 2.0
_KILL_SECONDS: Final = 2.0
_FLUSH_SECONDS: Final = 0.5
_POLL_SECONDS: Final = 0.01
_LOG_LINE_BYTES: Final = 2_000
_BROKEN: Final = (anyio.ClosedResourceError, anyio.BrokenResourceError, anyio.EndOfStream, OSError)
# Where libraries write the id of the request that an answer belongs to: at the beginning, or at the end.
_ID_AT_BEGIN: Final = re.compile(rb'^\s*\[?\s*\{"jsonrpc"\s*:\s*"2\.0"\s*,\s*"id"\s*:\s*(\d{1,15})\b')
_ID_AT_END: Final = re.compile(rb'"id"\s*:\s*(\d{1,15})\s*(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?\}\s*\]?\s*$')
_IS_ANSWER: Final = re.compile(rb'\s*\[?\s*\{\s*("(jsonrpc|id)"\s*:\s*("2\.0"|\d+)\s*,\s*)*"(result|error)"\s*:')
_NO_MESSAGE: Final = "the answer is no message of the protocol"
_END_BYTES: Final = 200
# The rest of a line that is too long costs little, and other answers wait behind it.
_THROW_AWAY_TIMES: Final = 256
_EMPTY_LINES: Final = re.compile(rb"\n{2,}")


@asynccontextmanager
async def open_stdio(server: MCPServer, pace: Pace) -> AsyncGenerator[tuple[Any, Any]]:
    """Start the server's command and be connected to it; it has ended when this ends.

    Raises:
        OSError: The command cannot be started.
    """
    process = await anyio.open_process(
        server.words, env=get_default_environment() | dict(server.env), cwd=server.cwd or Path.cwd(),
        stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    to_us, incoming = anyio.create_memory_object_stream[Any](0)
    outgoing, from_us = anyio.create_memory_object_stream[SessionMessage](0)
    flushed = anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_read_messages, _present(process.stdout), to_us, pace)
        tasks.start_soon(_write_messages, process, from_us, to_us, flushed)
        tasks.start_soon(_read_log, server.name, _present(process.stderr))
        tasks.start_soon(_watch, process, to_us)
        try:
            yield incoming, outgoing
        finally:
            with anyio.CancelScope(shield=True):
                incoming.close()
                outgoing.close()
                with anyio.move_on_after(_FLUSH_SECONDS):
                    await flushed.wait()
                await _end(process)
                for stream in (incoming, outgoing, to_us, from_us):
                    await stream.aclose()
            tasks.cancel_scope.cancel()


async def _read_messages(output: ByteReceiveStream, to_us: Any, pace: Pace) -> None:
    """Hand over each line as a message; a line that is none is left out."""
    with suppress(*_BROKEN):
        async with to_us:
            async for line in _lines(output, pace):
                message = _too_large_answer(line) if isinstance(line, _LongLine) else _read_message(line)
                if message is None:
                    await pace.take_message()
                else:
                    await to_us.send(SessionMessage(message))
    # A server that cannot write does not read either, and would not see its input end.
    with suppress(*_BROKEN):
        while True:
            await output.receive()


@dataclass(frozen=True, slots=True)
class _LongLine:
    """The beginning or the end of a line that is longer than a message may be."""

    part: bytes
    limit: int


async def _lines(output: ByteReceiveStream, pace: Pace) -> AsyncIterator[bytes | _LongLine]:
    """Lines; one beyond the limit is told as soon as it is, and once more at its end, and its text is thrown away."""
    line, is_long = bytearray(), False
    async for chunk in output:
        await pace.take_bytes(len(chunk) / (_THROW_AWAY_TIMES if is_long else 1))
        *ends, rest = _EMPTY_LINES.sub(b"\n", chunk).split(b"\n")
        for part in ends:
            line += part
            if is_long or len(line) > pace.limit:
                yield _LongLine(bytes(line[-_END_BYTES:]), pace.limit)
            elif line:
                yield bytes(line)
            line, is_long = bytearray(), False
        line += rest
        if is_long:
            line = line[-_END_BYTES:]
        elif len(line) > pace.limit:
            is_long = True
            yield _LongLine(bytes(line[:_END_BYTES]), pace.limit)


async def _watch(process: Process, to_us: Any) -> None:
    """End the connection behind the end of the process, also where a child of it keeps its output open."""
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        handle = None  # it has ended
    except (AttributeError, OSError):  # this system has no such thing, or a sandbox forbids it
        return
    if handle is not None:
        try:
            await anyio.wait_readable(handle)
        finally:
            os.close(handle)
    await anyio.sleep(_FLUSH_SECONDS)  # what it has written last is read
    await to_us.aclose()


def _read_message(line: bytes) -> Any:
    """The message in a line; the error for the request that it answers with something else; None for any other line."""
    with suppress(ValueError):
        return jsonrpc_message_adapter.validate_json(line, by_name=False)
    text = line.removeprefix(codecs.BOM_UTF8).decode(errors="replace")
    with suppress(ValueError):
        return jsonrpc_message_adapter.validate_json(whole_characters(text.encode()), by_name=False)
    log.debug("an MCP server has written a line to its output that is no message")
    if not _IS_ANSWER.match(line):
        return None
    return _error_for(line[:_END_BYTES], PARSE_ERROR, _NO_MESSAGE) or _error_for(
        line[-_END_BYTES:], PARSE_ERROR, _NO_MESSAGE
    )


def _too_large_answer(line: _LongLine) -> JSONRPCError | None:
    """The error for the request that a line answers; None where the part does not say which."""
    return _error_for(line.part, TOO_LARGE, too_large(line.limit))


def _error_for(part: bytes, code: int, message: str) -> JSONRPCError | None:
    found = _ID_AT_BEGIN.search(part) or _ID_AT_END.search(part)
    if found is None:
        return None
    return JSONRPCError(jsonrpc="2.0", id=int(found.group(1)), error=ErrorData(code=code, message=message))


async def _write_messages(process: Process, from_us: Any, to_us: Any, flushed: anyio.Event) -> None:
    try:
        async with from_us:
            async for item in from_us:
                text = item.message.model_dump_json(by_alias=True, exclude_unset=True)
                await _present(process.stdin).send(text.encode() + b"\n")
    except _BROKEN:
        await to_us.aclose()  # the session learns that the connection has ended
    finally:
        flushed.set()


async def _read_log(name: str, errors: ByteReceiveStream) -> None:
    """Write the server's own log into the worker's: without secrets, and no more than a person can read."""
    limit = LineLimit()
    with suppress(*_BROKEN):
        async for line in _log_lines(errors):
            if not limit.take():
                continue
            if limit.left_out:
                log.info("MCP server %s: %d lines of its log are left out", name, limit.left_out)
                limit.left_out = 0
            log.info("MCP server %s: %s", name, redact(line.decode(errors="replace")))


async def _log_lines(errors: ByteReceiveStream) -> AsyncIterator[bytes]:
    """Lines without their ends; of a longer one the beginning. A flood is read a chunk at a time."""
    rest = b""
    async for chunk in errors:
        *lines, rest = (rest + chunk).split(b"\n")
        rest = rest[:_LOG_LINE_BYTES]
        for line in lines:
            if text := line[:_LOG_LINE_BYTES].strip():
                yield text
        if len(lines) > LINES_A_SECOND:
            await anyio.sleep(1 / LINES_A_SECOND)


async def _end(process: Process) -> None:
    """Close the input, give the process time, then end its group: its children may live on without it."""
    with suppress(*_BROKEN):
        await _present(process.stdin).aclose()
    await _has_ended(process, _GOODBYE_SECONDS)
    await terminate_posix_process_tree(process, _KILL_SECONDS)
    if not await _has_ended(process, _KILL_SECONDS):
        log.warning("process %d of an MCP server is still there after SIGKILL", process.pid)
    # Children of the server may hold its ends of the pipes: ours are no longer read.
    for stream in (process.stdout, process.stderr):
        with suppress(*_BROKEN):
            await _present(stream).aclose()


def _present(stream: T | None) -> T:
    """A stream of a process that was started with pipes."""
    assert stream is not None
    return stream


async def _has_ended(process: Process, seconds: float) -> bool:
    """Whether the process ends in time. `wait` would also wait for the ends of its pipes."""
    deadline = anyio.current_time() + seconds
    while process.returncode is None:
        if anyio.current_time() >= deadline:
            return False
        await anyio.sleep(_POLL_SECONDS)
    return True
