from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from celery_agents.config.settings import Settings
from celery_agents.tasks.app import create_app
from celery_agents.tasks.housekeeping.callbacks import CallbackCaller
from celery_agents.worker.engine import FirstExecution, first_state, stop_transition
from celery_agents.worker.moments import moment
from celery_agents.worker.state import AgentState, Message
from celery_agents.worker.store import NextState, Store, memory_store
from celery_agents.worker.store.clock import RedisClock
from celery_agents.worker.store.context import Publisher
from celery_agents.worker.store.memory.database import MemoryDatabase

from support.post_receiver import PostReceiver
from support.wait import wait_until

ENDED = 60  # executions
SETTINGS = Settings.build(webhook_secret="not-a-real-secret", webhook_allow="127.0.0.1")


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


def end_execution(store: Store, session: str, url: str, **notify: Any) -> None:
    def first(now_ms: int) -> NextState:
        now, message = moment(now_ms), Message.user("hello")
        return first_state(
            AgentState.fresh(now=now),
            message,
            FirstExecution(f"e-{session}", f"op-{session}", notify=notify or {"webhook": url}),
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
    begun = [caller.start_due() for _ in range(5)]
    assert (begun[0], sum(begun[1:])) == (20, 0)
    receiver.go.set()
    wait_until(lambda: not caller.start_due() and len(receiver.heard) >= ENDED, "all are told")
    assert sorted(receiver.heard) == sorted(f"e-s{number}" for number in range(ENDED))


def test_a_receiver_that_takes_its_time_holds_no_other_one_up(receiver: SlowReceiver) -> None:
    store, heard = memory_store(SETTINGS), list[str]()
    quick = PostReceiver(lambda headers, body: heard.append(headers["X-Celery-Agents-Id"]) or 204)
    for number in range(ENDED):
        end_execution(store, f"s{number}", receiver.url)
    end_execution(store, "quick", quick.url)
    caller = CallbackCaller(create_app(SETTINGS), store, SETTINGS)
    wait_until(lambda: caller.start_due() >= 0 and heard == ["e-quick"], "the quick receiver is told")
    assert len(receiver.heard) <= 4
    quick.close()
    caller.close()


def test_many_callbacks_of_a_receiver_that_takes_its_time_do_not_come_before_those_of_others(
    receiver: SlowReceiver,
) -> None:
    now_ms, heard, stamps = [1_800_000_000_000], list[str](), set[str]()
    database = MemoryDatabase(lambda: now_ms[0])
    store = Store(database, SETTINGS, clock=RedisClock(), publisher=Publisher())

    def hear(headers: dict[str, str], body: bytes) -> int:
        heard.append(headers["X-Celery-Agents-Id"])
        stamps.add(headers["X-Celery-Agents-Signature"].partition(",")[0])
        return 204

    quick = PostReceiver(hear)
    for number in range(5 * ENDED):
        end_execution(store, f"s{number}", receiver.url)
    caller = CallbackCaller(create_app(SETTINGS), store, SETTINGS)
    for _ in range(10):
        caller.start_due()
    now_ms[0] += 3_000
    end_execution(store, "quick", quick.url)
    caller.start_due()
    wait_until(lambda: heard == ["e-quick"], "the quick receiver is told", timeout=3)
    assert stamps == {"t=1800000003"}, "the time of the store, whatever this worker's clock says"
    quick.close()
    caller.close()


def test_a_worker_that_may_not_reach_a_receiver_says_how_to_allow_it(receiver: SlowReceiver) -> None:
    settings = Settings.build(webhook_secret="not-a-real-secret")
    store = memory_store(settings)
    end_execution(store, "s", receiver.url)
    caller = CallbackCaller(create_app(settings), store, settings)
    failed: list[str] = []
    store.housekeeping.fail_callback = lambda callback, *, delay_ms, reason: failed.append(reason)  # type: ignore[method-assign]
    caller.start_due()
    wait_until(lambda: bool(failed), "the callback has failed")
    assert "CELERY_AGENTS_WEBHOOK_ALLOW" in failed[0]
    assert receiver.heard == []
    caller.close()


@pytest.mark.parametrize(
    "target",
    [
        {"task": "x", "options": {"queue": "ca:{0}:due"}}, {"task": "x", "options": {"queue": "unacked"}},
        {"task": "x", "options": {"exchange": "celery.pidbox"}}, {"task": "x", "kwargs": []},
    ],
)  # fmt: skip
def test_a_stored_task_that_would_write_elsewhere_is_not_sent(target: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody who may write to Redis stored it: the check at submit has not seen it."""
    store, app = memory_store(SETTINGS), create_app(SETTINGS)
    end_execution(store, "s", "", task=target)
    sent: list[Any] = []
    failed: list[str] = []
    monkeypatch.setattr(app, "send_task", lambda *_args, **options: sent.append(options))
    store.housekeeping.fail_callback = lambda callback, *, delay_ms, reason: failed.append(reason)  # type: ignore[method-assign]
    caller = CallbackCaller(app, store, SETTINGS)
    caller.start_due()
    wait_until(lambda: bool(failed or sent), "the callback has ended")
    assert (sent, len(failed)) == ([], 1)
    assert "on_complete" in failed[0]
    caller.close()
