"""The session runtime: values, actions, controllers and events, and stores in memory, in files and in Redis.

The engine that runs a message is the workers' own. `InlineRunner` runs it in the calling process, for sessions in
memory and in files; `WorkerRunner` leaves it to the workers, for sessions in Redis.
"""

from __future__ import annotations

from ..lazy_names import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__, __file__)
