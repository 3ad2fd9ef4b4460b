"""Where each mutant of the waiting model is caught: a configuration, and the invariant that it breaks there.

`cd tests && python -m model.waiting.mutants` prints a shortest counterexample for each; with names, for those.
"""

from __future__ import annotations

import sys
from typing import Final

from ..values import Effect
from .explore import EXPLORER
from .values import Config, Mutant, Note

CALM: Final = Config(faults=0)

CAUGHT: Final[dict[Mutant, tuple[Config, str]]] = {
    Mutant.WAIT_WITHOUT_WATCH: (CALM, "I13"),
    Mutant.WAIT_WITHOUT_CLAIM: (Config(external=True), "I13"),
    Mutant.WAIT_REPEATED: (Config(), "I13"),
    Mutant.WAIT_NOT_DUE: (Config(expires=False, faults=0), "I13"),
    Mutant.WAIT_IGNORES_STOP: (Config(stop=True, faults=0), "I13"),
    Mutant.WAIT_IGNORES_INBOX: (Config(note=Note.DENY, faults=0), "I13"),
    Mutant.ANSWER_WITHOUT_WATCH: (CALM, "I13"),
    Mutant.ANSWER_NOT_RECOGNISED: (Config(), "I8"),
    Mutant.SECOND_DECISION: (Config(people=2, faults=0), "I12"),
    Mutant.ROUND_IGNORED: (Config(people=2, passes_on=True, faults=0), "I12"),
    Mutant.WAKE_FORGOTTEN: (CALM, "I13"),
    Mutant.WAKE_NOT_DUE: (Config(), "I13"),
    Mutant.WAKE_KEEPS_WAIT: (CALM, "I13"),
    Mutant.EXPIRY_OVERWRITES: (CALM, "I12"),
    Mutant.EXPIRY_IGNORED: (CALM, "I2"),
    Mutant.CLAIM_KEEPS_WAIT: (CALM, "I13"),
    Mutant.HELD_CLAIMED: (Config(hold=True, faults=0), "I13"),
    Mutant.HELD_CARRIED: (Config(hold=True, carries=True, faults=0), "I13"),
    Mutant.HOLD_REFUSES_STOP: (Config(stop=True, hold=True, faults=0), "I13"),
    Mutant.HOLD_WITHOUT_END: (Config(hold=True, faults=0), "I2"),
    Mutant.SUSPENDED_UNDER_STOP: (Config(stop=True, hold=True), "I13"),
    Mutant.HOLD_OUTLIVES_END: (Config(hold=True, faults=0), "I13"),
    Mutant.RESUME_DOES_NOT_WAKE: (Config(hold=True, faults=0), "I13"),
    Mutant.RESUME_LEAVES_DUE: (Config(approval=False, external=True, hold=True, faults=2), "I2"),
    Mutant.STOP_KEEPS_WAIT: (Config(stop=True, faults=0), "I13"),
    Mutant.STOP_FORGETS_DUE: (Config(stop=True), "I13"),
    Mutant.INTERRUPT_TWICE: (Config(note=Note.INTERRUPT, faults=0), "I13"),
    Mutant.EXTERNAL_OPENED_LATE: (Config(approval=False, external=True, faults=0), "I12"),
    Mutant.EXTERNAL_STARTED_AGAIN: (Config(approval=False, external=True), "I3"),
    Mutant.BEGIN_RECORD_KEPT: (Config(asked_by_tool=True, faults=0), "I12"),
    Mutant.LATE_FAILURE_COUNTS: (Config(effect=Effect.KEYED, asked_by_tool=True), "I12"),
    Mutant.ARGUMENTS_MADE_AGAIN: (CALM, "I12"),
    Mutant.EDITS_IGNORED: (Config(edited=True, faults=0), "I12"),
    Mutant.MODEL_ASKED_AGAIN: (CALM, "I4"),
    Mutant.BEGUN_UNDER_STOP: (Config(stop=True, faults=0), "I6"),
    Mutant.END_FORGETS_INBOX: (Config(note=Note.STEER, stop=True, faults=0), "I8"),
}

if __name__ == "__main__":
    sys.exit(EXPLORER.show_mutants(CAUGHT))
