"""One connection for the fibers of a loop, on a real Redis and on servers that stall or stop."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from redis import Connection

from celery_agents.tasks.consumer.internals import plain_socket
from celery_agents.worker.errors import StoreUnavailable
from celery_agents.worker.store.database import Changed
from celery_agents.worker.store.redis.connection import PlainSocket
from celery_agents.worker.store.redis.database import RedisDatabase, connect

from support.fiber_thread import FiberThread
from support.redis_server import RedisServer

LIMIT = 0.4


@pytest.fixture
def thread() -> Iterator[FiberThread]:
    with contextlib.closing(FiberThread()) as opened:
        yield opened


@pytest.fixture
def database(redis_url: str) -> Iterator[RedisDatabase]:
    with contextlib.closing(
        connect(redis_url, timeout_seconds=LIMIT, connections=8, name="lane", plain_socket=plain_socket)
    ) as opened:
        yield opened


@pytest.fixture
def stalls() -> Iterator[Callable[[bytes], int]]:
    """A server that answers the greeting, and whatever follows with these bytes and silence; its port."""
    ends: list[socket.socket] = []

    def start(answer: bytes) -> int:
        server = socket.create_server(("127.0.0.1", 0))
        ends.append(server)

        def serve(peer: socket.socket) -> None:
            with contextlib.suppress(OSError):
                greeting = peer.recv(65_536)
                while greeting:
                    peer.sendall(b"+OK\r\n" * greeting.count(b"CLIENT") if b"CLIENT" in greeting else answer)
                    greeting = peer.recv(65_536)

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    peer, _ = server.accept()
                    ends.append(peer)
                    threading.Thread(target=serve, args=(peer,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        return int(server.getsockname()[1])

    yield start
    for end in ends:
        end.close()


def echoing(database: RedisDatabase, text: str, times: int = 1) -> Callable[[], list[Any]]:
    return lambda: database.pipeline("test", [("ECHO", f"{text}-{n}") for n in range(times)])


def test_many_round_trips_leave_together_and_each_gets_its_own_replies(
    thread: FiberThread, database: RedisDatabase, redis_server: RedisServer
) -> None:
    thread.run(echoing(database, "first"))  # connects
    with redis_server.client() as client:
        reads = client.info("stats")["total_reads_processed"]
        answers = thread.together([echoing(database, str(n), 1 + n % 3) for n in range(200)])
        reads = client.info("stats")["total_reads_processed"] - reads
        names = [each["name"] for each in client.client_list()]
    assert answers == [[f"{n}-{k}".encode() for k in range(1 + n % 3)] for n in range(200)]
    assert reads < 40, "each round trip was read by itself"
    assert names.count("lane") == 1


def test_those_that_come_first_open_one_connection(
    thread: FiberThread, database: RedisDatabase, redis_server: RedisServer
) -> None:
    thread.together([echoing(database, str(n)) for n in range(50)])
    with redis_server.client() as client:
        assert [each["name"] for each in client.client_list()].count("lane") == 1


def test_large_words_pass_in_pieces(thread: FiberThread, database: RedisDatabase) -> None:
    words = [bytes([65 + n]) * 3_000_000 for n in range(4)]
    answers = thread.together([lambda word=word: database.pipeline("test", [("ECHO", word)]) for word in words])
    assert answers == [[word] for word in words]


def test_transactions_of_many_fibers_stay_whole(thread: FiberThread, database: RedisDatabase) -> None:
    def twice(n: int) -> list[Any]:
        return database.transaction("test", [("SET", "lane:key", n), ("GET", "lane:key")])

    answers = thread.together([lambda n=n: twice(n) for n in range(100)])
    assert [answer[1] for answer in answers] == [str(n).encode() for n in range(100)]
    database.pipeline("test", [("DEL", "lane:key")])


def test_an_error_that_redis_answers_is_its_askers_alone(thread: FiberThread, database: RedisDatabase) -> None:
    def wrong() -> list[Any]:
        return database.pipeline("test", [("NO-SUCH-COMMAND",)])

    answers = thread.together([echoing(database, "a"), wrong, echoing(database, "b")])
    assert answers[0] == [b"a-0"]
    assert "unknown command" in str(answers[1])
    assert answers[2] == [b"b-0"]


def test_a_watch_has_a_connection_of_its_own(thread: FiberThread, database: RedisDatabase) -> None:
    def watched() -> str:
        with database.watch("test", ["lane:watched"], [("GET", "lane:watched")]) as watch:
            database.pipeline("test", [("SET", "lane:watched", "changed")])  # on the lane: somebody else
            try:
                watch.commit("test", [("SET", "lane:watched", "mine")])
            except Changed:
                return "changed"
        return "committed"

    assert thread.together([watched, echoing(database, "a")]) == ["changed", [b"a-0"]]
    assert database.pipeline("test", [("GET", "lane:watched"), ("DEL", "lane:watched")])[0] == b"changed"


def test_when_redis_does_not_answer_everybody_hears_it_in_time_and_the_next_connects_anew(
    thread: FiberThread, database: RedisDatabase, redis_server: RedisServer
) -> None:
    thread.run(echoing(database, "first"))
    with redis_server.client() as client:
        client.execute_command("CLIENT", "PAUSE", "1200", "ALL")
    before = time.monotonic()
    answers = thread.together([echoing(database, str(n)) for n in range(20)])
    took = time.monotonic() - before
    assert all(isinstance(answer, StoreUnavailable) for answer in answers), answers
    assert LIMIT <= took < LIMIT + 0.5, "each waited for the one before it"
    time.sleep(1.3 - took)
    assert thread.run(echoing(database, "again")) == [b"again-0"]


def test_a_connection_that_is_closed_under_way_fails_those_that_wait_on_it(
    thread: FiberThread, database: RedisDatabase, redis_server: RedisServer
) -> None:
    thread.run(echoing(database, "first"))

    def blocking() -> list[Any]:
        return database.pipeline("test", [("BLPOP", "lane:nothing", 5)])

    waiting = thread.start(blocking)
    behind = thread.start(echoing(database, "behind"))
    time.sleep(0.1)
    with redis_server.client() as client:
        for each in client.client_list():
            if each["name"] == "lane":
                client.client_kill_filter(_id=each["id"])
    for each in (waiting, behind):
        assert isinstance(each.exception(5), StoreUnavailable)
    assert thread.run(echoing(database, "again")) == [b"again-0"]


def slowly(call: Callable[..., Any]) -> Callable[..., Any]:
    """The call, after a moment in which other threads go on."""

    def slow(*args: Any, **options: Any) -> Any:
        time.sleep(0.002)
        return call(*args, **options)

    return slow


def test_those_who_hear_last_that_a_connection_broke_leave_the_next_one_alone(
    thread: FiberThread, database: RedisDatabase, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    thread.run(echoing(database, "first"))

    def asks_again() -> list[Any]:
        try:
            return database.pipeline("test", [("BLPOP", "lane:nothing", 5)])
        except StoreUnavailable:
            return database.pipeline("test", [("ECHO", "again"), ("CLIENT", "ID")])

    calls = [thread.start(asks_again) for _ in range(100)]
    time.sleep(0.1)
    monkeypatch.setattr(Connection, "disconnect", slowly(Connection.disconnect))
    with redis_server.client() as client:
        for each in client.client_list():
            if each["name"] == "lane":
                client.client_kill_filter(_id=each["id"])
    answers = [each.result(5) for each in calls]
    assert {answer[0] for answer in answers} == {b"again"}
    assert len({answer[1] for answer in answers}) == 1, "each that heard it opened another connection"


def test_a_connection_that_was_closed_while_idle_is_noticed_before_it_is_used(
    thread: FiberThread, database: RedisDatabase, redis_server: RedisServer
) -> None:
    thread.run(echoing(database, "first"))
    with redis_server.client() as client:
        for each in client.client_list():
            if each["name"] == "lane":
                client.client_kill_filter(_id=each["id"])
    time.sleep(0.2)
    assert thread.run(echoing(database, "again")) == [b"again-0"]


def test_a_loop_that_was_blocked_does_not_take_redis_for_silent(thread: FiberThread, database: RedisDatabase) -> None:
    thread.run(echoing(database, "first"))

    def waits_a_little() -> list[Any]:
        return database.pipeline("test", [("BLPOP", "lane:nothing", 0.1)])

    answers = thread.together([waits_a_little, waits_a_little, lambda: time.sleep(2 * LIMIT)])
    assert answers == [[None], [None], None]


def test_a_step_that_is_alone_lets_others_begin_when_its_answer_takes_long(
    thread: FiberThread, database: RedisDatabase
) -> None:
    thread.run(echoing(database, "first"))

    def waits() -> list[Any]:
        return database.pipeline("test", [("ECHO", "a"), ("BLPOP", "lane:nothing", 0.35), ("ECHO", "b")])

    waiting = thread.start(waits)
    time.sleep(0.1)
    thread.run(lambda: None)
    assert not waiting.done(), "the loop stood still"
    assert thread.run(echoing(database, "behind")) == [b"behind-0"]
    assert waiting.result(5) == [b"a", None, b"b"]


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(b"*5\r\n$3\r\nabc\r\n", id="half an answer"),
        pytest.param(b"!?\r\n", id="none at all"),
        pytest.param(b"$1\r\na\r\n" * 4, id="more than was asked"),
    ],
)
def test_an_answer_that_is_none_ends_the_connection(
    thread: FiberThread, stalls: Callable[[bytes], int], answer: bytes
) -> None:
    url = f"redis://127.0.0.1:{stalls(answer)}/0"
    with contextlib.closing(
        connect(url, timeout_seconds=LIMIT, connections=4, name="", plain_socket=plain_socket)
    ) as database:
        assert isinstance(thread.start(echoing(database, "alone")).exception(30), StoreUnavailable)
        answers = thread.together([echoing(database, str(n)) for n in range(3)])
        assert all(isinstance(each, StoreUnavailable) or each == [b"a"] for each in answers)
        assert isinstance(thread.start(echoing(database, "alone")).exception(30), StoreUnavailable)


def test_nobody_listening_is_said_to_all(thread: FiberThread) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"redis://127.0.0.1:{free.getsockname()[1]}/0"
    with contextlib.closing(
        connect(url, timeout_seconds=LIMIT, connections=4, name="lane", plain_socket=plain_socket)
    ) as database:
        answers = thread.together([echoing(database, str(n)) for n in range(10)])
    assert all(isinstance(answer, StoreUnavailable) for answer in answers)


@pytest.mark.parametrize("plain", [None, lambda connection: None])
def test_without_a_plain_socket_each_fiber_takes_a_connection(
    thread: FiberThread, redis_url: str, plain: PlainSocket | None
) -> None:
    with contextlib.closing(
        connect(redis_url, timeout_seconds=LIMIT, connections=8, name="", plain_socket=plain)
    ) as database:
        answers = thread.together([echoing(database, str(n)) for n in range(8)])
    assert answers == [[f"{n}-0".encode()] for n in range(8)]
