"""`LiveText`: the part of the store for text that is written while a step runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..context import StoreContext
from ..event_records import Event
from . import reading, writing
from .reading import Entry
from .values import Attempt, NewDelta, StreamPosition


class LiveText:
    """Provisional text beside the committed events."""

    def __init__(self, context: StoreContext) -> None:
        self._context = context

    def write(self, texts: Mapping[Attempt, Sequence[NewDelta]]) -> int:
        """Write text of attempts, where they have not been taken over; one script for each shard.

        Returns:
            How many pieces were written; the others belong to abandoned attempts.
        Raises:
            StoreFull, StoreUnavailable: Some or all pieces were not written. Nobody has to repeat this: the commit
                brings the text.
            StoreForbidden: This user of Redis may not run scripts.
        """
        return writing.write(self._context, texts)

    def follow(self, positions: Mapping[str, StreamPosition], block_ms: int | None = None) -> dict[str, list[Entry]]:
        """Read events and live text after the positions of sessions, in the order of their times.

        Args:
            positions: By session id.
            block_ms: Longest wait for the first entry. None: do not wait.
        Returns:
            By session id, for those with something new; no more than a page, the rest comes with the next call.
        """
        return reading.follow(self._context, positions, block_ms)

    def event_at(self, session_id: str, event_id: str) -> Event | None:
        """Read one event by its id; None where it is not stored."""
        return reading.event_at(self._context, session_id, event_id)

    def keep_followed(self, session_id: str) -> bool:
        """Say that somebody follows a session, which counts for a minute; called again before that is over.

        Returns:
            False: There is no such session.
        Raises:
            StoreForbidden: This user of Redis may not write. Text comes while another reader says it, and otherwise
                with the commits.
        """
        return reading.keep_followed(self._context, session_id)

    def committed_texts(self, session_id: str, steps: Sequence[tuple[str, int]]) -> list[str | None]:
        """Read the texts that committed steps have answered.

        Args:
            steps: Execution and number of each step.
        Returns:
            A text for each; None where the step is not stored any more.
        """
        return reading.committed_texts(self._context, session_id, steps)
