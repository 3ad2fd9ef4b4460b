"""Names that have to be unique and need not be secret, made without asking the system.

`uuid4` asks the kernel each time, and lets another thread of the worker go first while it does.
"""

from __future__ import annotations

import os
import random
from typing import Final

# Seeded by the system, and in a forked child once more; no call of `random.seed` affects it.
_random: Final = random.Random()
os.register_at_fork(after_in_child=_random.seed)


def unique_bytes(count: int) -> bytes:
    """Return `count` random bytes."""
    return _random.randbytes(count)


def unique_hex() -> str:
    """32 hexadecimal digits: 128 random bits, as good as unique among all processes."""
    return f"{_random.getrandbits(128):032x}"
