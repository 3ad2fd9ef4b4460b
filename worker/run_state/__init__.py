"""A run under the names of Locus: `RunState`, `state.run` of a stored state, and the parts of the state behind them."""

from __future__ import annotations

from typing import Final

from ..lazy_names import attach_names

_MOVED: Final = {"worker.capabilities": "SmartState"}

__getattr__, __dir__, __all__ = attach_names(__name__, __file__, _MOVED)
