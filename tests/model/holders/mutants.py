"""Where each mutant of the model of holders is caught: a configuration, and the invariant that it breaks there.

`cd tests && python -m model.holders.mutants` prints a shortest counterexample for each; with names, for those.
"""

from __future__ import annotations

import sys
from typing import Final

from .explore import EXPLORER
from .values import Config, Mutant

PLAIN: Final = Config(faults=0)
FAULT: Final = Config(sessions=2)
NARROW: Final = Config(narrow=frozenset({0, 1}), faults=0)

CAUGHT: Final[dict[Mutant, tuple[Config, str]]] = {
    Mutant.CHECK_APART: (PLAIN, "H1"),
    Mutant.DEAD_COUNT: (FAULT, "H4"),
    Mutant.DEAD_DROPPED_EARLY: (FAULT, "H1"),
    Mutant.TAKEN_AGAIN: (PLAIN._replace(sessions=2, steps=2), "H4"),
    Mutant.KEPT_BY_COMMIT: (PLAIN, "H4"),
    Mutant.GIVEN_UNHEARD: (PLAIN, "H8"),
    Mutant.NO_LOOK: (PLAIN, "H8"),
    Mutant.LOOK_KEEPS_CALL: (NARROW, "H8"),
    Mutant.LINE_KEPT: (PLAIN, "H3"),
    Mutant.GONE_STAY: (PLAIN._replace(stops=True), "H4"),
    Mutant.GONE_UNHEARD: (PLAIN, "H8"),
    Mutant.GONE_BLINDLY: (FAULT._replace(steps=2), "H4"),
    Mutant.CALLED_ONCE: (FAULT._replace(sessions=3), "H4"),
    Mutant.NEWCOMERS_FIRST: (PLAIN, "H10"),
    Mutant.RESTORED_ALONE: (FAULT, "H10"),
    Mutant.CARRIED_ON: (PLAIN._replace(sessions=2, steps=2), "H11"),
    Mutant.STOP_WAITS: (PLAIN._replace(stops=True), "H9"),
    Mutant.STOP_PUT_OFF: (PLAIN._replace(sessions=2, stops=True), "H9"),
    Mutant.SWEEP_DEAF: (FAULT, "H4"),
    Mutant.OLD_CLAIM_TAKES: (FAULT._replace(most=(1, 0), raised=1), "H4"),
}

if __name__ == "__main__":
    sys.exit(EXPLORER.show_mutants(CAUGHT))
