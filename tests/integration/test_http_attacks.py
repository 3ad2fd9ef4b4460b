"""Attacks on one HTTP process: its memory stays bounded, and an operator is answered in a second meanwhile."""

from __future__ import annotations

import contextlib
import http.client
import json
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from celery_agents import AgentClient, Message

from support.serve_process import ServeProcess
from support.wait import wait_until

pytestmark = [
    pytest.mark.timeout(240),
    pytest.mark.filterwarnings("ignore:no worker has registered"),
    pytest.mark.leaves_keys("jobs that no worker takes stay"),
    pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc"),
]

ADMIN = "token-of-admin-0123456789"
READ = "token-of-read-0123456789"
MOST_BYTES = 256_000_000
LONGEST_SECONDS = 1.0
ENV = {
    "CELERY_AGENTS_HTTP_TOKEN_SECRETS": f"{ADMIN}:admin,{READ}:read",
    "CELERY_AGENTS_TOKEN_SECRET": "not-a-secret-but-long-enough",
    **{f"SERVICE_{number}_API_KEY": f"not-a-real-key-{number:03d}-of-a-service" for number in range(40)},
}
FEW_OR_MANY = [pytest.param(8, id="few"), pytest.param(40, id="many", marks=pytest.mark.long)]


@pytest.fixture
def process(tmp_path: Path, redis_url: str) -> Iterator[ServeProcess]:
    started = ServeProcess(tmp_path / "serve", redis_url, ENV)
    started.fresh = True  # a fork has more in its memory
    started.start()
    yield started
    started.end()


@pytest.fixture
def session(redis_url: str) -> str:
    """A session of nine megabytes."""
    text = "The customer wrote 12345 and waits. " * 125
    messages = [Message.from_dict({"role": "user", "content": text}) for _ in range(2_000)]
    return AgentClient(redis_url).submit("nobody", "hello", messages=messages).session_id


@pytest.fixture
def token(process: ServeProcess, session: str) -> str:
    """A browser's token of the session."""
    with process.http(ADMIN) as client:
        body = {"scopes": ["submit", "read", "answer", "stop"]}
        return client.post(f"/v1/sessions/{session}/tokens", json=body).json()["token"]


def ask(process: ServeProcess, method: str, path: str, token: str | None, body: Any = None) -> int:
    """Send a request over a connection of its own, with little work for this process, and return the reply's status."""
    headers = {"Content-Type": "application/json"} | ({} if token is None else {"Authorization": f"Bearer {token}"})
    content = body if isinstance(body, bytes | None) else json.dumps(body).encode()
    connection = http.client.HTTPConnection("127.0.0.1", process.port, timeout=60)
    try:
        connection.request(method, path, content, headers)
        response = connection.getresponse()
        while response.read(1_000_000):
            pass
        return response.status
    finally:
        connection.close()


def peak_bytes(process: ServeProcess) -> int:
    """The most memory that the process has had."""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


class Operator(threading.Thread):
    """Asks for something small all the time, over a connection of its own each time, and remembers how long the replies took."""

    def __init__(self, process: ServeProcess) -> None:
        super().__init__(daemon=True)
        self._process = process
        self._ended = threading.Event()
        self.seconds: list[float] = []
        self.replies: list[int] = []

    @property
    def slow(self) -> float:
        """Seconds in which nine of ten replies come; the tenth may be that of a machine with other work."""
        return sorted(self.seconds)[len(self.seconds) * 9 // 10]

    def run(self) -> None:
        while not self._ended.is_set():
            for method, path, body in (
                ("GET", "/v1/agents", None),
                ("PUT", "/v1/sessions/not-there/metadata/x", {"value": 1}),
            ):
                began = time.monotonic()
                self.replies.append(ask(self._process, method, path, ADMIN, body))
                self.seconds.append(time.monotonic() - began)
            self._ended.wait(0.02)

    def end(self) -> None:
        self._ended.set()
        self.join(30)


@contextlib.contextmanager
def attacked(process: ServeProcess) -> Iterator[None]:
    """Check what has to hold while the block attacks the process."""
    operator = Operator(process)
    operator.start()
    log_before = len(process.text())
    yield
    operator.end()
    print(
        f"peak {peak_bytes(process) / 1e6:.0f} MB, nine of ten within {operator.slow:.2f} s, {max(operator.seconds):.2f} s the slowest of {len(operator.replies)}"
    )
    assert set(operator.replies) == {200, 404}
    assert operator.slow < LONGEST_SECONDS
    assert peak_bytes(process) < MOST_BYTES
    assert len(process.text()) - log_before < 300_000


def at_once(number: int, act: Callable[[int], Any]) -> list[Any]:
    with ThreadPoolExecutor(number) as pool:
        return list(pool.map(act, range(number)))


def send_raw(process: ServeProcess, text: bytes) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", process.port), timeout=30)
    connection.sendall(text)
    return connection


def head(method: str, path: str, token: str, *fields: str) -> bytes:
    lines = (f"{method} {path} HTTP/1.1", "Host: localhost", f"Authorization: Bearer {token}", *fields)
    return "".join(f"{line}\r\n" for line in lines).encode() + b"\r\n"


def ask_in_pieces(process: ServeProcess, method: str, path: str, body: bytes) -> int:
    """Send a request without a token, and read the reply although not all of the body could be sent."""
    lines = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with send_raw(process, f"{lines}Content-Length: {len(body)}\r\n\r\n".encode()) as connection:
        with contextlib.suppress(OSError):
            connection.sendall(body)
        return int(connection.recv(12).split()[1])


def many_values(field: str) -> bytes:
    return b'{"' + field.encode() + b'": [' + b"{}," * 660_000 + b"{}]}"


# --- bodies -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", FEW_OR_MANY)
def test_bodies_of_strangers_are_not_read(process: ServeProcess, number: int) -> None:
    body = many_values("value")
    with attacked(process):
        found = at_once(number, lambda _: ask_in_pieces(process, "POST", "/v1/completions/ca1.e30.AAAA", body))
        assert set(found) == {401}


@pytest.mark.parametrize("number", FEW_OR_MANY)
def test_bodies_of_many_values_are_refused_before_they_are_parsed(
    process: ServeProcess, redis_url: str, number: int
) -> None:
    session = AgentClient(redis_url).submit("nobody", "hello").session_id
    body, snapshot = many_values("value"), many_values("snapshot")

    def act(place: int) -> int:
        if place % 2:
            return ask(process, "PUT", f"/v1/sessions/{session}/metadata/x", ADMIN, body)
        return ask(process, "POST", "/v1/snapshots", ADMIN, snapshot)

    with attacked(process):
        assert set(at_once(number, act)) <= {413, 429}


WIDE = "x" * 1_900_000 + "\U0001f600"
"""In memory each of its characters takes four bytes."""


@pytest.mark.parametrize("number", FEW_OR_MANY)
@pytest.mark.parametrize(
    "body",
    [
        pytest.param({"message": WIDE}, id="wide text"),
        pytest.param({"message": "x", "webhook": "y" * 1_900_000}, id="long field", marks=pytest.mark.long),
        pytest.param({"message": "x", "messages": [{}] * 49_000}, id="wrong messages", marks=pytest.mark.long),
        pytest.param({"message": "x", "messages": [{"role": "user", "content": ""}] * 15_000}, id="messages"),
        pytest.param({"message": "x", "metadata": {str(n): [[], {}] for n in range(9_000)}}, id="values"),
    ],
)
def test_bodies_that_take_many_times_their_length_are_counted_as_what_they_take(
    process: ServeProcess, number: int, body: dict[str, Any]
) -> None:
    content = json.dumps(body, ensure_ascii=False).encode()

    with attacked(process):
        found = at_once(number, lambda _: ask(process, "POST", "/v1/agents/nobody/jobs", ADMIN, content))
        assert set(found) <= {202, 422, 429, 413}


@pytest.mark.parametrize("number", [pytest.param(30, id="few"), pytest.param(150, id="many", marks=pytest.mark.long)])
def test_open_bodies_of_a_browser_s_token_leave_room_for_others(
    process: ServeProcess, session: str, token: str, number: int
) -> None:
    request = head(
        "POST", f"/v1/sessions/{session}/messages", token, "Content-Type: application/json", "Content-Length: 1900000"
    )
    with attacked(process), contextlib.ExitStack() as opened:
        at_once(number, lambda _: opened.enter_context(send_raw(process, request + b"x" * 1_000_000)))
        assert ask(process, "POST", "/v1/agents/nobody/jobs", ADMIN, {"message": "x" * 1_000_000}) == 202


# --- connections ------------------------------------------------------------------------------------------------------


def test_half_sent_requests_do_not_keep_others_out(tmp_path: Path, redis_url: str) -> None:
    """At a limit of 1 024 open files, as it is by default, with more connections than that."""
    process = ServeProcess(tmp_path / "serve", redis_url, ENV)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    process.argv = ["prlimit", "--nofile=1024:1024", *process.argv]
    process.start()
    opened: list[socket.socket] = []
    with contextlib.ExitStack() as closing:
        closing.callback(process.end)
        if soft < 4_000:
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4_000), hard))
            closing.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        with attacked(process):
            for number in range(1_200):
                with contextlib.suppress(OSError):
                    half = b"GET /v1/agents HTTP/1.1\r\nX-Long: " + b"x" * 20_000
                    opened.append(closing.enter_context(send_raw(process, half if number % 2 else b"GET /")))
            time.sleep(1)
        assert "at most" in process.text() or "are taken at a time" in process.text()
        wait_until(lambda: count_open(process) < 50, "those that never send a head are closed", 20)


def count_open(process: ServeProcess) -> int:
    """Files that the process has open."""
    return len(list(Path(f"/proc/{process.pid}/fd").iterdir()))


def test_requests_behind_one_that_is_served_are_not_kept(process: ServeProcess, session: str) -> None:
    stream = head("GET", f"/v1/sessions/{session}/events", READ)
    with attacked(process), contextlib.ExitStack() as opened:
        at_once(60, lambda _: opened.enter_context(send_raw(process, stream)))
        time.sleep(0.5)

        def flood(connection: socket.socket) -> None:
            with contextlib.suppress(OSError):
                connection.settimeout(1)
                connection.sendall(b"x" * 3_000_000)

        connections = [opened.enter_context(send_raw(process, stream)) for _ in range(60)]
        at_once(60, lambda number: flood(connections[number]))


@pytest.mark.parametrize("token", ["", f"Authorization: Bearer {ADMIN}\r\n"], ids=["stranger", "admin"])
def test_a_body_that_lies_of_its_pieces_is_refused_and_is_no_failure(process: ServeProcess, token: str) -> None:
    for piece in ("-1\r\nabc", "2\r\nabcdef"):
        sent = f"POST /v1/sessions HTTP/1.1\r\nHost: x\r\n{token}Transfer-Encoding: chunked\r\n\r\n{piece}\r\n0\r\n\r\n"
        with socket.create_connection(("127.0.0.1", process.port), timeout=10) as connection:
            connection.sendall(sent.encode())
            assert connection.recv(1000).startswith(b"HTTP/1.1 400 ")
    with process.http(ADMIN) as client:
        assert client.get("/v1/sessions").status_code == 200
    assert "Traceback" not in process.text()


def test_nobody_says_the_length_of_a_body_in_two_ways(process: ServeProcess) -> None:
    """A proxy that counts by the one, and this server by the other, would take the rest for a request of its own."""
    head = "POST /v1/sessions HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    with socket.create_connection(("127.0.0.1", process.port), timeout=10) as connection:
        connection.sendall(f"{head}GET /v1/health HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        said = b"".join(iter(lambda: connection.recv(10_000), b""))
    assert said.startswith(b"HTTP/1.1 400 ")
    assert said.count(b"HTTP/1.1 ") == 1


# --- readers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [pytest.param(6, id="few"), pytest.param(40, id="many", marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "part",
    ["state", *(pytest.param(part, marks=pytest.mark.long) for part in ("messages?limit=1000", "snapshot", "trace"))],
)
def test_readers_of_a_large_session_do_not_make_others_wait(
    process: ServeProcess, session: str, token: str, number: int, part: str
) -> None:
    with attacked(process):
        found = at_once(number, lambda _: ask(process, "GET", f"/v1/sessions/{session}/{part}", token))
        assert set(found) <= {200, 503}


@pytest.mark.parametrize("number", [pytest.param(12, id="few"), pytest.param(80, id="many", marks=pytest.mark.long)])
def test_readers_who_take_nothing_hold_little_memory(
    process: ServeProcess, session: str, token: str, number: int
) -> None:
    request = head("GET", f"/v1/sessions/{session}/state", token)
    agui = {"threadId": session, "runId": "r", "messages": [], "tools": [], "context": []}
    body = json.dumps(agui).encode()
    run = head("POST", "/agui/nobody", token, "Content-Type: application/json", f"Content-Length: {len(body)}")
    with attacked(process), contextlib.ExitStack() as opened:

        def act(place: int) -> None:
            connection = opened.enter_context(socket.socket())
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            connection.connect(("127.0.0.1", process.port))
            connection.sendall(request if place % 2 else run + body)

        at_once(number, act)
        time.sleep(3)


def test_streams_are_counted_before_they_begin(tmp_path: Path, redis_url: str) -> None:
    env = {**ENV, "CELERY_AGENTS_HTTP_MAX_STREAMS": "20"}
    process = ServeProcess(tmp_path / "serve", redis_url, env)
    process.start()
    session = AgentClient(redis_url).submit("nobody", "hello").session_id
    with contextlib.ExitStack() as opened:
        opened.callback(process.end)
        stream = head("GET", f"/v1/sessions/{session}/events", READ)
        connections = at_once(60, lambda _: opened.enter_context(send_raw(process, stream)))
        statuses = [int(each.recv(12).split()[1]) for each in connections]
        assert (statuses.count(200), statuses.count(503)) == (20, 40)
        with process.http(ADMIN) as client:
            job = client.post("/v1/agents/nobody/jobs", params={"wait": 1}, json={"message": "x"})
            assert (job.status_code, job.json()["status"]) == (202, "submitted")


def test_a_stream_that_is_asked_for_by_head_keeps_no_place(tmp_path: Path, redis_url: str) -> None:
    process = ServeProcess(tmp_path / "serve", redis_url, {**ENV, "CELERY_AGENTS_HTTP_MAX_STREAMS": "5"})
    process.start()
    session = AgentClient(redis_url).submit("nobody", "hello").session_id
    try:
        with process.http(READ) as client:
            assert [client.head(f"/v1/sessions/{session}/events").status_code for _ in range(12)] == [200] * 12
    finally:
        process.end()


def test_stops_that_wait_leave_threads_for_others(process: ServeProcess, session: str, token: str) -> None:
    with attacked(process):
        stop = {"timeout_seconds": 2}
        found = at_once(40, lambda _: ask(process, "POST", f"/v1/sessions/{session}/stop", token, stop))
        assert set(found) <= {200, 202}
