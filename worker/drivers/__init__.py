"""Drivers: how one answer is got from a model, or from whatever replaces one.

`FunctionDriver` calls a function, `ScriptedDriver` reads from a list, `PydanticAIDriver` asks a provider.
"""

from __future__ import annotations

from ..lazy_names import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__, __file__)
