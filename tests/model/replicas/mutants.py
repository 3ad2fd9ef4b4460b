"""How each mutant of the model of replicas is caught: `python -m model.replicas.mutants` shows a shortest counterexample for
each; with names, for those.
"""

from __future__ import annotations

import sys
from typing import Final

from .explore import EXPLORER
from .values import Act, Config, Mutant

FAILOVER: Final = Config(faults=1)

CAUGHT: Final[dict[Mutant, tuple[Config, str]]] = {
    Mutant.ACT_UNCONFIRMED: (FAILOVER, "I8"),
    Mutant.AGAIN_UNCONFIRMED: (Config(faults=2), "I8"),
    Mutant.DELETION_UNCONFIRMED: (FAILOVER._replace(acts=(Act.DELETE,)), "I16"),
    Mutant.RESULT_UNCONFIRMED: (FAILOVER._replace(acts=(Act.READ,)), "R1"),
    Mutant.CALLBACK_UNCONFIRMED: (FAILOVER._replace(acts=(Act.CALLBACK,)), "R1"),
    Mutant.REQUEST_UNCONFIRMED: (FAILOVER._replace(asks=True, acts=(Act.TELL,)), "R2"),
    Mutant.BEGIN_UNCONFIRMED: (FAILOVER, "I3"),
    Mutant.BEGIN_KEPT: (FAILOVER, "I3"),
    Mutant.SAFE_FIRST: (FAILOVER._replace(acts=(Act.READ,)), "R1"),
    Mutant.SAFE_OF_ANOTHER: (FAILOVER._replace(acts=(Act.RETRY, Act.READ), workers=1, crashes=0), "R1"),
    Mutant.OTHER_CONNECTION: (FAILOVER, "I8"),
    Mutant.OTHER_PRIMARY: (FAILOVER, "I8"),
    Mutant.FOREIGN_COUNTED: (FAILOVER._replace(foreign=True), "I8"),
}

if __name__ == "__main__":
    sys.exit(EXPLORER.show_mutants(CAUGHT))
