"""Live text with real workers and a provider that streams: seen while it is written, void when its worker dies."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from celery_agents import AgentClient, AsyncAgentClient
from celery_agents.tasks.client.stream_items import StreamItem, Transcript
from celery_agents.worker.store import EventType

from support.lab import Lab
from support.model_agents import KEY_NAME, PROVIDER_URL
from support.provider import Provider, calls, tool_call
from support.wait import wait_until

pytestmark = [pytest.mark.timeout(180), pytest.mark.filterwarnings("ignore:no worker has registered")]

ANSWER = "The quick brown fox jumps over the lazy dog, and the dog does not mind at all."


@pytest.fixture
def lab(tmp_path: Path, provider: Provider) -> Iterator[Lab]:
    env = {PROVIDER_URL: provider.base_url, KEY_NAME: "sk-test"}
    with Lab(tmp_path / "lab", agents="support.live_agents", env=env) as lab:
        yield lab


class Reader:
    """Follows a job in a thread, from a cursor on, until it ends or is told to leave.

    Attributes:
        items: What it got, in order.
        shown: What it would show.
    """

    def __init__(self, client: AgentClient, session_id: str, shown: Transcript | None = None, after: str | None = None):
        self.items: list[StreamItem] = []
        self.shown = shown or Transcript()
        self.error: BaseException | None = None
        self._leaves = threading.Event()
        self._thread = threading.Thread(target=self._read, args=(client, session_id, after), daemon=True)
        self._thread.start()

    def _read(self, client: AgentClient, session_id: str, after: str | None) -> None:
        try:
            for item in client.job(session_id).stream(after, timeout=90):
                self.items.append(item)
                self.shown.apply(item)
                if self._leaves.is_set():
                    return
        except BaseException as error:
            self.error = error

    def leave(self) -> str | None:
        self._leaves.set()
        return self.items[-1].cursor if self.items else None

    def join(self) -> None:
        self._thread.join(100)
        assert self.error is None, self.error
        assert not self._thread.is_alive()

    @property
    def deltas(self) -> list[Any]:
        return [item.delta for item in self.items if item.delta is not None]

    def events(self, kind: str) -> list[Any]:
        return [item.event for item in self.items if item.event is not None and item.event.type == kind]


def stored(lab: Lab, session_id: str) -> dict[tuple[str, int], str]:
    execution = lab.client.show(session_id).state.execution
    assert execution is not None
    return {
        (execution.execution_id, each.step.number): each.step.inference_response.content
        for each in execution.step_executions
    }


def wait_for(reader: Reader, check: Callable[[Reader], bool], what: str) -> None:
    wait_until(lambda: check(reader) or reader.error is not None, what, 60)


def test_an_answer_and_a_tool_are_seen_while_they_run_and_nobody_pays_for_a_stream_that_nobody_reads(
    lab: Lab, provider: Provider
) -> None:
    provider.plan(
        calls(tool_call("count", {"to": 3}), content="I count."), ANSWER,
        faults=[{"fault": "stall_stream", "turn": 1, "after": 8, "gate": "middle"}],
    )  # fmt: skip
    job = lab.client.submit("model", "count", session_id="watched")
    reader = Reader(lab.client, "watched")
    wait_until(lambda: is_followed(lab, "watched"), "somebody watches", 10)
    lab.worker()
    wait_for(reader, lambda each: len(each.shown.written()) >= 30, "half of the answer is seen")
    assert ANSWER.startswith(reader.shown.written())
    assert not reader.events("execution_completed")
    provider.open("middle")
    reader.join()
    assert reader.shown.committed == stored(lab, "watched") == {
        (job.execution_id, 1): "I count.", (job.execution_id, 2): ANSWER
    }  # fmt: skip
    assert reader.shown.written() == ""
    spoken = "".join(each.text for each in reader.deltas if each.part == "text" and each.step == 2)
    assert spoken == ANSWER, "a piece of a committed step is missing"
    assert "".join(each.text for each in reader.deltas if each.part == "t0") == "1 2 3 "
    assert [each.data for each in reader.deltas if each.data] == [{"counted": 3}]
    assert [entry["request"].get("stream", False) for entry in provider.ledger()] == [True, True]

    quiet = lab.client.submit("model", "count", session_id="unwatched")
    quiet.result(timeout=60)
    assert [entry["request"].get("stream", False) for entry in provider.ledger()[2:]] == [False, False]
    assert not lab.redis.exists(lab.client.store.context.keys("unwatched").live)
    late = Reader(lab.client, "unwatched")
    late.join()
    assert late.shown.committed == stored(lab, "unwatched")


def test_a_worker_killed_in_the_middle_of_an_answer_leaves_every_reader_with_the_stored_one(
    lab: Lab, provider: Provider
) -> None:
    first, second = ANSWER.upper(), ANSWER
    provider.plan(
        function="support.live_answers:by_request",
        faults=[
            {"fault": "stall_stream", "on": 1, "after": 8, "gate": "never"},
            {"fault": "stall_stream", "on": 2, "after": 8, "gate": "seen"},
        ],
    )  # fmt: skip
    lab.client.submit("model", first, session_id="s")
    stays, leaves = Reader(lab.client, "s"), Reader(lab.client, "s")
    wait_until(lambda: is_followed(lab, "s"), "somebody watches", 10)
    doomed = lab.worker()
    for reader in (stays, leaves):
        wait_for(reader, lambda each: len(each.shown.written()) >= 30, "half of the answer is seen")
    middle = Reader(lab.client, "s")
    wait_for(middle, lambda each: len(each.shown.written()) >= 30, "one that comes later sees it, too")
    cursor = leaves.items[-1].cursor
    leaves.leave()
    doomed.kill()
    lab.worker()
    comes_back = Reader(lab.client, "s", leaves.shown, cursor)
    readers = (stays, middle, comes_back)
    for reader in readers:
        wait_for(reader, lambda each: second.startswith(each.shown.written() or "-"), "the other attempt is seen")
    provider.open("seen")
    for reader in readers:
        reader.join()
    history = stored(lab, "s")
    for reader in readers:
        assert reader.shown.committed == history
        assert reader.shown.written() == ""
        (void,) = reader.events("attempt_voided")
        assert void.data["attempt"] != reader.deltas[-1].attempt
    answered = "".join(each.text for each in stays.deltas if each.attempt == stays.deltas[-1].attempt)
    assert answered == second


def test_a_stream_that_breaks_is_void_and_asked_for_again(lab: Lab, provider: Provider) -> None:
    provider.plan(ANSWER, faults=[{"fault": "cut_stream", "on": 1, "after": 8}], pause=0.01)
    lab.client.submit("model", "hello", session_id="s")
    reader = Reader(lab.client, "s")
    wait_until(lambda: is_followed(lab, "s"), "somebody watches", 10)
    lab.worker()
    reader.join()
    assert reader.shown.committed == stored(lab, "s")
    assert list(reader.shown.committed.values()) == [ANSWER]
    kinds = [item.event.type for item in reader.items if item.event is not None]
    assert EventType.MODEL_CALL_FAILED in kinds
    last = [each for each in reader.deltas if each.call == 2]
    assert "".join(each.text for each in last) == ANSWER


def test_a_service_on_asyncio_reads_the_same_stream(lab: Lab, provider: Provider) -> None:
    provider.plan(ANSWER, pause=0.01)

    async def read() -> list[Any]:
        async with AsyncAgentClient(settings=lab.client.settings) as client:
            job = await client.submit("model", "hello", session_id="s")
            found = [item async for item in job.stream(timeout=60)]
            again = [item async for item in client.stream("s", found[-1].cursor, timeout=0.3)]
            return [found, again]

    lab.worker()
    found, again = asyncio.run(read())
    shown = Transcript()
    for item in found:
        shown.apply(item)
    assert shown.committed == stored(lab, "s")
    assert again == []
    everything = [item.event.id for item in lab.client.stream("s", timeout=0.3) if item.event is not None]
    assert everything == [event.id for event in lab.client.store.sessions.events("s")]


def test_the_terminal_shows_text_as_it_comes(lab: Lab, provider: Provider) -> None:
    provider.plan(
        "first line\nsecond\x1b[31m line\nthe end",
        faults=[{"fault": "stall_stream", "on": 1, "after": 4, "gate": "seen"}],
    )
    lab.client.submit("model", "hello", session_id="s")
    command = [sys.executable, "-m", "celery_agents", "watch", "s", "--redis-url", lab.store_url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watch:
        assert watch.stdout is not None
        wait_until(lambda: is_followed(lab, "s"), "the command watches", 30)
        lab.worker()
        seen = ""
        while "first line" not in seen:
            seen += watch.stdout.read(1)
        assert lab.client.header("s").status == "in_progress"
        provider.open("seen")
        seen += watch.stdout.read()
    assert watch.returncode == 0
    assert "    first line\n    second\\x1b[31m line\n    the end\n" in seen
    assert "\x1b" not in seen
    assert lab.client.job("s").result().final_response == "first line\nsecond\x1b[31m line\nthe end"


def is_followed(lab: Lab, session_id: str) -> bool:
    """Whether the mark of a reader stands."""
    return bool(lab.redis.hget(lab.client.store.context.keys(session_id).ctl, "watched"))
