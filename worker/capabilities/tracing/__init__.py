"""Traces of executions for sinks: files, HTTP, OpenTelemetry and functions of one's own."""

from __future__ import annotations

from .capability import TraceReport, Tracing, report_of
from .otlp import OtlpSink
from .sinks import CallbackSink, FileSink, HttpSink, TraceSink
from .trace import Trace, TraceEvent, TraceStatus, trace_of

__all__ = [
    "CallbackSink",
    "FileSink",
    "HttpSink",
    "OtlpSink",
    "Trace",
    "TraceEvent",
    "TraceReport",
    "TraceSink",
    "TraceStatus",
    "Tracing",
    "report_of",
    "trace_of",
]
