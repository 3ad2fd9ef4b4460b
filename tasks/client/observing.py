"""The verbs of a client that show what goes on: the timeline of an execution, and what sessions wait for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pydantic import Field

from ...worker.errors import InvalidInput
from ...worker.state.values.ids import read_session_id
from ...worker.store.records import LAST_STEP
from .connection import ClientConnection
from .verbs import Scope, verb

if TYPE_CHECKING:
    from ..observability.timeline.values import Timeline
    from ..observability.waiting_counts import WaitingCounts

_MOST_STEPS: Final = 1000


class ObservingVerbs(ClientConnection):
    """Shows what an execution did and waited for, and what all sessions wait for now."""

    @verb(
        "GET", "/v1/sessions/{session_id}/timeline", "show_timeline", scope=Scope.READ,
        http={
            "first_step": Field(ge=1, le=LAST_STEP, description="Number of the first step that is shown."),
            "limit": Field(ge=1, le=_MOST_STEPS, description="Most steps of a page."),
            "data": Field(description="true: with what was given, said and answered."),
        },
    )  # fmt: skip
    def timeline(self, session_id: str, *, first_step: int = 1, limit: int = 200, data: bool = False) -> Timeline:
        """Read the latest execution as spans of time: what each step did, waited for and lost.

        It is made of step records, which last as long as the session. Events, of which the store keeps the newest
        thousand or so, and the journal of the current step add what they know; a number that is not known is None.

        Args:
            first_step: The number of the first step that is shown, from 1; `next_step` of the page before.
            limit: Most steps of a page, 1 to 1000.
            data: With arguments, results, answers, tokens by kind and keys. Secrets that this process knows are
                redacted.
        Returns:
            Of a session that has had no execution, one without steps.
        Raises:
            SessionNotFound: There is no such session, or it has expired.
            StateUnreadable: A part of it cannot be read.
            InvalidInput: An argument cannot be used.
        """
        from ..observability.timeline.making import make_timeline

        session = read_session_id(session_id)
        _check_number("first_step", first_step, LAST_STEP)
        _check_number("limit", limit, _MOST_STEPS)
        stored = self.store.sessions.execution(session, first_step, limit)
        return make_timeline(stored, first_step, limit, with_data=data).redacted()

    @verb(
        "GET", "/v1/waiting", "count_waiting", scope=Scope.READ, reads_session=False,
        http={"agent": Field(max_length=1000, description="Only sessions of this agent.")},
    )  # fmt: skip
    def waiting(self, *, agent: str | None = None) -> WaitingCounts:
        """Count what the sessions wait for whose executions have not ended.

        It reads control fields and indexes, and no conversation. At most 20 000 sessions are looked at, those that are
        due first: `counted` of the `total`.

        Args:
            agent: Only sessions of this agent. None: all.
        """
        from ..observability.waiting_counts import count_waiting

        return count_waiting(self.store, agent)


def _check_number(name: str, value: Any, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise InvalidInput(name, value, f"give a whole number from 1 to {most}.")
