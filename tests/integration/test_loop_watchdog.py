"""A worker whose event loop stands still for too long ends, whatever it stands still over."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.timeout(60)

PROGRAM = """
import logging, sys, time
from celery_agents.tasks.consumer.loop_watchdog import LoopWatchdog
from celery_agents.worker.concurrency.event_loop import EventLoopThread

logging.basicConfig(stream=sys.stdout)

async def sleep():
    time.sleep(60)

async def write():
    while True:
        logging.warning("x" * 10_000)

loop = EventLoopThread()
loop.submit({way}, 60)
LoopWatchdog(loop, 4.0)
time.sleep(60)
"""


@pytest.mark.parametrize("way", ["sleep", "write"])
def test_a_process_whose_loop_stands_still_ends(way: str) -> None:
    """With `write` its log is full, and nobody reads it."""
    process = subprocess.Popen([sys.executable, "-c", PROGRAM.format(way=way)], stdout=subprocess.PIPE)
    try:
        assert process.wait(40) == 1
        assert process.stdout is not None
        assert ("has stood still for 4 s; this worker ends" in process.stdout.read().decode()) == (way == "sleep")
    finally:
        process.kill()
