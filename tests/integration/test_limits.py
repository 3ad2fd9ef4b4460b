"""A real worker's memory stays bounded, whatever an agent, a model, a tool or a message does."""

from __future__ import annotations

import contextlib
import gzip
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from celery_agents import AgentClient
from celery_agents.worker.errors import ActionRefused

from support.agents import call, plan
from support.huge_agents import PROVIDER_URL
from support.local_server import LocalServer, QuietHandler
from support.wait import wait_until

pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.filterwarnings("ignore:no worker has registered"),
    pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc"),
]

MOST_BYTES = 512_000_000
_CHUNK = b"x" * 1_000_000


class HugeProvider(LocalServer):
    """Answers each request with as much as its reader takes, and counts what was sent.

    Args:
        head: Lines of the head of the answer, besides the status.
        chunks: Pieces of the body.
    """

    def __init__(self, head: dict[str, str], chunks: Callable[[], Iterator[bytes]]) -> None:
        self.requests, self.sent = 0, 0
        provider = self

        class Handler(QuietHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                provider.requests += 1
                self.send_response(200)
                for name, value in {"Content-Type": "application/json", **head}.items():
                    self.send_header(name, value)
                self.end_headers()
                with contextlib.suppress(OSError):
                    for chunk in chunks():
                        self.wfile.write(chunk)
                        provider.sent += len(chunk)

        super().__init__(Handler)


def two_hundred_megabytes() -> Iterator[bytes]:
    yield b'{"choices": [{"message": {"role": "assistant", "content": "'
    for _ in range(200):
        yield _CHUNK
    yield b'"}}]}'


def bomb() -> Iterator[bytes]:
    """A gigabyte, compressed."""
    yield gzip.compress(b'{"choices": "' + b"x" * 200_000_000, compresslevel=1)


ANSWERS = {
    "streamed": ({}, two_hundred_megabytes),
    "announced": ({"Content-Length": "200000100"}, two_hundred_megabytes),
    "compressed": ({"Content-Encoding": "gzip"}, bomb),
}


def peak_bytes(pid: int) -> int:
    """The most memory that a process has had."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def check_that_little_is_read(redis_url: str, agent: str, provider: HugeProvider, worker: Any) -> None:
    """A job of the agent fails without the whole answer, which is asked for once."""
    result = AgentClient(redis_url).submit(agent, "hello").result(timeout=60)
    assert result.status == "failed"
    assert "CELERY_AGENTS_MAX_ANSWER_BYTES" in result.errors[-1]
    assert provider.requests == 1, "it was asked for again"
    assert provider.sent < 60_000_000
    assert peak_bytes(worker.pid) < MOST_BYTES
    provider.close()


@pytest.mark.parametrize("kind", ANSWERS)
def test_an_answer_of_two_hundred_megabytes_is_not_read_to_its_end(redis_url: str, new_worker: Any, kind: str) -> None:
    provider = HugeProvider(*ANSWERS[kind])
    env = {PROVIDER_URL: f"{provider.url}/v1", "OPENAI_API_KEY": "not-a-real-key"}
    worker = new_worker(agents="support.huge_agents", env=env)
    check_that_little_is_read(redis_url, "huge_answers", provider, worker)


@pytest.mark.parametrize(
    ("agent", "kind"),
    [
        ("plain", "compressed"),
        ("own_client", "streamed"),
        *(
            pytest.param(agent, kind, marks=pytest.mark.long)
            for agent, kind in (
                ("plain", "streamed"),
                ("plain", "announced"),
                ("own_client", "compressed"),
                ("wrapped", "streamed"),
                ("falling_back", "streamed"),
            )
        ),
    ],
)
def test_a_pydantic_agent_does_not_read_a_huge_answer_to_its_end(
    redis_url: str, new_worker: Any, agent: str, kind: str
) -> None:
    provider = HugeProvider(*ANSWERS[kind])
    worker = new_worker(agents="support.huge_pydantic_agents", env={PROVIDER_URL: f"{provider.url}/v1"})
    check_that_little_is_read(redis_url, agent, provider, worker)


@pytest.mark.parametrize(
    ("agent", "status"),
    [
        ("many_calls", "completed"),
        pytest.param("dumping", "completed", marks=pytest.mark.long),
        ("huge_text", "failed"),
    ],
)
def test_what_an_agent_does_is_bounded(redis_url: str, new_worker: Any, agent: str, status: str) -> None:
    worker = new_worker(agents="support.huge_agents", env={"OPENAI_API_KEY": "not-a-real-key"})
    client = AgentClient(redis_url)
    result = client.submit(agent, "hello").result(timeout=90)
    assert result.status == status, result.errors
    assert peak_bytes(worker.pid) < MOST_BYTES
    assert client.submit("many_calls", "and again").result(timeout=90).status == "completed"


@pytest.mark.long
def test_the_ends_of_sixty_four_children_take_bounded_memory_of_their_parent(redis_url: str, new_worker: Any) -> None:
    # Few slots: what the children hold while they work is another limit's.
    env = {"CELERY_AGENTS_CONCURRENCY": "4", "OPENAI_API_KEY": "not-a-real-key"}
    worker = new_worker(agents="support.huge_agents", env=env)
    client = AgentClient(redis_url)
    job = client.submit("family", "hello")
    assert job.result(timeout=90).status == "completed"
    assert peak_bytes(worker.pid) < MOST_BYTES
    ends = [each for each in client.store.sessions.events(job.session_id) if each.type == "child_ended"]
    assert [each.data["left_out"] for each in ends] == [["found", "album"]] * 64


def test_a_gigabyte_of_messages_is_refused_and_none_that_was_taken_is_lost(
    redis_url: str, new_worker: Any, ledger: Any
) -> None:
    worker = new_worker(env=ledger.env, fresh=True)  # a fork has more in its memory
    client = AgentClient(redis_url)
    job = client.submit("planned", plan([call("keyed", work="a", gate="g")]))
    wait_until(lambda: bool(ledger.effects()) or bool(ledger.entries()), "the tool runs")
    taken, refused, began = 0, list[str](), time.monotonic()
    for _ in range(1_000):
        try:
            client.send_message(job.session_id, "x" * 999_000)
            taken += 1
        except ActionRefused as error:
            refused.append(str(error))
            if len(refused) >= 20:
                break
    assert (taken, len(refused)) == (8, 20)
    assert all("bytes of messages" in each for each in refused)
    assert time.monotonic() - began < 30, "each message reads all that wait"
    ledger.open("g")
    wait_until(lambda: client.job(job.session_id).result(timeout=60).status == "completed", "it ends", timeout=60)
    said = [message.content for message in client.show(job.session_id).state.messages]
    assert said.count("x" * 999_000) == taken
    assert peak_bytes(worker.pid) < MOST_BYTES
