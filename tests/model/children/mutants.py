"""Where each mutant of the model of children is caught: a configuration, and the invariant that it breaks there.

`cd tests && python -m model.children.mutants` prints a shortest counterexample for each; with names, for those.
"""

from __future__ import annotations

import sys
from typing import Final

from .explore import EXPLORER
from .values import Config, Mutant

CALM: Final = Config(faults=0)

CAUGHT: Final[dict[Mutant, tuple[Config, str]]] = {
    Mutant.MADE_BEFORE_WAIT: (CALM, "I14"),
    Mutant.MADE_AT_EVERY_WAIT: (Config(calls=2, faults=0), "I14"),
    Mutant.MADE_NOT_DUE: (CALM, "I13"),
    Mutant.WAIT_WITHOUT_WATCH: (Config(calls=2, faults=0), "I13"),
    Mutant.WAIT_IGNORES_STOP: (Config(stop=True, faults=0), "I13"),
    Mutant.END_WITHOUT_WATCH: (Config(calls=2, faults=0), "I13"),
    Mutant.END_TOLD_LATER: (Config(), "I2"),
    Mutant.END_OVERWRITES: (Config(calls=2, expires=True, faults=0), "I14"),
    Mutant.END_WAKES_ANY: (Config(stop=True), "I4"),
    Mutant.WAKE_FORGOTTEN: (CALM, "I13"),
    Mutant.WAKE_AT_LAST: (Config(calls=2, at_once=1, faults=0), "I13"),
    Mutant.RESTS_TOO_LONG: (Config(calls=2, faults=0), "I13"),
    Mutant.ONLY_STOP_STOPS: (Config(expires=True, faults=0), "I14"),
    Mutant.STOP_NOT_REPEATED: (Config(expires=True), "I14"),
    Mutant.CLOSED_WITHOUT_CHARGE: (Config(expires=True), "I15"),
    Mutant.OPEN_AT_COMMIT: (Config(expires=True, faults=0), "I14"),
    Mutant.MADE_UNCOVERED: (Config(calls=2, at_once=1, budget=3, faults=0), "I15"),
    Mutant.RESERVATIONS_FORGOTTEN: (Config(calls=2, budget=2, faults=0), "I15"),
    Mutant.CLOSING_NOT_KEPT: (Config(calls=2, at_once=1, budget=2, faults=0), "I15"),
}

if __name__ == "__main__":
    sys.exit(EXPLORER.show_mutants(CAUGHT))
