"""Traces of executions for sinks: files, HTTP, OpenTelemetry and functions of users."""

from __future__ import annotations

from ...lazy_names import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__, __file__)
