"""How an engine is started.

Only the standard library is used here: every peer's own environment imports this module.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from .load import Load

WARM_UP = Load(20, 5)


class NotMeasuredError(RuntimeError):
    """An engine could not be measured. The message has the end of its log."""


@dataclasses.dataclass(frozen=True)
class Engine:
    """How one engine is started.

    Args:
        name: Short, unique.
        title: For tables.
        module: Run with `-m` as the client; it answers loads (`yardstick.load.serve`).
        store: redis, postgres, files or restate.
        workers: Command line of a worker process after `python -P -m`; none: the client does the work itself.
        processes: How many of them.
        env: What differs between variants of one module.
        requirements: A peer's own environment; none: ours.
        warm_up: Run before anything is measured.
        patience: Seconds within which a load must end.
    """

    name: str
    title: str
    module: str
    store: str = "redis"
    workers: tuple[str, ...] = ()
    processes: int = 1
    env: Mapping[str, str] = dataclasses.field(default_factory=dict)
    requirements: tuple[str, ...] = ()
    warm_up: Load = WARM_UP
    patience: float = 240.0

    def with_env(self, name: str, title: str, **env: str) -> Engine:
        return dataclasses.replace(self, name=name, title=title, env={**self.env, **env})
