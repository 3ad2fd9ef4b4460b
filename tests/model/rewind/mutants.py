"""Where each mutant of the model of rewinds is caught: a configuration, and the invariant that it breaks there.

`cd tests && python -m model.rewind.mutants` prints a shortest counterexample for each; with names, for those.
"""

from __future__ import annotations

import sys
from typing import Final

from .explore import EXPLORER
from .values import Config, Mutant

CALM: Final = Config(faults=0)
WAITING: Final = Config(asks=True, faults=0)

CAUGHT: Final[dict[Mutant, tuple[Config, str]]] = {
    Mutant.UNWATCHED: (CALM, "W2"),
    Mutant.VERSION_IGNORED: (CALM, "W2"),
    Mutant.VERSION_BEHIND_END: (WAITING._replace(messages=2), "W2"),
    Mutant.RUNNING_REWOUND: (CALM, "W5"),
    Mutant.WAIT_REWOUND: (WAITING, "W5"),
    Mutant.NO_OPERATION_ID: (CALM._replace(is_expected=False), "W3"),
    Mutant.ID_BEHIND_SAVE: (Config(is_expected=False), "W3"),
    Mutant.RESOLVED_AGAIN: (CALM._replace(is_expected=False, is_relative=True), "W3"),
    Mutant.SAME_GENERATION: (CALM, "W8"),
    Mutant.CACHE_IGNORES_GENERATION: (CALM, "W4"),
    Mutant.NO_EVENT: (CALM, "W6"),
    Mutant.RETRIED: (Config(messages=0, stops=True, faults=0), "W5"),
    Mutant.OPERATIONS_TAKEN_BACK: (CALM, "W1"),
    Mutant.SPENT_TAKEN_BACK: (CALM, "W7"),
    Mutant.MESSAGES_DROPPED: (CALM, "W8"),
    Mutant.STEPS_STAY_PACKED: (CALM, "W8"),
}

if __name__ == "__main__":
    sys.exit(EXPLORER.show_mutants(CAUGHT))
