"""A run under the names of Locus: `RunState`, `state.run` of a stored state, and the parts of the state behind them."""

from __future__ import annotations

from ..lazy_names import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__, __file__, {"worker.capabilities": "SmartState"})
