"""Where each mutant of the model of messages is caught: a configuration, and the invariant that it breaks there.

`cd tests && python -m model.messages.mutants` prints a shortest counterexample for each; with names, for those.
"""

from __future__ import annotations

import sys
from typing import Final

from .explore import EXPLORER
from .values import (
    INTERRUPT,
    QUEUE,
    REFUSE,
    STEER,
    Act,
    Config,
    Mutant,
    Other,
    Send,
    SetMode,
    Stop,
    Withdraw,
)

_FIRST: Final = Send(1, STEER)


def _acts(*acts: Act) -> Config:
    """An execution is started by a first message, and clients do this."""
    return Config((_FIRST, *acts))


QUEUED: Final = _acts(Send(2, QUEUE), Send(3, QUEUE))
STEERED: Final = _acts(Send(2, STEER), Send(3, QUEUE))
INTERRUPTED: Final = _acts(Send(2, INTERRUPT))
WITHDRAWN: Final = _acts(Send(2, INTERRUPT), Withdraw(2))
SUSPENDED: Final = _acts(Send(2, INTERRUPT), Other.SUSPEND, Other.RESUME)
YIELDING: Final = _acts(Send(2, STEER))._replace(asks=True, yields=True)
AGAIN: Final = _acts(Send(2, STEER), Send(2, STEER))
STOPPED: Final = _acts(Send(2, STEER), Stop())
STOPPED_WITH_QUEUE: Final = _acts(Send(2, STEER), Send(3, QUEUE), Stop())
STOPPED_TWICE: Final = _acts(Send(2, STEER), Stop(), Stop())
CLEARED_TWICE: Final = _acts(Send(2, STEER), Stop(), Stop(clears=True))
DEMOTED: Final = _acts(Send(2, STEER), Send(3, QUEUE), SetMode(2, QUEUE))

CAUGHT: Final[dict[Mutant, tuple[Config, str]]] = {
    Mutant.QUEUE_UNWATCHED: (QUEUED, "M2"),
    Mutant.INBOX_UNWATCHED: (STEERED, "M2"),
    Mutant.EVERY_END_STARTS: (STOPPED_WITH_QUEUE, "M13"),
    Mutant.STOP_LEAVES_INBOX: (STOPPED, "M2"),
    Mutant.FAILURE_LEAVES_INBOX: (STEERED._replace(fails=1), "M2"),
    Mutant.MOVED_TO_THE_END: (STOPPED_WITH_QUEUE, "M5"),
    Mutant.QUEUE_TAKEN_WHOLE: (QUEUED, "M4"),
    Mutant.QUEUE_BEFORE_STEER: (STEERED, "M5"),
    Mutant.INTERRUPT_NOT_FIRST: (_acts(Send(2, STEER), Send(3, INTERRUPT)), "M5"),
    Mutant.NOT_RECOGNISED: (AGAIN, "M8"),
    Mutant.DELIVERED_FORGOTTEN: (AGAIN, "M8"),
    Mutant.QUEUED_FORGOTTEN: (_acts(Send(2, QUEUE), Send(2, QUEUE)), "M8"),
    Mutant.WITHDRAWN_FORGOTTEN: (_acts(Send(2, STEER), Withdraw(2), Send(2, STEER)), "M8"),
    Mutant.PLACED_AGAIN: (AGAIN, "M11"),
    Mutant.REFUSED_IS_KEPT: (_acts(Send(2, REFUSE)), "M1"),
    Mutant.COMMIT_REPEATED: (_acts(Send(2, STEER))._replace(replies=1), "M1"),
    Mutant.INTERRUPT_DOES_NOT_WAKE: (INTERRUPTED._replace(asks=True), "M9"),
    Mutant.WAIT_IGNORES_INTERRUPT: (INTERRUPTED._replace(asks=True), "M9"),
    Mutant.MESSAGE_LEAVES_REQUEST: (YIELDING, "M19"),
    Mutant.MESSAGE_DOES_NOT_WAKE: (YIELDING, "M20"),
    Mutant.WAIT_IGNORES_MESSAGES: (YIELDING, "M19"),
    Mutant.RESUME_FORGETS_INTERRUPT: (SUSPENDED, "M9"),
    Mutant.RESUME_DOES_NOT_WAKE: (
        _acts(Other.SUSPEND, Other.ANSWER, Other.RESUME)._replace(asks=True),
        "M17",
    ),
    Mutant.INTERRUPTED_IS_FINAL: (WITHDRAWN, "M7"),
    Mutant.WITHDRAWAL_KEEPS_INTERRUPT: (WITHDRAWN, "M15"),
    Mutant.CLEARING_KEEPS_INTERRUPT: (_acts(Send(2, INTERRUPT), Stop(clears=True)), "M15"),
    Mutant.END_KEEPS_INTERRUPT: (INTERRUPTED._replace(fails=1), "M15"),
    Mutant.INTERRUPT_DROPS_ANSWER: (INTERRUPTED._replace(crashes=1), "M18"),
    Mutant.INTERRUPT_BEHIND_FINAL: (INTERRUPTED, "M18"),
    Mutant.HOLD_ENDS: (_acts(Send(2, STEER), Other.SUSPEND), "M6"),
    Mutant.QUEUE_OVERTAKES_HELD: (_acts(Send(2, QUEUE), Stop(), Send(3, QUEUE)), "M3"),
    Mutant.STEER_RELEASES: (_acts(Send(2, QUEUE), Stop(), Send(3, STEER)), "M13"),
    Mutant.RETRY_KEEPS_HELD: (_acts(Send(2, QUEUE), Stop(), Other.RETRY), "M14"),
    Mutant.RELEASE_NOT_RECOGNISED: (
        _acts(Send(2, QUEUE), Send(3, QUEUE), Stop(), Stop(), Other.RELEASE, Other.RELEASE),
        "M8",
    ),
    Mutant.IDLE_RELEASE_REMEMBERED: (_acts(Send(2, QUEUE), Stop(), Other.RELEASE, Other.RELEASE), "M14"),
    Mutant.EMPTY_QUEUE_HELD: (_acts(Stop()), "M2"),
    Mutant.STOP_KEEPS_WAIT: (_acts(Stop())._replace(asks=True), "M17"),
    Mutant.HOLD_REFUSES_STOP: (_acts(Other.SUSPEND, Stop())._replace(asks=True), "M17"),
    Mutant.CLEARED_AT_END: (_acts(Stop(clears=True), Send(2, QUEUE)), "M10"),
    Mutant.IDLE_STOP_CLEARS_NOTHING: (_acts(Send(2, QUEUE), Stop(), Stop(clears=True)), "M12"),
    Mutant.SECOND_STOP_CLEARS_NOTHING: (CLEARED_TWICE, "M12"),
    Mutant.SECOND_STOP_KEEPS_MARKS: (STOPPED_TWICE, "M16"),
    Mutant.AFTER_STOP_HELD: (STOPPED, "M10"),
    Mutant.BEFORE_STOP_STARTS: (STOPPED, "M16"),
    Mutant.QUEUED_AFTER_STOP_HELD: (_acts(Send(2, QUEUE), Stop()), "M10"),
    Mutant.MARKS_OUTLIVE_STOP: (_acts(Send(2, STEER), Send(3, QUEUE), Stop(), Stop()), "M13"),
    Mutant.AFTER_STOP_RELEASES: (STOPPED_WITH_QUEUE, "M13"),
    Mutant.FAILURE_HOLDS_AFTER_STOP: (STOPPED._replace(fails=1), "M10"),
    Mutant.PROMOTED_BEFORE_STOP: (_acts(Send(2, QUEUE), Stop(), SetMode(2, STEER)), "M10"),
    Mutant.PROMOTED_WAITS: (_acts(Send(2, QUEUE), Stop(), SetMode(2, STEER)), "M2"),
    Mutant.MODE_IN_TWO: (DEMOTED, "M1"),
    Mutant.DEMOTED_LAST: (DEMOTED, "M3"),
    Mutant.DEMOTED_BY_FIRST_MODE: (
        _acts(Send(2, STEER), Send(3, STEER), SetMode(2, QUEUE), SetMode(3, QUEUE)),
        "M3",
    ),
    Mutant.DEMOTED_STARTS: (_acts(Send(2, STEER), Stop(), SetMode(2, QUEUE)), "M13"),
}

if __name__ == "__main__":
    sys.exit(EXPLORER.show_mutants(CAUGHT))
