"""The Lua scripts: what has to look and write in one round trip, one file each.

They use nothing newer than Redis 6.2. Each declares every key that it may touch, as a cluster demands while a slot
moves: its caller reads first which sessions are concerned.
`memory.scripts` has the same functions in Python; the contract suite holds the two together.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Final

SCRIPTS: Final = {
    name: files(__name__).joinpath(f"{name}.lua").read_text(encoding="utf-8")
    for name in (
        "compare_and_apply",
        "sweep",
        "offer",
        "prune",
        "journal_when_full",
        "write_live",
        "bucket",
        "holders",
        "caps",
    )
}
"""The scripts' texts by name."""
