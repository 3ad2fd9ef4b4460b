"""A real failover that loses writes: who says what was lost."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from celery_agents.config.settings import Settings
from celery_agents.tasks.observability.doctor.checks import examine

from support import fork_server
from support.failover_lab import FailoverLab
from support.sentinels import SENTINEL_MISSING, find_sentinel
from support.wait import wait_until

pytestmark = [
    pytest.mark.long,  # it waits for a failover of its own
    pytest.mark.skipif(find_sentinel() is None, reason=SENTINEL_MISSING),
]
_STEPS = 12


@pytest.mark.timeout(120)
def test_a_failover_that_loses_writes_says_what_was_lost(tmp_path: Path) -> None:
    with FailoverLab(tmp_path / "lab", group={"servers": 2, "down_after_ms": 500}) as lab:
        worker = lab.worker()
        jobs = [lab.submit(*[["unsafe", "pure"]] * _STEPS, after=0.2) for _ in range(5)]

        def steps(job: int) -> int:
            return len(lab.client.show(jobs[job].session_id).state.execution.step_executions)  # type: ignore[union-attr]

        wait_until(lambda: all(steps(job) > 1 for job in range(5)), "all have made steps", 20)
        (replica,) = lab.group.replicas
        with replica.client() as client:
            client.replicaof("127.0.0.1", "1")  # it hears nothing from here on
        lost = lab.submit(["unsafe"], *[["pure"]] * _STEPS, after=0.2)
        before = [steps(job) for job in range(5)]
        wait_until(lambda: all(steps(job) > before[job] + 1 for job in range(5)), "steps that no replica has", 20)
        lab.kill_primary()
        lab.connect_again()
        lab.wait_for_jobs(60, jobs)
        worker.wait_for_text("Redis has lost the end of", 20)
        worker.wait_for_text(f"Redis has lost 1 sessions: {lost.session_id}", 20)
        for job in jobs:
            events = [each for each in lab.client.store.sessions.events(job.session_id) if each.type == "history_lost"]
            (data,) = [each.data for each in events]
            assert data["found_version"] < data["known_version"]
            assert len(data["steps"]) >= 2
            assert [call["tool"] for call in data["calls"]] == ["unsafe"] * len(data["steps"])
        found = {each.what for each in examine(Settings.build(redis_url=lab.store_url)) if each.name == "history lost"}
        assert {what.partition(":")[0] for what in found} == {job.session_id for job in jobs}
        command = [sys.executable, "-m", "celery_agents", "show", jobs[0].session_id, "--redis-url", lab.store_url]
        shown = fork_server.run(command).stdout
        assert "; their effects have happened, and may happen again: unsafe in step" in shown
        assert not lab.verdict(jobs=jobs).counts["unknown_unsafe"]


@pytest.mark.timeout(120)
def test_a_failover_that_forgets_the_claims_of_many_sleeping_steps_ends_no_worker(tmp_path: Path) -> None:
    with FailoverLab(tmp_path / "lab", group={"servers": 2, "down_after_ms": 500}) as lab:
        worker = lab.worker()
        (replica,) = lab.group.replicas
        with replica.client() as client:
            client.replicaof("127.0.0.1", "1")  # it hears nothing from here on
        forgotten = [lab.submit(["pure"], after=7) for _ in range(30)]
        wait_until(lambda: lab.ledger.deliveries().total() >= len(forgotten), "their functions sleep", 20)
        lab.kill_primary()
        lab.connect_again()
        worker.wait_for_text("does not react; its slot is lost until it does", 20)
        later = lab.submit(["pure"])
        time.sleep(3)  # before, the worker drained within a second, as if the functions would never return
        lab.wait_for_jobs(30, [later])
        assert worker.alive, worker.tail(40)
        assert "slots are lost" not in worker.text()
