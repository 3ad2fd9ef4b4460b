"""Tools of MCP servers: which servers an agent has, their lists of tools, the connections to them, and their calls.

The library `mcp` is imported in `session.py` and the modules below it only, and those inside functions: an agent is
defined without it. Journals, requests and effect classes belong to the engine.
"""

from __future__ import annotations

from ..lazy_names import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__, __file__)
