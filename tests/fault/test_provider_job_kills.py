"""kill -9 of workers at every crash point, while answers are waited for at a provider that has a book of its own.

The campaign does it at length, at every crash point, with four agents, and with a Redis that is killed, too.
"""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from fault.real.provider_jobs import kill_jobs, stage
from support.wait import wait_until

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:no worker has registered"),
]


def test_each_answer_is_paid_once_while_workers_die(tmp_path: Path) -> None:
    verdict = kill_jobs(tmp_path, ("within_8h", "chat"), 1, 1, points=("p0", "p1", "p2", "c2"), timeout=90)
    print(verdict)
    assert not verdict.violations, str(verdict)
    assert not verdict.vacuous(("within_8h_jobs", "kills_p0", "kills_p1", "kills_p2", "kills_c2")), str(verdict)


def test_a_cancelled_job_that_had_answered_is_charged_once_although_its_worker_dies(tmp_path: Path) -> None:
    with stage(tmp_path) as played:
        lab, book = played.lab, played.provider.book
        dying = lab.worker(crash="p3:1:1")
        played.provider.control("plan", contains="too late", held=True)
        job = lab.client.submit("within_8h", "too late")
        ctl = lab.client.store.context.session(job.session_id).keys.ctl
        wait_until(lambda: lab.redis.hget(ctl, "put_off") == "job", "its step is at the provider", 15)
        lab.client.suspend(job.session_id, reason="nobody takes the answer")
        played.provider.control("release", id=book.created()[0]["id"])
        lab.client.stop(job.session_id)
        assert job.result(timeout=10).status == "stopped"
        assert dying.wait(15) == -9
        assert not job.result(timeout=10).cost
        lab.worker()
        wait_until(lambda: book.lines("delete"), "its copy is deleted", 15)
        (paid,) = book.paid()
        assert paid["dollars"] > 0
        assert math.isclose(job.result(timeout=10).cost or 0.0, paid["dollars"], rel_tol=1e-6)
        assert math.isclose(lab.client.costs().total.cost, paid["dollars"], rel_tol=1e-6)
