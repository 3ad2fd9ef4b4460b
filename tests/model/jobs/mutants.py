"""Where each mutant of the model of jobs is caught: a configuration, and the invariant that it breaks there.

`cd tests && python -m model.jobs.mutants` prints a shortest counterexample for each; with names, for those.
"""

from __future__ import annotations

import sys
from typing import Final

from .explore import EXPLORER
from .values import Config, Mutant

CAUGHT: Final[dict[Mutant, tuple[Config, str]]] = {
    Mutant.NO_INTENTION: (Config(), "J1"),
    Mutant.UNCLAIMED_INTENTION: (Config(broken=1), "J2"),
    Mutant.ID_NOT_INDEXED: (Config(stop=True, faults=0), "J8"),
    Mutant.UNKNOWN_IS_FINAL: (Config(), "J6"),
    Mutant.SEARCH_BELIEVED: (Config(listed=True), "J2"),
    Mutant.ANSWER_KEEPS_JOB: (Config(rejected=True, faults=0), "J4"),
    Mutant.CLEANS_EVERYTHING: (Config(faults=0), "J3"),
    Mutant.CHARGES_ANSWERS: (Config(faults=0), "J9"),
    Mutant.CHARGE_KEEPS_JOB: (Config(listed=True, stop=True, retry=True), "J9"),
    Mutant.END_OVERLOOKED: (Config(), "J2"),
    Mutant.STOP_WAITS: (Config(stop=True, faults=0), "J7"),
    Mutant.ENDLESS_SEARCH: (Config(listed=True, blurred=True), "J6"),
    Mutant.FIRST_INTENTION: (Config(listed=True, blurred=True, faults=2), "J2"),
    Mutant.KEY_OF_NOW: (Config(listed=True, stop=True, retry=True), "J2"),
    Mutant.SETTLED_ONCE: (Config(capped=True), "J10"),
    Mutant.REFUSED_IS_FREE: (Config(capped=True), "J11"),
    Mutant.LOST_IS_FREE: (Config(capped=True), "J11"),
}

if __name__ == "__main__":
    sys.exit(EXPLORER.show_mutants(CAUGHT))
