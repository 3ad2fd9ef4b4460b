"""The state of an agent: pure immutable values that are stored as JSON without loss.

I/O, Celery and Redis do not belong here. `conversation` holds messages, `execution` one run of the agent, `parts` what
capabilities keep, `codec` the split form that a store writes, `values` the base of them all.
"""

from __future__ import annotations

from typing import Final

from ..lazy_names import attach_names

# Views of a state, and the parts of capabilities, are in modules next to these.
_MOVED: Final = {
    "worker.capabilities": """
        Cadence Disposition GuardrailEvent GuardrailIncident GuardrailIncidents GuardrailPhase GuardrailResult
        JudgedMessages MemoryFact Plan PlanEvent PlanStatus PlanStepRecord ReflectionEvent ReflectionRecord
        ReflectionUsage SmartEvent SmartView SummarizationEvent SummaryRecord smart_event without_blocked
    """,
    "worker.run_state": "Assessment ReasoningStep RunReason RunView",
}

__getattr__, __dir__, __all__ = attach_names(__name__, __file__, _MOVED)
