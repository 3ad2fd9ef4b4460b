"""An agent whose traces go to files, by HTTP and to a collector of OpenTelemetry, where the environment says where."""

from __future__ import annotations

import os

from celery_agents import Agent, Tracing
from celery_agents.worker.capabilities import FileSink, HttpSink, OtlpSink, TraceSink
from celery_agents.worker.drivers import FunctionDriver

from .agents import _follow, keyed, pure

DIRECTORY, POSTED_TO, COLLECTOR, LOGS_DATA = "TRACES_IN", "TRACES_POSTED_TO", "TRACES_COLLECTED_BY", "TRACES_WITH_DATA"
MODE = "TRACED_MODE"


def _sinks() -> list[TraceSink]:
    sinks: list[TraceSink] = []
    if DIRECTORY in os.environ:
        sinks.append(FileSink(os.environ[DIRECTORY]))
    if POSTED_TO in os.environ:
        sinks.append(HttpSink(os.environ[POSTED_TO], headers={"Authorization": "Bearer of-the-sink"}))
    if COLLECTOR in os.environ:
        sinks.append(OtlpSink(f"{os.environ[COLLECTOR]}/v1/traces"))
    return sinks


_tracing = Tracing(_sinks(), mode=os.environ.get(MODE, "streaming"), log_data=os.environ.get(LOGS_DATA) != "no")
traced = Agent("traced", driver=FunctionDriver(_follow), tools=(keyed, pure), capabilities=[_tracing])
