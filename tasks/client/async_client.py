"""`AsyncAgentClient`: the verbs of `AgentClient` for services on asyncio.

A verb makes a few round trips to Redis in a thread, so the event loop is not blocked. A cancelled caller does not wait
for the thread; what the verb was about to write may be written all the same, as after a lost reply.
"""

# ruff: noqa: ASYNC109 - the verbs have the arguments of `AgentClient`, `timeout` among them

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from typing import Any, Concatenate, Final, Generic, ParamSpec, Self, TypeVar

from anyio import to_thread
from celery import Celery

from ...config.settings import Settings
from ...worker.concurrency.tool_threads import ThreadLimit
from ...worker.state.execution.budget import ExecutionBudget
from ...worker.store.event_records import Event
from ...worker.store.live.streams import StreamPosition
from .client import AgentClient
from .fleet_values import ConcurrencyLimits, ProviderLimits, SpendCaps
from .inputs import check_position, check_seconds
from .job import Job, Result
from .schedules import Schedules
from .shares import Shares
from .stream_items import StreamItem

# Covariant: for mypy an inherited verb is one of the base class that defines it, and the client has to fit that, too.
C_co = TypeVar("C_co", covariant=True)
T = TypeVar("T")
P = ParamSpec("P")

_MOST_THREADS: Final = 256


class _Threads:
    """Runs verbs in threads: more than anyio's 40, since each watcher occupies one."""

    def __init__(self, most: int = _MOST_THREADS) -> None:
        self._limit = ThreadLimit(most)

    async def run(self, call: Callable[[], T]) -> T:
        """Run a call and wait for it."""
        return await to_thread.run_sync(call, limiter=self._limit.of_this_loop(), abandon_on_cancel=True)

    async def follow(self, batches: Generator[list[T]]) -> AsyncGenerator[T]:
        """Get the items of batches, each of which is read in a thread."""
        while (batch := await self.run(lambda: next(batches, None))) is not None:
            for item in batch:
                yield item


class AsyncJob:
    """An execution that was submitted, or a message that will be part of one; see `Job`."""

    def __init__(self, job: Job, threads: _Threads) -> None:
        self._job = job
        self._threads = threads
        self.session_id = job.session_id
        self.operation_id = job.operation_id
        self.notice = job.notice
        self.placed = job.placed

    async def execution_id(self) -> str:
        """The execution; "" as long as the message waits behind a running step."""
        return await self._threads.run(lambda: self._job.execution_id)

    def events(self, from_id: str | None = None, *, timeout: float | None = None) -> AsyncGenerator[Event]:
        """Follow the events of the execution until it ends; see `Job.events`."""
        check_seconds(timeout)
        check_position(from_id)
        return self._threads.follow(self._job.batches(from_id, timeout))

    def stream(self, after: str | None = None, *, timeout: float | None = None) -> AsyncGenerator[StreamItem]:
        """Follow the events and the text of the execution until it ends; see `Job.stream`."""
        check_seconds(timeout)
        StreamPosition.read(after)
        return self._threads.follow(self._job.stream_batches(after, timeout))

    async def result(self, timeout: float | None = None) -> Result:
        """Wait for the end; see `Job.result`."""
        check_seconds(timeout)
        async for _ in self.events(timeout=timeout):
            pass
        return await self._threads.run(lambda: self._job.result(timeout))

    async def change_budget(
        self, budget: ExecutionBudget, *, by: str | None = None, beyond_agent: bool = False
    ) -> bool:
        """Change the limits of the execution; see `Job.change_budget`."""
        return await self._threads.run(lambda: self._job.change_budget(budget, by=by, beyond_agent=beyond_agent))

    def __repr__(self) -> str:
        return f"Async{self._job!r}"


class _InThreads(Generic[C_co]):
    """Has the verbs of a client, or of a part of it, which run in threads."""

    def __init__(self, client: C_co, threads: _Threads) -> None:
        self._client, self._threads = client, threads


def _run_in_thread(
    verb: Callable[Concatenate[C_co, P], T],
) -> Callable[Concatenate[_InThreads[C_co], P], Coroutine[Any, Any, T]]:
    """Make a method that runs a verb of a client in a thread, with its arguments and its docstring."""

    @functools.wraps(verb)
    async def run(self: _InThreads[C_co], /, *args: P.args, **kwargs: P.kwargs) -> T:
        client, threads = self._client, self._threads  # pyright: ignore[reportPrivateUsage]
        return await threads.run(lambda: verb(client, *args, **kwargs))

    return run


def _start_job(
    verb: Callable[Concatenate[AgentClient, P], Job],
) -> Callable[Concatenate[AsyncAgentClient, P], Coroutine[Any, Any, AsyncJob]]:
    """Make a method that runs a verb in a thread and gives its job as an `AsyncJob`."""

    @functools.wraps(verb)
    async def run(self: AsyncAgentClient, /, *args: P.args, **kwargs: P.kwargs) -> AsyncJob:
        client, threads = self._client, self._threads  # pyright: ignore[reportPrivateUsage]
        return AsyncJob(await threads.run(lambda: verb(client, *args, **kwargs)), threads)

    return run


def _get_each(
    verb: Callable[Concatenate[AgentClient, P], Generator[T]],
) -> Callable[Concatenate[AsyncAgentClient, P], AsyncGenerator[T]]:
    """Make a method that gets each item of a verb in a thread, when its caller asks for it."""

    @functools.wraps(verb)
    async def run(self: AsyncAgentClient, /, *args: P.args, **kwargs: P.kwargs) -> AsyncGenerator[T]:
        client, threads = self._client, self._threads  # pyright: ignore[reportPrivateUsage]
        items = await threads.run(lambda: verb(client, *args, **kwargs))
        while (item := await threads.run(lambda: next(items, None))) is not None:
            yield item

    return run


def _get_each_job(
    verb: Callable[Concatenate[AgentClient, P], Generator[Job]],
) -> Callable[Concatenate[AsyncAgentClient, P], AsyncGenerator[AsyncJob]]:
    """Make a method that gets each job of a verb in a thread, as an `AsyncJob`."""
    get_each = _get_each(verb)

    @functools.wraps(verb)
    async def run(self: AsyncAgentClient, /, *args: P.args, **kwargs: P.kwargs) -> AsyncGenerator[AsyncJob]:
        async for job in get_each(self, *args, **kwargs):
            yield AsyncJob(job, self._threads)  # pyright: ignore[reportPrivateUsage]

    return run


class AsyncProviderLimits(_InThreads[ProviderLimits]):
    """Limits of model providers; see `ProviderLimits` for what each verb does and raises."""

    set = _run_in_thread(ProviderLimits.set)
    get = _run_in_thread(ProviderLimits.get)
    remove = _run_in_thread(ProviderLimits.remove)
    list = _run_in_thread(ProviderLimits.list)


class AsyncSpendCaps(_InThreads[SpendCaps]):
    """Spend caps; see `SpendCaps` for what each verb does and raises."""

    set = _run_in_thread(SpendCaps.set)
    get = _run_in_thread(SpendCaps.get)
    remove = _run_in_thread(SpendCaps.remove)
    list = _run_in_thread(SpendCaps.list)


class AsyncConcurrencyLimits(_InThreads[ConcurrencyLimits]):
    """Concurrency limits; see `ConcurrencyLimits` for what each verb does and raises."""

    set = _run_in_thread(ConcurrencyLimits.set)
    get = _run_in_thread(ConcurrencyLimits.get)
    remove = _run_in_thread(ConcurrencyLimits.remove)
    list = _run_in_thread(ConcurrencyLimits.list)


class AsyncShares(_InThreads[Shares]):
    """Fair shares; see `Shares` for what each verb does and raises."""

    set = _run_in_thread(Shares.set)
    get = _run_in_thread(Shares.get)
    remove = _run_in_thread(Shares.remove)


class AsyncSchedules(_InThreads[Schedules]):
    """Schedules; see `Schedules` for what each verb does and raises."""

    set = _run_in_thread(Schedules.set)
    get = _run_in_thread(Schedules.get)
    remove = _run_in_thread(Schedules.remove)
    list = _run_in_thread(Schedules.list)

    async def run_now(self, name: str, *, idempotency_key: str | None = None) -> AsyncJob:
        """Submit the message of a schedule now; see `Schedules.run_now`."""
        schedules, threads = self._client, self._threads
        return AsyncJob(await threads.run(lambda: schedules.run_now(name, idempotency_key=idempotency_key)), threads)


class AsyncAgentClient(_InThreads[AgentClient]):
    """Talks to Redis without blocking the event loop; see `AgentClient` for what each verb does and raises.

    A client that is no longer needed is closed by `await client.close()`, or by leaving its `async with` block.
    """

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
        super().__init__(AgentClient(redis_url, broker_url=broker_url, settings=settings, app=app), _Threads())

    @classmethod
    def of(cls, client: AgentClient) -> Self:
        """Wrap an existing client; both may be used."""
        made = cls.__new__(cls)
        made._client, made._threads = client, _Threads()
        return made

    def with_threads(self, most: int) -> Self:
        """Make a client on the same connections whose verbs run in so many threads of their own at most."""
        made = type(self).of(self._client)
        made._threads = _Threads(most)
        return made

    async def run(self, call: Callable[[AgentClient], T]) -> T:
        """Call something on the client in a thread, such as several reads in one."""
        return await self._threads.run(lambda: call(self._client))

    async def close(self) -> None:
        """Close the connections; see `AgentClient.close`."""
        await self._threads.run(self._client.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def settings(self) -> Settings:
        """Settings of the client."""
        return self._client.settings

    @property
    def limits(self) -> AsyncProviderLimits:
        """The limits of model providers."""
        return AsyncProviderLimits(self._client.limits, self._threads)

    @property
    def concurrency(self) -> AsyncConcurrencyLimits:
        """The concurrency limits."""
        return AsyncConcurrencyLimits(self._client.concurrency, self._threads)

    @property
    def shares(self) -> AsyncShares:
        """The fair shares."""
        return AsyncShares(self._client.shares, self._threads)

    @property
    def caps(self) -> AsyncSpendCaps:
        """The spend caps."""
        return AsyncSpendCaps(self._client.caps, self._threads)

    @property
    def schedules(self) -> AsyncSchedules:
        """The schedules."""
        return AsyncSchedules(self._client.schedules, self._threads)

    submit = _start_job(AgentClient.submit)
    send_message = _start_job(AgentClient.send_message)
    retry = _start_job(AgentClient.retry)
    queued = _run_in_thread(AgentClient.queued)
    withdraw_message = _run_in_thread(AgentClient.withdraw_message)
    set_message_mode = _run_in_thread(AgentClient.set_message_mode)
    release_queue = _run_in_thread(AgentClient.release_queue)
    stop = _run_in_thread(AgentClient.stop)
    write_metadata = _run_in_thread(AgentClient.write_metadata)
    label = _run_in_thread(AgentClient.label)
    change_system_prompt = _run_in_thread(AgentClient.change_system_prompt)
    change_model = _run_in_thread(AgentClient.change_model)
    requests = _run_in_thread(AgentClient.requests)
    request = _run_in_thread(AgentClient.request)
    answer = _run_in_thread(AgentClient.answer)
    resolve_tool_approval = _run_in_thread(AgentClient.resolve_tool_approval)
    resolve_user_question = _run_in_thread(AgentClient.resolve_user_question)
    grants = _run_in_thread(AgentClient.grants)
    revoke_grant = _run_in_thread(AgentClient.revoke_grant)
    token = _run_in_thread(AgentClient.token)
    session_token = _run_in_thread(AgentClient.session_token)
    read_token = _run_in_thread(AgentClient.read_token)
    read_session_token = _run_in_thread(AgentClient.read_session_token)
    request_of_token = _run_in_thread(AgentClient.request_of_token)
    answer_by_token = _run_in_thread(AgentClient.answer_by_token)
    complete = _run_in_thread(AgentClient.complete)
    fail = _run_in_thread(AgentClient.fail)
    change_budget = _run_in_thread(AgentClient.change_budget)
    suspend = _run_in_thread(AgentClient.suspend)
    resume = _run_in_thread(AgentClient.resume)
    fork = _run_in_thread(AgentClient.fork)
    clear = _run_in_thread(AgentClient.clear)
    rewind = _run_in_thread(AgentClient.rewind)
    snapshot = _run_in_thread(AgentClient.snapshot)
    state = _run_in_thread(AgentClient.state)
    model_request = _run_in_thread(AgentClient.model_request)
    trace = _run_in_thread(AgentClient.trace)
    resume_snapshot = _start_job(AgentClient.resume_snapshot)
    delete = _run_in_thread(AgentClient.delete)
    erase = _run_in_thread(AgentClient.erase)
    tree = _run_in_thread(AgentClient.tree)
    timeline = _run_in_thread(AgentClient.timeline)
    waiting = _run_in_thread(AgentClient.waiting)
    costs = _run_in_thread(AgentClient.costs)
    act_on_many = _run_in_thread(AgentClient.act_on_many)
    pause = _run_in_thread(AgentClient.pause)
    unpause = _run_in_thread(AgentClient.unpause)
    pauses = _run_in_thread(AgentClient.pauses)
    wake_provider_job = _run_in_thread(AgentClient.wake_provider_job)

    retry_failed = _get_each_job(AgentClient.retry_failed)
    tree_events = _get_each(AgentClient.tree_events)
    suspend_all = _get_each(AgentClient.suspend_all)
    resume_all = _get_each(AgentClient.resume_all)
    delete_all = _get_each(AgentClient.delete_all)
    job = _start_job(AgentClient.job)
    show = _run_in_thread(AgentClient.show)
    header = _run_in_thread(AgentClient.header)
    agents = _run_in_thread(AgentClient.agents)
    workers = _run_in_thread(AgentClient.workers)
    wait_for_agent = _run_in_thread(AgentClient.wait_for_agent)
    upgrade_data = _run_in_thread(AgentClient.upgrade_data)
    archive_now = _run_in_thread(AgentClient.archive_now)
    archive_status = _run_in_thread(AgentClient.archive_status)
    export_archive = _get_each(AgentClient.export_archive)

    def stream(
        self, session_id: str, after: str | None = None, *, timeout: float | None = None
    ) -> AsyncGenerator[StreamItem]:
        """Follow a session: its events and the text that its steps write; see `AgentClient.stream`."""
        check_seconds(timeout)
        StreamPosition.read(after)
        return self._threads.follow(self._client.stream_batches(session_id, after, timeout))

    list = _run_in_thread(AgentClient.list)  # last: in the class body, the name hides the type from here on
