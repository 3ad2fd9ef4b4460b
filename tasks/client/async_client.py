"""`AsyncAgentClient`: the verbs of `AgentClient` for services on asyncio.

A verb is a few round trips to Redis; it runs in a thread, so that the event loop goes on meanwhile. A caller that is
cancelled does not wait for it; what it was about to write may be written, as after a lost reply.
"""

# ruff: noqa: ASYNC109 - the verbs have the arguments of `AgentClient`, `timeout` among them

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from datetime import datetime
from typing import Any, Final, Self, TypeVar

from anyio import CapacityLimiter, to_thread
from celery import Celery

from ...config.settings import Settings
from ...worker.state import ExecutionBudget, LLMConfig, Message
from ...worker.store import Event, Header
from ...worker.store.sessions.loading import StoredSession
from .client import AgentClient, Page
from .inputs import check_position, check_seconds
from .job import Job, Result

T = TypeVar("T")

_MOST_THREADS: Final = 256
_STOP_SECONDS: Final = 30.0


class _Threads:
    """Where the verbs run: more than anyio's 40 threads, since each watcher waits in one."""

    def __init__(self) -> None:
        self._limiters: dict[int, CapacityLimiter] = {}

    async def run(self, call: Callable[[], T]) -> T:
        """Run a call and wait for it."""
        return await to_thread.run_sync(call, limiter=self._limiter(), abandon_on_cancel=True)

    def _limiter(self) -> CapacityLimiter:
        """A limiter belongs to the event loop it is used in."""
        loop = id(asyncio.get_running_loop())
        if loop not in self._limiters:
            self._limiters[loop] = CapacityLimiter(_MOST_THREADS)
        return self._limiters[loop]


class AsyncJob:
    """An execution that was submitted, or a message that will be part of one; see `Job`."""

    def __init__(self, job: Job, threads: _Threads) -> None:
        self._job = job
        self._threads = threads
        self.session_id = job.session_id
        self.operation_id = job.operation_id

    async def execution_id(self) -> str:
        """The execution; "" as long as the message waits behind a running step."""
        return await self._threads.run(lambda: self._job.execution_id)

    def events(self, from_id: str | None = None, *, timeout: float | None = None) -> AsyncGenerator[Event]:
        """What happens, as it happens, until the execution ends; see `Job.events`."""
        check_seconds(timeout)
        check_position(from_id)
        return self._follow(from_id, timeout)

    async def _follow(self, from_id: str | None, timeout: float | None) -> AsyncGenerator[Event]:
        batches = self._job.batches(from_id, timeout)
        while (batch := await self._threads.run(lambda: next(batches, None))) is not None:
            for event in batch:
                yield event

    async def result(self, timeout: float | None = None) -> Result:
        """Wait for the end; see `Job.result`."""
        check_seconds(timeout)
        async for _ in self.events(timeout=timeout):
            pass
        return await self._threads.run(lambda: self._job.result(timeout))

    def __repr__(self) -> str:
        return f"Async{self._job!r}"


class AsyncAgentClient:
    """Talks to Redis without blocking the event loop; see `AgentClient` for what each verb does and raises."""

    def __init__(
        self,
        redis_url: str | None = None,
        *,
        broker_url: str | None = None,
        settings: Settings | None = None,
        app: Celery | None = None,
    ) -> None:
        """
        Args:
            redis_url: The store. None: `CELERY_AGENTS_REDIS_URL`.
            broker_url: None: `CELERY_AGENTS_BROKER_URL`, else the store.
            settings: Instead of both, and of the environment.
            app: An existing app that has agents installed.
        Raises:
            SettingsError: A setting is unknown or wrong.
        """
        self._client = AgentClient(redis_url, broker_url=broker_url, settings=settings, app=app)
        self._threads = _Threads()

    @classmethod
    def of(cls, client: AgentClient) -> Self:
        """The verbs of a client that is there already; both may be used."""
        made = cls.__new__(cls)
        made._client, made._threads = client, _Threads()
        return made

    @property
    def settings(self) -> Settings:
        """What the client was made with."""
        return self._client.settings

    # --- acting -----------------------------------------------------------------------------------------------

    async def submit(
        self,
        agent: str,
        message: str | Message,
        *,
        session_id: str | None = None,
        idempotency_key: str | None = None,
        budget: ExecutionBudget | None = None,
        metadata: Mapping[str, Any] | None = None,
        on_complete: object = None,
        webhook: str | None = None,
    ) -> AsyncJob:
        """Hand a job to an agent; see `AgentClient.submit`."""
        return await self._job(
            lambda: self._client.submit(
                agent, message, session_id=session_id, idempotency_key=idempotency_key, budget=budget,
                metadata=metadata, on_complete=on_complete, webhook=webhook,
            )
        )  # fmt: skip

    async def send_message(
        self,
        session_id: str,
        message: str | Message,
        *,
        idempotency_key: str | None = None,
        budget: ExecutionBudget | None = None,
        on_complete: object = None,
        webhook: str | None = None,
    ) -> AsyncJob:
        """Send a further message; see `AgentClient.send_message`."""
        return await self._job(
            lambda: self._client.send_message(
                session_id, message, idempotency_key=idempotency_key, budget=budget, on_complete=on_complete,
                webhook=webhook,
            )
        )  # fmt: skip

    async def stop(
        self, session_id: str, *, execution_id: str | None = None, timeout: float | None = _STOP_SECONDS
    ) -> Result | None:
        """End the running execution and wait until it has ended; see `AgentClient.stop`."""
        return await self._threads.run(
            lambda: self._client.stop(session_id, execution_id=execution_id, timeout=timeout)
        )

    async def retry(self, session_id: str, *, budget: ExecutionBudget | None = None) -> AsyncJob:
        """Continue a failed or stopped execution; see `AgentClient.retry`."""
        return await self._job(lambda: self._client.retry(session_id, budget=budget))

    async def retry_failed(
        self, *, since: datetime | None = None, agent: str | None = None, dry_run: bool = False
    ) -> AsyncGenerator[AsyncJob]:
        """Retry all executions that failed, each when it is yielded; see `AgentClient.retry_failed`."""
        jobs = self._client.retry_failed(since=since, agent=agent, dry_run=dry_run)
        while (job := await self._threads.run(lambda: next(jobs, None))) is not None:
            yield AsyncJob(job, self._threads)

    async def write_metadata(self, session_id: str, key: str, value: Any) -> None:
        """Keep a JSON value with the session."""
        await self._threads.run(lambda: self._client.write_metadata(session_id, key, value))

    async def change_system_prompt(self, session_id: str, prompt: str) -> None:
        """Give the session a system prompt of its own; "" returns to the agent's."""
        await self._threads.run(lambda: self._client.change_system_prompt(session_id, prompt))

    async def change_model(self, session_id: str, model: LLMConfig) -> None:
        """Give the session a model of its own, from its next step on."""
        await self._threads.run(lambda: self._client.change_model(session_id, model))

    # --- reading ----------------------------------------------------------------------------------------------

    async def job(self, session_id: str) -> AsyncJob:
        """The session's latest execution; see `AgentClient.job`."""
        return await self._job(lambda: self._client.job(session_id))

    async def show(self, session_id: str) -> StoredSession:
        """The session with its whole state; see `AgentClient.show`."""
        return await self._threads.run(lambda: self._client.show(session_id))

    async def header(self, session_id: str) -> Header:
        """What a listing shows of a session; see `AgentClient.header`."""
        return await self._threads.run(lambda: self._client.header(session_id))

    async def list(
        self,
        *,
        status: str | None = None,
        agent: str | None = None,
        since: datetime | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page:
        """Sessions by last update, newest first; see `AgentClient.list`."""
        return await self._threads.run(
            lambda: self._client.list(status=status, agent=agent, since=since, limit=limit, cursor=cursor)
        )

    async def agents(self) -> dict[str, dict[str, Any]]:
        """Agents that workers have registered; see `AgentClient.agents`."""
        return await self._threads.run(self._client.agents)

    async def wait_for_agent(self, name: str, timeout: float = 30.0) -> None:
        """Wait until a live worker offers an agent; see `AgentClient.wait_for_agent`."""
        await self._threads.run(lambda: self._client.wait_for_agent(name, timeout))

    async def _job(self, call: Callable[[], Job]) -> AsyncJob:
        return AsyncJob(await self._threads.run(call), self._threads)
