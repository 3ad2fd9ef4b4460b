"""Tools: functions that a model may call.

`Tool` is what the engine needs of a tool: `bind` validates what a model gave, `call` makes the call. `@tool` makes one
of a function, by its signature and docstring.
Running calls (records, deadlines, several at once) is the engine's.
"""

from __future__ import annotations

from ..lazy_names import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__, __file__)
