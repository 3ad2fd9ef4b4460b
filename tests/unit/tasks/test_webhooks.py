"""Posts to webhooks: where they may go, what they send, and how long they may take. Real sockets on this machine."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from celery_agents.config.networks import AllowedNetworks
from celery_agents.tasks.housekeeping.webhooks import CALLS_PER_HOST, WebhookFailed, WebhookPoster

from support.post_receiver import PostReceiver

HERE = AllowedNetworks.parse("127.0.0.1")
SPELLINGS = [
    "127.0.0.1", "localhost", "localhost.", "2130706433", "0x7f000001", "0x7f.1", "0177.0.0.1", "127.1", "0",
    "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[::]", "LOCALHOST",
]  # fmt: skip


@pytest.fixture
def new_poster() -> Iterator[Callable[..., WebhookPoster]]:
    posters: list[WebhookPoster] = []

    def make(allowed: AllowedNetworks = HERE, **options: Any) -> WebhookPoster:
        posters.append(WebhookPoster(allowed, **options))
        return posters[-1]

    yield make
    for poster in posters:
        poster.close()


class Listener:
    """Accepts connections, and lets `serve` do what it likes with each."""

    def __init__(self, serve: Callable[[socket.socket], None]) -> None:
        self.accepted = 0
        self._serve = serve
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/hook"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._server.accept()
                self.accepted += 1
                threading.Thread(target=self._handle, args=(connection,), daemon=True).start()

    def _handle(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            self._serve(connection)

    def close(self) -> None:
        self._server.close()


@pytest.fixture
def new_listener() -> Iterator[Callable[[Callable[[socket.socket], None]], Listener]]:
    listeners: list[Listener] = []

    def make(serve: Callable[[socket.socket], None]) -> Listener:
        listeners.append(Listener(serve))
        return listeners[-1]

    yield make
    for listener in listeners:
        listener.close()


def answering(answer: bytes) -> Callable[[socket.socket], None]:
    def serve(connection: socket.socket) -> None:
        connection.recv(65_536)
        connection.sendall(answer)

    return serve


def post(poster: WebhookPoster, url: str) -> None:
    poster.post(url, {"X-Id": "e1"}, b'{"a": 1}').result(timeout=30)


def test_a_post_arrives_with_its_headers_and_body(new_poster: Any) -> None:
    heard: list[tuple[dict[str, str], bytes]] = []
    receiver = PostReceiver(lambda headers, body: heard.append((headers, body)) or 204)
    post(new_poster(), f"{receiver.url}/hook?n=1")
    receiver.close()
    ((headers, body),) = heard
    assert (headers["X-Id"], headers["Host"], body) == ("e1", receiver.url.removeprefix("http://"), b'{"a": 1}')


@pytest.mark.parametrize("host", SPELLINGS)
def test_no_spelling_of_this_machine_is_reached(new_poster: Any, new_listener: Any, host: str) -> None:
    listener = new_listener(answering(b"HTTP/1.1 204 No Content\r\n\r\n"))
    with pytest.raises(WebhookFailed, match=r"not a public address|cannot be reached"):
        post(new_poster(AllowedNetworks()), f"http://{host}:{listener.port}/")
    assert listener.accepted == 0


def resolve_to(monkeypatch: pytest.MonkeyPatch, port: int, *addresses: str) -> None:
    """Let every name have these addresses."""
    answers = [(socket.AF_INET, 1, 6, "", (address, port)) for address in addresses]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answers)


def test_a_name_with_one_address_inside_is_refused(
    new_poster: Any, new_listener: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    listener = new_listener(answering(b"HTTP/1.1 204 No Content\r\n\r\n"))
    resolve_to(monkeypatch, listener.port, "93.184.216.34", "127.0.0.1")
    with pytest.raises(WebhookFailed, match=r"127\.0\.0\.1, which is not a public address"):
        post(new_poster(AllowedNetworks()), f"http://example.com:{listener.port}/")
    assert listener.accepted == 0


def test_an_address_that_takes_no_connection_leaves_time_for_the_others(
    new_poster: Any, new_listener: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a host has two addresses, and the packets to one are dropped."""
    listener = new_listener(answering(b"HTTP/1.1 204 No Content\r\n\r\n"))
    resolve_to(monkeypatch, listener.port, "127.0.0.2", "127.0.0.1")
    with contextlib.ExitStack() as stack:
        silent = stack.enter_context(socket.create_server(("127.0.0.2", listener.port), backlog=0))
        for _ in range(3):  # its queue is full: the kernel drops what comes now
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(silent.getsockname())
        poster = new_poster(AllowedNetworks.parse("127.0.0.0/8"), deadline_seconds=2.0)
        post(poster, f"http://two.example:{listener.port}/")
    assert listener.accepted == 1


def test_the_address_that_was_checked_is_the_one_that_is_reached(
    new_poster: Any, new_listener: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name server that answers the second question differently leads nowhere else: nobody asks twice."""
    listener = new_listener(answering(b"HTTP/1.1 204 No Content\r\n\r\n"))
    real, asked = socket.getaddrinfo, []

    def resolve(host: str, *args: Any, **kwargs: Any) -> Any:
        if host != "rebinding.example":
            return real(host, *args, **kwargs)
        asked.append(host)
        return [(socket.AF_INET, 1, 6, "", ("127.0.0.1" if len(asked) == 1 else "10.0.0.1", listener.port))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    post(new_poster(), f"http://rebinding.example:{listener.port}/")
    assert (len(asked), listener.accepted) == (1, 1)


def test_an_address_that_takes_no_connection_leaves_the_next_one(
    new_poster: Any, new_listener: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `localhost`, which many machines know as ::1 first."""
    listener = new_listener(answering(b"HTTP/1.1 204 No Content\r\n\r\n"))
    resolve_to(monkeypatch, listener.port, "127.0.0.2", "127.0.0.1")
    post(new_poster(AllowedNetworks.parse("hooks.example")), f"http://hooks.example:{listener.port}/")
    assert listener.accepted == 1


def test_a_redirect_is_not_followed(new_poster: Any, new_listener: Any) -> None:
    target = new_listener(answering(b"HTTP/1.1 204 No Content\r\n\r\n"))
    redirect = f"HTTP/1.1 307 Temporary Redirect\r\nLocation: {target.url}\r\n\r\n".encode()
    listener = new_listener(answering(redirect))
    with pytest.raises(WebhookFailed, match="answered 307; redirects are not followed"):
        post(new_poster(), listener.url)
    assert target.accepted == 0


def test_the_environment_s_proxy_is_not_used(
    new_poster: Any, new_listener: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = new_listener(answering(b"HTTP/1.1 204 No Content\r\n\r\n"))
    listener = new_listener(answering(b"HTTP/1.1 204 No Content\r\n\r\n"))
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    post(new_poster(), listener.url)
    assert (proxy.accepted, listener.accepted) == (0, 1)


def drip(connection: socket.socket) -> None:
    connection.recv(65_536)
    for byte in b"HTTP/1.1 200 OK\r\n" * 100:
        connection.sendall(bytes([byte]))
        time.sleep(0.1)


def test_a_receiver_that_drips_has_one_deadline_for_the_whole_call(new_poster: Any, new_listener: Any) -> None:
    listener, began = new_listener(drip), time.monotonic()
    with pytest.raises(WebhookFailed, match=r"within 0\.5 s"):
        post(new_poster(deadline_seconds=0.5), listener.url)
    assert time.monotonic() - began < 3


def test_slow_receivers_hold_nobody_else_up(new_poster: Any, new_listener: Any) -> None:
    slow, quick = new_listener(drip), new_listener(answering(b"HTTP/1.1 204 No Content\r\n\r\n"))
    poster = new_poster()
    pending = [poster.post(slow.url, {}, b"") for _ in range(100)]
    began = time.monotonic()
    post(poster, quick.url)
    assert time.monotonic() - began < 2
    assert slow.accepted <= CALLS_PER_HOST
    assert not any(each.done() for each in pending)


def test_name_servers_that_do_not_answer_hold_nobody_else_up(
    new_poster: Any, new_listener: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick, release = new_listener(answering(b"HTTP/1.1 204 No Content\r\n\r\n")), threading.Event()
    real = socket.getaddrinfo

    def resolve(host: str, *args: Any, **kwargs: Any) -> Any:
        if host.endswith(".silent.example"):
            release.wait(20)
        return real("127.0.0.1", *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    poster = new_poster()
    pending = [poster.post(f"http://h{number}.silent.example:{quick.port}/", {}, b"") for number in range(100)]
    began = time.monotonic()
    try:
        post(poster, f"http://quick.example:{quick.port}/")
        assert time.monotonic() - began < 5
        assert not any(each.done() for each in pending)
    finally:
        release.set()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"HTTP/1.1 503 Busy\r\n\r\n", "answered 503"),
        (b"HTTP/1.1 404 Not Found\r\n\r\n", "answered 404"),
        (b"SSH-2.0-OpenSSH\r\n", "no HTTP"),
        (b"", "cannot be reached"),
        (b"HTTP/1.1 2" * 10_000, "cannot be reached|no HTTP"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 150, "no status|cannot be reached"),
    ],
)
def test_an_answer_that_is_no_success_is_a_failure_with_a_reason(
    new_poster: Any, new_listener: Any, answer: bytes, said: str
) -> None:
    listener = new_listener(answering(answer))
    with pytest.raises(WebhookFailed, match=said):
        post(new_poster(), listener.url)


def test_an_interim_answer_is_read_past(new_poster: Any, new_listener: Any) -> None:
    interim = b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\nHTTP/1.1 200 OK\r\n\r\n"
    post(new_poster(), new_listener(answering(interim)).url)


def test_a_header_with_a_line_break_is_not_sent(new_poster: Any, new_listener: Any) -> None:
    listener = new_listener(answering(b"HTTP/1.1 204 No Content\r\n\r\n"))
    with pytest.raises(WebhookFailed, match="line break"):
        new_poster().post(listener.url, {"X-Id": "e1\r\nX-Forged: 1"}, b"").result(timeout=10)
