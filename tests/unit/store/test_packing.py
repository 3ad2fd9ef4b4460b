"""Packed entries: each comes back byte for byte, and what is damaged is said to be."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_agents.worker.errors import StateUnreadable
from celery_agents.worker.state import AgentState, ListChange, StepExecution, changes
from celery_agents.worker.state.conversation.messages import Span
from celery_agents.worker.store import packing
from celery_agents.worker.store.packing import pack, pack_step, read_steps, step_claim, step_spans, unpack, unpack_step

from support.engine import Bench, calling
from support.states import Change, changes_of_state, executed, final_step, is_same, running, tool_step

PROSE = "The refund was made on the third of May, as the customer had asked for in the letter. " * 12


def packed_step(text: str = PROSE) -> tuple[bytes, bytes, list[bytes]]:
    """The entry of a step, its JSON, and the JSON of its messages."""
    before = running()
    after = before.with_current_step(tool_step(executed(value=text))).with_current_step_completed(claim="the claim")
    written = changes(before, after)
    assert written.steps is not None
    assert after.execution is not None
    (item,) = written.steps.items
    entry = pack_step(after.execution.step_executions[0], item, written.sections, alone=True)
    return entry, item, list(written.sections["messages"].items)


def given_messages(messages: Sequence[object], first: int = 0) -> packing.Messages:
    return lambda span: messages[span.start - first : span.stop - first]


@given(st.binary(max_size=300), st.integers(1, 40))
def test_any_bytes_come_back(content: bytes, times: int) -> None:
    item = b"{" + content * times
    entry = pack(item)
    assert unpack(entry) == item
    assert len(entry) <= len(item)


def test_a_small_entry_stays_as_it_is() -> None:
    assert pack(b'{"role":"user","content":"hi"}') == b'{"role":"user","content":"hi"}'


def test_what_a_step_repeats_of_its_messages_takes_no_room() -> None:
    short, long = packed_step("no")[0], packed_step(PROSE)[0]
    assert len(long) < len(short) + 60
    entry, item, messages = packed_step()
    (span,) = step_spans(entry)
    assert unpack_step(entry, given_messages(messages, span.start), "x") == item
    assert step_claim(entry) == step_claim(item) == "the claim"


# Entries as the first build that packed has written them: each later build has to read them.
ALONE = "ASi1L/0kcO0BAFQCbG90aGUgbGV0dGVyIG9mIHRoZSB0aGlyZCBvZiBNYXkifX1dfQcAbxDgTwi0zUV9YiKCuEA+8aBTIYDkV4xE"
OVER = (
    "AmMxCW1lc3NhZ2VzCTAJMQkzCii1L/1kLgAFAgBwZWVjbGFpbSI6ImMxIn0QAG1EAGStEwqJA/rkDbREdrOEBttckLMg9JACFGNwVFxQzgQCKg"
    "KDzQHoib/3bAUBU7LThA=="
)
SAID = [
    b'{"role":"assistant","tool_calls":[{"id":"call_1","name":"look","args":{"at":"the letter of the third of May"}}]}',
    b'{"role":"tool","content":"the customer asks for a refund of the third of May","tool_call_id":"call_1","name":"look"}',
]
STEP = (
    b'{"id":"e-1","step":{"id":"e-1","outputs":[["messages",0,1,3]],"inference_response":{"tool_calls":[{"id":"call_1",'
    b'"name":"look","args":{"at":"the letter of the third of May"}}]},"tool_executions":[{"id":"e-1-0","outcome":"ok",'
    b'"value":"the customer asks for a refund of the third of May"}]},"claim":"c1"}'
)


def test_entries_of_the_first_build_that_packed_are_read() -> None:
    assert unpack(b64decode(ALONE)) == SAID[0]
    assert unpack_step(b64decode(OVER), given_messages(SAID, 1), "x") == STEP
    assert step_spans(b64decode(OVER)) == (Span("messages", 0, 1, 3),)


def test_other_messages_than_those_that_were_packed_over_are_noticed() -> None:
    entry, _, messages = packed_step()
    (span,) = step_spans(entry)
    for other in (
        messages[::-1],
        [messages[0], messages[1].replace(b"May", b"Mai")],
        [*messages[:-1], messages[-1] + b" "],
    ):
        with pytest.raises(StateUnreadable, match=r"steps\[7\].*other messages"):
            unpack_step(entry, given_messages(other, span.start), "steps[7]")
    assert unpack_step(entry, given_messages(messages[:-1], span.start), "x") is None, "one is missing"
    assert unpack_step(entry, given_messages([*messages[:-1], object()], span.start), "x") is None, "one is parsed"


@pytest.mark.parametrize(
    "damage",
    [
        lambda entry: entry[:-1],
        lambda entry: entry[: len(entry) // 2],
        lambda entry: entry[:-9] + bytes([entry[-9] ^ 1]) + entry[-8:],
        lambda entry: entry[:1],
        lambda entry: entry[:1] + b"\xff" * 20,
        lambda entry: entry[:1] + b"claim\tmessages\t0\tx\t3\n" + entry[5:],
        lambda entry: entry[:1] + b"claim\tmessages\t0\n" + entry[5:],
    ],
)
@pytest.mark.parametrize("form", ["alone", "over"])
def test_damage_is_said_with_the_part(form: str, damage: object) -> None:
    entry, _, messages = packed_step()
    whole = pack(messages[-1]) if form == "alone" else entry
    assert callable(damage)
    with pytest.raises(StateUnreadable, match=r"steps\[3\]"):
        assert unpack_step(damage(whole), given_messages(messages, step_spans(entry)[0].start), "steps[3]") is not None


def test_an_entry_that_grows_beyond_what_redis_could_hold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = pack(b"[" + b"0," * 100_000)
    assert len(entry) < 1000
    monkeypatch.setattr(packing, "_MOST_BYTES", 10_000)
    with pytest.raises(StateUnreadable, match="larger than 10000 bytes"):
        unpack(entry)


def test_a_step_whose_messages_are_not_written_with_it_is_packed_by_itself() -> None:
    before = running()
    after = before.with_current_step(final_step(PROSE)).with_current_step_completed(claim="c")
    written = changes(before, after)
    assert written.steps is not None
    assert after.execution is not None
    step: StepExecution = after.execution.step_executions[0]
    (item,) = written.steps.items
    for sections in ({}, {"messages": ListChange(generation=1, start=0, items=written.sections["messages"].items)}):
        entry = pack_step(step, item, sections, alone=True)
        assert step_spans(entry) == ()
        assert unpack(entry) == item
        assert pack_step(step, item, sections, alone=False) == item


@given(changes_of_state, st.booleans())
@settings(max_examples=40, deadline=None)
def test_whatever_is_saved_is_read_as_it_was(made: list[Change], packs_small: bool) -> None:
    bench = Bench(calling(tools=[]))
    small = pytest.MonkeyPatch()
    if packs_small:
        small.setattr(packing, "_LEAST_BYTES", 1)
    try:
        session = bench.submit()
        for change in made:
            after: list[AgentState] = []

            def save(state: AgentState, change: Change = change, after: list[AgentState] = after) -> AgentState:
                after.append(change(state))
                return after[0]

            bench.save_beside(session, save)
            assert is_same(bench.state(session), after[0])
    finally:
        small.undo()
        bench.close()


def test_steps_are_read_with_one_further_read() -> None:
    reads: list[str] = []
    bench = Bench(calling(tools=[]))
    keys = bench.store.context.keys("s1")

    def read(point: str, commands: Sequence[object]) -> list[object]:
        reads.append(point)
        return bench.store.context.database.pipeline(point, commands)  # type: ignore[arg-type]

    try:
        assert read_steps(read, keys, []) == []  # type: ignore[arg-type]
        entry, item, messages = packed_step()
        (span,) = step_spans(entry)
        with pytest.raises(StateUnreadable, match=r"steps\[4\].*not kept any more"):
            read_steps(read, keys, [entry], 4)  # type: ignore[arg-type]
        filler = [b"{}"] * span.start
        bench.store.context.database.pipeline(
            "t", [("RPUSH", keys.section("messages", 0), *filler, *map(pack, messages))]
        )
        reads.clear()
        assert read_steps(read, keys, [entry, item, entry]) == [item] * 3  # type: ignore[arg-type]
        assert reads == ["steps.messages"]
    finally:
        bench.close()
