"""A worker's memory while somebody who may write to a queue fills it with elements that are large once they are read."""

from __future__ import annotations

import base64
import json
import re
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from celery_agents import AgentClient

from support.agents import plan
from support.ledger import Ledger
from support.wait import wait_until
from support.worker_process import WorkerProcess

CONTROL = "celery_agents.control"
RECORDS = f"{CONTROL}.unacked"
MOST_BYTES = 512_000_000
ELEMENTS = 60

pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.leaves_keys("what was quarantined stays"),
    pytest.mark.filterwarnings("ignore:no worker has registered"),
]


def empty_objects(size: int) -> str:
    """JSON that takes twenty times its bytes in Python."""
    return "[" + ",".join(["{}"] * (size // 3)) + "]"


def wish(kwargs: str, **headers: object) -> str:
    """A call of `celery_agents.submit` as Celery writes it."""
    name = uuid.uuid4().hex
    body = base64.b64encode(f"[[], {kwargs}, {{}}]".encode()).decode()
    return json.dumps(
        {
            "body": body, "content-encoding": "utf-8", "content-type": "application/json",
            "headers": {"lang": "py", "task": "celery_agents.submit", "id": name, "root_id": name, **headers},
            "properties": {
                "correlation_id": name, "reply_to": "", "delivery_mode": 2, "priority": 0, "body_encoding": "base64",
                "delivery_info": {"exchange": "", "routing_key": CONTROL}, "delivery_tag": uuid.uuid4().hex,
            },
        }
    )  # fmt: skip


def large_text() -> str:
    return wish(json.dumps({"agent": "planned", "message": "x" * 2_900_000, "idempotency_key": uuid.uuid4().hex}))


ATTACKS: dict[str, Callable[[], str | bytes]] = {
    "values in the body": lambda: wish('{"metadata": %s}' % empty_objects(2_900_000)),  # noqa: UP031
    "values of a type": lambda: wish('{"a": {"__type__": "x"}, "b": %s}' % empty_objects(2_900_000)),  # noqa: UP031
    "values in the headers": lambda: wish("{}", more="@").replace('"@"', empty_objects(3_900_000)),
    "values alone": lambda: empty_objects(3_900_000),
    "a list of three": lambda: json.dumps(["x" * 3_900_000, "", ""]),
    "no UTF-8": lambda: b"\xff" * 3_900_000,
    "larger than an element may be": lambda: b"\xff" * 40_000_000,
    "a text that the task refuses": large_text,
}
LONG = (
    "values in the headers",
    "values alone",
    "no UTF-8",
    "values of a type",
    "a list of three",
    "larger than an element may be",
    "a text that the task refuses",
)


@pytest.mark.parametrize(
    "attack", [pytest.param(each, marks=pytest.mark.long if each in LONG else ()) for each in ATTACKS]
)
def test_a_worker_stays_small_and_does_other_jobs(
    attack: str,
    redis_url: str,
    redis_client: redis.Redis,
    new_worker: Callable[..., WorkerProcess],
    ledger: Ledger,
    tmp_path: Path,
) -> None:
    worker = new_worker(env=ledger.env, fresh=True)  # a fork has more in its memory
    client = AgentClient(redis_url)
    count = ELEMENTS // 4 if "larger" in attack else ELEMENTS
    for number in range(count):
        redis_client.lpush(CONTROL, ATTACKS[attack]())
        if number % (count // 3) == 0:
            job = client.submit("planned", plan(answer="fine"))
            assert job.result(timeout=60).final_response == "fine", worker.tail()
    wait_until(lambda: redis_client.llen(CONTROL) == redis_client.hlen(RECORDS) == 0, "all are taken", 60)
    peak = int(re.findall(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{worker.pid}/status").read_text())[0]) * 1024
    assert peak < MOST_BYTES, f"{peak / 1e6:.0f} MB"
    assert worker.alive
