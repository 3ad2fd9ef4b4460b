"""The state of an agent: pure immutable values that are stored as JSON without loss.

I/O, Celery and Redis do not belong here. `conversation` holds messages, `execution` one run of the agent, `parts` what
capabilities keep, `codec` the split form that a store writes, `values` the base of them all.
"""

from __future__ import annotations

from ..lazy_names import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__, __file__)
