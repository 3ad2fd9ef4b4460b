"""The items of a session's stream for its readers, and the transcript that they show. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from ...worker.store.event_records import EXECUTION_ENDS, Event, EventType
from ...worker.store.live.streams import LiveDelta
from ...worker.store.session_records import StoredSession

_TEXT: Final = "text"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamItem:
    """An item of a session's stream: an event, a piece of live text, or a snapshot.

    Attributes:
        cursor: Pass it back to resume after this item. Opaque; valid as long as the session.
        event: Something that is stored and true. None for the others.
        delta: A piece of text that a step has written and not committed; an event `attempt_voided` takes it back, and
            `step_committed` replaces it.
        snapshot: The session as it is stored now, where events before this item are not stored any more.
        text: With an event `step_committed`: the text that was committed, in full.
    """

    cursor: str
    event: Event | None = None
    delta: LiveDelta | None = None
    snapshot: StoredSession | None = None
    text: str = ""


class DeltaFilter:
    """Drops live text that does not count: of void attempts, of committed steps, and behind a gap.

    Attributes:
        resumes: The reader has seen text before: the first piece of a part may be one from its middle.
    """

    def __init__(self, *, resumes: bool) -> None:
        self.resumes = resumes
        self._committed: dict[str, int] = {}
        self._void: dict[tuple[str, int, str], list[Event]] = {}
        self._ends: dict[tuple[str, int, str, int, str], int | None] = {}
        self._text: dict[tuple[str, int], list[LiveDelta]] = {}

    def note_committed(self, execution_id: str, step: int) -> None:
        """Take the steps up to this one as committed. Text of their tools may still come."""
        self._committed[execution_id] = max(step, self._committed.get(execution_id, 0))

    def note(self, event: Event) -> None:
        """Take in an event that may say that text is void or replaced."""
        if event.type == EventType.STEP_COMMITTED:
            self.note_committed(event.execution_id, event.step)
        elif event.type == EventType.ATTEMPT_VOIDED:
            place = (event.execution_id, event.step, str(event.data.get("attempt", "")))
            self._void.setdefault(place, []).append(event)
            left = [each for each in self._text.pop(place[:2], ()) if not is_void(event, each)]
            self._text.update({place[:2]: left} if left else {})
        elif event.type == EventType.EXECUTION_SUBMITTED or event.data.get("started"):
            self._forget_others(event.execution_id)

    def rest_of(self, event: Event, text: str) -> LiveDelta | None:
        """The end of a committed text that has not come as a piece: the commit was faster, or pieces were dropped.

        Args:
            event: That says that the step is committed.
        Returns:
            The piece that is missing; None where nothing is, and where the reader has seen none or another text.
        """
        pieces = self._text.pop((event.execution_id, event.step), [])
        if not pieces:
            return None
        first, last = pieces[0], pieces[-1]
        end = last.offset + len(last.text)
        seen = "".join(each.text for each in pieces)
        if end >= len(text) or text[first.offset : end] != seen:
            return None
        return replace(last, id="", at_ms=event.at_ms, offset=end, text=text[end:])

    def accepts(self, delta: LiveDelta) -> bool:
        """Whether a reader should see the piece."""
        is_answer = bool(delta.call)
        if is_answer and delta.step <= self._committed.get(delta.execution_id, 0):
            return False
        if any(is_void(event, delta) for event in self._void.get((delta.execution_id, delta.step, delta.attempt), ())):
            return False
        place = (delta.execution_id, delta.step, delta.attempt, delta.call, delta.part)
        expected = self._ends.get(place, delta.offset if self.resumes else 0)
        self._ends[place] = None if expected is None or delta.offset > expected else delta.offset + len(delta.text)
        is_seen = self._ends[place] is not None
        if is_seen and delta.part == _TEXT:
            self._text.setdefault((delta.execution_id, delta.step), []).append(delta)
        return is_seen

    def _forget_others(self, execution_id: str) -> None:
        """Forget the pieces of earlier executions when another one begins."""
        self._ends = {place: end for place, end in self._ends.items() if place[0] == execution_id}
        self._void = {place: events for place, events in self._void.items() if place[0] == execution_id}


def is_void(event: Event, delta: LiveDelta) -> bool:
    """Whether an event `attempt_voided` takes a piece back."""
    if (event.execution_id, event.step, event.data.get("attempt")) != (delta.execution_id, delta.step, delta.attempt):
        return False
    call = event.data.get("call") or 0
    if call:
        return call == delta.call
    return not (event.data.get("keeps_answer") and delta.call)


class Transcript:
    """The text that a reader shows: the committed answers, and behind them what is being written.

    Attributes:
        committed: Texts of committed steps, by execution and step, in order.
    """

    def __init__(self) -> None:
        self.committed: dict[tuple[str, int], str] = {}
        self._pieces: list[LiveDelta] = []

    def apply(self, item: StreamItem) -> None:
        """Take in the next item of the stream."""
        if item.delta is not None:
            self._pieces.append(item.delta)
        elif item.snapshot is not None:
            self._pieces = []
            self.committed |= _committed_in(item.snapshot)
        elif item.event is not None:
            self._apply_event(item.event, item.text)

    def written(self, part: str = _TEXT) -> str:
        """The provisional text of a part of the step that runs; "" when there is none.

        Args:
            part: As in `LiveDelta`.
        """
        return "".join(piece.text for piece in self._pieces if piece.part == part)

    @property
    def data(self) -> list[Any]:
        """Data that tools of the running step have emitted, besides text."""
        return [piece.data for piece in self._pieces if piece.data is not None]

    def _apply_event(self, event: Event, text: str) -> None:
        if event.type == EventType.ATTEMPT_VOIDED:
            self._pieces = [piece for piece in self._pieces if not is_void(event, piece)]
        elif event.type == EventType.STEP_COMMITTED:
            self.committed[event.execution_id, event.step] = text
            self._keep(lambda piece: piece.execution_id != event.execution_id or piece.step > event.step)
        elif event.type in EXECUTION_ENDS:
            self._keep(lambda piece: piece.execution_id != event.execution_id)

    def _keep(self, is_kept: Callable[[LiveDelta], bool]) -> None:
        self._pieces = [piece for piece in self._pieces if is_kept(piece)]


def _committed_in(stored: StoredSession) -> Mapping[tuple[str, int], str]:
    execution = stored.state.execution
    if execution is None:
        return {}
    return {
        (execution.execution_id, each.step.number): each.step.inference_response.content
        for each in execution.step_executions
    }
