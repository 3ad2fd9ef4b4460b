"""Guardrails: rules about what the model reads and what it answers."""

from __future__ import annotations

from .capability import Guardrails
from .guardrail import Guardrail, GuardrailContext, GuardrailRule, GuardrailVerdict
from .rules import CodeRule, JsonRule, ModelRule, RegexRule

__all__ = [
    "CodeRule",
    "Guardrail",
    "GuardrailContext",
    "GuardrailRule",
    "GuardrailVerdict",
    "Guardrails",
    "JsonRule",
    "ModelRule",
    "RegexRule",
]
