"""Where each mutant of the model of budgets is caught: a configuration, and the invariant that it breaks there.

`cd tests && python -m model.budgets.mutants` prints a shortest counterexample for each; with names, for those.
"""

from __future__ import annotations

import sys
from typing import Final

from .explore import EXPLORER
from .values import Config, Mutant

RAISED: Final = Config(limit=1, changes=(3,), faults=0)
LOWERED: Final = Config(limit=3, changes=(1,), faults=0)

CAUGHT: Final[dict[Mutant, tuple[Config, str]]] = {
    Mutant.COMMIT_IGNORES_MARK: (RAISED, "B2"),
    Mutant.CLAIM_IGNORES_MARK: (LOWERED, "B1"),
    Mutant.COMMIT_UNWATCHED: (RAISED._replace(changes=(2, 3)), "B3"),
    Mutant.WAIT_UNWATCHED: (RAISED._replace(waits=True), "B3"),
    Mutant.WAITS_ALL_THE_SAME: (LOWERED._replace(changes=(0,), waits=True), "B5"),
    Mutant.TAKEN_IN_BLINDLY: (LOWERED, "B3"),
    Mutant.NOT_DECIDED_AGAIN: (RAISED, "B2"),
    Mutant.NOT_GIVEN_BACK: (RAISED._replace(limit=0), "B2"),
    Mutant.FIELD_STAYS: (LOWERED, "B4"),
    Mutant.CHANGE_UNWATCHED: (RAISED, "B4"),
    Mutant.RESUME_CLEARS_MARK: (LOWERED._replace(hold=True), "B1"),
    Mutant.NO_WAKE: (LOWERED._replace(changes=(0,), waits=True), "B5"),
}

if __name__ == "__main__":
    sys.exit(EXPLORER.show_mutants(CAUGHT))
