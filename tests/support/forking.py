"""The process behind `fork_server`: `python -P forking.py DESCRIPTOR [MODULE…]`.

It imports what commands of the product import, and nothing of the tests. For each request that it reads from the
socket DESCRIPTOR it forks. The fork runs the command; this process tells its exit code. It ends with the socket.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import io
import json
import os
import runpy
import select
import signal
import socket
import sys
import threading
import time
from typing import Any

# What a worker or a command imports before it does anything, then what many of them import soon: the archive, servers of
# tools and their HTTP, clients of models. Those libraries take longer to import than most tests need their process for.
_MODULES = (
    "celery_agents.tasks.cli.program", "celery_agents.tasks.cli.start_commands", "celery_agents.tasks.cli.job_commands",
    "celery_agents.tasks.cli.request_commands", "celery_agents.tasks.cli.session_commands",
    "celery_agents.tasks.cli.provider_commands", "celery_agents.tasks.cli.operation_commands",
    "celery_agents.tasks.app", "celery_agents.tasks.consumer.bootstep", "celery.bin.worker", "celery.apps.worker",
    "celery.worker.components", "celery.worker.consumer", "kombu.transport.redis",
    "celery_agents.tasks.local.worker", "celery_agents.tasks.cli.progress", "celery_agents.tasks.cli.event_lines",
    "celery_agents.tasks.http.app", "celery_agents.testing", "celery_agents.worker.archive.sqlite",
    "celery_agents.worker.archive.postgresql", "celery_agents.worker.archive.sql_archive", "celery_agents.worker.mcp.session",
    "celery_agents.worker.mcp.transports", "celery_agents.worker.drivers.pydantic_ai.driver", "pydantic_ai.models.openai",
    "mcp.server.mcpserver", "uvicorn",
)  # fmt: skip


def serve(channel: socket.socket) -> dict[str, Any]:
    """Fork for each request; returns in a fork, with the request."""
    running: dict[int, tuple[int, socket.socket]] = {}
    while True:
        ready, _, _ = select.select([channel, *running], [], [])
        for descriptor in [each for each in ready if each is not channel]:
            pid, told = running.pop(descriptor)
            os.close(descriptor)
            with told:
                tell(told, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        if channel not in ready:
            continue
        head, descriptors, _, _ = socket.recv_fds(channel, 8, 4)
        if not head:
            os._exit(0)
        request = json.loads(read(channel, int.from_bytes(head, "big")))
        told = socket.socket(fileno=descriptors.pop())
        if (pid := os.fork()) == 0:
            for descriptor, (_, other) in running.items():
                os.close(descriptor)
                other.close()
            channel.close()
            become(request, descriptors)
            with told:
                tell(told, os.getpid())
            return request
        for descriptor in descriptors:
            os.close(descriptor)
        running[os.pidfd_open(pid)] = pid, told


def read(channel: socket.socket, length: int) -> bytes:
    """Read so many bytes."""
    found = b""
    while len(found) < length:
        found += channel.recv(length - len(found))
    return found


def tell(told: socket.socket, number: int) -> None:
    """Tell whoever asked for a process its id, and later its exit code."""
    with contextlib.suppress(OSError):  # it may have gone
        told.sendall(b"%d\n" % number)


def become(request: dict[str, Any], descriptors: list[int]) -> None:
    """Make this process what `python -m celery_agents` would be after its start."""
    os.setsid()
    for target, descriptor in enumerate(descriptors):
        os.dup2(descriptor, target)
        os.close(descriptor)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    time.tzset()
    given, unbuffered = io.BufferedReader(io.FileIO(0, closefd=False)), bool(os.environ.get("PYTHONUNBUFFERED"))
    sys.stdin = io.TextIOWrapper(given, sys.stdin.encoding, sys.stdin.errors, write_through=unbuffered)
    sys.stdout = sys.__stdout__ = output(1, sys.stdout)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = output(2, sys.stderr)  # type: ignore[misc]
    if os.environ.get("PYTHONFAULTHANDLER"):
        faulthandler.enable()


def output(descriptor: int, like: Any) -> io.TextIOWrapper:
    """A standard stream as Python opens it; encoding and errors follow from the locale, as those of ours did."""
    unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
    raw = io.FileIO(descriptor, "w", closefd=False)
    is_by_line = not unbuffered and (descriptor == 2 or raw.isatty())
    buffer: Any = raw if unbuffered else io.BufferedWriter(raw)
    return io.TextIOWrapper(buffer, like.encoding, like.errors, line_buffering=is_by_line, write_through=unbuffered)


def run(argv: list[str]) -> None:
    """Run `python [-P] -m MODULE …`, and end as it does."""
    is_safe = argv[1] == "-P"
    module, *words = argv[3 if is_safe else 2 :]
    path = os.environ.get("PYTHONPATH", "")
    sys.path[:0] = ([] if is_safe else [os.getcwd()]) + (path.split(":") if path else [])
    sys.orig_argv[:] = argv
    sys.argv[1:] = words
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def main() -> None:
    """Serve; in a fork, run its command."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for module in (*_MODULES, *sys.argv[2:]):
        importlib.import_module(module)
    assert threading.active_count() == 1, threading.enumerate()
    gc.collect()
    gc.freeze()
    run(serve(channel)["argv"])


if __name__ == "__main__":
    main()
