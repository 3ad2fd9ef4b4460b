"""Where each mutant of the model of limits is caught: a configuration, and the invariant that it breaks there.

`cd tests && python -m model.limits.mutants` prints a shortest counterexample for each; with names, for those.
"""

from __future__ import annotations

import sys
from typing import Final

from .explore import EXPLORER
from .values import Config, Mutant

CALM: Final = Config(faults=0)
OUTAGE: Final = Config(limit=2, outage=True, faults=0)

CAUGHT: Final[dict[Mutant, tuple[Config, str]]] = {
    Mutant.CHECK_APART: (CALM, "L1"),
    Mutant.RESERVED_AGAIN: (Config(), "L2"),
    Mutant.SETTLED_AGAIN: (Config(), "L2"),
    Mutant.DEAD_HOLDS: (Config(limit=2, refusals=1), "L6"),
    Mutant.TWO_PROBES: (OUTAGE, "L3"),
    Mutant.PROBE_FORGOTTEN: (OUTAGE, "L6"),
    Mutant.CLOSED_TOLD_ONCE: (Config(limit=2, outage=True, crashes=0), "L7"),
    Mutant.CLOSED_KEEPS_LINE: (OUTAGE, "L7"),
    Mutant.SET_WITHOUT_FORWARD: (Config(limit=1, new_limit=2, faults=0), "L7"),
    Mutant.RELEASE_WITHOUT_LOOK: (Config(paused=True, faults=0), "L7"),
    Mutant.NEWCOMERS_FIRST: (Config(sessions=3, faults=0), "L5"),
    Mutant.WINDOW_FORGOTTEN: (Config(sessions=3, limit=2, refusals=1, faults=0), "L4"),
    Mutant.NO_OWN_TIME: (CALM, "L6"),
}

if __name__ == "__main__":
    sys.exit(EXPLORER.show_mutants(CAUGHT))
