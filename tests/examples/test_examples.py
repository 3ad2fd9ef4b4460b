"""The examples, with real workers."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import Request, urlopen

from celery_agents import AgentClient

from support.documents import ROOT
from support.processes import Process, free_port
from support.wait import wait_until

EXAMPLES = ROOT / "examples"


def test_the_support_agent_refunds_once_although_its_worker_is_killed(
    redis_url: str, new_worker: Any, ledger: Any, tmp_path: Path
) -> None:
    environment = {"PYTHONPATH": None, "PAYMENTS_URL": f"{ledger.url}/effect?dedupe=1"}
    for name in ("worker-1", "worker-2"):
        shutil.copytree(EXAMPLES / "support_agent", tmp_path / name)
    dying = new_worker(agents="support_agents", env={**environment, "CELERY_AGENTS_CRASH": "c5:1:1"})
    job = AgentClient(redis_url).submit("support", "Order 17 arrived broken")
    wait_until(lambda: not dying.alive, "the worker dies after an effect that it has not recorded")
    second = new_worker(agents="support_agents", env=environment)
    assert second.alive
    assert job.result(timeout=30).final_response == "I am sorry about that. I refunded 24.00 for order 17."
    assert len({entry["key"] for entry in ledger.entries() if entry.get("order") == "17"}) == 1


def test_an_existing_project_keeps_its_tasks_and_runs_agents(redis_url: str, tmp_path: Any) -> None:
    folder = tmp_path / "shop"
    shutil.copytree(EXAMPLES / "existing_project", folder)
    environment = {"PYTHONPATH": None, "BROKER_URL": redis_url, "CELERY_AGENTS_AGENTS": "shop_agents"}
    (told,) = re.findall(r"^    (celery -A shop worker .*)$", (folder / "shop.py").read_text(), re.MULTILINE)
    # The installed command, which does not have the working folder on its path, as `python -m celery` does.
    command = [str(Path(sys.executable).with_name("celery")), *shlex.split(told)[1:], "-l", "INFO"]
    worker = Process("shop", command, folder, environment)
    try:
        worker.start()
        client = AgentClient(redis_url)
        client.wait_for_agent("greeter", timeout=30)
        job = client.submit("greeter", "good morning", on_complete="shop.told")
        assert job.result(timeout=20).final_response == "Hello, you said: good morning"
        worker.wait_for_text("the agent says: Hello, you said: good morning", 20)
        (facts,) = client.store.registry.workers().values()
        assert facts["slots"] == 100
        send = "from shop import order_paid; order_paid.delay(5)"
        subprocess.run([sys.executable, "-c", send], cwd=folder, env=_without_path(environment), check=True, timeout=30)
        worker.wait_for_text("order 5 is paid", 20)
    finally:
        worker.end(patience=5.0)


def test_the_fastapi_service_submits_and_streams(redis_url: str, new_worker: Any, tmp_path: Any) -> None:
    shutil.copytree(EXAMPLES / "support_agent", tmp_path / "worker-1")
    new_worker(agents="support_agents", env={"PYTHONPATH": None})
    folder = tmp_path / "service"
    shutil.copytree(EXAMPLES / "fastapi_service", folder)
    port = free_port()
    environment = {"PYTHONPATH": None, "CELERY_AGENTS_REDIS_URL": redis_url}
    service = Process(
        "service", [sys.executable, "-m", "uvicorn", "service:api", f"--port={port}"], folder, environment
    )
    try:
        service.start()
        service.wait_for_text("Uvicorn running", 30)
        url = f"http://127.0.0.1:{port}"
        asked = {"text": "Order 18 arrived broken", "key": "mail-1"}
        first, second = (_json(f"{url}/questions?{urlencode(asked)}", method="POST") for _ in range(2))
        assert first == second
        session = f"{url}/sessions/{first['session_id']}"
        with urlopen(f"{session}/events", timeout=20) as stream:
            lines = stream.read().decode().splitlines()
        types = [json.loads(line.removeprefix("data: "))["type"] for line in lines if line.startswith("data: ")]
        assert types[-1] == "execution_completed"
        assert types.count("step_committed") == 3
        told = _json(session)
        assert told["answer"] == "I am sorry about that. I refunded 39.00 for order 18."
        ids = [line.removeprefix("id: ") for line in lines if line.startswith("id: ")]
        with urlopen(Request(f"{session}/events", headers={"Last-Event-ID": ids[-2]}), timeout=20) as stream:
            assert stream.read().decode().count("data: ") == 1
    finally:
        service.end(patience=5.0)


def _without_path(environment: dict[str, str | None]) -> dict[str, str]:
    merged = {**os.environ, **environment}
    return {name: value for name, value in merged.items() if value is not None}


def _json(url: str, method: str = "GET") -> Any:
    with urlopen(Request(url, method=method), timeout=20) as answer:
        return json.loads(answer.read())
