"""The capabilities that come with the package: each in a module of its own, made of what users can use, too.

The base class is in `worker.capability`; state, engine and store know none of these by name.
"""

from __future__ import annotations

from .approvals import Approvals, Rule
from .ask_user import AskUser
from .subagents import Subagent, Subagents

__all__ = ["Approvals", "AskUser", "Rule", "Subagent", "Subagents"]
