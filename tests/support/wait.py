"""Waiting for something to become true: the only place in the tests that sleeps."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(
    predicate: Callable[[], T],
    why: str,
    timeout: float = 10.0,
    *,
    interval: float = 0.01,
    ignoring: type[BaseException] | tuple[type[BaseException], ...] = (),
    details: Callable[[], object] | None = None,
) -> T:
    """Call `predicate` until its answer is true, and return that answer.

    Args:
        predicate: Cheap and without side effects.
        why: What is waited for; the beginning of the failure's message.
        timeout: Seconds. The predicate is called at least once, and once more after the time is over.
        interval: Seconds between two calls.
        ignoring: Exceptions of the predicate that mean "not yet".
        details: Called for the failure's message only, for example a worker's log.

    Raises:
        AssertionError: It did not become true in time; the message holds the last answer or exception.
    """
    deadline = time.monotonic() + timeout
    while True:
        late = time.monotonic() >= deadline
        try:
            last: object = predicate()
            if last:
                return last  # type: ignore[return-value]
        except ignoring as error:
            last = error
        if late:
            raise AssertionError(_explain(why, timeout, last, details))
        time.sleep(interval)


def _explain(why: str, timeout: float, last: object, details: Callable[[], object] | None) -> str:
    text = f"waited {timeout:g} s until {why}; last answer: {last!r}"
    return text if details is None else f"{text}\n{details()}"
