"""`Delivery`: brings traces to sinks in threads of their own, so that no sink delays or fails a step."""

from __future__ import annotations

import atexit
import functools
import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

from ...recent import Recent
from ...redaction import describe_exception
from .sinks import TraceSink
from .trace import Trace

log = logging.getLogger(__name__)

NoteFailedSinks: TypeAlias = Callable[[Mapping[str, str]], object]
"""Stores why sinks have failed, by their names."""

MOST_WAITING: Final = 1_000
"""Jobs that wait for one sink; further ones are dropped, and the trace is partial."""

MOST_WAITING_BYTES: Final = 64_000_000
"""About the memory that the jobs for one sink keep; a larger one may wait alone."""

_MOST_REMEMBERED: Final = 10_000
_LAST_SECONDS: Final = 5.0
"""For what is left when the process ends."""


class Failures:
    """The sinks that did not get everything, by execution, as far as this process knows."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._failed = Recent[str, dict[str, str]](_MOST_REMEMBERED)

    def note(self, execution_id: str, sink: str, why: str) -> None:
        """Keep the first reason of a sink."""
        with self._lock:
            found = self._failed.get(execution_id)
            known = self._failed.put(execution_id, {}) if found is None else found
            known.setdefault(sink, why)

    def of(self, execution_id: str) -> dict[str, str]:
        """Why sinks have failed, by their names."""
        with self._lock:
            return dict(self._failed.get(execution_id) or {})


class Delivery:
    """The sinks of one agent, each with its own thread and its own queue.

    Attributes:
        failures: What could not be delivered.
    """

    def __init__(self, sinks: Sequence[TraceSink]) -> None:
        self.failures = Failures()
        self._queues = [_SinkQueue(sink, self.failures) for sink in sinks]

    def stream(self, execution_id: str, step: int, make: Callable[[int], Trace], size: int) -> None:
        """Send the events of a step; the first one that this process sends brings the beginning, and earlier steps.

        Args:
            make: Makes the trace from a step on, in the thread of the sink.
            size: About the bytes of memory that `make` keeps.
        """
        for sink_queue in self._queues:
            sink_queue.put(execution_id, functools.partial(sink_queue.append, execution_id, step, make), size)

    def finish(
        self, execution_id: str, make: Callable[[], Trace], size: int, note: NoteFailedSinks | None = None
    ) -> None:
        """Send a whole trace; when a sink fails at it, the others get the trace once more, as a partial one.

        Args:
            size: About the bytes of memory that `make` keeps.
            note: Stores which sinks have failed where the trace does not say it. None: nothing stores it.
        """
        ending = _Ending(sinks=len(self._queues), failures=self.failures, make=make, size=size, note=note)
        for sink_queue in self._queues:
            if not sink_queue.put(execution_id, functools.partial(ending.write, sink_queue), size):
                ending.leave_out()

    def flush(self, seconds: float) -> bool:
        """Wait until everything is sent, for `seconds` at most; False when something is left."""
        ends = time.monotonic() + seconds
        waited = [
            sink_queue.flush(ends) for _ in range(2) for sink_queue in self._queues
        ]  # the last job of one may correct others
        return all(waited)


class _SinkQueue:
    """The jobs for one sink, in order, and the thread that runs them."""

    def __init__(self, sink: TraceSink, failures: Failures) -> None:
        self.sink = sink
        self._failures = failures
        self._jobs: queue.Queue[tuple[str, Callable[[], object], int]] = queue.Queue(MOST_WAITING)
        self._bytes = 0
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._has_begun = Recent[str, bool](_MOST_REMEMBERED)

    def put(self, execution_id: str, job: Callable[[], object], size: int) -> bool:
        """Add a job that keeps so many bytes; False where too much waits already.

        The thread begins with the first job, in the process that has it.
        """
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                if self._thread is None:
                    atexit.register(lambda: self.flush(time.monotonic() + _LAST_SECONDS))
                self._thread = threading.Thread(target=self._run, name=f"trace sink {self.sink.name}", daemon=True)
                self._thread.start()
            if self._bytes and self._bytes + size > MOST_WAITING_BYTES:
                self._failures.note(execution_id, self.sink.name, f"jobs of {self._bytes} bytes waited already")
                return False
            try:
                self._jobs.put_nowait((execution_id, job, size))
                self._bytes += size
            except queue.Full:
                self._failures.note(execution_id, self.sink.name, f"{MOST_WAITING} jobs waited already")
                return False
        return True

    def flush(self, ends: float) -> bool:
        """Wait for the end of all jobs; False when some are left at that time of `time.monotonic`."""
        with self._jobs.all_tasks_done:
            while self._jobs.unfinished_tasks:
                left = ends - time.monotonic()
                if left <= 0:
                    return False
                self._jobs.all_tasks_done.wait(left)
        return True

    def append(self, execution_id: str, step: int, make: Callable[[int], Trace]) -> None:
        """Send the events of a step. Where the trace could not be begun, they come with the whole trace alone."""
        has_begun = self._has_begun.get(execution_id)
        trace = make(1 if has_begun is None else step).redacted()
        goes_on = trace.without_events()
        if has_begun is None:
            has_begun = self._try(execution_id, lambda: self.sink.begin(goes_on))
            self._has_begun.put(execution_id, has_begun)
        if has_begun:
            self._try(execution_id, lambda: self.sink.append(goes_on, trace.events))

    def _try(self, execution_id: str, send: Callable[[], object]) -> bool:
        try:
            send()
        except Exception as error:  # noqa: BLE001 - whatever a sink of the user's raises
            why = describe_exception(error).message
            log.warning("trace sink %s failed at execution %s: %s", self.sink.name, execution_id, why)
            self._failures.note(execution_id, self.sink.name, why)
            return False
        return True

    def write(self, trace: Trace) -> bool:
        """Send a whole trace; False when the sink has failed."""
        return self._try(trace.execution_id, lambda: self.sink.write(trace))

    def _run(self) -> None:
        while True:
            execution_id, job, size = self._jobs.get()
            try:
                job()
            except Exception as error:  # noqa: BLE001 - a trace that cannot be made must not end the thread
                why = describe_exception(error).message
                log.warning("a trace for sink %s is dropped: %s", self.sink.name, why)
                self._failures.note(execution_id, self.sink.name, why)
            finally:
                del job  # what it keeps goes now, not with the next one
                with self._lock:
                    self._bytes -= size
                self._jobs.task_done()


class _Ending:
    """The end of one trace: the trace that each sink was sent, until all have the same."""

    def __init__(
        self, sinks: int, failures: Failures, make: Callable[[], Trace], size: int, note: NoteFailedSinks | None
    ) -> None:
        self._left = sinks
        self._failures = failures
        self._make = make
        self._size = size
        self._note = note
        self._lock = threading.Lock()
        self._sent: list[tuple[_SinkQueue, Trace]] = []

    def write(self, sink_queue: _SinkQueue) -> None:
        """Send the whole trace to one sink; the last one corrects the traces that the others were sent."""
        made = self._make()
        trace = made.redacted().with_failures(self._failures.of(made.execution_id))
        was_written = sink_queue.write(trace)
        self._end_one((sink_queue, trace) if was_written else None, made)

    def leave_out(self) -> None:
        """Count a sink for which too much waits; the last sink tells the others."""
        self._end_one(None, None)

    def _end_one(self, sent: tuple[_SinkQueue, Trace] | None, made: Trace | None) -> None:
        with self._lock:
            self._left -= 1
            if sent is not None:
                self._sent.append(sent)
            is_last, done = not self._left, list(self._sent)
        if not is_last:
            return
        made = made or self._make()
        now = made.redacted().with_failures(self._failures.of(made.execution_id))
        if self._note is not None and now.failed_sinks != made.failed_sinks:
            self._note({name: str(why) for name, why in now.failed_sinks.items()})
        for other, trace in done:
            if trace.failed_sinks != now.failed_sinks:
                other.put(made.execution_id, functools.partial(other.write, now), self._size)
