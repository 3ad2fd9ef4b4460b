"""The Lua scripts: what has to look and write in one round trip, one file each.

They use nothing newer than Redis 6.2. Each names its keys from the prefix of one shard, so that all of them share a
slot. `memory.scripts` has the same functions in Python; the contract suite holds the two together.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Final

SCRIPTS: Final = {
    name: files(__name__).joinpath(f"{name}.lua").read_text(encoding="utf-8")
    for name in ("compare_and_apply", "sweep", "offer", "prune", "journal_when_full", "write_live", "bucket")
}
"""The scripts' texts by name."""
