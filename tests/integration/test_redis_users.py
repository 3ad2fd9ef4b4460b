"""The users of deploy/redis/users.acl on each server that can be had: who gets in, what a role may, what a restart keeps."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.exceptions import NoPermissionError
from redis.retry import Retry

from celery_agents import AgentClient
from celery_agents.config.settings import Settings
from celery_agents.flow import ProviderLimit
from celery_agents.tasks.observability.server_policy import parse_version
from celery_agents.worker.errors import NotConfirmed, StoreForbidden
from celery_agents.worker.store import keys
from celery_agents.worker.store.steps.provider_jobs import JobEntry
from celery_agents.worker.store.store import redis_store

from support.deployed import DEPLOY
from support.deployment import ROLES, Deployment
from support.forbidden import CONTROL, EVERYBODY, MAY, MAY_NOT, STEPS
from support.redis_server import servers
from support.wait import wait_until

QUESTION = "What is a lease?"


@pytest.fixture(scope="module", params=servers())
def users(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """Only a Redis with the users, of each server that can be had."""
    made = Deployment(tmp_path_factory.mktemp("users"), request.param)
    made.redis.start()
    try:
        wait_until(made._redis_answers, "Redis answers", 20, details=made.redis.tail)
        yield made
    finally:
        made.redis.end()


@pytest.mark.parametrize("role", ROLES)
def test_a_role_can_do_no_more_than_it_needs(users: Deployment, role: str) -> None:
    allowed = []
    for command in [each for each in [*EVERYBODY, *MAY_NOT[role]] if each not in MAY.get(role, ())]:
        # Each on a connection of its own: some would change what the connection is for.
        with users.client(role) as client:
            try:
                client.execute_command(*command)
                allowed.append(command)
            except NoPermissionError:
                pass
            except redis.ResponseError as error:
                if "nknown command" in str(error):
                    continue  # of newer servers
                if not re.search("(?i)permission|not allowed|can't (access|run)", str(error)):
                    allowed.append((*command, str(error)))
    assert allowed == []


def test_a_submitter_gives_no_key_another_type_where_redis_can_refuse_it(users: Deployment) -> None:
    """Redis 6.2 knows no command that goes with some keys only; there a worker leaves the queue out."""
    attacks = [
        ("SADD", CONTROL, "x"),
        ("SADD", f"{CONTROL}\x06\x163", "x"),
        ("LPUSH", f"_kombu.binding.{CONTROL}", "x"),
    ]
    with users.client("onlooker") as onlooker:
        is_old = onlooker.info("server")["redis_version"].startswith("6.")
    for attack in attacks:
        with users.client("submitter") as submitter:
            if is_old:
                submitter.execute_command(*attack)
                continue
            with pytest.raises(NoPermissionError):
                submitter.execute_command(*attack)
    with users.client("onlooker") as onlooker:
        onlooker.delete(*(attack[1] for attack in attacks))


def test_an_operator_ends_a_script_that_blocks_redis(users: Deployment) -> None:
    # Without retries, which would begin the script anew.
    password = (users.secrets / "redis-worker").read_text()
    retry = Retry(NoBackoff(), 0)
    blocked = redis.Redis(port=users.port, username="worker", password=password, retry=retry, socket_timeout=60)
    ended: list[redis.RedisError] = []
    endless = threading.Thread(target=_expect_an_end, args=(blocked, ended), daemon=True)
    endless.start()
    try:
        with users.client("operator") as operator:
            # Redis answers five seconds later, when the operator's connection may have asked again and is told of no script.
            wait_until(lambda: _kill_script(operator) or ended, "the script is ended", 20)
    finally:
        endless.join(20)
        blocked.close()
    assert ["killed by user" in str(each) for each in ended] == [True], ended
    wait_until(users._redis_answers, "Redis answers again", 20)


def _expect_an_end(client: redis.Redis, ended: list[redis.RedisError]) -> None:
    try:
        client.eval("while true do end", 0)
    except redis.RedisError as error:
        ended.append(error)


def _kill_script(operator: redis.Redis) -> bool:
    try:
        return bool(operator.execute_command("SCRIPT", "KILL"))
    except redis.ResponseError:  # it has not begun
        return False


@pytest.mark.parametrize("role", ["producer", "http", "worker"])
def test_a_role_that_confirms_may_wait_for_replicas(users: Deployment, role: str) -> None:
    settings = Settings.build(redis_url=users.url(role), replicas=1, replica_timeout_seconds=0.05)
    store = redis_store(settings, name=role)
    confirmer, context = store.context.confirmer, store.context
    assert confirmer is not None
    with pytest.raises(NotConfirmed) as refused, confirmer.acknowledging(context.shards[0]):
        context.database.pipeline("test", [("EXISTS", "ca:shards")])
    assert refused.value.why == "0 of 1 replicas have it", "it was written and waited for, and the server told its id"
    store.close()


def test_without_a_password_nobody_gets_in(users: Deployment) -> None:
    nobody = [
        (None, None),
        (None, "x"),
        ("default", ""),
        ("default", "x"),
        ("default", "default"),
        ("worker", "worker"),
    ]
    for name, password in [*nobody, *((role, "") for role in ROLES)]:
        client = redis.Redis(port=users.port, username=name, password=password, retry=Retry(NoBackoff(), 0))
        with client, pytest.raises(redis.RedisError, match=r"(?i)authenticat|WRONGPASS|invalid"):
            client.ping()


def test_what_was_written_is_there_after_a_restart(users: Deployment) -> None:
    """Releases since 7.0 replay a transaction with the rights of the user default."""
    client = AgentClient(users.url("producer"))
    with pytest.warns(UserWarning, match="no worker has registered"):
        submitted = client.submit("nobody", QUESTION)
    client.write_metadata(submitted.session_id, "order", 17)
    with users.client("worker") as worker:
        with worker.pipeline(transaction=True) as transaction:
            transaction.hset("ca:{0}:s:written", "version", "1").zadd("ca:{0}:due", {"written": 1})
            transaction.lpush(STEPS, "x").execute()
        worker.eval("redis.call('set', KEYS[1], '1') redis.call('xadd', KEYS[2], '*', 'a', 'b')", 2, "ca:s", "ca:x")
    users.redis.terminate()
    users.redis.wait(20)
    users.redis.start()
    wait_until(users._redis_answers, "Redis answers", 20, details=users.redis.tail)
    read = AgentClient(users.url("producer")).show(submitted.session_id)
    assert read.state.metadata["order"] == 17
    with users.client("worker") as worker:
        there = ("ca:{0}:s:written", "ca:{0}:due", STEPS, "ca:s", "ca:x")
        assert worker.exists(*there) == len(there)
        worker.delete(*there)
    assert find_restart(users.agents("monitor", "doctor", "--json").stdout)["level"] == "ok"


@pytest.mark.parametrize("role", ["producer", "http"])
def test_services_set_limits_and_pause_and_monitoring_sees_them(users: Deployment, role: str) -> None:
    with AgentClient(users.url(role)) as client, AgentClient(users.url("monitor")) as looks:
        with users.client("worker") as worker, worker.pubsub() as listening:
            listening.subscribe(keys.FLOW_CHANNEL)
            wait_until(lambda: listening.get_message(timeout=1) is not None, "it listens", 10)
            client.limits.set(ProviderLimit("openai:gpt-5-mini", rpm=500), by=role)
            wait_until(lambda: listening.get_message(timeout=1) is not None, "workers are told", 10)
        client.pause(model="openai:gpt-5-mini", reason="a look at the invoice")
        assert [each.limit.by for each in looks.limits.list() if each.limit is not None] == [role]
        assert [each.name for each in looks.pauses()] == ["openai:gpt-5-mini"]
        for forbidden in (lambda: looks.pause(agent="a", reason="x"), lambda: looks.limits.remove("openai:gpt-5-mini")):
            with pytest.raises(StoreForbidden):
                forbidden()
        assert client.unpause(model="openai:gpt-5-mini")
        assert client.limits.remove("openai:gpt-5-mini")
        assert (looks.pauses(), looks.limits.list()) == ((), ())


def test_a_webhook_of_a_provider_wakes_a_step_by_the_user_of_the_http_server(users: Deployment) -> None:
    with AgentClient(users.url("http")) as client, users.client("worker") as worker:
        with pytest.warns(UserWarning, match="no worker has registered"):
            job = client.submit("nobody", QUESTION)
        scope = client.store.context.session(job.session_id)
        entry = JobEntry(
            id="resp_1", handle="{}", key="ca-1", session_id=job.session_id, execution_id=job.execution_id, step=1, job=0,
            agent="nobody", model="openai:gpt-5-mini", window="8h", since_ms=1, due_ms=2,
        )  # fmt: skip
        worker.hset(scope.keys.shard.jobs, entry.id, entry.to_json())
        later = client.store.context.now_ms() + 3_600_000
        worker.hset(scope.keys.ctl, mapping={"put_off": "job", "not_before": later})
        assert client.wake_provider_job("resp_1")
        assert worker.hmget(scope.keys.ctl, "put_off", "not_before") != ["job", str(later)]
        assert not client.wake_provider_job("resp_2")
        client.store.housekeeping.forget_job(entry)
        client.delete(job.session_id)


def find_restart(said: str) -> dict[str, str]:
    """What doctor finds about a restart; about Redis as a whole where this user may ask for nothing."""
    (found,) = (each for each in map(json.loads, said.splitlines()) if each["name"] in ("restart", "redis"))
    return found


@pytest.mark.parametrize("role", ["monitor", "worker", "http"])
def test_doctor_tells_of_users_by_whom_a_restart_would_lose_jobs(users: Deployment, role: str) -> None:
    with users.client("onlooker") as onlooker:
        facts = onlooker.info()
        onlooker.acl_setuser("default", enabled=False, reset_keys=True, reset_channels=True, categories=["-@all"])
        try:
            said = users.agents(role, "doctor", "--json").stdout
        finally:
            onlooker.execute_command("ACL", "SETUSER", "default", "resetpass", "~*", "&*", "+@all")
    found = find_restart(said)
    if role == "http":  # it may not even ask for the version
        assert (found["name"], found["level"]) == ("redis", "warn")
    elif facts["redis_version"].startswith("6.2") or parse_version(facts.get("valkey_version", "0")) >= (9, 1, 2):
        assert found["level"] == "ok"
    else:
        assert found["level"] == "fail"
        assert "HSET" in found["what"]
        assert "user default off resetpass ~* &* +@all" in found["advice"]


def test_a_user_who_may_not_ask_for_rights_gets_a_sentence_and_no_alarm(users: Deployment) -> None:
    with users.client("onlooker") as onlooker:
        onlooker.execute_command("ACL", "SETUSER", "monitor", "-acl")
        try:
            said = users.agents("monitor", "doctor", "--json").stdout
        finally:
            onlooker.execute_command("ACL", "SETUSER", "monitor", "+acl|dryrun")
    assert find_restart(said)["level"] == "ok"


def test_a_password_for_the_user_default_is_refused_before_redis_starts(users: Deployment, tmp_path: Path) -> None:
    (tmp_path / "redis-default").write_text("0123456789abcdef")
    places = {"CREDENTIALS_DIRECTORY": tmp_path, "RUNTIME_DIRECTORY": tmp_path, "STATE_DIRECTORY": tmp_path}
    done = users.run("sh", DEPLOY / "redis" / "start-redis", more=places)
    assert done.returncode == 78
    assert "redis-default" in done.stderr


def test_a_short_password_is_refused_before_redis_starts(users: Deployment, tmp_path: Path) -> None:
    (tmp_path / "redis-worker").write_text("short")
    places = {"CREDENTIALS_DIRECTORY": tmp_path, "RUNTIME_DIRECTORY": tmp_path, "STATE_DIRECTORY": tmp_path}
    done = users.run("sh", DEPLOY / "redis" / "start-redis", more=places)
    assert done.returncode == 78
    assert "less than 16" in done.stderr
