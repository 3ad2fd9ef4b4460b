"""The limits of one HTTP process, on a real server: bodies that come slowly side by side, and slow readers."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from support.agents import call
from support.lab import Lab
from support.serve_process import ServeProcess
from support.wait import wait_until

pytestmark = [pytest.mark.timeout(120), pytest.mark.filterwarnings("ignore:no worker has registered")]

TOKEN = "token-of-admin-0123456789"


@pytest.fixture
def process(tmp_path: Path, redis_url: str) -> Iterator[ServeProcess]:
    env = {
        "CELERY_AGENTS_HTTP_TOKEN_SECRETS": f"{TOKEN}:admin",
        "CELERY_AGENTS_HTTP_MAX_BODY_BYTES": "50000",
        "CELERY_AGENTS_HTTP_MAX_BODIES_BYTES": "100000",
    }
    started = ServeProcess(tmp_path / "serve", redis_url, env)
    started.start()
    yield started
    started.end()


def begin_upload(http: httpx.Client, sent: int) -> socket.socket:
    """A request whose body, in chunks and without a length, does not come to its end."""
    connection = socket.create_connection((http.base_url.host, http.base_url.port), timeout=10)
    head = (
        "POST /v1/agents/planned/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {TOKEN}\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    connection.sendall(head.encode() + f"{sent:x}\r\n".encode() + b"x" * sent + b"\r\n")
    return connection


def test_bodies_that_come_slowly_side_by_side_are_limited_together(process: ServeProcess) -> None:
    with process.http(TOKEN) as http, contextlib.ExitStack() as opened:
        uploads = [opened.enter_context(begin_upload(http, 40_000)) for _ in range(2)]

        def submit() -> httpx.Response:
            return http.post("/v1/agents/planned/jobs", json={"message": "x" * 30_000})

        refused = wait_until(lambda: (found := submit()).status_code == 429 and found, "there is no room", 20)
        assert refused.json()["type"].endswith("too-many-bodies")
        assert refused.headers["Retry-After"] == "2"
        assert http.get("/v1/agents").status_code == 200, "a request without a body is served"
        for each in uploads:
            each.close()
        wait_until(lambda: submit().status_code == 202, "there is room again", 20)


def test_a_query_that_is_too_long_is_refused(process: ServeProcess) -> None:
    with process.http(TOKEN) as http:
        refused = http.get("/v1/sessions", params={"cursor": "x" * 20_000})
        assert refused.status_code == 414
        assert refused.json()["type"].endswith("uri-too-long")


def test_stops_and_deletions_that_wait_for_their_ends_keep_nobody_out(tmp_path: Path) -> None:
    with Lab(tmp_path / "lab") as lab:
        worker = lab.worker()
        jobs = [lab.submit([call("keyed_async", work=f"w{number}", gate="held")]) for number in range(80)]
        wait_until(lambda: len(lab.ledger.entries()) == 160, "all calls have begun", 60)
        worker.kill()
        env = {"CELERY_AGENTS_HTTP_TOKEN_SECRETS": f"{TOKEN}:admin"}
        with ServeProcess(tmp_path / "serve", lab.store_url, env) as served, served.http(TOKEN) as http:
            replies = list[int]()

            def end(number: int) -> None:
                path = f"/v1/sessions/{jobs[number].session_id}"
                with served.http(TOKEN) as own:
                    found = own.delete(path) if number % 2 else own.post(f"{path}/stop", json={"timeout_seconds": 20})
                    replies.append(found.status_code)

            threads = [threading.Thread(target=end, args=(number,)) for number in range(80)]
            for thread in threads:
                thread.start()
            wait_until(lambda: all(lab.redis.hget(lab._keys(job.session_id).ctl, "cancel") for job in jobs), "told", 15)
            assert http.get("/v1/agents").status_code == 200
            assert not replies, "who only reads has waited for those who stop"
            lab.worker()
            for thread in threads:
                thread.join()
        assert set(replies) == {200, 204}
