"""Live text over HTTP: by SSE and by AG-UI, cut off in the middle, and with a worker that is killed."""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from ag_ui import core
from pydantic import TypeAdapter

from support.lab import Lab
from support.model_agents import KEY_NAME, PROVIDER_URL
from support.provider import Provider, calls, tool_call
from support.serve_process import ServeProcess
from support.wait import wait_until

pytestmark = [pytest.mark.timeout(180), pytest.mark.filterwarnings("ignore:no worker has registered")]

TOKEN = "token-of-admin-0123456789"
EVENT: TypeAdapter[Any] = TypeAdapter(core.Event)
ANSWER = "The quick brown fox jumps over the lazy dog, and the dog does not mind at all."
STALLED = {"fault": "stall_stream", "on": 1, "after": 8, "gate": "never"}


@pytest.fixture
def lab(tmp_path: Path, provider: Provider) -> Iterator[Lab]:
    env = {PROVIDER_URL: provider.base_url, KEY_NAME: "sk-test"}
    with Lab(tmp_path / "lab", agents="support.live_agents", env=env) as lab:
        yield lab


@pytest.fixture
def http(lab: Lab) -> Iterator[httpx.Client]:
    env = {"CELERY_AGENTS_HTTP_TOKEN_SECRETS": f"{TOKEN}:admin"}
    process = ServeProcess(lab.directory / "serve", lab.store_url, env)
    process.start()
    with process.http(TOKEN) as client:
        yield client
    process.end()


class Stream:
    """A stream that a thread reads until it ends.

    Attributes:
        frames: (id, name of the event, value) of each frame.
    """

    def __init__(self, http: httpx.Client, method: str, path: str, *, after: str = "", **options: Any) -> None:
        self.frames: list[tuple[str, str, Any]] = []
        self.error: BaseException | None = None
        headers = {"Last-Event-ID": after} if after else {}
        self._thread = threading.Thread(target=self._read, args=(http, method, path, headers, options), daemon=True)
        self._thread.start()

    def _read(self, http: httpx.Client, method: str, path: str, headers: Any, options: Any) -> None:
        try:
            with http.stream(method, path, headers=headers, timeout=60, **options) as response:
                assert response.status_code == 200, response.read()
                fields: dict[str, str] = {}
                for line in response.iter_lines():
                    if line:
                        name, _, value = line.partition(": ")
                        fields[name] = value
                    elif "data" in fields:
                        frame = (fields.get("id", ""), fields.get("event", ""), json.loads(fields["data"]))
                        self.frames.append(frame)
                        fields = {}
        except BaseException as error:
            self.error = error

    def join(self) -> None:
        self._thread.join(90)
        assert self.error is None, self.error
        assert not self._thread.is_alive()

    def values(self, name: str) -> list[Any]:
        return [value for _, kind, value in self.frames if kind == name]

    @property
    def live(self) -> str:
        return "".join(value["text"] for value in self.values("live") if value["part"] == "text")

    @property
    def run(self) -> list[Any]:
        return [EVENT.validate_python(value) for _, _, value in self.frames]


def events(http: httpx.Client, **options: Any) -> Stream:
    return Stream(http, "GET", "/v1/sessions/s/events?live=true&until=end", **options)


def messages_of(run: list[Any]) -> dict[str, str]:
    """The messages of the assistant that a reader shows at the end of a run."""
    found: dict[str, str] = {}
    opened: set[str] = set()
    for event in run:
        match event.type.value:
            case "TEXT_MESSAGE_START":
                assert event.message_id not in opened
                opened.add(event.message_id)
                found[event.message_id] = ""
            case "TEXT_MESSAGE_CONTENT":
                assert event.message_id in opened
                found[event.message_id] += event.delta
            case "TEXT_MESSAGE_END":
                opened.remove(event.message_id)
            case "MESSAGES_SNAPSHOT":
                found = {each.id: each.content or "" for each in event.messages if each.role == "assistant"}
            case _:
                pass
    assert not opened
    return found


def test_readers_of_a_stream_see_text_while_it_is_written_and_come_back_by_its_cursor(
    lab: Lab, http: httpx.Client, provider: Provider
) -> None:
    provider.plan(
        calls(tool_call("count", {"to": 3}), content="I count."), ANSWER,
        faults=[{"fault": "stall_stream", "turn": 1, "after": 8, "gate": "middle"}],
    )  # fmt: skip
    lab.client.submit("model", "count", session_id="s")
    first, plain = events(http), Stream(http, "GET", "/v1/sessions/s/events?until=end")
    watched = lab.client.store.context.keys("s").ctl
    wait_until(lambda: lab.redis.hget(watched, "watched"), "somebody watches", 20)
    lab.worker()
    wait_until(
        lambda: len(first.live) >= 30 or first.error, "half of the answer is seen", 15, details=lambda: first.frames
    )
    place = next(number for number, frame in enumerate(first.frames) if frame[1] == "live" and frame[2]["call"])
    cursor = first.frames[place][0]
    again = events(http, after=cursor)
    wait_until(lambda: http.get("/v1/health").status_code == 200, "it serves others", 10)
    provider.open("middle")
    for stream in (first, again, plain):
        stream.join()
    assert (
        "".join(each["text"] for each in first.values("live") if (each["part"], each["step"]) == ("text", 2)) == ANSWER
    )
    assert [value["text"] for value in first.values("step_committed")] == ["I count.", ANSWER]
    assert [frame[1:] for frame in first.frames[place + 1 :] if frame[1] != "live"] == [
        frame[1:] for frame in again.frames if frame[1] != "live"
    ]
    assert first.live.endswith(again.live)
    assert {name for _, name, _ in plain.frames}.isdisjoint({"live"})
    assert [value["data"] for value in first.values("live") if "data" in value] == [{"counted": 3}]
    refused = http.get("/v1/sessions/s/events", headers={"Last-Event-ID": "1-1+x"})
    assert (refused.status_code, refused.headers["content-type"]) == (422, "application/problem+json")


def test_agui_tells_a_message_while_it_is_written_and_takes_it_back_when_its_worker_dies(
    lab: Lab, http: httpx.Client, provider: Provider
) -> None:
    provider.plan(
        calls(tool_call("count", {"to": 2}), content="I count."), ANSWER, pause=0.01,
        faults=[{**STALLED, "turn": 1, "on": 2}],
    )  # fmt: skip
    name = str(uuid.uuid4())
    message = {"id": "m1", "role": "user", "content": "count"}
    given = {"threadId": name, "runId": "r1", "messages": [message], "tools": []}
    stream = Stream(http, "POST", "/agui/model", json=given)
    control = lab.client.store.context.keys(name).ctl
    wait_until(lambda: lab.redis.hget(control, "watched") or stream.error, "the session is followed", 30)
    doomed = lab.worker()  # what a tool emits is shown to those of whom the worker knows already

    def written() -> str:
        return "".join(each.delta for each in stream.run if each.type.value == "TEXT_MESSAGE_CONTENT")

    wait_until(lambda: len(written()) >= len("I count.") + 20 or stream.error, "half of the answer is seen", 60)
    doomed.kill()
    lab.worker()
    stream.join()
    run = stream.run
    assert run[-1].type.value == "RUN_FINISHED"
    assert list(messages_of(run).values())[-2:] == ["I count.", ANSWER]
    kinds = [each.type.value for each in run]
    assert kinds.count("MESSAGES_SNAPSHOT") == 1
    assert kinds.count("STEP_STARTED") == kinds.count("STEP_FINISHED") == 2
    (started,) = [each for each in run if each.type.value == "TOOL_CALL_START"]
    (first, *_) = messages_of(run[: kinds.index("TOOL_CALL_START")])
    assert started.parent_message_id == first
    names = [each.name for each in run if each.type.value == "CUSTOM"]
    assert "celery_agents.attempt_voided" in names
    assert "celery_agents.tool_emitted" in names


def test_a_reader_of_agui_that_comes_back_after_the_end_shows_every_text_once(
    lab: Lab, http: httpx.Client, provider: Provider
) -> None:
    provider.plan(calls(tool_call("count", {"to": 2}), content="I count."), ANSWER, pause=0.01)
    lab.worker()
    given = {
        "threadId": str(uuid.uuid4()), "runId": "r1", "messages": [{"id": "m1", "role": "user", "content": "count"}],
        "tools": [],
    }  # fmt: skip
    first = Stream(http, "POST", "/agui/model", json=given)
    first.join()
    assert list(messages_of(first.run).values())[-2:] == ["I count.", ANSWER]
    cursors = [cursor for cursor, _, _ in first.frames if cursor]
    assert len(cursors) >= 3
    for cursor in cursors:
        again = Stream(http, "POST", "/agui/model", json=given, after=cursor)
        again.join()
        assert list(messages_of(again.run).values()) == ["I count.", ANSWER]


def test_an_execution_that_the_session_does_not_have_is_waited_for_by_nobody(lab: Lab, http: httpx.Client) -> None:
    lab.client.submit("model", "count", session_id="s")
    began = time.monotonic()
    for other in ("0" * 32, "x"):
        assert http.post("/v1/sessions/s/stop", json={"execution_id": other}).json() == {
            "stopped": False,
            "result": None,
        }
        asked = http.get(f"/v1/sessions/s/executions/{other}?wait=30")
        assert (asked.status_code, asked.json()["type"].rpartition(":")[2]) == (404, "execution-not-found")
    assert time.monotonic() - began < 20
    assert http.post("/v1/sessions/s/stop").json()["stopped"] is True
