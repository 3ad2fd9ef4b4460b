"""The archive with the users of deploy/redis/users.acl: workers move and delete, services read and restore, others read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from celery_agents import AgentClient
from celery_agents.config.settings import Settings
from celery_agents.worker.errors import SessionDeleted

from support.agents import plan
from support.deployment import Deployment
from support.ledger import Ledger
from support.redis_server import find_binary, servers
from support.wait import wait_until
from support.worker_process import WorkerProcess

pytestmark = pytest.mark.timeout(180)


EACH = [pytest.param(*each.values, id=each.id, marks=[*each.marks, pytest.mark.long]) for each in servers()]


@pytest.fixture(
    params=[pytest.param(find_binary(), id="default"), *EACH]
)  # test_redis_users looks at each in the suite
def users(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Deployment]:
    """Only a Redis with the users, of each server that can be had."""
    made = Deployment(tmp_path / "users", request.param)
    made.redis.start()
    try:
        wait_until(made._redis_answers, "Redis answers", 20, details=made.redis.tail)
        yield made
    finally:
        made.redis.end()


def test_no_role_needs_another_right_for_the_archive(users: Deployment, tmp_path: Path, ledger: Ledger) -> None:
    archive = {"archive_url": f"sqlite:///{tmp_path}/history.db", "archive_settle_seconds": 0.2}
    producer, http, monitor = (
        AgentClient(settings=Settings.build(redis_url=users.url(role), **archive))
        for role in ("producer", "http", "monitor")
    )
    env = {f"CELERY_AGENTS_{name.upper()}": str(value) for name, value in archive.items()}
    env |= {"CELERY_AGENTS_ARCHIVE_AFTER_SECONDS": "0.2", **ledger.env}
    worker = WorkerProcess(tmp_path / "worker", users.url("worker"), env=env)
    worker.start()
    try:
        job = producer.submit("planned", plan(answer="the teapot"), labels={"user": "7"})
        job.result(timeout=60)
        name = job.session_id

        def is_archived() -> bool:
            return producer.header(name).is_archived

        wait_until(is_archived, "the worker has moved it", 60, details=worker.tail)
        for client in (producer, http, monitor):
            assert client.show(name).state.final_response == "the teapot"
            assert client.job(name).result().final_response == "the teapot"
        for client in (http, monitor):
            assert [each.session_id for each in client.list(label={"user": "7"})] == [name]
            assert client.costs().total.executions == 1
            assert [each["session_id"] for each in client.export_archive()] == [name]
        for client, answer in ((producer, "two"), (http, "three")):
            assert client.send_message(name, plan(answer=answer)).result(timeout=60).final_response == answer
            wait_until(is_archived, "the worker has moved it again", 60, details=worker.tail)
        assert producer.delete(name)
        with pytest.raises(SessionDeleted):
            http.show(name)
        wait_until(lambda: http.archive_status().tombstones == 1, "the worker has deleted its row", 60)
        assert http.archive_status().sessions == 0
        assert "stay in Redis" not in worker.text()
    finally:
        worker.end()
