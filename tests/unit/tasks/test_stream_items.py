"""Which live text counts, what a reader shows, and what a commit adds to it."""

from __future__ import annotations

from typing import Any

import pytest

from celery_agents.tasks.client.stream_items import DeltaFilter, StreamItem, Transcript
from celery_agents.worker.store import Event, EventType, LiveDelta


def delta(text: str, offset: int = 0, **changes: Any) -> LiveDelta:
    values: dict[str, Any] = {
        "id": "1-1", "at_ms": 1, "session_id": "s", "execution_id": "e", "step": 1, "attempt": "a", "call": 1,
        "part": "text", "offset": offset, "text": text,
    }  # fmt: skip
    return LiveDelta(**{**values, **changes})


def event(kind: EventType, step: int = 1, **data: Any) -> Event:
    return Event(id="2-0", type=kind, at_ms=2, session_id="s", execution_id="e", step=step, data=data)


def voided(call: int = 0, *, keeps_answer: bool = False) -> Event:
    return event(EventType.ATTEMPT_VOIDED, attempt="a", call=call, keeps_answer=keeps_answer)


COMMITTED = event(EventType.STEP_COMMITTED)


def test_text_behind_a_gap_waits_for_the_commit() -> None:
    found = DeltaFilter(resumes=False)
    assert found.accepts(delta("one "))
    assert not found.accepts(delta("three", 8))
    assert not found.accepts(delta("four", 13)), "nobody knows what was in between"
    assert found.accepts(delta("other part", part="thinking"))
    rest = found.rest_of(COMMITTED, "one two three four")
    assert rest is not None
    assert (rest.offset, rest.text, rest.id) == (4, "two three four", "")


def test_a_reader_that_comes_back_goes_on_in_the_middle_of_a_part() -> None:
    found = DeltaFilter(resumes=True)
    assert found.accepts(delta("two ", 4))
    assert found.accepts(delta("three", 8))
    rest = found.rest_of(COMMITTED, "one two three four")
    assert rest is not None
    assert rest.text == " four"


@pytest.mark.parametrize("committed", ["another text", "one", "on", ""])
def test_another_text_than_the_committed_one_has_no_rest(committed: str) -> None:
    found = DeltaFilter(resumes=False)
    found.accepts(delta("one"))
    assert found.rest_of(COMMITTED, committed) is None


def test_a_commit_ends_the_text_of_its_step_but_not_what_its_tools_tell() -> None:
    found = DeltaFilter(resumes=False)
    assert found.accepts(delta("1 ", call=0, part="t0"))
    found.note(COMMITTED)
    assert not found.accepts(delta("late"))
    assert found.accepts(delta("2 ", 2, call=0, part="t0"))
    assert found.accepts(delta("next", step=2))


@pytest.mark.parametrize(
    ("void", "kept"),
    [
        (voided(), []),
        (voided(keeps_answer=True), ["answer", "again"]),
        (voided(call=1), ["tool", "again"]),
    ],
)
def test_a_void_attempt_loses_what_its_event_names(void: Event, kept: list[str]) -> None:
    pieces = [delta("tool", call=0, part="t0"), delta("answer"), delta("again", call=2)]
    found, shown = DeltaFilter(resumes=False), Transcript()
    for piece in pieces:
        shown.apply(StreamItem(cursor="", delta=piece))
    shown.apply(StreamItem(cursor="", event=void))
    found.note(void)
    assert [piece.text for piece in pieces if found.accepts(piece)] == kept
    assert shown.written("t0") + shown.written() == "".join(kept)


def test_a_transcript_replaces_what_was_written_by_what_was_committed() -> None:
    shown = Transcript()
    shown.apply(StreamItem(cursor="", delta=delta("provis")))
    shown.apply(StreamItem(cursor="", delta=delta("", call=0, part="t0", data={"done": 1})))
    assert (shown.written(), shown.data, shown.committed) == ("provis", [{"done": 1}], {})
    shown.apply(StreamItem(cursor="", event=COMMITTED, text="final"))
    shown.apply(StreamItem(cursor="", delta=delta("next", step=2)))
    assert (shown.written(), shown.data, shown.committed) == ("next", [], {("e", 1): "final"})
    shown.apply(StreamItem(cursor="", event=event(EventType.EXECUTION_STOPPED)))
    assert shown.written() == "", "what was not committed at the end is not kept"
