"""The engine: runs one step, from its claim to its commit.

The phases of a step belong here, with leases, sticky sessions and the transitions that a commit applies. What is stored
and how belongs to `worker.store`, whatever knows Celery to `tasks`. Clients use the transitions only: what runs steps
is imported on first use.
"""

from __future__ import annotations

from ..lazy_names import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__, __file__)
