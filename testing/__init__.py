"""Test an agent under faults: `assert_survives(agent, "message", seeds=range(50))`.

It needs neither Redis nor pytest. Simulated workers on virtual time are killed, paused past their leases, and lose
replies and messages; the engine and the store are the product's own.
"""

from __future__ import annotations

from ..worker.drivers import CallTool, ScriptedDriver
from .faults import CrashPlan, Fault, FaultKind
from .ledger import EffectLedger, Happening, ToolRun
from .script import script
from .surviving import DidNotSurvive, Survival, assert_survives

__all__ = [
    "CallTool",
    "CrashPlan",
    "DidNotSurvive",
    "EffectLedger",
    "Fault",
    "FaultKind",
    "Happening",
    "ScriptedDriver",
    "Survival",
    "ToolRun",
    "assert_survives",
    "script",
]
