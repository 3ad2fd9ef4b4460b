"""The capabilities that come with the package: each in a module of its own, made of what users can use, too.

The base class is in `worker.capability`; state, engine and store know none of these by name.
"""

from __future__ import annotations

from ..lazy_names import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__, __file__)
