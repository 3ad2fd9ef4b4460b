"""Checks of the environment in which the doctor runs: provider keys, agents, an existing app's settings."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from typing import Any, Final

from celery import Celery

from ....config.brokers import is_redis
from ....config.celery import GREENLETS
from ....config.routes import describe_route
from ....config.settings import Settings
from ....worker.agent import Agent, AgentRegistry
from ....worker.errors import ConfigurationError
from ....worker.redaction import describe_exception
from .findings import Finding, Installation
from .workers import POOL_ADVICE, POOLS, SLOTS_ADVICE

_BROKER_VARIABLES: Final = ("CELERY_BROKER_URL", "CELERY_BROKER_READ_URL", "CELERY_BROKER_WRITE_URL")
_KEYS: Final = {
    "openai": ("OPENAI_API_KEY",),
    "anthropic": ("ANTHROPIC_API_KEY",),
    "google": ("GOOGLE_API_KEY", "GEMINI_API_KEY"),
    "mistral": ("MISTRAL_API_KEY",),
    "groq": ("GROQ_API_KEY",),
}


def check_models(installation: Installation) -> Iterator[Finding]:
    """Which model providers have a key here."""
    del installation
    if importlib.util.find_spec("pydantic_ai") is None:
        yield Finding.ok("models", "the extra llm is not installed; agents with a driver of their own run")
        return
    present = [name for name, variables in _KEYS.items() if any(os.environ.get(v) for v in variables)]
    yield Finding.ok("provider keys", ", ".join(present) or "none in this environment")


def check_own_agents(installation: Installation) -> Iterator[Finding]:
    """The agents that the settings name can be imported, and have the extra and the key they need."""
    for module in installation.settings.agent_modules:
        try:
            agents = AgentRegistry.from_modules([module])
        except ConfigurationError as error:
            yield Finding.fail(f"module {module}", str(error), "correct CELERY_AGENTS_AGENTS, or the module")
            continue
        except Exception as error:  # noqa: BLE001 - whatever the user's module raises
            yield Finding.fail(f"module {module}", describe_exception(error).message, "correct the module")
            continue
        for agent in agents:
            yield _examine_agent(agent)


def _examine_agent(agent: Agent) -> Finding:
    name = f"{agent.name} here"
    try:
        agent.answering.check()
    except ConfigurationError as error:
        return Finding.fail(name, str(error), "set it in the environment of the workers")
    return Finding.ok(name, f"{', '.join(agent.models) or agent.answering.name}, {len(agent.toolset.names())} tools")


def check_app_settings(installation: Installation) -> Iterator[Finding]:
    """The existing app, which keeps its settings, has none that conflicts with agents."""
    if installation.existing_app is None:
        return
    conf: Any = installation.existing_app.conf
    # Options of a worker's command line go before these two, so live workers tell them (`check_workers`).
    starting = () if installation.workers else _examine_start(conf)
    limits, switches = _examine_limits(conf, installation.settings), _examine_switches(conf)
    findings = [*starting, *_examine_broker(installation.existing_app), *limits, *switches]
    yield from findings or [Finding.ok("settings of the app", "none conflicts")]


def _examine_broker(app: Celery) -> Iterator[Finding]:
    """Variables of the environment that Celery takes before the broker of the app."""
    conf: Any = app.conf
    given = conf.first("broker_url", "broker_host")
    for name in _BROKER_VARIABLES:
        url = os.environ.get(name)
        if url and given and url != given:
            what = f"{describe_route(url) or 'no URL'}, and not the app's own {describe_route(str(given)) or 'broker'}"
            advice = "unset it, or set the app's broker to the same: Celery takes the variable first"
            yield Finding.warn(name, what, advice)


def _examine_start(conf: Any) -> Iterator[Finding]:
    """Settings that the options of a worker replace; none has been started."""
    if conf.worker_pool not in (*POOLS, GREENLETS, "processes"):
        yield Finding.fail("worker_pool", str(conf.worker_pool), POOL_ADVICE)
    elif conf.worker_pool not in (GREENLETS, "threads"):
        yield Finding.warn("worker_pool", str(conf.worker_pool), SLOTS_ADVICE)


def _examine_limits(conf: Any, settings: Settings) -> Iterator[Finding]:
    """Settings that keep steps from being taken, decoded or finished."""
    if "json" not in conf.accept_content and "application/json" not in conf.accept_content:
        yield Finding.fail("accept_content", ", ".join(map(str, conf.accept_content)), "steps are JSON: add it")
    if conf.task_time_limit and conf.task_time_limit < settings.step_timeout_seconds:
        advice = f"raise it beyond CELERY_AGENTS_STEP_TIMEOUT_SECONDS ({settings.step_timeout_seconds:.0f})"
        yield Finding.warn("task_time_limit", f"{conf.task_time_limit} s: with prefork it kills long steps", advice)
    if conf.worker_enable_prefetch_count_reduction and not is_redis(settings.broker):
        advice = "set it to False: when the broker was away, a worker with threads may take no more steps"
        yield Finding.warn("worker_enable_prefetch_count_reduction", "on", advice)
    if conf.task_default_rate_limit:
        advice = "unset it, or steps wait for their turn"
        yield Finding.warn("task_default_rate_limit", str(conf.task_default_rate_limit), advice)


def _examine_switches(conf: Any) -> Iterator[Finding]:
    if not conf.worker_send_task_events:
        advice = "set it, or start workers with --task-events: Flower shows nothing without"
        yield Finding.warn("worker_send_task_events", "off", advice)
    if not conf.worker_enable_remote_control:
        advice = "set it: without, a revoke in Flower does not stop a session"
        yield Finding.warn("worker_enable_remote_control", "off", advice)
    if conf.task_compression:
        advice = "unset it: workers take no compressed messages, which may hold more than a worker's memory"
        yield Finding.fail("task_compression", str(conf.task_compression), advice)
    if conf.task_protocol != 2:
        yield Finding.fail("task_protocol", str(conf.task_protocol), "unset it: workers take messages of protocol 2")
    if conf.task_always_eager:
        advice = "unset it: nobody carries out what is submitted"
        yield Finding.fail("task_always_eager", "on", advice)
