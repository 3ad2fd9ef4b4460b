"""Agents of pydantic-ai in real workers, killed at each crash point: messages and usage stay those of `agent.run`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from celery_agents import Job
from celery_agents.tasks.client.stream_items import Transcript
from celery_agents.worker.crash_points import POINTS
from celery_agents.worker.pydantic_agents.conversation import Conversation, read_conversation
from celery_agents.worker.pydantic_agents.driver import deps_of
from celery_agents.worker.pydantic_agents.durability import CeleryDurability
from celery_agents.worker.state import DEFAULT

from support import pydantic_examples, pydantic_streams
from support.lab import Lab
from support.pydantic_examples import EXAMPLES, comparable
from support.pydantic_streams import STREAMED

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
    return read_conversation(state.store.section(DEFAULT).messages, state.tag_id_of(job.execution_id))


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


@pytest.mark.parametrize("point", ["none"])
def test_a_fork_of_a_step_goes_on_with_the_messages_and_usage_of_an_uninterrupted_run(lab: Lab) -> None:
    lab.worker()
    jobs = {name: lab.client.submit(name, prompt, metadata=data) for name, (prompt, data) in EXAMPLES.items()}
    long = {name: job for name, job in jobs.items() if job.result(timeout=60).step_count > 1}
    assert len(long) > 3
    forks = {name: lab.client.job(lab.client.fork(job.session_id, at=1, go_on=True)) for name, job in long.items()}
    for name, job in forks.items():
        assert job.result(timeout=60).status == "completed", name
        conversation, expected = conversation_of(lab, job), uninterrupted(name)
        assert comparable(conversation.history) == comparable(expected.all_messages()), name
        assert dataclasses.asdict(conversation.usage) == dataclasses.asdict(expected.usage), name


@pytest.fixture
def streams(tmp_path: Path, point: str) -> Iterator[Lab]:
    with Lab(tmp_path / "lab", agents="support.pydantic_streams", separate=point == "c9") as started:
        yield started


@pytest.mark.parametrize(
    "point", [point if point in ("c2", "c5") else pytest.param(point, marks=pytest.mark.long) for point in POINTS]
)
def test_a_streamed_run_survives_a_kill_and_its_followers_read_what_is_committed(streams: Lab, point: str) -> None:
    doomed = streams.worker(wait=False, crash=f"{point}:0.3:7")
    jobs = {name: streams.client.submit(name, "What is the weather?") for name in STREAMED}
    with ThreadPoolExecutor(len(jobs)) as threads:
        read = {name: threads.submit(follow, job) for name, job in jobs.items()}
        doomed.wait(60)
        streams.worker()
        assert {job.result(timeout=60).status for job in jobs.values()} == {"completed"}
        shown = {name: each.result(timeout=60) for name, each in read.items()}
    for name, job in jobs.items():
        conversation, expected = (
            conversation_of(streams, job),
            getattr(pydantic_streams, name).run_sync("What is the weather?"),
        )
        if name == "followed":  # a step is a stream where somebody follows, and the model counts streams otherwise
            assert said(conversation.history) == said(expected.all_messages())
        else:
            assert comparable(conversation.history) == comparable(expected.all_messages()), name
            assert dataclasses.asdict(conversation.usage) == dataclasses.asdict(expected.usage), name
        assert shown[name].written() == "", name
        assert list(shown[name].committed.values())[-1] == job.result().final_response, name


def follow(job: Job) -> Transcript:
    """Follow a job to its end, and return what there is to show then."""
    shown = Transcript()
    for item in job.stream(timeout=120):
        shown.apply(item)
    return shown


def said(messages: Any) -> list[Any]:
    """Who has said what, without how it was counted and written."""
    return [
        (part.part_kind, getattr(part, "content", None) or part.args_as_dict())
        for message in messages
        for part in message.parts
    ]


def check_effects(lab: Lab) -> None:
    """Each keyed charge has had its effect once, and nothing was shipped twice."""
    shipped = {key: count for key, count in lab.ledger.deliveries().items() if key.startswith("ship-")}
    charged = {key: count for key, count in lab.ledger.effects().items() if not key.startswith("ship-")}
    assert list(charged.values()) == [1, 1]
    assert list(shipped.values()) in ([], [1])
