"""A loop that runs fibers for tests, and `Database` whose every call is made by one."""

from __future__ import annotations

import concurrent.futures
import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from celery_agents.worker.concurrency.event_loop import EventLoopThread
from celery_agents.worker.concurrency.fibers import Fibers


class FiberThread:
    """Calls run as fibers of one loop; `close` ends it."""

    def __init__(self, threads: int = 16) -> None:
        self.loop = EventLoopThread()
        self.threads = concurrent.futures.ThreadPoolExecutor(threads)
        self.fibers = Fibers(self.threads)

    def start(self, call: Callable[..., Any], *args: Any) -> concurrent.futures.Future[Any]:
        """What it returns or raises in a fiber is the future's."""
        return self._start([lambda: call(*args)])[0]

    def run(self, call: Callable[..., Any], *args: Any) -> Any:
        return self.start(call, *args).result(30)

    def together(self, calls: Sequence[Callable[[], Any]]) -> list[Any]:
        """Run all of them, begun in one turn of the loop; what each returned or raised."""
        return [each.exception(30) or each.result(30) for each in self._start(calls)]

    def _start(self, calls: Sequence[Callable[[], Any]]) -> list[concurrent.futures.Future[Any]]:
        pairs = [_with_future(call) for call in calls]
        self.loop.call_soon(lambda: self.fibers.begin(*(body for body, _ in pairs)))
        return [future for _, future in pairs]

    def close(self) -> None:
        self.loop.close()
        self.threads.shutdown(wait=False)


def _with_future(call: Callable[[], Any]) -> tuple[Callable[[], None], concurrent.futures.Future[Any]]:
    future = concurrent.futures.Future[Any]()

    def body() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    return body, future


class DatabaseInFibers:
    """The calls of a step in a fiber each."""

    def __init__(self, inner: Any, thread: FiberThread) -> None:
        self._inner = inner
        self._run = thread.run

    def pipeline(self, *args: Any) -> Any:
        return self._run(self._inner.pipeline, *args)

    def transaction(self, *args: Any) -> Any:
        return self._run(self._inner.transaction, *args)

    def compare_and_apply(self, *args: Any) -> Any:
        return self._run(self._inner.compare_and_apply, *args)

    def script(self, *args: Any) -> Any:
        return self._run(self._inner.script, *args)

    def place(self, key: str) -> str:
        return self._inner.place(key)

    def script_command(self, *args: Any) -> Any:
        return self._inner.script_command(*args)

    @contextlib.contextmanager
    def watch(self, *args: Any) -> Iterator[Any]:
        watched = self._inner.watch(*args)
        self._run(watched.__enter__)
        try:
            yield _WatchedInFibers(watched, self._run)
        except BaseException as error:
            self._run(watched.__exit__, type(error), error, error.__traceback__)
            raise
        self._run(watched.__exit__, None, None, None)


class _WatchedInFibers:
    def __init__(self, inner: Any, run: Callable[..., Any]) -> None:
        self.replies = inner.replies
        self._inner = inner
        self._run = run

    def pipeline(self, point: str, commands: Any, **options: Any) -> Any:
        return self._run(lambda: self._inner.pipeline(point, commands, **options))

    def commit(self, *args: Any) -> Any:
        return self._run(self._inner.commit, *args)
