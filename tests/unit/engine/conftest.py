"""A bench for each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from celery_agents.worker.agent import Agent

from support.engine import Bench


@pytest.fixture
def new_bench() -> Iterator[Callable[..., Bench]]:
    """`new_bench(agent, another_agent, lease_seconds=2)`"""
    benches: list[Bench] = []

    def make(*agents: Agent, **settings: Any) -> Bench:
        benches.append(Bench(*agents, **settings))
        return benches[-1]

    yield make
    for bench in benches:
        bench.close()
