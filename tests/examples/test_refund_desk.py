"""The example of a service with people in the loop: its worker dies between question and answer."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import pytest

from celery_agents import AgentClient

from support.documents import ROOT
from support.processes import Process, free_port
from support.wait import wait_until

DESK = ROOT / "examples" / "refund_desk"
SECRET = {"CELERY_AGENTS_TOKEN_SECRET": "not-a-secret-but-long-enough"}


class Service:
    """The example's web service, in a process of its own."""

    def __init__(self, folder: Path, redis_url: str) -> None:
        shutil.copytree(DESK, folder)
        port = free_port()
        command = [sys.executable, "-m", "uvicorn", "desk_service:api", f"--port={port}"]
        environment = {"PYTHONPATH": None, "CELERY_AGENTS_REDIS_URL": redis_url, **SECRET}
        self.process = Process("service", command, folder, environment)
        self.process.start()
        self.process.wait_for_text("Uvicorn running", 30)
        self._url = f"http://127.0.0.1:{port}"

    def call(self, path: str, body: Any = None, *, method: str = "GET", **query: str) -> tuple[int, Any]:
        """The status and the JSON of a reply."""
        data = None if body is None else json.dumps(body).encode()
        url = f"{self._url}{path}" + (f"?{urlencode(query)}" if query else "")
        headers = {"Content-Type": "application/json"}
        try:
            with urlopen(Request(url, data=data, headers=headers, method="POST" if data else method), timeout=20) as it:
                return it.status, json.loads(it.read())
        except HTTPError as error:
            return error.code, json.loads(error.read())

    def wait_for(self, session: str, *kinds: str) -> list[dict[str, Any]]:
        """The requests that a complaint waits for, when they are of these kinds."""
        found: list[dict[str, Any]] = []

        def is_asked() -> bool:
            told = self.call(f"/complaints/{session}")[1]
            found[:] = told["waits_for"]
            return told["status"] == "waiting" and sorted(each["kind"] for each in found) == sorted(kinds)

        wait_until(is_asked, f"it waits for {kinds}", 30)
        return sorted(found, key=lambda each: str(each["kind"]))


@pytest.fixture
def service(tmp_path: Path, redis_url: str) -> Iterator[Service]:
    started = Service(tmp_path / "service", redis_url)
    yield started
    started.process.end(patience=5.0)


def test_a_customer_a_manager_and_a_carrier_answer_though_every_worker_is_killed_meanwhile(
    service: Service, new_worker: Any, ledger: Any, tmp_path: Path, redis_url: str
) -> None:
    url = f"{ledger.url}/effect?dedupe=1"
    environment = {"PYTHONPATH": None, "PAYMENTS_URL": url, "CARRIER_URL": url, **SECRET}
    for number in (1, 2, 3):
        shutil.copytree(DESK, tmp_path / f"worker-{number}")
    worker = new_worker(agents="desk_agents", env=environment)
    complaint = {"text": "Order 18 arrived broken", "key": "mail-1"}
    ids = {service.call("/complaints", method="POST", **complaint)[1]["session_id"] for _ in range(2)}
    (session,) = ids

    (question,) = service.wait_for(session, "question")
    worker.kill()
    asked = service.call(f"/requests/{session}/{question['id']}")[1]["request"]
    door = f"/requests/{session}/{question['id']}"
    code, said = service.call(
        door, {"by": "customer", "digest": asked["digest"], "answer": {"answer": {"Wish": "tea"}}}
    )
    assert (code, "money, new" in said["error"], "'tea'" in said["error"]) == (422, True, True)
    wish = {"by": "customer", "digest": asked["digest"], "answer": {"answer": {"Wish": "money"}}}
    assert service.call(door, wish) == (200, {"outcome": "woken"})
    assert service.call(door, {**wish, "by": "customer again"})[0] == 409

    worker = new_worker(agents="desk_agents", env=environment)
    approval, pickup = service.wait_for(session, "approval", "external")
    worker.kill()
    (order,) = [entry for entry in ledger.entries() if "token" in entry]
    assert service.call("/carrier", {"token": order["token"], "day": "Friday"}) == (200, {"outcome": "woken"})
    assert service.call("/carrier", {"token": order["token"], "day": "Friday"}) == (200, {"outcome": "again"})
    code, said = service.call("/carrier", {"token": order["token"][:-2] + "AA", "day": "Friday"})
    assert (code, "token" in said["error"]) == (422, True)
    listed = service.call("/inbox/managers")[1]["requests"]
    assert [each["id"] for each in listed] == [approval["id"]]
    form = service.call(f"/requests/{session}/{approval['id']}")[1]["request"]
    given = {
        "by": "manager",
        "digest": form["digest"],
        "answer": {"approve": {"args": {"order": "18", "cents": "2000"}}},
    }
    door = f"/requests/{session}/{approval['id']}"
    code, said = service.call(door, given)
    assert (code, "args.cents" in said["error"]) == (422, True)
    given["answer"] = {"approve": {"args": {"order": "18", "cents": 2000}}}
    assert service.call(door, given)[0] == 200
    code, said = service.call(door, {**given, "by": "another manager", "answer": {"deny": "no"}})
    assert (code, "by manager" in said["error"]) == (409, True)
    assert service.call("/complaints/nobody")[0] == 404
    assert pickup["tool"] == "order_pickup"

    new_worker(agents="desk_agents", env=environment)
    assert AgentClient(redis_url).job(session).result(timeout=30).status == "completed"
    told = service.call(f"/complaints/{session}")[1]
    assert told["answer"] == "About order 18: refunded 20.00; fetched on Friday."
    paid = [entry for entry in ledger.entries() if entry.get("cents") is not None]
    assert [(entry["cents"], entry["effect"]) for entry in paid] == [(2000, True)]
    assert len([entry for entry in ledger.entries() if "token" in entry]) == 1
