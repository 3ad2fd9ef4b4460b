"""Where each mutant of the model of the archive is caught: a configuration, and the invariant that it breaks there.

`cd tests && python -m model.archive.mutants` prints a shortest counterexample for each; with names, for those.
"""

from __future__ import annotations

import sys
from typing import Final

from .explore import EXPLORER
from .values import Config, Mutant

CALM: Final = Config(crashes=0)
LOSS: Final = Config(crashes=0, losses=1)
DELETION: Final = Config(messages=1, delete=True, crashes=0)

CAUGHT: Final[dict[Mutant, tuple[Config, str]]] = {
    Mutant.REMOVE_BEFORE_STORED: (CALM, "A1"),
    Mutant.REMOVE_UNWATCHED: (CALM, "A2"),
    Mutant.ROW_OVER_TOMBSTONE: (DELETION, "A3"),
    Mutant.ROW_OVER_NEWER: (CALM, "A1"),
    Mutant.ROW_OVER_UNCONFIRMED: (LOSS, "A1"),
    Mutant.RESTORE_OVER_NEWER: (CALM, "A2"),
    Mutant.MARK_FORGOTTEN: (CALM, "A1"),
    Mutant.TOMBSTONE_UNCONFIRMED: (DELETION._replace(losses=1), "A1"),
    Mutant.DELETE_WITHOUT_OUTBOX: (DELETION, "A3"),
    Mutant.ONLY_MARKED_FINISHED: (Config(messages=0, expires=True), "A4"),
}

if __name__ == "__main__":
    sys.exit(EXPLORER.show_mutants(CAUGHT))
