"""Traces of executions for sinks: files, HTTP, OpenTelemetry and functions of one's own."""

from __future__ import annotations

from .capability import TraceReport, Tracing, read_report
from .otlp import OtlpSink
from .sinks import CallbackSink, FileSink, HttpSink, TraceSink
from .trace import Trace, TraceEvent, TraceStatus, make_trace

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
    "make_trace",
    "read_report",
]
