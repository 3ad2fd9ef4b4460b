"""Sessions whose stored state nobody can read are parked by name, and all others go on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.lab import Lab
from support.redis_keys import session_key
from support.wait import wait_until

pytestmark = pytest.mark.timeout(200)


@pytest.mark.leaves_keys("parked sessions stay until somebody has looked at them")
def test_a_session_that_cannot_be_read_is_parked_by_name_and_all_others_go_on(tmp_path: Path) -> None:
    with Lab(tmp_path / "lab") as lab:
        jobs = {name: lab.submit(["keyed"]) for name in ("flipped", "newer", "message", "whole")}
        key = {name: session_key(job.session_id) for name, job in jobs.items()}
        head = str(lab.redis.hget(key["flipped"], "head"))
        lab.redis.hset(key["flipped"], "head", "~" + head[1:])
        newer = json.loads(str(lab.redis.hget(key["newer"], "head")))
        newer["state"]["schema_version"] = 99
        lab.redis.hset(key["newer"], "head", json.dumps(newer))
        (messages,) = list(lab.redis.scan_iter(f"{key['message']}:m:*"))
        lab.redis.lset(messages, 0, "\x00")
        worker = lab.worker()
        lab.wait_for_jobs(30, [jobs["whole"]])
        assert lab.client.header(jobs["whole"].session_id).status == "completed"
        broken = [jobs[name].session_id for name in ("flipped", "newer", "message")]
        wait_until(
            lambda: all(lab.client.header(name).status == "parked" for name in broken), "they are parked", 30,
            details=lambda: ([lab.client.header(name) for name in broken], worker.tail(20)),
        )  # fmt: skip
        reasons = {entry["session"]: entry["reason"] for entry in lab.client.store.housekeeping.list_dead()}
        assert set(reasons) == set(broken)
        assert all(reasons.values())
        assert {header.session_id for header in lab.client.list().items} == {job.session_id for job in jobs.values()}
        lab.submit(["unsafe"])
        lab.wait_for_jobs(30, [lab.jobs[-1]])
        assert worker.alive
        assert lab.client.store.housekeeping.backlog()[0] == 0
