"""Drivers: how one answer is got from a model, or from whatever stands in for one.

`FunctionDriver` calls a function, `ScriptedDriver` reads from a list, `PydanticAIDriver` asks a provider.
"""

from __future__ import annotations

from .answers import Answer, CallTool
from .function import FunctionDriver
from .pricing import TokenPrice
from .protocol import AuxiliaryRequest, Delta, Driver, InferenceRequest
from .pydantic_ai import PydanticAIDriver
from .scripted import ScriptedDriver

__all__ = [
    "Answer",
    "AuxiliaryRequest",
    "CallTool",
    "Delta",
    "Driver",
    "FunctionDriver",
    "InferenceRequest",
    "PydanticAIDriver",
    "ScriptedDriver",
    "TokenPrice",
]
