"""Callers of one key follow each other; those of others do not wait."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

from celery_agents.worker.concurrency.shared_lock import Turns


def test_callers_of_one_key_follow_each_other_in_the_order_of_asking() -> None:
    turns, inside, seen = Turns(), [0], list[int]()

    def take(number: int) -> None:
        with turns.of("parent", 10):
            inside[0] += 1
            assert inside[0] == 1
            seen.append(number)
            time.sleep(0.005)
            inside[0] -= 1

    with turns.of("parent", 10):
        threads = [threading.Thread(target=take, args=(number,)) for number in range(8)]
        for number, thread in enumerate(threads, 1):
            thread.start()
            while len(turns._waiting["parent"]) <= number:
                time.sleep(0.001)
        with turns.of("another", 0):
            assert seen == []
    for thread in threads:
        thread.join(10)
    assert seen == list(range(8))
    assert turns._waiting == {}


def test_a_caller_that_has_waited_long_enough_goes_on_and_the_turn_is_passed_on_once() -> None:
    turns, go_on = Turns(), threading.Event()

    def stand_still() -> None:
        with turns.of("parent", 10):
            go_on.wait(10)

    with ThreadPoolExecutor(1) as pool:
        stuck = pool.submit(stand_still)
        while "parent" not in turns._waiting:
            time.sleep(0.001)
        with turns.of("parent", 0.01):
            assert not stuck.done()
        go_on.set()
        stuck.result(10)
    with turns.of("parent", 0):
        assert list(turns._waiting) == ["parent"]
    assert turns._waiting == {}
