"""What a server sends unasked is read slowly, what is too long is not read, and questions without end end it."""

from __future__ import annotations

import asyncio
import codecs
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import mcp_types as types
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCNotification, JSONRPCRequest, JSONRPCResponse, methods

from celery_agents.worker.mcp.metering import (
    LARGE_BYTES,
    Flooded,
    MessageTooLarge,
    MeteredBody,
    Pace,
    WatchedReader,
    WatchedWriter,
    whole_characters,
)
from celery_agents.worker.mcp.stdio import _lines, _log_lines, _LongLine, _read_message, _too_large_answer

LIMIT = 100_000
CACHE = {"ttlMs": 0, "cacheScope": "private", "resultType": "complete"}
Made = Callable[[Pace], Awaitable[Any]]


def run(make: Made) -> Any:
    async def on_loop() -> Any:
        return await make(Pace("crm", LIMIT))

    return asyncio.run(on_loop())


class Source:
    """A stream of these things."""

    def __init__(self, *items: Any) -> None:
        self.items = list(items)
        self.read = 0

    async def __aiter__(self) -> AsyncIterator[Any]:
        for each in self.items:
            self.read += 1
            yield each

    async def __anext__(self) -> Any:
        if not self.items:
            raise StopAsyncIteration
        self.read += 1
        return SessionMessage(self.items.pop(0))

    async def send(self, item: Any) -> None:
        self.items.append(item)

    async def aclose(self) -> None:
        pass


def note() -> JSONRPCNotification:
    return JSONRPCNotification(jsonrpc="2.0", method="notifications/message", params={"data": "x"})


async def read_for(seconds: float, stream: Any) -> int:
    """How many items come in this time."""
    count = 0
    try:
        async with asyncio.timeout(seconds):
            while True:
                await stream.__anext__()
                count += 1
    except TimeoutError:
        return count


def test_notifications_come_in_a_burst_and_then_at_a_pace(caplog: pytest.LogCaptureFixture) -> None:
    async def flood(pace: Pace) -> int:
        return await read_for(1, WatchedReader(Source(*(note() for _ in range(50_000))), pace, set(), lambda: None))

    assert 1_000 <= run(flood) <= 1_200
    assert caplog.text.count("sends more than it was asked for") == 1


def test_answers_come_at_any_pace_and_leave_no_room_behind_them() -> None:
    async def answers(pace: Pace) -> tuple[int, int]:
        source, writer = Source(), WatchedWriter(Source(), pace, set())
        for number in range(3_000):
            await writer.send(SessionMessage(JSONRPCRequest(jsonrpc="2.0", id=number, method="tools/call", params={})))
            source.items.append(JSONRPCResponse(jsonrpc="2.0", id=number, result={}))
            await pace.take_bytes(LIMIT)
        reader = WatchedReader(source, pace, set(), lambda: None)
        answered = 0
        while source.items:
            await asyncio.wait_for(reader.__anext__(), 0.1)
            answered += 1
        source.items += [note() for _ in range(5_000)]
        return answered, await read_for(0.5, reader)

    answered, more = run(answers)
    assert answered == 3_000
    assert more <= 1_100


def test_a_server_that_asks_without_end_loses_its_connection() -> None:
    ended: list[bool] = []

    def ask(number: int) -> JSONRPCRequest:
        return JSONRPCRequest(jsonrpc="2.0", id=number, method="elicitation/create", params={})

    async def never_read(pace: Pace) -> None:
        reader = WatchedReader(Source(*map(ask, range(100))), pace, set(), lambda: ended.append(True))
        await read_for(5, reader)

    with pytest.raises(Flooded, match="32 times without reading an answer"):
        run(never_read)
    assert ended == [True]

    async def answered(pace: Pace) -> int:
        open_questions: set[Any] = set()
        source, writer = Source(), WatchedWriter(Source(), pace, open_questions)
        reader = WatchedReader(source, pace, open_questions, lambda: None)
        for number in range(100):
            source.items.append(ask(number))
            await reader.__anext__()
            await writer.send(SessionMessage(JSONRPCResponse(jsonrpc="2.0", id=number, result={})))
        return len(open_questions)

    assert run(answered) == 0

    async def twice(pace: Pace) -> None:
        await read_for(5, WatchedReader(Source(ask(1), ask(1)), pace, set(), lambda: None))

    with pytest.raises(Flooded, match="twice under one id"):
        run(twice)


def prepared(tools: Any) -> Any:
    """A page of a list as the library gets it."""

    async def read(pace: Pace) -> Any:
        source = Source(JSONRPCResponse(jsonrpc="2.0", id=1, result={"tools": tools, **CACHE}))
        return (await WatchedReader(source, pace, set(), lambda: None).__anext__()).message.result

    return run(read)


def test_output_schemas_do_not_reach_the_library() -> None:
    tool = {"name": "a", "inputSchema": {"type": "object"}}
    assert prepared([{**tool, "outputSchema": {"pattern": "^(a+)+$"}}])["tools"] == [tool]


SIMPLE = st.none() | st.booleans() | st.integers() | st.text(max_size=4)
KEYS = st.sampled_from(["type", "properties", "required", "$schema", "a", "x-mcp-header"])
ODD = st.recursive(
    SIMPLE, lambda inner: st.lists(inner) | st.dictionaries(KEYS, inner | st.just("object")), max_leaves=8
)
FIELDS = ("name", "description", "title", "inputSchema", "outputSchema", "icons", "_meta", "execution", "annotations")
ODD_TOOLS = st.lists(
    ODD | st.fixed_dictionaries({}, optional=dict.fromkeys(FIELDS, ODD))
    | st.fixed_dictionaries({"name": st.just("a"), "annotations": st.fixed_dictionaries({"readOnlyHint": ODD})}),
    max_size=3,
)  # fmt: skip


@settings(max_examples=100, deadline=None, derandomize=True)
@given(ODD_TOOLS)
@pytest.mark.parametrize("version", ["2025-11-25", "2026-07-28"])
def test_the_library_takes_a_list_whatever_one_of_its_tools_is_like(version: str, tools: list[Any]) -> None:
    fine = {"name": "fine", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}}
    page = prepared([*tools, fine])
    methods.validate_server_result("tools/list", version, page)
    read = types.ListToolsResult.model_validate(page, by_name=False).tools
    assert len(read) == len(tools) + 1
    assert (read[-1].name, read[-1].annotations.read_only_hint) == ("fine", True)


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\r\r"])
@pytest.mark.parametrize("size", [7, 1_000, 60_000])
def test_events_of_any_number_pass_and_one_that_is_too_long_does_not(end: bytes, size: int) -> None:
    events = b"".join(b"data: " + b"x" * 60_000 + end for _ in range(6))
    chunks = [events[at : at + size] for at in range(0, len(events), size)]

    async def read(pace: Pace, *more: bytes) -> int:
        source = Source(*chunks, *more)
        try:
            return sum([len(each) async for each in MeteredBody(source, pace, is_stream=True)])
        finally:
            assert pace.large._value == 2, "nothing is held any more"

    assert run(read) == len(events)
    with pytest.raises(MessageTooLarge, match="more than 100000 bytes"):
        run(lambda pace: read(pace, b"data: " + b"x" * LIMIT))


def test_large_events_are_handed_over_two_at_a_time() -> None:
    held = 0
    most = 0

    async def one(pace: Pace) -> None:
        nonlocal held, most
        body = MeteredBody(Source(b"x" * LARGE_BYTES, b"x", b"\n\n", b"y"), pace, is_stream=True)
        async for chunk in body:
            if chunk == b"x":
                held += 1
                most = max(most, held)
                await asyncio.sleep(0.01)
            elif chunk == b"\n\n":
                held -= 1

    async def many(pace: Pace) -> None:
        pace.expect_answer(1)
        pace._bytes.widen(10_000_000)
        await asyncio.gather(*(one(pace) for _ in range(10)))

    run(many)
    assert most == 2


def test_a_line_that_is_too_long_fails_the_request_that_it_answers() -> None:
    long = b'{"jsonrpc":"2.0","id":7,"result":{"x":"' + b"x" * 3 * LIMIT + b'"}}\n'
    late = b'{"result":{"x":"' + b"x" * 2 * LIMIT + b'"},"jsonrpc":"2.0","id":8}\n'
    short = b'{"id": 9}\n\n\n'
    text = long + late + short
    source = Source(*(text[at : at + 10_000] for at in range(0, len(text), 10_000)))

    async def read(pace: Pace) -> list[Any]:
        pace._bytes.widen(10_000_000)
        return [each async for each in _lines(source, pace)]  # type: ignore[arg-type]

    *told, last = run(read)
    answers = [_too_large_answer(each) for each in told]
    assert [None if each is None else each.id for each in answers] == [7, None, None, 8]
    assert last == b'{"id": 9}'
    assert _too_large_answer(_LongLine(b"xxx", LIMIT)) is None


ANSWER = b'{"jsonrpc": "2.0", "id": 7, "result": {"x": "%s"}}'


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (ANSWER % rb"cut \ud83d", "cut \ufffd"),
        (ANSWER % rb"\ud83d\ude00 \\ud83d \\\ude00", "\U0001f600 \\ud83d \\\ufffd"),
        (ANSWER % b"no text \xff", "no text \ufffd"),
        (codecs.BOM_UTF8 + ANSWER % b"first", "first"),
    ],
)
def test_an_answer_with_half_a_character_or_with_bytes_that_are_none_is_read(line: bytes, told: str) -> None:
    assert _read_message(line).result == {"x": told}


@pytest.mark.parametrize(
    ("line", "request_id"),
    [
        (b'{"jsonrpc":"2.0","id":7,"error":"it is broken"}', 7),
        (b'{"jsonrpc":"2.0","id":7,"error":{"message":"no code"}}', 7),
        (b'{"result":{"x":' + b"[" * 5_000 + b"]" * 5_000 + b'},"jsonrpc":"2.0","id":7}', 7),
        (b'{"jsonrpc":"2.0","id":7,"method":"ping","params":5}', None),
        (b'{"level":"info","text":"called","id":7}', None),
        (b"a line of a log", None),
    ],
)
def test_an_answer_that_is_no_message_fails_its_request(line: bytes, request_id: int | None) -> None:
    found = _read_message(line)
    assert (found and found.id) == request_id


PARTS = st.sampled_from(["\\", "\\\\", "u", "ud83d", "\\ud83d", "\\uDE00", "\\udbf", "f", "0", "n", '"', "\u00e4"])


@given(st.lists(PARTS), st.integers(1, 7))
def test_text_that_comes_in_pieces_is_mended_as_a_whole(parts: list[str], size: int) -> None:
    text = "".join(parts).encode()

    async def read(pace: Pace) -> bytes:
        pieces = [text[at : at + size] for at in range(0, len(text), size)]
        return b"".join([each async for each in MeteredBody(Source(*pieces), pace, is_stream=False)])

    assert run(read) == whole_characters(text)


@given(st.text(st.characters(codec="utf-8") | st.characters(categories=["Cs"])))
def test_only_halves_of_characters_are_changed(text: str) -> None:
    mended = json.loads(whole_characters(json.dumps(text).encode()))
    assert mended == "".join(
        "\ufffd" if "\ud800" <= each <= "\udfff" else each for each in json.loads(json.dumps(text))
    )


def test_a_servers_log_is_cut_into_short_lines() -> None:
    async def read(_: Pace) -> list[bytes]:
        return [each async for each in _log_lines(Source(b"one\ntw", b"o\n\n", b"x" * 9_000, b"\n", b"end\n"))]  # type: ignore[arg-type]

    assert run(read) == [b"one", b"two", b"x" * 2_000, b"end"]
