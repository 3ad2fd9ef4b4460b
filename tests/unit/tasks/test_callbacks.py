from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from celery_agents.config.settings import Settings
from celery_agents.tasks.app import create_app
from celery_agents.tasks.housekeeping.callbacks import CallbackCaller
from celery_agents.worker.engine import FirstExecution, first_state, stop_transition
from celery_agents.worker.engine.run import moment
from celery_agents.worker.state import AgentState, Message
from celery_agents.worker.store import NextState, Store, memory_store

from support.post_receiver import PostReceiver
from support.wait import wait_until

ENDED = 60  # executions
SETTINGS = Settings.build(webhook_secret="not-a-real-secret")


class SlowReceiver(PostReceiver):
    """Answers nobody before `go`."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.heard: list[str] = []
        super().__init__(self._answer)

    def _answer(self, headers: dict[str, str], body: bytes) -> int:
        del body
        self.heard.append(headers["X-Celery-Agents-Id"])
        self.go.wait(30)
        return 204

    def close(self) -> None:
        self.go.set()
        super().close()


@pytest.fixture
def receiver() -> Iterator[SlowReceiver]:
    made = SlowReceiver()
    yield made
    made.close()


def end_execution(store: Store, session: str, url: str) -> None:
    def first(now_ms: int) -> NextState:
        now, message = moment(now_ms), Message.user("hello")
        return first_state(
            AgentState.fresh(now=now),
            message,
            FirstExecution(f"e-{session}", f"op-{session}", notify={"webhook": url}),
            now,
        )

    store.sessions.submit(session, "agent", session, first)
    store.sessions.stop(session, None, stop_transition)


def test_a_receiver_that_takes_its_time_is_asked_no_more_than_can_be_told_before_they_come_again(
    receiver: SlowReceiver,
) -> None:
    store = memory_store(SETTINGS)
    for number in range(ENDED):
        end_execution(store, f"s{number}", receiver.url)
    caller = CallbackCaller(create_app(SETTINGS), store, SETTINGS)
    begun = [caller.start_due(0) for _ in range(5)]
    assert (begun[0], sum(begun[1:])) == (20, 0)
    receiver.go.set()
    wait_until(lambda: not caller.start_due(0) and len(receiver.heard) >= ENDED, "all are told")
    assert sorted(receiver.heard) == sorted(f"e-s{number}" for number in range(ENDED))
