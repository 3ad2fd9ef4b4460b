"""Bad input of every kind to the client: a clear error at the earliest point, and nothing is written."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import pytest
import redis

from celery_agents import AgentClient, ExecutionBudget
from celery_agents.config.settings import Settings
from celery_agents.worker.errors import CeleryAgentsError, InvalidInput, SessionNotFound
from celery_agents.worker.state import LLMConfig, Message

pytestmark = pytest.mark.filterwarnings("ignore:no worker has registered")


def _deep(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels):
        value = {"a": value}
    return value


def _cycle() -> dict[str, Any]:
    value: dict[str, Any] = {}
    value["self"] = value
    return value


SURROGATE = "half \ud800 a pair"
IDS = [
    "",
    " ",
    "a b",
    "a/b",
    "a.b",
    "a:b",
    "a\n",
    "a\0b",
    "ä",
    "-a",
    "x" * 65,
    SURROGATE,
    5,
    1.5,
    True,
    b"a",
    ["a"],
    {},
]
KEYS = ["", "x" * 513, SURROGATE, 5, True, b"key", ["k"]]
MESSAGES = ["", "  \n", SURROGATE, "x" * 1_000_001, "é" * 500_001, None, 5, b"hello", ["hello"], {"content": "hello"}]
MESSAGES += [Message.assistant("hello"), Message.system("hello"), Message.user(""), Message.user(" ")]
MESSAGES += [Message(role="user", content="x", metadata={"large": "x" * 1_000_001})]  # type: ignore[arg-type]
BUDGETS = [{"max_steps": 1}, 5, "much", True, [1], object()]
MAPPINGS = [[], [1], "text", 5, True, {1: 2}, {None: 1}, {"a": float("nan")}, {"a": float("inf")}, {"a": object()}]
MAPPINGS += [{"a": {1}}, {"a": b"x"}, {"a": SURROGATE}, {SURROGATE: 1}, {"a": 10**5000}, _deep(100_000), _cycle()]
MAPPINGS += [{"large": "x" * 1_000_001}, {"many": ["x" * 10] * 100_000}]
VALUES = [float("nan"), object(), {1}, b"x", SURROGATE, 10**5000, _deep(100_000), _cycle(), "x" * 1_000_001]


def _ids(values: list[Any]) -> list[str]:
    return [f"{index}-{type(value).__name__}" for index, value in enumerate(values)]


@pytest.fixture
def client(redis_url: str) -> AgentClient:
    return AgentClient(settings=Settings.build(redis_url=redis_url))


@pytest.fixture
def unchanged(redis_client: redis.Redis) -> Iterator[Callable[[], None]]:
    """What Redis holds before and after is the same."""

    def everything() -> dict[str, bytes | None]:
        raw = redis.Redis(connection_pool=redis.ConnectionPool(**_plain(redis_client)))
        try:
            return {str(name): raw.dump(name) for name in raw.scan_iter("*")}
        finally:
            raw.close()

    before: list[dict[str, bytes | None]] = []

    def look() -> None:
        before.append(everything())

    yield look
    assert before, "the test has not looked"
    assert everything() == before[0]


def _plain(client: redis.Redis) -> dict[str, Any]:
    arguments = dict(client.connection_pool.connection_kwargs)
    arguments["decode_responses"] = False
    return arguments


def _refused(call: Callable[[], object], kind: type[Exception] = InvalidInput) -> str:
    with pytest.raises(kind) as raised:
        call()
    text = str(raised.value)
    assert 0 < len(text) < 1000
    assert "Traceback" not in text
    text.encode()
    return text


@pytest.mark.parametrize("bad", IDS, ids=_ids(IDS))
def test_agent_and_session_ids(client: AgentClient, unchanged: Callable[[], None], bad: Any) -> None:
    _ = client.store
    unchanged()
    assert "agent" in _refused(lambda: client.submit(bad, "hello"))
    if bad is not None:
        calls: list[Callable[[], object]] = [
            lambda: client.submit("a", "hello", session_id=bad),
            lambda: client.send_message(bad, "hello"),
            lambda: client.stop(bad),
            lambda: client.retry(bad),
            lambda: client.show(bad),
            lambda: client.header(bad),
            lambda: client.job(bad),
            lambda: client.write_metadata(bad, "a", 1),
            lambda: client.change_system_prompt(bad, "x"),
            lambda: client.change_model(bad, LLMConfig(model="m")),
        ]
        for call in calls:
            assert "session_id" in _refused(call)


@pytest.mark.parametrize("bad", KEYS, ids=_ids(KEYS))
def test_idempotency_keys(client: AgentClient, unchanged: Callable[[], None], bad: Any) -> None:
    session_id = client.submit("a", "hello").session_id
    client.stop(session_id)
    unchanged()
    assert "idempotency_key" in _refused(lambda: client.submit("a", "hello", idempotency_key=bad))
    assert "idempotency_key" in _refused(lambda: client.send_message(session_id, "hello", idempotency_key=bad))


@pytest.mark.parametrize("bad", MESSAGES, ids=_ids(MESSAGES))
def test_messages(client: AgentClient, unchanged: Callable[[], None], bad: Any) -> None:
    session_id = client.submit("a", "hello").session_id
    client.stop(session_id)
    unchanged()
    _refused(lambda: client.submit("a", bad))
    _refused(lambda: client.submit("a", bad, session_id=session_id))
    _refused(lambda: client.send_message(session_id, bad))


@pytest.mark.parametrize("bad", BUDGETS, ids=_ids(BUDGETS))
def test_budgets(client: AgentClient, unchanged: Callable[[], None], bad: Any) -> None:
    session_id = client.submit("a", "hello").session_id
    client.stop(session_id)
    unchanged()
    assert "budget" in _refused(lambda: client.submit("a", "hello", budget=bad))
    assert "budget" in _refused(lambda: client.send_message(session_id, "hello", budget=bad))
    assert "budget" in _refused(lambda: client.retry(session_id, budget=bad))


@pytest.mark.parametrize("bad", MAPPINGS, ids=_ids(MAPPINGS))
def test_metadata_of_a_submit(client: AgentClient, unchanged: Callable[[], None], bad: Any) -> None:
    _ = client.store
    unchanged()
    assert "metadata" in _refused(lambda: client.submit("a", "hello", metadata=bad))
    assert "metadata" in _refused(lambda: client.submit("a", "hello", metadata=bad, session_id="new"))


@pytest.mark.parametrize("bad", VALUES, ids=_ids(VALUES))
def test_metadata_that_is_written(client: AgentClient, unchanged: Callable[[], None], bad: Any) -> None:
    session_id = client.submit("a", "hello").session_id
    client.stop(session_id)
    unchanged()
    assert "metadata" in _refused(lambda: client.write_metadata(session_id, "key", bad))
    for key in (SURROGATE, 5, None, b"k", "x" * 1_000_001):
        _refused(lambda key=key: client.write_metadata(session_id, key, 1))  # type: ignore[arg-type, misc]


def test_prompts_and_models(client: AgentClient, unchanged: Callable[[], None]) -> None:
    session_id = client.submit("a", "hello").session_id
    client.stop(session_id)
    unchanged()
    for prompt in (None, 5, b"x", SURROGATE, "x" * 1_000_001):
        _refused(lambda prompt=prompt: client.change_system_prompt(session_id, prompt))  # type: ignore[arg-type, misc]
    for model in (None, "openai:x", {"model": "x"}, 5):
        _refused(lambda model=model: client.change_model(session_id, model))  # type: ignore[arg-type, misc]
    with pytest.raises(InvalidInput):
        LLMConfig(model="m", settings={"api_key": "sk-12345678"})


def test_times_pages_and_positions(client: AgentClient, unchanged: Callable[[], None]) -> None:
    job = client.submit("a", "hello")
    client.stop(job.session_id)
    unchanged()
    for timeout in (float("nan"), "1", True, -1, 10**400):
        _refused(lambda timeout=timeout: client.wait_for_agent("a", timeout=timeout))  # type: ignore[arg-type, misc]
        _refused(lambda timeout=timeout: client.stop(job.session_id, timeout=timeout))  # type: ignore[arg-type, misc]
        _refused(lambda timeout=timeout: job.result(timeout=timeout))  # type: ignore[arg-type, misc]
        _refused(lambda timeout=timeout: list(job.events(timeout=timeout)))  # type: ignore[arg-type, misc]
    for position in ("yesterday", "1-2-3", "", "\0", 5, SURROGATE, "99999999999999999999999-1"):
        _refused(lambda position=position: list(job.events(position, timeout=1)))  # type: ignore[arg-type, misc]
    for limit in (0, -1, True, 1.5, "5"):
        _refused(lambda limit=limit: client.list(limit=limit))  # type: ignore[arg-type, misc]
    for since in (datetime(2026, 1, 1), "yesterday", 5):  # noqa: DTZ001
        _refused(lambda since=since: client.list(since=since))  # type: ignore[arg-type, misc]
        _refused(lambda since=since: list(client.retry_failed(since=since)))  # type: ignore[arg-type, misc]
    for cursor in ("x", "", "1", 5, "²:a"):
        _refused(lambda cursor=cursor: client.list(cursor=cursor))  # type: ignore[arg-type, misc]
    for status in ("done", 5, ""):
        _refused(lambda status=status: client.list(status=status))  # type: ignore[arg-type, misc]
    for agent in ("", "a b", 5, SURROGATE, "x" * 65):
        _refused(lambda agent=agent: client.list(agent=agent))  # type: ignore[arg-type, misc]
        _refused(lambda agent=agent: list(client.retry_failed(agent=agent)))  # type: ignore[arg-type, misc]
        _refused(lambda agent=agent: list(client.suspend_all(reason="x", agent=agent)))  # type: ignore[arg-type, misc]
        _refused(lambda agent=agent: list(client.export_archive(agent=agent)))  # type: ignore[arg-type, misc]


def test_what_is_odd_but_valid_is_kept_exactly(client: AgentClient) -> None:
    text = "NUL \0, emoji 🦊, right to left \u202e, combining e\u0301, line\r\n\u2028, and \ufeff"
    metadata = {"": 0, "\0": [None, True, 1.5, -(2**70), {"ü": "\0"}], "a.b/c:d": text}
    job = client.submit("a", text, session_id="A-_9", idempotency_key="k\0\n" + "ß" * 500, metadata=metadata)
    client.stop(job.session_id)
    state = client.show(job.session_id).state
    assert state.messages[0].content == text
    assert state.metadata == {"": 0, "\0": (None, True, 1.5, -(2**70), {"ü": "\0"}), "a.b/c:d": text}
    again = client.submit("a", text, session_id="A-_9", idempotency_key="k\0\n" + "ß" * 500, metadata=metadata)
    assert again.execution_id == job.execution_id
    largest = client.submit("a", "x" * 1_000_000)
    assert len(client.show(largest.session_id).state.messages[0].content) == 1_000_000
    client.stop(largest.session_id)


def test_a_session_belongs_to_its_agent(client: AgentClient, unchanged: Callable[[], None]) -> None:
    job = client.submit("a", "hello", session_id="mine")
    client.stop(job.session_id)
    unchanged()
    text = _refused(lambda: client.submit("b", "hello", session_id="mine"), CeleryAgentsError)
    assert "agent 'a'" in text


def test_sessions_that_do_not_exist(client: AgentClient, unchanged: Callable[[], None]) -> None:
    _ = client.store
    unchanged()
    calls: list[Callable[[], object]] = [
        lambda: client.send_message("none", "hello"),
        lambda: client.stop("none"),
        lambda: client.retry("none"),
        lambda: client.show("none"),
        lambda: client.job("none"),
        lambda: client.write_metadata("none", "a", 1),
        lambda: client.retry("none", budget=ExecutionBudget(max_steps=1)),
    ]
    for call in calls:
        assert "'none'" in _refused(call, SessionNotFound)


def test_an_agent_that_no_worker_has_registered_is_accepted_with_a_warning(client: AgentClient) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        job = client.submit("nobody", "hello")
    assert any("no worker has registered" in str(warning.message) for warning in caught)
    client.stop(job.session_id)


def test_an_agent_that_registers_later_is_known_from_then_on(client: AgentClient, redis_url: str) -> None:
    database = redis.Redis.from_url(redis_url)
    database.delete("ca:agents")
    database.hset("ca:agents", "early", "{}")
    with pytest.warns(UserWarning, match=r"registered: early\); the job waits"):
        waiting = client.submit("late", "hello")
    assert client.header(waiting.session_id).unoffered_since_ms > 0
    client.stop(waiting.session_id)
    database.hset("ca:agents", "late", "{}")
    client.stop(client.submit("late", "hello").session_id)
    database.delete("ca:agents")
    known = client.submit("late", "hello")  # known once, known for good
    assert client.header(known.session_id).unoffered_since_ms == 0
    client.stop(known.session_id)
