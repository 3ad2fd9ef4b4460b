"""Jobs that are submitted to a client."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from hypothesis import strategies as st

from celery_agents import AgentClient, ExecutionBudget
from celery_agents.config.settings import Settings
from celery_agents.worker.errors import (
    CeleryAgentsError,
    StoreFull,
    StoreUnavailable,
)
from celery_agents.worker.state import (
    Message,
    freeze,
)

from .examples import expect, run_examples
from .extremes import Material, json_values
from .given import Lazy
from support.redis_server import RedisServer
from support.verdict import Verdict


def submit(directory: Path, examples: int, seed: int) -> Verdict:
    """Jobs that are submitted to a client: accepted and kept as they are, or refused with a sentence, and then nothing is written."""
    verdict = Verdict()
    material = Material(verdict)
    with RedisServer(directory) as server, server.client() as redis:
        counter = _Counter(AgentClient(settings=Settings.build(redis_url=server.url())), redis, verdict)
        run_examples(verdict, "submit", examples, seed, _requests(material, _GIVEN), counter.judge)
    return verdict


def notify(directory: Path, examples: int, seed: int) -> Verdict:
    """The same of whom to tell how a job ended."""
    verdict = Verdict()
    material = Material(verdict)
    with RedisServer(directory) as server, server.client() as redis:
        counter = _Counter(AgentClient(settings=Settings.build(redis_url=server.url())), redis, verdict)
        run_examples(verdict, "notify", examples, seed, _requests(material, _TOLD), counter.judge)
    return verdict


_GIVEN: Final = ("agent", "message", "session_id", "idempotency_key", "budget", "metadata")
_TOLD: Final = ("on_complete", "webhook")


def _requests(material: Material, spoilt: Sequence[str]) -> st.SearchStrategy[dict[str, Any]]:
    """Mostly good, with one or two of these fields of which anything may be expected."""
    text = st.text(min_size=1, max_size=40).map(lambda said: f"a{said}")
    message = text | st.tuples(text, json_values).map(lambda each: Lazy(_message_of, *each))
    good: Mapping[str, st.SearchStrategy[Any]] = {
        "agent": st.just("a"),
        "message": message,
        "session_id": st.none() | st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_-]{0,20}", fullmatch=True),
        "idempotency_key": st.none() | text,
        "budget": st.none() | st.tuples(st.integers(0, 9), st.floats(0, 1e9)).map(lambda b: Lazy(_budget_of, *b)),
        "metadata": st.none() | st.dictionaries(st.text(max_size=5), json_values, max_size=3),
        "on_complete": st.none() | st.just("a.task"),
        "webhook": st.none() | st.just("https://example.org/hook"),
    }
    bad: Mapping[str, st.SearchStrategy[Any]] = {
        **dict.fromkeys(good, material.values),
        "message": material.values | st.tuples(material.values, material.values).map(lambda e: Lazy(_message_of, *e)),
        "budget": material.values | st.tuples(material.values, material.values).map(lambda b: Lazy(_budget_of, *b)),
        "metadata": material.values | st.dictionaries(st.text(max_size=5), material.values, max_size=2),
        "on_complete": material.values
        | material.values.map(lambda value: {"task": "a", "args": [value]})
        | material.values.map(lambda value: {"task": "a", "options": {"queue": value, "priority": value}})
        | material.values.map(lambda value: {"task": "a", "options": value})
        | material.values.map(lambda value: {"task": "a", "options": {_name_of(value): value}}),
        "webhook": material.values
        | st.sampled_from(("http://[", "http://a:b@c", "https://\0", "http://h:x/", "HTTP://h")),
    }
    pairs = {frozenset((one, other)) for one in spoilt for other in spoilt}
    spoiled = [
        st.fixed_dictionaries({**good, **{name: bad[name] for name in pair}}) for pair in sorted(pairs, key=sorted)
    ]
    return st.one_of(*(st.fixed_dictionaries(dict(good)) for _ in spoiled[::2]), *spoiled)


def _name_of(value: Any) -> str:
    """A text as it is. The text of any other value may be too much for Python itself."""
    return value if isinstance(value, str) else type(value).__name__


def _message_of(content: Any, metadata: Any) -> Message:
    return Message(role="user", content=content, metadata={"a": metadata})  # type: ignore[arg-type]


def _budget_of(max_steps: Any, max_cost: Any) -> ExecutionBudget:
    return ExecutionBudget(max_steps=max_steps, max_cost=max_cost, deadline=dt.datetime(2090, 1, 1, tzinfo=dt.UTC))


class _Counter:
    """Submits jobs and counts what becomes of them."""

    def __init__(self, client: AgentClient, redis: Any, verdict: Verdict) -> None:
        self._client = client
        self._redis = redis
        self._verdict = verdict
        self._accepted = 0
        self._emptied()

    def _emptied(self) -> None:
        self._redis.flushall()
        self._client.store.registry.register("w", {}, {"a": "hash"})  # somebody offers the agent

    def judge(self, request: dict[str, Any]) -> None:
        """One request."""
        before = self._redis.dbsize()
        try:
            made = {name: _unwrapped(value) for name, value in request.items()}
            job = self._client.submit(**made)
        except (StoreUnavailable, StoreFull, RecursionError):
            raise
        except RuntimeError:  # raised by the caller's own object when it was read
            expect(self._redis.dbsize() == before, "something was stored of a job that was not submitted")
            self._verdict.counts["submit_raised"] += 1
            return
        except CeleryAgentsError as error:
            text = str(error)
            text.encode()
            expect(0 < len(text) < 1000, "an error without a word, or with too many")
            expect(self._redis.dbsize() == before, "something was stored of a job that was refused")
            self._verdict.counts["submit_refused"] += 1
            return
        self._verdict.counts["submit_accepted"] += 1
        self._accepted += 1
        self._judge_stored(made, job.session_id)
        self._redis.flushall()
        self._emptied()

    def _judge_stored(self, made: Mapping[str, Any], session_id: str) -> None:
        state = self._client.show(session_id).state
        assert state.execution is not None
        message = made["message"]
        message = message if isinstance(message, Message) else Message.user(message)
        kept = state.messages[0]
        expect(_same((kept.content, kept.metadata), (message.content, message.metadata)), "the message is another")
        expect(_same(state.metadata, freeze(made["metadata"] or {})), "the metadata are others")
        expect(state.execution.budget == (made["budget"] or ExecutionBudget.unlimited()), "the budget is another")
        expect(made["session_id"] in (None, session_id), "the session has another id")


def _unwrapped(value: Any) -> Any:
    return value.make(*value.given) if isinstance(value, Lazy) else value


def _same(one: Any, other: Any) -> bool:
    """Equal, and of the same types all the way down."""
    return one == other and repr(one) == repr(other)
