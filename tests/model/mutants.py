"""Where each mutant of the model is caught: a configuration, and the invariant that it breaks there.

`cd tests && python -m model.mutants` prints a shortest counterexample for each; with names, for those.
"""

from __future__ import annotations

import sys
from typing import Final

from .command_line import show_mutants
from .explore import explore
from .search import Search
from .values import Config, Effect, Mutant, State

CAUGHT: Final[dict[Mutant, tuple[Config, str]]] = {
    Mutant.NO_VERSION_CHECK: (Config(message=True), "I8"),
    Mutant.NO_COMMIT_ID: (Config(), "I1"),
    Mutant.NO_JOURNAL: (Config(), "I4"),
    Mutant.LEASE_IGNORED: (Config(), "I4"),
    Mutant.NO_SWEEPER: (Config(), "I2"),
    Mutant.RERUN_UNSAFE: (Config(Effect.UNSAFE), "I3"),
    Mutant.ATTEMPT_IN_KEY: (Config(Effect.KEYED), "I3"),
    Mutant.PLAIN_TRANSACTION: (Config(), "I1"),
    Mutant.CANCEL_NOT_CHECKED: (Config(Effect.UNSAFE, stop=True, faults=0), "I6"),
    Mutant.PUBLISH_BEFORE_COMMIT: (Config(fused=False, faults=0), "D"),
    Mutant.JOURNAL_AFTER_PARSE: (Config(unusable=True, faults=0), "I4"),
    Mutant.DUE_REMOVED_EARLY: (Config(faults=0), "D"),
    Mutant.INBOX_UNWATCHED: (Config(message=True, faults=0), "I8"),
    Mutant.SWEEP_DOES_NOT_MOVE: (Config(neighbour=True), "I2"),
    Mutant.NO_OPERATION_ID: (Config(message=True), "I8"),
    Mutant.OWN_ANSWER_KEPT: (Config(), "I5"),
    Mutant.STOP_DROPS_JOURNAL: (Config(stop=True), "I5"),
    Mutant.STOP_UNWATCHED_JOURNAL: (Config(stop=True), "I5"),
    Mutant.BEGUN_IS_NOT_RUN: (Config(stop=True), "I5"),
    Mutant.STALE_JOURNAL: (Config(stop=True), "I5"),
    Mutant.BLIND_UNDO: (Config(Effect.LOOKUP, faults=2), "I3"),
    Mutant.RECORD_NOT_RENEWED: (Config(Effect.LOOKUP, faults=2), "I3"),
    Mutant.TAKEN_OVER_BLINDLY: (Config(Effect.LOOKUP, faults=3, crashes=1, replies=0, messages=0), "I3"),
    Mutant.LOADED_IS_SEEN: (Config(message=True), "I8"),
    Mutant.LATE_TRY: (Config(stop=True), "I11"),
    Mutant.STOP_LEAVES_JOURNAL: (Config(stop=True), "I11"),
    Mutant.BUDGET_NOT_CHECKED: (Config(budget=1, faults=0), "I7"),
    Mutant.DELETED_WHILE_IT_RUNS: (Config(delete=True, faults=0), "I16"),
    Mutant.DELETE_UNWATCHED: (Config(message=True, delete=True, faults=0), "I16"),
    Mutant.NO_TOMBSTONE: (Config(delete=True, faults=0), "I16"),
    Mutant.DELETED_BUT_DUE: (Config(delete=True, faults=0), "D"),
    Mutant.LATE_WRITER_STAYS: (Config(delete=True), "I11"),
}
# Harmless as long as no worker begins a call after its lease by its own clock; see docs/model.md.
HARMLESS_WITH_A_TRUSTED_CLOCK: Final = (Mutant.STOP_UNWATCHED_JOURNAL, Mutant.STALE_JOURNAL)


def hunt(mutant: Mutant) -> Search[State, Config]:
    """Search where the mutant must be caught."""
    config, _ = CAUGHT[mutant]
    return explore(config._replace(mutant=mutant))


def main(arguments: list[str] | None = None) -> int:
    """Print how each mutant is caught; 1 when one is not."""
    return show_mutants("model.mutants", CAUGHT, hunt, arguments)


if __name__ == "__main__":
    sys.exit(main())
