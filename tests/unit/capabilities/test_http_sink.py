"""`HttpSink`: what is posted, which answers are tried again, and which are not."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import tenacity

from celery_agents.worker.capabilities import HttpSink, Trace, TraceEvent, TraceStatus
from celery_agents.worker.capabilities.tracing import sinks
from celery_agents.worker.capabilities.tracing.sinks import PostRefused
from celery_agents.worker.errors import ConfigurationError
from celery_agents.worker.state import FrozenDict

from support.states import at

EVENT = TraceEvent(
    id="e:1:m", type="model_call", step=1, name="m", status="ok", started_at=at(0), ended_at=at(1),
    attributes=FrozenDict({}),
)  # fmt: skip
TRACE = Trace(
    trace_id=f"{5:032x}", thread_id="t", session_id="s", execution_id="e", agent="a", retries=0, steps=1,
    status=TraceStatus.SUCCESS, started_at=at(0), usage=FrozenDict({}), events=(EVENT,),
)  # fmt: skip


class Receiver:
    """A server that answers with these statuses in turn, and 200 afterwards."""

    def __init__(self) -> None:
        self.statuses: list[int] = []
        self.posts: list[tuple[str, dict[str, str], dict[str, Any]]] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                receiver.posts.append((self.path, dict(self.headers), json.loads(body)))
                self.send_response(receiver.statuses.pop(0) if receiver.statuses else 200)
                self.send_header("Location", "/elsewhere")
                self.send_header("Retry-After", "0")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                """Say nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=[0.01], daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/traces"


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    monkeypatch.setattr(sinks._Pause, "_chance", lambda _self, _state: 0.0)  # pyright: ignore[reportPrivateUsage]
    started = Receiver()
    yield started
    started.server.shutdown()
    started.server.server_close()


def test_each_part_of_a_trace_is_a_post(receiver: Receiver) -> None:
    sink = HttpSink(receiver.url, headers={"Authorization": "Bearer x"})
    sink.begin(TRACE)
    sink.append(TRACE, [EVENT])
    sink.write(TRACE)
    assert [body["type"] for _, _, body in receiver.posts] == ["begin", "events", "trace"]
    assert [len(body["events"]) for _, _, body in receiver.posts] == [0, 1, 0]
    assert {body["trace"]["execution_id"] for _, _, body in receiver.posts} == {"e"}
    path, headers, _ = receiver.posts[0]
    assert (path, headers["Authorization"], headers["Content-Type"]) == ("/traces", "Bearer x", "application/json")


@pytest.mark.parametrize("status", [404, 408, 425, 429, 500, 502, 503, 504])
def test_what_may_pass_is_tried_four_times(receiver: Receiver, status: int) -> None:
    receiver.statuses = [status] * 3
    HttpSink(receiver.url).write(TRACE)
    assert len(receiver.posts) == 4
    receiver.statuses = [status] * 4
    with pytest.raises(PostRefused, match=f"answered {status}"):
        HttpSink(receiver.url).write(TRACE)
    assert (len(receiver.posts), receiver.statuses) == (8, [])


@pytest.mark.parametrize("status", [301, 302, 307, 400, 401, 403, 405, 413, 501])
def test_what_stays_as_it_is_is_not_tried_again_and_no_redirect_is_followed(receiver: Receiver, status: int) -> None:
    receiver.statuses = [status]
    with pytest.raises(PostRefused) as refused:
        HttpSink(receiver.url).write(TRACE)
    assert (refused.value.status, [path for path, _, _ in receiver.posts]) == (status, ["/traces"])


@pytest.mark.parametrize("url", ["receiver.example", "ftp://receiver.example", "http://", "http://[::1"])
def test_an_address_of_nothing_is_refused_where_it_is_written(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"HttpSink\(url\)=.*: give an address that begins with http"):
        HttpSink(url)


def test_a_receiver_that_is_away_is_an_error(receiver: Receiver) -> None:
    url = receiver.url
    receiver.server.server_close()
    with pytest.raises(OSError, match="refused"):
        HttpSink(url).write(TRACE)


@pytest.mark.parametrize(
    ("error", "least"), [(PostRefused(503, " 3 "), 3.0), (PostRefused(503, "999999"), 4.0), (PostRefused(503, "soon"), 0.0),
                         (PostRefused(503, "1234567"), 0.0), (OSError(), 0.0)],
)  # fmt: skip
def test_a_pause_is_as_long_as_the_receiver_wishes_up_to_four_seconds(
    monkeypatch: pytest.MonkeyPatch, error: Exception, least: float
) -> None:
    monkeypatch.setattr(sinks._Pause, "_chance", lambda _self, _state: 0.0)  # pyright: ignore[reportPrivateUsage]
    state = tenacity.RetryCallState(None, None, (), {})  # type: ignore[arg-type]
    state.set_exception((type(error), error, None))  # type: ignore[arg-type]
    assert sinks._Pause()(state) == least  # pyright: ignore[reportPrivateUsage]
