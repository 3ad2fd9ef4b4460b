"""Agents of pydantic-ai in real workers, killed at each crash point: messages and usage stay those of `agent.run`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from celery_agents import Job
from celery_agents.worker.crash_points import POINTS
from celery_agents.worker.pydantic_agents.conversation import Conversation, read_conversation
from celery_agents.worker.pydantic_agents.driver import deps_of
from celery_agents.worker.pydantic_agents.durability import CeleryDurability
from celery_agents.worker.state import DEFAULT

from support import pydantic_examples
from support.lab import Lab
from support.pydantic_examples import EXAMPLES, comparable

pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.filterwarnings("ignore:no worker has registered agent"),  # jobs are there before the first worker
]

QUICK = ("c3", "c5")


@pytest.fixture
def lab(tmp_path: Path, point: str) -> Iterator[Lab]:
    # A message is published after its commit, and so c9 is passed, where the broker is another database.
    with Lab(tmp_path / "lab", agents="support.pydantic_examples", separate=point == "c9") as started:
        yield started


def uninterrupted(name: str) -> Any:
    agent: Any = getattr(pydantic_examples, name)
    (options,) = (each for each in agent.root_capability.capabilities if isinstance(each, CeleryDurability))
    prompt, metadata = EXAMPLES[name]
    return agent.run_sync(prompt, deps=deps_of(agent, options, metadata))


def conversation_of(lab: Lab, job: Job) -> Conversation:
    state = lab.client.store.sessions.load(job.session_id).state
    return read_conversation(state.store.section(DEFAULT).messages, job.execution_id)


@pytest.mark.parametrize(
    "point", [point if point in QUICK else pytest.param(point, marks=pytest.mark.long) for point in POINTS]
)
def test_every_example_survives_a_kill_with_the_messages_and_usage_of_an_uninterrupted_run(
    lab: Lab, point: str
) -> None:
    chance = 1 if point == "c6" else 0.3  # results of pure tools are not journaled, so c6 is passed seldom
    doomed = lab.worker(wait=False, crash=f"{point}:{chance}:7")
    jobs = {name: lab.client.submit(name, prompt, metadata=data) for name, (prompt, data) in EXAMPLES.items()}
    orders = lab.client.submit("orders", "order it")
    doomed.wait(60)
    lab.worker()
    assert {job.result(timeout=60).status for job in (*jobs.values(), orders)} == {"completed"}
    for name, job in jobs.items():
        conversation, expected = conversation_of(lab, job), uninterrupted(name)
        assert comparable(conversation.history) == comparable(expected.all_messages()), name
        assert dataclasses.asdict(conversation.usage) == dataclasses.asdict(expected.usage), name
    check_effects(lab)


def check_effects(lab: Lab) -> None:
    """Each keyed charge has had its effect once, and nothing was shipped twice."""
    shipped = {key: count for key, count in lab.ledger.deliveries().items() if key.startswith("ship-")}
    charged = {key: count for key, count in lab.ledger.effects().items() if not key.startswith("ship-")}
    assert list(charged.values()) == [1, 1]
    assert list(shipped.values()) in ([], [1])
