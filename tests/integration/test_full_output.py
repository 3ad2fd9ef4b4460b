"""Services whose output has no room, or no reader any more."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from celery_agents import AgentClient
from celery_agents.config.settings import Settings

from support.processes import free_port
from support.wait import wait_until


@pytest.fixture(params=["full", "without a reader"])
def output(request: pytest.FixtureRequest) -> Iterator[int]:
    if request.param == "full":
        descriptor = os.open("/dev/full", os.O_WRONLY)
    else:
        reader, descriptor = os.pipe()
        os.close(reader)
    yield descriptor
    os.close(descriptor)


@pytest.mark.parametrize("command", ["worker", "serve"])
def test_a_service_whose_output_cannot_be_written_begins_and_ends_as_ever(
    command: str, output: int, redis_url: str, tmp_path: Path
) -> None:
    port = free_port()
    words = [command, *(["--address", f"127.0.0.1:{port}"] if command == "serve" else [])]
    env = {"CELERY_AGENTS_REDIS_URL": redis_url, "CELERY_AGENTS_AGENTS": "celery_agents.demo.agents"}
    client = AgentClient(settings=Settings.build(redis_url=redis_url))
    log = tmp_path / "errors"
    with log.open("wb") as errors:
        service = subprocess.Popen(
            [sys.executable, "-P", "-m", "celery_agents", *words], env={**os.environ, **env}, stdin=subprocess.DEVNULL,
            stdout=output, stderr=errors,
        )  # fmt: skip

    def is_there() -> bool:
        if command == "worker":
            return bool(client.store.registry.workers())
        with suppress(httpx.HTTPError):
            return httpx.get(f"http://127.0.0.1:{port}/v1/agents", trust_env=False).status_code == 200
        return False

    try:
        wait_until(
            lambda: is_there() or service.poll() is not None, f"the {command} has begun", 60, details=log.read_text
        )
        service.terminate()
        ends_with = {"worker": 0, "serve": -signal.SIGTERM}[command]  # uvicorn ends by the signal
        assert service.wait(30) == ends_with, log.read_text()
        assert "Error" not in log.read_text()
    finally:
        service.kill()
        client.close()
